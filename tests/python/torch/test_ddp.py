# SPDX-License-Identifier: Apache-2.0
"""The DDP hook beside the laws (test_laws.py: Hook, Nodes): DDP's own options, buckets that are rebuilt, wrappers,
nodes, states between steps."""

import pickle

import numpy as np
import pytest
import torch
import torch.distributed as dist
from front_ends import N, Hook, Nodes, gradient_of
from models import DEVICE, STAGING, batch, flat, make_ddp, small_model, train
from ranks import all_equal, in_processes, on_ranks
from test_laws import before, elsewhere
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from versions import TORCH

import oktopk
import oktopk.torch
from oktopk.metrics import every
from oktopk.torch import OkTopkState, oktopk_hook
from oktopk.torch._scaler import Applied
from oktopk.torch._channels import Channel
from oktopk.torch._group import new_group

AS_DENSE = {"preset": "auto", "overrides": "dense", "coarsest": "fp32", "start_iter": 0, "min_numel": 700}
DDP_OPTIONS = [
    {"static_graph": True},
    {"gradient_as_bucket_view": True},
    {"find_unused_parameters": True},
    {"bucket_cap_mb": 25},
    {"broadcast_buffers": False, "bucket_cap_mb": 0.001},
]


def trained(rank, steps, hook="sparse", **options):
    model, state = make_ddp(hook, **options)
    loss = train(model, rank, steps)
    assert np.isfinite(loss) and all_equal(torch.from_numpy(flat(model)))
    return model, state


def dense(rank, P):
    """Also with auto that is told to be dense: some buckets by the hook's thread, small ones by backward's."""
    plain, _ = trained(rank, 20, None)
    for options in ({"preset": "dense"}, {"profile": oktopk.Profile(), **AS_DENSE}):
        model, state = trained(rank, 20, **options)
        assert all(state.arrived(p) is None for p in model.parameters())
        assert np.array_equal(flat(model), flat(plain))


@pytest.mark.parametrize("P", [1, 2, 3])
def test_dense_is_ddp_without_a_hook_bit_by_bit(P):
    in_processes(P, dense)


def through(hook, wrapper):
    def wrapped_hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return inner(state, bucket)  # torch refuses the name of its bf16 wrapper on a CPU

    inner = getattr(default_hooks, wrapper)(hook)
    return wrapped_hook


class OneUnused(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.used, self.other = torch.nn.Linear(32, 10), torch.nn.Linear(32, 10)

    def forward(self, x, step):
        return self.used(x) if step % 2 else self.other(x)


def unused_parameters_take_part_with_zeros(rank):
    model = DistributedDataParallel(OneUnused().to(DEVICE), find_unused_parameters=True)
    state = OkTopkState(density=0.1, preset="circulant", start_iter=0, min_numel=10, timeout=30, **STAGING)
    model.register_comm_hook(state, oktopk_hook)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(8):
        x, y = batch(rank, step)
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x, step), y).backward()
        optimiser.step()
    assert all_equal(torch.from_numpy(flat(model)))


@on_ranks(2)
def test_ranks_agree_with_options_of_ddp_and_wrappers_of_the_hook(rank, P):
    for options in DDP_OPTIONS:
        trained(rank, 20, ddp_options=options)
    unused_parameters_take_part_with_zeros(rank)
    for wrapper in ("fp16_compress_wrapper", *(["bf16_compress_wrapper"] if TORCH >= (2, 2) else [])):
        _, state = trained(rank, 10, lambda hook: through(hook, wrapper))
        assert state.compression_stats().rate > 1.5


def lost_nothing(front, applied, steps):
    given = sum(gradient_of(place, step).double() for place in range(front.replicas) for step in range(steps))
    torch.testing.assert_close((applied + front.rest()) * front.replicas, given, rtol=1e-5, atol=1e-4)


def into_dense_buckets(rank, P):
    """After the rebuild the first parameters are in a bucket below min_numel, which is dense; the last ones were."""
    front = Hook(min_numel=2600, density=0.02)
    applied = sum(front.step(gradient_of(rank, step)) for step in range(4))
    assert not front.state._channels._unsent  # nothing waits for a bucket that never comes
    assert [front.state.arrived(p) is None for p in front.model.parameters()] == [True, True, False, False, False]
    lost_nothing(front, applied, 4)


def with_no_sync(rank, P):
    front, applied = Hook(), torch.zeros(N, dtype=torch.float64)
    for step in range(5):
        front.model.zero_grad()
        with front.model.no_sync():
            for part in range(2):
                front.model(gradient_of(rank, 3 * step + part).to(DEVICE)).backward()
        front.model(gradient_of(rank, 3 * step + 2).to(DEVICE)).backward()
        applied += front.mean()
    assert front.state.iteration == 5
    lost_nothing(front, applied, 15)


