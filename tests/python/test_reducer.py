# SPDX-License-Identifier: Apache-2.0
"""Reducer from Python, on threads: the laws that C++ proves, seen through the binding."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
from ranks import in_threads

import oktopk

PRESETS = [name for name, _ in oktopk.presets()] + ["auto"]
N = 2000


def gradients(rank, step, n=N):
    """Skewed: most of the mass of odd ranks is in the first tenth."""
    rng = np.random.default_rng((rank, step))
    g = rng.standard_normal(n).astype(np.float32)
    if rank % 2:
        g[: n // 10] *= 30
    return g


def unsent(reducer):
    total = reducer.residual.astype(np.float64)
    first, memory = reducer.memory
    total[first : first + len(memory)] += memory
    return total


@pytest.mark.parametrize("P", [1, 2, 3, 5])
@pytest.mark.parametrize("preset", PRESETS)
def test_mass_is_conserved_and_ranks_agree(preset, P):
    def body(comm):
        reducer = oktopk.Reducer(comm, N, preset=preset, density=0.02)
        applied = np.zeros(N, np.float64)
        for step in range(6):
            update = reducer.step(gradients(comm.rank, step))
            dense = np.zeros(N, np.float32)
            update.subtract_from(dense, -1.0)
            applied += dense
        return applied, unsent(reducer)

    results = in_threads(P, body)
    for applied, _ in results:
        assert np.array_equal(applied, results[0][0])
    given = sum(gradients(rank, step).astype(np.float64) for rank in range(P) for step in range(6))
    found = P * results[0][0] + sum(rest for _, rest in results)
    assert np.allclose(found, given, atol=2e-3 * np.abs(given).max())


@pytest.mark.parametrize("P", [1, 3])
def test_adaptive_density_follows_its_target_within_its_budget(P):
    options = {"preset": "circulant", "density": 0.02, "adaptive_interval": 4}

    def body(comm):
        free = oktopk.Reducer(comm, N, adaptive_share=0.95, **options)
        bound = oktopk.Reducer(comm, N, adaptive_share=0.95, adaptive_budget=0.025, **options)
        ks = []
        for step in range(40):
            free.step(gradients(comm.rank, step))
            bound.step(gradients(comm.rank, step))
            ks.append((free.stats["k"], bound.stats["k"], free.stats["share"]))
        again = oktopk.Reducer(comm, N, adaptive_share=0.95, **options)
        again.load(free.save())
        free.step(gradients(comm.rank, 40))
        again.step(gradients(comm.rank, 40))
        assert again.stats["k"] == free.stats["k"]
        return ks

    results = in_threads(P, body)
    assert all(ks == results[0] for ks in results)
    free, bound, shares = zip(*results[0])
    assert free[0] == 0.02 * N and free[-1] > 0.1 * N
    assert all(sum(bound[: t + 1]) <= 0.025 * N * (t + 1) for t in range(40))
    assert [t for t, share in enumerate(shares) if share > 0] == list(range(3, 40, 4))


def test_the_bytes_of_a_step_are_not_those_of_auto_s_calibration():
    def body(comm):
        reducer = oktopk.Reducer(comm, N, density=0.02, review=False)
        counts = []
        for step in range(3):
            reducer.step(gradients(comm.rank, step))
            counts.append(reducer.stats["wire_bytes"])
        return counts

    for first, second, third in in_threads(3, body):
        assert first <= max(second, third) + 4096  # the agreement on options is part of it


@pytest.mark.parametrize("preset", ["circulant", "oktopk", "dense"])
def test_density_one_is_the_mean(preset):
    results = in_threads(
        3, lambda comm: oktopk.Reducer(comm, N, preset=preset, k=N).step(gradients(comm.rank, 0))
    )
    mean = sum(gradients(rank, 0) for rank in range(3)) / 3
    got = np.zeros(N, np.float32)
    results[0].subtract_from(got, -1.0)
    assert np.allclose(got, mean, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("P", [2, 3])
def test_save_and_load_continue_bit_by_bit(P):
    def body(comm):
        straight = oktopk.Reducer(comm, N, preset="circulant", density=0.02)
        for step in range(4):
            straight.step(gradients(comm.rank, step))
        state = straight.save()
        fresh = oktopk.Reducer(comm, N, preset="circulant", density=0.02)
        fresh.load(state)
        a = straight.step(gradients(comm.rank, 4))
        b = fresh.step(gradients(comm.rank, 4))
        return a, b, state

    for a, b, _ in in_threads(P, body):
        assert np.array_equal(a.indices, b.indices) and np.array_equal(a.values, b.values)


def test_load_all_keeps_what_is_owed_on_other_ranks():
    def first(comm):
        reducer = oktopk.Reducer(comm, N, preset="circulant", density=0.02)
        for step in range(4):
            reducer.step(gradients(comm.rank, step))
        return reducer.save(), unsent(reducer)

    saved = in_threads(4, first)

    def second(comm):
        reducer = oktopk.Reducer(comm, N, preset="circulant", density=0.02)
        reducer.load_all([state for state, _ in saved])
        return unsent(reducer)

    owed = sum(rest for _, rest in saved) / 4
    assert np.allclose(sum(in_threads(2, second)) / 2, owed, atol=1e-4 * np.abs(owed).max())


def test_snapshot_goes_back_bit_by_bit():
    def body(comm):
        reducer = oktopk.Reducer(comm, N, preset="circulant", density=0.02)
        core = reducer._core
        reducer.step(gradients(comm.rank, 0))
        before = reducer.residual
        core.keep_snapshot()
        reducer.step(gradients(comm.rank, 1))
        assert not np.array_equal(before, reducer.residual)
        core.go_back()
        return np.array_equal(before, reducer.residual)

    assert all(in_threads(3, body))


def test_half_precision_gradients_are_taken():
    def body(comm):
        reducer = oktopk.Reducer(comm, N, preset="circulant", k=N)
        return reducer.step(gradients(comm.rank, 0).astype(np.float16))

    got = np.zeros(N, np.float32)
    in_threads(2, body)[0].subtract_from(got, -1.0)
    mean = sum(gradients(r, 0).astype(np.float16).astype(np.float32) for r in range(2)) / 2
    assert np.allclose(got, mean, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"density": 0.0}, "density = 0"),
        ({"density": 1.5}, "density = 1.5"),
        ({"preset": "toptop"}, "unknown preset 'toptop'"),
        ({"codec": "zip"}, "zip"),
        ({"speed": 3}, "unknown option 'speed'"),
        ({"k": 0}, "k = 0"),
        ({"k": N + 1}, f"k = {N + 1}"),
        ({"density": "much"}, "density = 'much' is of the wrong type"),
        ({"nan_policy": "pray"}, "pray"),
    ],
)
def test_bad_options_are_refused_in_words(options, words):
    comm = oktopk.thread_world(1)[0]
    with pytest.raises(oktopk.UsageError, match=words):
        oktopk.Reducer(comm, N, **options)


@pytest.mark.parametrize(
    "gradient, words",
    [
        (np.zeros(N, np.float64), "float32"),
        (np.zeros(N, np.int32), "float32"),
        (np.zeros(N - 1, np.float32), f"{N - 1}"),
        (np.full(N, np.nan, np.float32), "nan"),
    ],
)
def test_bad_gradients_are_refused_in_words(gradient, words):
    reducer = oktopk.Reducer(oktopk.thread_world(1)[0], N, preset="circulant")
    with pytest.raises(oktopk.UsageError, match=words):
        reducer.step(gradient)
    reducer.step(gradients(0, 0))  # and nothing is broken


def test_different_options_on_ranks_are_refused_on_all():
    def body(comm):
        reducer = oktopk.Reducer(comm, N, preset="circulant", density=0.01 * (1 + comm.rank))
        with pytest.raises(oktopk.UsageError):
            reducer.step(gradients(comm.rank, 0))
        return True

    assert all(in_threads(3, body))


def test_explain_ranks_candidates_and_always_has_dense():
    slow, fast = oktopk.Profile(), oktopk.Profile()
    slow.machine.beta, fast.machine.beta = 8e-8, 1e-12  # 100 Mbit/s; 8 Tbit/s
    first = oktopk.explain(10_000_000, 0.01, 8, slow)
    assert first[0].preset != "dense"
    assert "dense" in [c.preset for c in first]
    assert [c.seconds for c in first[1:]] == sorted(c.seconds for c in first[1:])
    assert oktopk.explain(10_000_000, 0.5, 8, fast)[0].preset == "dense"


def test_profile_survives_pickling():
    import pickle

    profile = oktopk.Profile()
    profile.name, profile.machine.beta = "mine", 8e-8
    again = pickle.loads(pickle.dumps(profile))
    assert (again.name, again.machine.beta) == ("mine", 8e-8)


def test_errors_have_the_names_that_users_write():
    for error in (oktopk.UsageError, oktopk.CommError, oktopk.DeviceError):
        assert f"{error.__module__}.{error.__qualname__}" == f"oktopk.{error.__name__}"
        assert type(pickle.loads(pickle.dumps(error("x")))) is error


def test_an_object_that_outlives_the_interpreter_is_no_page_of_warnings():
    """As torch keeps the hooks of FSDP, and our Reducers with them."""
    script = (
        "import ctypes, oktopk\n"
        "reducer = oktopk.Reducer(oktopk.thread_world(1)[0], 100)\n"
        "ctypes.pythonapi.Py_IncRef(ctypes.py_object(reducer))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
