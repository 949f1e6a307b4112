# SPDX-License-Identifier: Apache-2.0
"""Steps in two halves from Python: a step that is rolled back and proposed again gives the bits of one step, and a
Reducer that moves to other ranks takes its unsent values along."""

import numpy as np
import pytest
from ranks import in_threads

import oktopk
from oktopk import _core

N = 500


def gradient(step, rank):
    values = np.random.default_rng(100 * step + rank).standard_normal(N).astype(np.float32)
    values[:5] *= 50  # skewed
    return values


def steps(comm, is_tentative, preset):
    core = _core.Reducer(comm, N, {"preset": preset, "density": 0.05})
    means = []
    for step in range(6):
        mine = gradient(step, comm.rank)
        if is_tentative:
            core.propose(mine)
            core.roll_back()
            assert not core.is_open
            core.propose(mine, 1.0)
            assert core.is_open
            core.commit()
        else:
            core.step(mine)
        mean = np.empty(N, np.float32)
        core.write_update(mean)
        means.append(mean)
    return np.concatenate([*means, core.residual])


@pytest.mark.parametrize("preset", ["circulant", "oktopk", "dense"])
def test_a_step_that_is_taken_back_and_made_again_gives_the_same_bits(preset):
    options = [in_threads(3, steps, is_tentative, preset) for is_tentative in (False, True)]
    for plain, tentative in zip(*options):
        assert np.array_equal(plain, tentative)


def unsent(core):
    values = core.residual
    first, memory = core.memory
    values[first : first + len(memory)] += memory
    return values


def moving(comm):
    core = _core.Reducer(comm, N, {"preset": "circulant", "density": 0.05})
    core.step(gradient(0, comm.rank))
    before = unsent(core)
    core.move_to(comm.split(comm.rank % 2))
    assert np.array_equal(unsent(core), before)
    assert core.steps == 1
    core.step(gradient(1, comm.rank))
    mean = np.empty(N, np.float32)
    core.write_update(mean)
    return comm.rank % 2, mean


def test_a_reducer_moves_to_other_ranks():
    means = in_threads(3, moving)
    assert np.array_equal(means[0][1], means[2][1])
    assert not np.array_equal(means[0][1], means[1][1])


def test_half_steps_in_the_wrong_order_are_refused():
    def body(comm):
        core = _core.Reducer(comm, N, {"preset": "circulant", "density": 0.05})
        for call in (core.commit, core.roll_back):
            with pytest.raises(oktopk.UsageError, match="without"):
                call()
        core.propose(None)
        for call in (lambda: core.propose(None), lambda: core.step(None), lambda: core.move_to(comm), core.save):
            with pytest.raises(oktopk.UsageError, match="open"):
                call()
        core.roll_back()
        nodes = _core.Reducer(comm, N, {"preset": "circulant", "density": 0.05, "group_size": 2})
        with pytest.raises(oktopk.UsageError, match="group_size"):
            nodes.propose(None)

    in_threads(3, body)
