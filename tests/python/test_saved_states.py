# SPDX-License-Identifier: Apache-2.0
"""States that were saved by earlier versions can still be loaded, as docs/stability.md promises.

states/format_<number>.npz has, for every preset, the states of three ranks after five steps, and the sum of the sixth
step. `python tests/python/test_saved_states.py NUMBER` writes the file of a new format; files of older ones stay.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
from ranks import in_threads

import oktopk

STATES = Path(__file__).parent / "states"
FORMATS = sorted(path.stem for path in STATES.glob("format_*.npz"))
N, P, STEPS = 400, 3, 5
PRESETS = [name for name, _ in oktopk.presets()]


def gradient(rank, step):
    """Whole numbers, from no library's generator: the same for ever."""
    numbers = (np.arange(N, dtype=np.int64) * 7919 + 104729 * rank + 1299709 * step) % 2003
    return (numbers - 1001).astype(np.float32)


def reducer(comm, preset):
    return oktopk.Reducer(comm, N, preset=preset, density=0.05)


def dense(update):
    mean = np.zeros(N, np.float32)
    update.subtract_from(mean, -1.0)
    return mean


def continued(preset, states, load):
    """The sum of the step after the saved ones, on each rank."""

    def body(comm):
        resumed = reducer(comm, preset)
        load(resumed, comm.rank, states)
        assert resumed.steps == STEPS
        return dense(resumed.step(gradient(comm.rank, STEPS)))

    return in_threads(P, body)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_state_of_an_earlier_version_goes_on_bitwise(name, preset):
    saved = np.load(STATES / f"{name}.npz")
    if f"{preset}.sum" not in saved:
        pytest.skip(f"{preset} is younger than {name}")
    states = [saved[f"{preset}.{rank}"].tobytes() for rank in range(P)]
    for mean in continued(preset, states, lambda r, rank, s: r.load(s[rank])):
        assert np.array_equal(mean, saved[f"{preset}.sum"])
    for mean in continued(preset, states, lambda r, rank, s: r.load_all(s)):
        assert np.array_equal(mean, saved[f"{preset}.sum"])


def test_there_are_states_of_the_present_format():
    state = in_threads(1, lambda comm: reducer(comm, "circulant").save())[0]
    number = int.from_bytes(state[8:12], "little")
    assert f"format_{number}" in FORMATS


def write(number):
    arrays = {}
    for preset in PRESETS:

        def body(comm, preset=preset):
            saving = reducer(comm, preset)
            for step in range(STEPS):
                saving.step(gradient(comm.rank, step))
            state = saving.save()
            return state, dense(saving.step(gradient(comm.rank, STEPS)))

        results = in_threads(P, body)
        arrays[f"{preset}.sum"] = results[0][1]
        for rank, (state, _) in enumerate(results):
            arrays[f"{preset}.{rank}"] = np.frombuffer(state, np.uint8)
    STATES.mkdir(exist_ok=True)
    np.savez_compressed(STATES / f"format_{number}.npz", **arrays)


if __name__ == "__main__":
    write(int(sys.argv[1]))
