# SPDX-License-Identifier: Apache-2.0
"""Reducer, NodeReducer and BucketedReducer from Python, on threads: the laws that C++ proves, seen through the binding;
bad use; steps in two halves."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
from ranks import in_threads

import oktopk
from oktopk import _core

N = 2000
OPTIONS = {"preset": "circulant", "density": 0.02}
SUBJECTS = [{"preset": name} for name in [*(name for name, _ in oktopk.presets()), "auto"]]
SUBJECTS += [
    {"preset": preset, "group_size": size} for preset in ("circulant", "oktopk", "auto") for size in (1, 2, 3, "host")
]


def gradients(rank, step, n=N):
    """Skewed: most of the mass of odd ranks is in the first tenth."""
    rng = np.random.default_rng((rank, step))
    g = rng.standard_normal(n).astype(np.float32)
    if rank % 2:
        g[: n // 10] *= 30
    return g


def as_dense(update, n=N):
    dense = np.zeros(n, np.float32)
    update.subtract_from(dense, -1.0)
    return dense


def unsent(reducer):
    total = reducer.residual.astype(np.float64)
    first, memory = reducer.memory
    total[first : first + len(memory)] += memory
    return total


@pytest.mark.parametrize("P", [1, 3, 5])
@pytest.mark.parametrize("options", SUBJECTS, ids=lambda o: "-".join(map(str, o.values())))
def test_mass_is_conserved_ranks_agree_and_states_go_on(options, P):
    def body(comm):
        own = {"density": 0.02, **options}
        if options["preset"] == "auto" and "group_size" in options:
            own["profile"] = oktopk.calibrate(comm, 0.01)
        reducer, again = (oktopk.Reducer(comm, N, **own) for _ in range(2))
        applied = sum(as_dense(reducer.step(gradients(comm.rank, step))).astype(float) for step in range(5))
        if "group_size" in options:
            assert comm.rank in reducer.leaders or reducer.unsent_norm == 0
        assert reducer.stats["step"] == reducer.steps == 5
        assert reducer.k == round(0.02 * N) or options["preset"] == "dense"
        state, owed = reducer.save(), unsent(reducer)
        again.load(state)
        a, b = (as_dense(r.step(gradients(comm.rank, 5))) for r in (reducer, again))
        assert np.array_equal(a, b)  # bit by bit
        if "group_size" not in options:
            before = reducer.residual
            reducer._core.keep_snapshot()
            reducer.step(gradients(comm.rank, 6))
            reducer._core.go_back()
            assert np.array_equal(before, reducer.residual)
        rest = unsent(reducer)
        return applied + a, rest, as_dense(reducer.flush()), state, owed

    def elsewhere(comm):
        reducer = oktopk.Reducer(comm, N, density=0.02, **options)
        reducer.load_all(states)
        return unsent(reducer)

    applied, rests, flushed, states, owed = zip(*in_threads(P, body))
    given = sum(gradients(rank, s).astype(float) for rank in range(P) for s in range(6))
    error = 2e-3 * np.abs(given).max()
    assert np.allclose(P * applied[0] + sum(rests), given, atol=error)
    assert np.allclose(P * flushed[0], sum(rests), atol=error)
    assert all(np.array_equal(one, applied[0]) for one in applied)
    if "auto" not in options.values():
        assert np.allclose(sum(in_threads(2, elsewhere)) / 2, sum(owed) / P, atol=error)


def test_adaptive_density_follows_its_target_within_its_budget():
    options = {**OPTIONS, "adaptive_interval": 4, "adaptive_share": 0.95}

    def body(comm):
        free, bound = oktopk.Reducer(comm, N, **options), oktopk.Reducer(comm, N, adaptive_budget=0.025, **options)
        ks = []
        for step in range(40):
            free.step(gradients(comm.rank, step))
            bound.step(gradients(comm.rank, step))
            ks.append((free.stats["k"], bound.stats["k"], free.stats["share"]))
        again = oktopk.Reducer(comm, N, **options)
        again.load(free.save())
        free.step(gradients(comm.rank, 40))
        again.step(gradients(comm.rank, 40))
        assert again.stats["k"] == free.stats["k"]
        return ks

    results = in_threads(3, body)
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


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("preset", ["circulant", "oktopk", "dense"])
def test_density_one_is_the_mean(preset, dtype):
    def own(rank):
        return gradients(rank, 0).astype(dtype)

    results = in_threads(3, lambda comm: oktopk.Reducer(comm, N, preset=preset, k=N).step(own(comm.rank)))
    mean = sum(own(rank).astype(np.float32) for rank in range(3)) / 3
    assert np.allclose(as_dense(results[0]), mean, rtol=1e-5, atol=1e-5)


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
        ({"group_size": -1}, "group_size = -1"),
        ({"group_size": 0}, 'group_size = 0, but it must be "host" or a number of ranks, at least 1'),
        ({"group_size": "rack"}, "'rack'"),
        ({"group_size": True}, "True"),
        ({"group_size": 1.5}, "1.5"),
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


def test_a_node_reducer_is_a_reducer_of_the_sums_of_its_nodes_bitwise():
    def nodes(comm):
        reducer = oktopk.NodeReducer(comm, N, group_size=2, **OPTIONS)
        assert reducer.leaders == [0, 2]
        return [as_dense(reducer.step(gradients(comm.rank, step))) for step in range(5)]

    def leaders(comm):
        reducer = oktopk.Reducer(comm, N, **OPTIONS)
        sums = [gradients(2 * comm.rank, s) + gradients(2 * comm.rank + 1, s) for s in range(5)]
        return [as_dense(reducer.step(x, 0.5)) for x in sums]  # powers of two scale exactly

    expected = in_threads(2, leaders)[0]
    for means in in_threads(4, nodes):
        assert np.array_equal(means, expected)


def test_states_of_ranks_without_nodes_go_on_in_nodes():
    def body(comm):
        flat = oktopk.Reducer(comm, N, **OPTIONS)
        for step in range(3):
            flat.step(gradients(comm.rank, step))
        return flat.save(), unsent(flat)

    saved, left = zip(*in_threads(4, body))

    def nodes(comm):
        reducer = oktopk.NodeReducer(comm, N, group_size=2, **OPTIONS)
        with pytest.raises(oktopk.UsageError, match="saved by a Reducer, but a NodeReducer loads it"):
            reducer.load(saved[comm.rank])
        reducer.load_all(saved)
        return as_dense(reducer.flush())

    assert np.allclose(4 * in_threads(4, nodes)[0], sum(left), atol=1e-3)


SIZES = [500, 0, 700, 300, 500]


@pytest.mark.parametrize("fusion", ["tensor", "size", "whole"])
def test_buckets_overlap_with_the_computation_of_their_tensors(fusion):
    def body(comm):
        options = {**OPTIONS, "fusion": fusion, "bucket_values": 600}
        reducer = oktopk.BucketedReducer(comm, SIZES, **options)
        total = np.zeros(N)
        for step in range(4):
            gradient = np.zeros(N, np.float32)
            reducer.begin(gradient)
            with pytest.raises(oktopk.UsageError, match="tensor"):
                reducer.wait()
            # The order differs between the ranks.
            order = range(len(SIZES)) if comm.rank == 0 else reversed(range(len(SIZES)))
            for t in order:
                part = slice(sum(SIZES[:t]), sum(SIZES[: t + 1]))
                gradient[part] = gradients(comm.rank, step)[part]
                reducer.ready(t)
            total += as_dense(reducer.wait())
        again = oktopk.BucketedReducer(comm, SIZES, **options)
        again.load(reducer.save())
        a, b = (as_dense(r.step(gradients(comm.rank, 4))) for r in (reducer, again))
        assert np.array_equal(a, b)
        assert reducer.stats["wire_bytes"] > 0 and reducer.n == N
        return total + a + as_dense(reducer.flush()), reducer.buckets

    P = 3
    results = in_threads(P, body)
    given = sum(gradients(rank, s).astype(float) for rank in range(P) for s in range(5))
    assert np.allclose(P * results[0][0], given, atol=2e-3 * np.abs(given).max())
    assert all(np.array_equal(total, results[0][0]) for total, _ in results)
    buckets = {"tensor": 5, "size": 3, "whole": 1}
    assert len(results[0][1]) == buckets[fusion] and results[0][1][0][1] == len(SIZES)


def test_a_bucketed_reducer_may_be_dropped_in_mid_step_and_takes_no_nodes():
    (comm,) = oktopk.thread_world(1)
    reducer = oktopk.BucketedReducer(comm, SIZES, **OPTIONS)
    reducer.begin(np.ones(N, np.float32))
    del reducer
    with pytest.raises(oktopk.UsageError, match="group_size"):
        oktopk.BucketedReducer(oktopk.thread_world(1)[0], SIZES, group_size=2, **OPTIONS)


def steps(comm, is_tentative, preset):
    core = _core.Reducer(comm, N, {"preset": preset, "density": 0.02})
    means = []
    for step in range(6):
        mine = gradients(comm.rank, step)
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


def moving(comm):
    core = _core.Reducer(comm, N, OPTIONS)
    core.step(gradients(comm.rank, 0))
    before = unsent(core).astype(np.float32)
    core.move_to(comm.split(comm.rank % 2))
    assert np.array_equal(unsent(core).astype(np.float32), before)
    assert core.steps == 1
    core.step(gradients(comm.rank, 1))
    mean = np.empty(N, np.float32)
    core.write_update(mean)
    return comm.rank % 2, mean


def test_a_reducer_moves_to_other_ranks():
    means = in_threads(3, moving)
    assert np.array_equal(means[0][1], means[2][1])
    assert not np.array_equal(means[0][1], means[1][1])


def test_half_steps_in_the_wrong_order_are_refused():
    def body(comm):
        core = _core.Reducer(comm, N, OPTIONS)
        for call in (core.commit, core.roll_back):
            with pytest.raises(oktopk.UsageError, match="without"):
                call()
        core.propose(None)
        for call in (lambda: core.propose(None), lambda: core.step(None), lambda: core.move_to(comm), core.save):
            with pytest.raises(oktopk.UsageError, match="open"):
                call()
        core.roll_back()
        nodes = _core.Reducer(comm, N, {**OPTIONS, "group_size": 2})
        with pytest.raises(oktopk.UsageError, match="group_size"):
            nodes.propose(None)

    in_threads(3, body)
