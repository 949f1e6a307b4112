# SPDX-License-Identifier: Apache-2.0
"""register_fsdp: replicas of fully_shard models on the CPU over Gloo, against FSDP's own 2-D mesh."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import all_equal, run_processes
from torch import nn

import oktopk
import oktopk.torch

fsdp = pytest.importorskip("torch.distributed.fsdp")
if not hasattr(fsdp, "fully_shard"):
    pytest.skip("torch without fully_shard", allow_module_level=True)

from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402


class Net(nn.Module):
    """Odd sizes, so that shards are padded; a branch that some steps leave out."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(9, 33)
        self.side = nn.Linear(33, 33)
        self.last = nn.Linear(33, 5)

    def forward(self, x, with_side=True):
        x = torch.relu(self.first(x))
        if with_side:
            x = x + self.side(x)
        return self.last(x)


def shard(mesh, seed=0, **options):
    torch.manual_seed(seed)
    model = Net()
    fully_shard(model.first, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)  # side and last
    return model


def meshes(replicas, shards):
    mesh = init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("replicate", "shard"))
    return mesh, mesh["replicate"], mesh["shard"]


def backward(model, rank, step, **how):
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(8, 9, generator=generator)
    model(x, **how).square().mean().backward()


def gradients(model):
    return torch.cat([p.grad.to_local().reshape(-1) for p in model.parameters()])


def weights(model):
    return torch.cat([p.detach().to_local().reshape(-1) for p in model.parameters()])


EXACT = (  # and by how much: at density 1 a threshold may keep the smallest entries back
    ({"preset": "dense"}, 1e-7),
    ({"preset": "circulant", "density": 1.0, "min_numel": 0}, 2e-5),
    ({"preset": "circulant", "density": 0.01, "start_iter": 10, "min_numel": 0}, 1e-7),
    ({"preset": "circulant", "density": 0.01, "min_numel": 10_000}, 1e-7),
)


def work_like_native(rank, P):
    """What sends everything gives FSDP's own hybrid sharding, to rounding."""
    mesh, replicate, shards = meshes(2, P // 2)
    bf16 = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
    for policy, rounding in (({}, 1e-5), ({"mp_policy": bf16}, 2e-2)):
        for options, absolute in EXACT:
            tolerance = {"rtol": rounding, "atol": absolute * rounding / 1e-5}
            native, ours = shard(mesh, **policy), shard(shards, **policy)
            oktopk.torch.register_fsdp(ours, replicate, **options)
            optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (native, ours)]
            for step in range(3):
                for model, optimizer in zip((native, ours), optimizers):
                    optimizer.zero_grad()
                    backward(model, rank, step)
                torch.testing.assert_close(gradients(ours), gradients(native), **tolerance)
                for optimizer in optimizers:
                    optimizer.step()
            torch.testing.assert_close(weights(ours), weights(native), **tolerance)


def test_what_sends_everything_equals_native_hsdp(tmp_path):
    run_processes(4, work_like_native, tmp_path)


