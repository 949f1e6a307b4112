# SPDX-License-Identifier: Apache-2.0
"""group_size on GPUs, beside the laws (test_laws.py: ResidentNodes, ExplicitNodes), on the CPU: on_gpu.py has the
stand-in, and Gloo takes the place of NCCL. test_gpu_resident.py has the GPU."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from models import flat_gradients, loss_of, make_ddp, needs_cpu, unsent_of
from on_gpu import pretend
from ranks import in_processes, on_ranks
from versions import needs_cpu_scaler

import oktopk
from oktopk.torch import Reducer, _sharded
from oktopk.torch._sharded import ShardedReducer
from oktopk.torch._worker import HookStream
from oktopk.torch.coordinates import WHERE_NONZERO

pytestmark = needs_cpu
N = 1001  # divisible by neither group size
OVER = pytest.mark.parametrize("P, G", [(4, 2), (6, 3)])  # ranks, group_size


def reducer_of(group_size, n=N, **options):
    weights = torch.nn.Parameter(torch.zeros(n))
    settings = {"preset": "slots", "density": 0.05, "group_size": group_size, **options}
    if settings.get("k") is not None:
        settings.pop("density")
    return weights, Reducer([weights], **settings)


def gradient_of(rank, step):
    """Skewed. Three ranks in a node round."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(N, generator=generator) * torch.rand(N, generator=generator) ** 3 * 2 ** (3 * (rank % 3))


def mean_of(weights, reducer, gradient):
    weights.grad = gradient
    reducer.reduce_gradients()
    return weights.grad.clone()


