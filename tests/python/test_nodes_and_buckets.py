# SPDX-License-Identifier: Apache-2.0
"""NodeReducer and BucketedReducer from Python, on threads."""

import numpy as np
import pytest
from ranks import in_threads
from test_reducer import N, gradients, unsent

import oktopk

OPTIONS = {"preset": "circulant", "density": 0.02}


def as_dense(update, n=N):
    dense = np.zeros(n, np.float32)
    update.subtract_from(dense, -1.0)
    return dense


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


@pytest.mark.parametrize("group_size", [1, 2, 3, "host"])
@pytest.mark.parametrize("preset", ["circulant", "oktopk", "auto"])
def test_nodes_conserve_mass_save_and_flush(preset, group_size):
    def body(comm):
        options = {**OPTIONS, "preset": preset, "group_size": group_size}
        if preset == "auto":
            options["profile"] = oktopk.calibrate(comm, 0.01)
        reducer = oktopk.Reducer(comm, N, **options)
        applied = sum(as_dense(reducer.step(gradients(comm.rank, s))).astype(float) for s in range(5))
        leads = comm.rank in reducer.leaders
        assert leads or reducer.unsent_norm == 0
        assert reducer.stats["step"] == reducer.steps == 5 and reducer.k == round(0.02 * N)
        again = oktopk.Reducer(comm, N, **options)
        again.load(reducer.save())
        a, b = (as_dense(r.step(gradients(comm.rank, 5))) for r in (reducer, again))
        rest, flushed = unsent(reducer), as_dense(reducer.flush())
        return applied + a, rest, flushed, np.array_equal(a, b)

    P = 5
    results = in_threads(P, body)
    given = sum(gradients(rank, s).astype(float) for rank in range(P) for s in range(6))
    left = sum(rest for _, rest, _, _ in results)
    assert np.allclose(P * results[0][0] + left, given, atol=2e-3 * np.abs(given).max())
    assert np.allclose(P * results[0][2], left, atol=2e-3 * max(np.abs(left).max(), 1.0))
    assert all(same and np.array_equal(total, results[0][0]) for total, _, _, same in results)


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


@pytest.mark.parametrize(
    "size, words",
    [
        (-1, "group_size = -1"),
        (0, "group_size = 0, but it must be \"host\" or a number of ranks, at least 1"),
        ("rack", "'rack'"),
        (True, "True"),
        (1.5, "1.5"),
    ],
)
def test_an_unfit_group_size_is_refused_in_words(size, words):
    (comm,) = oktopk.thread_world(1)
    with pytest.raises(oktopk.UsageError, match=words):
        oktopk.Reducer(comm, N, group_size=size)


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