def work_accumulation(rank, P):
    """Three ways to accumulate, a divide factor, and a branch that was not used."""
    mesh, replicate, shards = meshes(2, P // 2)

    def compare(do, prepare=lambda model: None):
        native, ours = shard(mesh), shard(shards)
        state = oktopk.torch.register_fsdp(ours, replicate.get_group(), preset="dense")
        for model in (native, ours):
            prepare(model)
            do(model)
        torch.testing.assert_close(gradients(ours), gradients(native), rtol=1e-5, atol=1e-7)
        return state

    def without(setter):
        def do(model):
            for step in range(3):
                if setter:
                    getattr(model, setter)(step == 2)
                backward(model, rank, step)

        return do

    for setter in (None, "set_requires_gradient_sync", "set_requires_all_reduce"):
        compare(without(setter))

    def divide(model):
        for module in (model.first, model):
            module.set_gradient_divide_factor(6.0)
            module.set_force_sum_reduction_for_comms(True)  # Gloo has no PREMUL_SUM

    compare(lambda model: backward(model, rank, 0), divide)

    ours = shard(shards)
    state = oktopk.torch.register_fsdp(ours, replicate, preset="dense")
    for step in range(3):
        backward(ours, rank, step, with_side=step != 0)  # the layout stays
    ours.set_requires_all_reduce(False)
    backward(ours, rank, 3)
    with pytest.raises(oktopk.UsageError, match="middle of an accumulation"):
        state.state_dict()


def test_accumulation_and_divide_factors_equal_native_hsdp(tmp_path):
    run_processes(4, work_accumulation, tmp_path)


def work_sparse(rank, P, replicas):
    """Equal replicas, no lost gradients, a state that continues bitwise."""
    mesh, replicate, shards = meshes(replicas, P // replicas)
    group = replicate.get_group()
    options = {"preset": "circulant", "density": 0.05, "min_numel": 0}
    model, reference = shard(shards), shard(shards)
    state = oktopk.torch.register_fsdp(model, replicate, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    given = torch.zeros_like(weights(model), dtype=torch.float64)
    applied = given.clone()
    for step in range(20):
        reference.load_state_dict(model.state_dict())
        optimizer.zero_grad()
        reference.zero_grad()
        backward(model, rank, step)
        backward(reference, rank, step)  # without a hook: what was given
        given += gradients(reference).double()
        applied += gradients(model).double()
        assert gradients(model).count_nonzero() < 0.5 * len(gradients(model))
        for p in model.parameters():
            nonzero = p.grad.to_local().reshape(-1).nonzero().reshape(-1)
            assert torch.equal(state.arrived(p), nonzero)
        if step < 19:
            optimizer.step()
    assert all_equal(weights(model), group)
    assert set(state.stats) == {"", "first"}
    saved = state.state_dict()
    state.flush()
    assert all(s["dense"] for s in state.stats.values())
    applied += gradients(model).double()
    dist.all_reduce(given, group=group)
    torch.testing.assert_close(applied * replicas, given, rtol=1e-4, atol=1e-5)

    other = shard(shards)
    other_state = oktopk.torch.register_fsdp(other, replicate, **options)
    other_state.load_state_dict(saved)  # before its first backward
    other_state.flush()
    for p, q in zip(model.parameters(), other.parameters()):
        assert torch.equal(p.grad.to_local(), q.grad.to_local())
    with pytest.raises(oktopk.UsageError, match="other modules"):
        other_state.load_state_dict({"version": 1, "groups": {"nobody": {}}})


@pytest.mark.parametrize("P, replicas", [(4, 2), (3, 3)])
def test_sparse_replicas_stay_equal_and_lose_nothing(tmp_path, P, replicas):
    run_processes(P, work_sparse, tmp_path, replicas)


def work_elastic(rank, P):
    """Four replicas' states on two; shards in the explicit Reducer and in local steps; errors."""
    _, replicate, shards = meshes(4, 1)
    options = {"preset": "circulant", "density": 0.05, "min_numel": 0}
    model = shard(shards)
    state = oktopk.torch.register_fsdp(model, replicate, **options)
    backward(model, rank, 0)
    states = [None] * P
    dist.all_gather_object(states, state.state_dict())
    state.flush()
    rest = gradients(model)

    mesh, replicate, shards = meshes(2, 2)
    both = [shard(shards, seed=1), shard(shards, seed=1)]
    sync = oktopk.torch.register_fsdp(both[0], replicate, preset="dense")
    reducer = oktopk.torch.Reducer(both[1].parameters(), replicate.get_group(), preset="dense")
    for module in both:
        backward(module, rank, 1)
    reducer.reduce_gradients()
    assert torch.equal(gradients(both[0]), gradients(both[1]))
    assert sync.stats["first"]["preset"] == "dense"

    torch.manual_seed(rank)
    outer = oktopk.torch.LocalSteps(both[0].parameters(), replicate.get_group(), every=1)
    with torch.no_grad():
        for p in both[0].parameters():
            p.to_local().add_(torch.randn_like(p.to_local()))
    assert not all_equal(weights(both[0]), replicate.get_group())
    assert outer.step() and all_equal(weights(both[0]), replicate.get_group())

    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    pair = pairs[rank // 2]
    alone = [dist.new_group([r]) for r in range(P)][rank]
    mesh_alone = dist.device_mesh.DeviceMesh.from_group(alone, "cpu")
    again = shard(mesh_alone)
    loaded = oktopk.torch.register_fsdp(again, pair, **options)
    loaded.load_state_dicts(states)
    loaded.flush()
    torch.testing.assert_close(gradients(again), rest, rtol=1e-5, atol=1e-6)

    with pytest.raises(oktopk.UsageError, match="replicas in its own mesh"):
        oktopk.torch.register_fsdp(shard(mesh), replicate)
    with pytest.raises(oktopk.UsageError, match="must share this rank"):
        oktopk.torch.register_fsdp(shard(shards), shards)
    with pytest.raises(oktopk.UsageError, match="no module"):
        oktopk.torch.register_fsdp(Net(), replicate)
    with pytest.raises(oktopk.UsageError, match="start_iter = -1"):
        oktopk.torch.register_fsdp(shard(shards), replicate, start_iter=-1)


def test_other_numbers_of_replicas_and_errors(tmp_path):
    run_processes(4, work_elastic, tmp_path)