@pytest.mark.parametrize("how", [into_dense_buckets, with_no_sync])
def test_mass_goes_along_through_dense_buckets_and_no_sync(how):
    in_processes(3, how)


def metrics(rank, P):
    seen, norms = [], []
    model, state = make_ddp(callback=every(2, seen.append))
    truth = Channel.residual_norm
    Channel.residual_norm = lambda self: norms.append(self) or truth(self)
    train(model, rank, 5)
    assert {m["iteration"] for m in seen} == {2, 4}
    assert all(m["n"] >= 100 and m["wire_bytes"] > 0 and m["residual_norm"] > 0 for m in seen)
    assert len(norms) == len(seen)  # a pass over n values each: not for step 3


def test_the_callback_gets_every_sparse_bucket_of_the_steps_that_it_wants():
    in_processes(2, metrics)


def nodes(rank, P):
    """Uneven ones, those of a host, two states one after the other, then a group that the user makes."""
    for options in ({"preset": "oktopk", "group_size": 3}, {"preset": "topka", "group_size": "host"}):
        trained(rank, 20, **options)
    total = torch.ones(1)
    dist.all_reduce(total, group=new_group([0, 1] if rank < 2 else [2, 3], "gloo"))
    assert total.item() == 2
    plain, single = (trained(rank, 12, **options)[0] for options in ({}, {"group_size": 1}))
    assert np.array_equal(flat(plain), flat(single))


def test_nodes_of_all_sizes_agree_and_those_of_one_rank_train_as_without_nodes():
    in_processes(4, nodes)


class Single(Nodes):
    defaults = {**Nodes.defaults, "group_size": 1}


def test_nodes_of_one_rank_go_on_with_the_states_of_nodes_of_two():
    saved = in_processes(4, before, Nodes, None)
    in_processes(4, elsewhere, Single, None, saved)


class Told(torch.optim.Optimizer):
    def step(self, closure=None):
        pass


def test_what_counts_as_applied():
    a, b, c = (torch.nn.Parameter(torch.ones(3)) for _ in range(3))
    optimiser = torch.optim.SGD([a], lr=0.1)
    applied = Applied()

    def after(action):
        applied.watch([a, b, c])
        for p in (a, b, c):
            p.grad = torch.ones(3)
        with torch.no_grad():
            action()
        return [p in applied for p in (a, b, c)]

    assert after(lambda: None) == [False, False, False]
    assert after(optimiser.step) == [True, False, False]
    assert after(lambda: b.sub_(b.grad)) == [False, True, False]  # by hand
    assert after(lambda: a.clamp_(-1, 1)) == [False, False, False]  # a has an optimiser
    told = Told([c], {})
    told.found_inf = torch.ones(())  # as a GradScaler tells fused optimisers
    assert after(told.step) == [False, False, False]
    told.found_inf = torch.zeros(())
    assert after(told.step) == [False, False, True]


def pickled(rank):
    model, state = make_ddp(callback=print)
    state.callback = None
    train(model, rank, 5)
    again = pickle.loads(pickle.dumps(state))
    assert again.process_group is None and again.iteration == 5 and again.options == state.options
    other, _ = make_ddp(state=again)
    other.load_state_dict(model.state_dict())
    train(other, rank, 3, first=5)
    assert all_equal(torch.from_numpy(flat(other)))


def within_another(rank, wrapped_twice):
    """A hook of the user's own around ours: DDP knows its state, and not ours."""
    inner = OkTopkState(density=0.05, preset="circulant", start_iter=0, min_numel=100, timeout=30.0, **STAGING)

    def hook(outer: dict, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return oktopk_hook(outer["inner"], bucket)

    model, _ = make_ddp(hook=None)
    other = DistributedDataParallel(model.module) if wrapped_twice else None
    model.register_comm_hook({"inner": inner}, hook)
    train(model, rank, 3)
    del other
    if not wrapped_twice:  # a state is loaded by its parameters' names
        assert sorted(inner.unsent()) == sorted(name for name, _ in small_model().named_parameters())
        inner.load_state_dict(inner.state_dict())
    train(model, rank, 3, first=3)
    assert all_equal(torch.from_numpy(flat(model)))


@on_ranks(2)
def test_a_state_may_be_pickled_and_be_within_another(rank, P):
    pickled(rank)
    for wrapped_twice in (False, True):
        within_another(rank, wrapped_twice)
