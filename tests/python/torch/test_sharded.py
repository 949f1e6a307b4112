# SPDX-License-Identifier: Apache-2.0
"""group_size on GPUs, by a Reducer, on the CPU: the stand-in of test_resident_hook.py makes the sparse steps of the
shards, and Gloo takes the place of NCCL. test_gpu_resident.py has the GPU."""

import io

import numpy as np
import pytest
import test_resident_hook
import torch
from models import DEVICE
from ranks import in_processes

import oktopk
from oktopk.torch import Reducer, _nodes, _sharded
from oktopk.torch._sharded import ShardedReducer
from oktopk.torch.coordinates import WHERE_NONZERO

pytestmark = pytest.mark.skipif(DEVICE.type != "cpu", reason="pretends that CPU tensors are a GPU's")
N = 1001  # divisible by neither group size
SHAPES = [(4, 2), (6, 3)]  # ranks, group_size


def pretend():
    test_resident_hook.pretend()
    _nodes.stays_on_gpu = lambda options, group, device: options.get("preset") == "slots"


def reducer_of(group_size, n=N, **options):
    weights = torch.nn.Parameter(torch.zeros(n))
    settings = {"preset": "slots", "density": 0.05, "group_size": group_size, **options}
    if settings.get("k") is not None:
        settings.pop("density")
    return weights, Reducer([weights], **settings)


def gradient_of(rank, step):
    """Multiples of 1/8, skewed: sums of a few are exact. Three ranks in a node round."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(N, generator=generator) * torch.rand(N, generator=generator) ** 3 * 2 ** (3 * (rank % 3))
    return (x * 8).round() / 8


def means(weights, reducer, rank, steps):
    found = []
    for step in steps:
        weights.grad = gradient_of(rank, step)
        reducer.reduce_gradients()
        found.append(weights.grad.numpy().copy())
    return found


def unsent_of(reducer):
    return reducer._core.residual.astype(float)


def steps_and_mass(rank, P, G):
    pretend()
    weights, reducer = reducer_of(G, warmup=[(2, 0.2), (1, 1.0), (2, 0.1)])
    found = means(weights, reducer, rank, range(8))
    assert isinstance(reducer._flat_reducer, ShardedReducer) and reducer.arrived(weights) is WHERE_NONZERO
    left = unsent_of(reducer)
    assert np.isclose(np.linalg.norm(left), reducer.unsent_norm, rtol=0.1) and reducer.steps == 8
    stats = reducer.stats
    reducer.flush()
    return found, left, weights.grad.double().numpy().copy(), unsent_of(reducer), stats["wire_bytes"]


@pytest.mark.parametrize("P, G", SHAPES)
def test_updates_are_equal_and_mass_is_conserved(P, G):
    results = in_processes(P, steps_and_mass, G)
    total = sum(gradient_of(rank, step).double().numpy() for rank in range(P) for step in range(8))
    applied = P * sum(mean.astype(float) for mean in results[0][0])
    left = sum(r[1] for r in results)
    assert np.abs(left).max() > 0
    np.testing.assert_allclose(applied + left, total, atol=1e-3)
    np.testing.assert_allclose(P * results[0][2], left, atol=1e-3)  # flush
    each = -(-N // G)
    for rank, (found, unsent, flushed, after, wire) in enumerate(results):
        assert all(np.array_equal(a, b) for a, b in zip(found, results[0][0]))
        assert np.array_equal(flushed, results[0][2]) and not after.any() and wire > 0
        first = rank % G * each
        assert not unsent[:first].any() and not unsent[first + each :].any()  # its own shard alone
    # The third step was dense: nothing was left.
    three = sum(gradient_of(rank, step).double().numpy() for rank in range(P) for step in range(3))
    np.testing.assert_allclose(P * sum(m.astype(float) for m in results[0][0][:3]), three, atol=1e-3)


def small_gradient(rank, step, G):
    """Sums of a few and their G-th parts are exact, also in bf16, as slots sends them."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(-10, 11, (511 * G - 1,), generator=generator) * (G / 8)  # owners get equal parts of a shard


def by_nodes(rank, P, G):
    """All entries are sent, in shards or not."""
    found = []
    for host_staging in (True, False):
        if not host_staging:
            pretend()
        weights, reducer = reducer_of(G, 511 * G - 1, k=511 * G - 1, host_staging=host_staging)
        assert isinstance(reducer._flat_reducer, ShardedReducer) != host_staging
        for step in range(3):
            weights.grad = small_gradient(rank, step, G)
            reducer.reduce_gradients()
            found.append(weights.grad.numpy().copy())
    return found, np.abs(unsent_of(reducer)).max()


@pytest.mark.parametrize("P, G", SHAPES)
def test_where_all_is_sent_the_result_is_that_of_nodes_on_the_host(P, G):
    for found, left in in_processes(P, by_nodes, G):
        for step in range(3):
            want = sum(small_gradient(rank, step, G).numpy() for rank in range(P)) / P
            np.testing.assert_allclose(found[step], want, atol=1e-5)
            np.testing.assert_allclose(found[3 + step], found[step], atol=1e-6)
        assert left < 1e-5