def shards(rank, P, G):
    """What is unsent lies in this rank's own shard; a snapshot goes back."""
    pretend()
    weights, reducer = reducer_of(G)
    for step in range(3):
        mean_of(weights, reducer, gradient_of(rank, step))
    assert isinstance(reducer._flat_reducer, ShardedReducer) and reducer.arrived(weights) is WHERE_NONZERO
    left, each = reducer._core.residual, -(-N // G)
    first = rank % G * each
    assert left.any() and not left[:first].any() and not left[first + each :].any()
    assert np.isclose(np.linalg.norm(left), reducer.unsent_norm, rtol=0.1)
    assert reducer.steps == 3 and reducer.stats["wire_bytes"] > 0
    reducer.keep_snapshot()
    mean = mean_of(weights, reducer, gradient_of(rank, 3))
    reducer.go_back()
    assert torch.equal(mean, mean_of(weights, reducer, gradient_of(rank, 3)))


def small_gradient(rank, step, G):
    """Sums of a few and their G-th parts are exact, also in bf16, as slots sends them."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(-10, 11, (511 * G - 1,), generator=generator) * (G / 8)  # owners get equal parts of a shard


def by_nodes(rank, P, G):
    """All entries are sent, in shards or not."""
    for host_staging in (True, False):
        weights, reducer = reducer_of(G, 511 * G - 1, k=511 * G - 1, host_staging=host_staging)
        assert isinstance(reducer._flat_reducer, ShardedReducer) != host_staging
        for step in range(3):
            mean = mean_of(weights, reducer, small_gradient(rank, step, G))
            want = sum(small_gradient(r, step, G) for r in range(P)) / P
            torch.testing.assert_close(mean, want, rtol=0, atol=1e-5)
        assert np.abs(reducer._core.residual).max() < 1e-5


@OVER
@on_ranks()
def test_shards_and_where_all_is_sent_the_result_of_nodes_on_the_host(rank, P, G):
    shards(rank, P, G)
    by_nodes(rank, P, G)


def refusals(rank, P):
    pretend()
    kinds = [type(reducer_of(size)[1]._flat_reducer) for size in (4, 1, "host")]
    assert [kind is ShardedReducer for kind in kinds] == [False, False, True]  # different sizes; one rank
    (_, reducer), (_, other) = reducer_of(2), reducer_of(3)
    states = [None] * P
    dist.all_gather_object(states, reducer.state_dict())
    with pytest.raises(oktopk.UsageError, match="in nodes of 2, n = 1001, but here nodes have 3 ranks"):
        other.load_state_dicts(states)
    with pytest.raises(oktopk.UsageError, match="rank [0-5] of 6"):
        reducer.load_state_dict(states[(rank + 1) % P])
    for plain in ({"host_staging": True}, {"group_size": None}):
        _, source = reducer_of(**{"group_size": 2, **plain})
        with pytest.raises(oktopk.UsageError, match="not a state of group_size on GPUs"):
            reducer.load_state_dict(source.state_dict())
        with pytest.raises(oktopk.UsageError):
            source.load_state_dict(reducer.state_dict())
    with pytest.raises(oktopk.UsageError, match="ranks have different options: rank 0 has 'group_size 2'"):
        model, _ = make_ddp(preset="slots", start_iter=0, group_size=2 if rank == 0 else 3)
        loss_of(model, rank, 0).backward()
    weights, reducer = reducer_of(2, warmup=[(1, 1.0)])
    weights.grad = torch.ones(N)
    if rank == 2:
        weights.grad[900] = float("inf")
    with pytest.raises(oktopk.UsageError) as caught:
        reducer.reduce_gradients()
    return str(caught.value)


def test_refusals_name_nodes_and_the_index_in_the_whole_gradient():
    texts = in_processes(6, refusals)
    assert ["at index 900" in text for text in texts] == [False, True] * 3
    assert ["in another shard of the node" in text for text in texts] == [True, False] * 3


@on_ranks(2)
def test_a_collective_inside_the_node_that_fails_is_a_comm_error(rank, P):
    def refuse(*arguments, **options):
        raise RuntimeError("NCCL is tired")

    pretend()
    weights, reducer = reducer_of(2)
    _sharded.reduce_scatter = refuse
    weights.grad = torch.ones(N)
    with pytest.raises(oktopk.CommError, match="an exchange between GPUs failed: NCCL is tired"):
        reducer.reduce_gradients()


def scaled(rank, P, G):
    """A step that the scaler leaves out for one of two optimisers, after an exchange that was good."""
    pretend()
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1000)
    model, state = make_ddp(preset="slots", start_iter=0, group_size=G, grad_scaler=scaler)
    first, *others = model.parameters()
    optimisers = [torch.optim.SGD(params, lr=0.05) for params in ([first], others)]
    for step in range(4):
        model.zero_grad()
        scaler.scale(loss_of(model, rank, step)).backward()
        means = {name: x / scaler.get_scale() for name, x in flat_gradients(model).items()}
        if step == 2:
            first.grad.fill_(float("inf"))  # the optimiser sees it, the exchange did not
        before, weights = unsent_of(state), first.detach().clone()
        for optimiser in optimisers:
            scaler.step(optimiser)
        scaler.update()
        state.state_dict()  # settles
        assert torch.equal(weights, first) == (step == 2)
        back = {name: after - before[name] for name, after in unsent_of(state).items()}
        if step == 2:
            skipped = means, back
        else:
            assert not any(x.any() for x in back.values())
    assert isinstance(state._worker, HookStream)
    kind = type(next(iter(state._channels._channels.values())).reducer)
    assert (kind is ShardedReducer) == (G is not None)
    return skipped


@needs_cpu_scaler
@pytest.mark.parametrize("P, G", [(2, None), (4, 2), (6, 3)])
def test_a_step_that_the_scaler_skips_gives_its_mean_back(P, G):
    results = in_processes(P, scaled, G)
    first, *_ = means = results[0][0]
    assert means[first].any() and first in results[0][1]
    for name in results[0][1]:
        back = sum(back[name] for _, back in results)
        np.testing.assert_allclose(back, P * means[name] * (name == first), atol=1e-4)