def resumed(rank, P, G):
    pretend()
    weights, reducer = reducer_of(G, decay=0.9)
    means(weights, reducer, rank, range(4))
    saved = reducer.state_dict()
    on = means(weights, reducer, rank, range(4, 8))
    weights, other = reducer_of(G, decay=0.9)
    other.load_state_dict(saved)
    again = means(weights, other, rank, range(4, 8))
    assert all(np.array_equal(a, b) for a, b in zip(on, again))
    other.keep_snapshot()
    first = means(weights, other, rank, [8])
    other.go_back()
    assert np.array_equal(first[0], means(weights, other, rank, [8])[0])
    return True


@pytest.mark.parametrize("P, G", SHAPES)
def test_a_saved_state_continues_bit_by_bit(P, G):
    assert all(in_processes(P, resumed, G))


def saved_of(rank, P, G):
    pretend()
    weights, reducer = reducer_of(G)
    means(weights, reducer, rank, range(4))
    file = io.BytesIO()
    torch.save(reducer.state_dict(), file)
    return file.getvalue(), unsent_of(reducer)


def read(state):
    return torch.load(io.BytesIO(state), weights_only=True)


def continued(rank, P, G, states):
    pretend()
    _, reducer = reducer_of(G)
    reducer.load_state_dicts([read(state) for state in states])
    return unsent_of(reducer)


def refusals(rank, P, files):
    pretend()
    states = [read(file) for file in files]
    _, other = reducer_of(3)
    with pytest.raises(oktopk.UsageError, match="in nodes of 2, n = 1001, but here nodes have 3 ranks"):
        other.load_state_dicts(states)
    _, reducer = reducer_of(2)
    with pytest.raises(oktopk.UsageError, match="rank [0-5] of 4"):
        reducer.load_state_dict(states[min(rank, 3)])
    for plain in ({"host_staging": True}, {"group_size": None}):
        settings = {"group_size": 2, **plain}
        _, source = reducer_of(**settings)
        with pytest.raises(oktopk.UsageError, match="not a state of group_size on GPUs"):
            reducer.load_state_dict(source.state_dict())
        with pytest.raises(oktopk.UsageError):
            source.load_state_dict(reducer.state_dict())
    return True


def test_states_of_other_numbers_of_nodes_owe_the_same_and_other_sizes_are_refused():
    saved = in_processes(4, saved_of, 2)
    states, owed = [s for s, _ in saved], sum(x for _, x in saved) / 4
    for P in (2, 6):
        np.testing.assert_allclose(sum(in_processes(P, continued, 2, states)) / P, owed, atol=1e-4)
    assert all(in_processes(6, refusals, states))


def uneven(rank, P):
    pretend()
    kinds = [type(reducer_of(size)[1]._flat_reducer) for size in (2, 1, "host")]
    return [kind is ShardedReducer for kind in kinds]


def test_nodes_of_different_sizes_or_of_one_rank_sum_on_the_host():
    assert in_processes(3, uneven) == [[False, False, True]] * 3


def void(rank, P, G, policy):
    pretend()
    weights, reducer = reducer_of(G, nan_policy=policy)
    means(weights, reducer, rank, range(2))
    before = unsent_of(reducer)
    weights.grad = gradient_of(rank, 2)
    if rank == 1:
        weights.grad[7] = float("nan")  # of the first shard alone
    reducer.reduce_gradients()
    assert weights.grad.isnan().all() and np.array_equal(before, unsent_of(reducer))
    return means(weights, reducer, rank, [3])[0]


@pytest.mark.parametrize("P, G", SHAPES)
def test_a_value_that_is_not_finite_makes_all_shards_void(P, G):
    results = in_processes(P, void, G, "skip")
    assert all(np.isfinite(r).all() and np.array_equal(r, results[0]) for r in results)


def dense_trouble(rank, P):
    pretend()
    weights, reducer = reducer_of(2, warmup=[(1, 1.0)])
    weights.grad = torch.ones(N)
    if rank == 2:
        weights.grad[900] = float("inf")
    with pytest.raises(oktopk.UsageError) as caught:
        reducer.reduce_gradients()
    return str(caught.value)


def test_a_dense_step_names_the_index_in_the_whole_gradient():
    texts = in_processes(4, dense_trouble)
    assert ["at index 900" in text for text in texts] == [False, True] * 2
    assert ["in another shard of the node" in text for text in texts] == [True, False] * 2


def dead(rank, P):
    pretend()

    def refuse(*arguments, **options):
        raise RuntimeError("NCCL is tired")

    weights, reducer = reducer_of(2)
    _sharded.reduce_scatter = refuse
    weights.grad = torch.ones(N)
    with pytest.raises(oktopk.CommError, match="an exchange between GPUs failed: NCCL is tired"):
        reducer.reduce_gradients()
    return True


def test_a_collective_inside_the_node_that_fails_is_a_comm_error():
    assert all(in_processes(2, dead))
