# SPDX-License-Identifier: Apache-2.0
"""register_fsdp with a GradScaler, other numbers of replicas, other users of shards, bad use."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import all_equal, run_processes
from versions import TORCH, reason

import oktopk
import oktopk.torch

if TORCH < (2, 7):
    pytest.skip(reason((2, 7), "set_all_reduce_hook() of fully_shard"), allow_module_level=True)

from fsdp_models import (  # noqa: E402
    Net,
    backward,
    gradients,
    meshes,
    register,
    shard,
    weights,
)
from models import DEVICE, STAGING  # noqa: E402


def work_scaler(rank, P):
    """A loss scale that changes, a step of which one module on one rank is infinite, and a step in
    which another optimiser's gradient is: as if none had been."""
    _, replicate, shards = meshes(2, P // 2)
    options = {"preset": "circulant", "density": 0.05, "start_iter": 0, "min_numel": 0}
    plain, scaled = shard(shards), shard(shards)
    register(plain, replicate, **options)
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=1024.0, growth_interval=2)
    sync = register(scaled, replicate, grad_scaler=scaler, **options)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (plain, scaled)]
    other = torch.nn.Parameter(torch.zeros(1, device=DEVICE))
    its_own = torch.optim.SGD([other], lr=0.05)
    scales = set()
    for step, spoilt in ((0, False), (1, False), (2, False), (3, True), (3, False), (4, False)):
        scales.add(scaler.get_scale())
        optimizers[1].zero_grad()
        backward(scaled, rank, step, scaler.scale, spoilt=spoilt and rank == 0)
        before = weights(scaled)
        scaler.step(optimizers[1])
        other.grad = torch.full_like(other, float("inf") if step == 1 else 1.0)
        scaler.step(its_own)
        scaler.update()
        assert torch.equal(weights(scaled), before) == spoilt
        if spoilt:
            assert sync.stats["first"]["skipped"] and not sync.stats[""]["skipped"]
            continue
        optimizers[0].zero_grad()
        backward(plain, rank, step)
        optimizers[0].step()
        assert torch.equal(weights(scaled), weights(plain))
    assert len(scales) > 1


def test_a_grad_scaler_leaves_no_trace(tmp_path):
    run_processes(4, work_scaler, tmp_path)


def work_auto(rank, P):
    """Preset auto measures the network once for all modules; a state of it can be loaded."""
    _, replicate, shards = meshes(2, 1)
    options = {"preset": "auto", "density": 0.05, "start_iter": 0, "min_numel": 0}
    model, other = shard(shards), shard(shards)
    state = register(model, replicate, **options)
    for step in range(3):
        backward(model, rank, step)
    again = register(other, replicate, **options)
    again.load_state_dict(state.state_dict())
    state.flush()
    again.flush()
    assert torch.equal(gradients(model), gradients(other))


def test_a_state_of_preset_auto_can_be_loaded(tmp_path):
    run_processes(2, work_auto, tmp_path)


def work_elastic(rank, P):
    """Four replicas' states on two; shards in the explicit Reducer and in local steps; errors."""
    _, replicate, shards = meshes(4, 1)
    options = {"preset": "circulant", "density": 0.05, "start_iter": 0, "min_numel": 0}
    model = shard(shards)
    state = register(model, replicate, **options)
    backward(model, rank, 0)
    states = [None] * P
    dist.all_gather_object(states, state.state_dict())
    state.flush()
    rest = gradients(model)

    mesh, replicate, shards = meshes(2, 2)
    both = [shard(shards, seed=1), shard(shards, seed=1)]
    sync = register(both[0], replicate, preset="dense")
    reducer = oktopk.torch.Reducer(both[1].parameters(), replicate.get_group(), preset="dense", **STAGING)
    for module in both:
        backward(module, rank, 1)
    reducer.reduce_gradients()
    assert torch.equal(gradients(both[0]), gradients(both[1]))
    assert sync.stats["first"]["preset"] == "dense"

    torch.manual_seed(rank)
    outer = oktopk.torch.LocalSteps(both[0].parameters(), replicate.get_group(), every=1, **STAGING)
    with torch.no_grad():
        for p in both[0].parameters():
            p.to_local().add_(torch.randn_like(p.to_local()))
    assert not all_equal(weights(both[0]), replicate.get_group())
    assert outer.step() and all_equal(weights(both[0]), replicate.get_group())

    chosen = shard(shards)
    defaults = {"density": 0.05, "start_iter": 0, "min_numel": 0}  # and preset auto
    sync = register(chosen, replicate, **defaults)
    adam = oktopk.torch.SparseAdamW(chosen.parameters(), source=sync, lr=0.01)
    for step in range(3):
        before = weights(chosen)
        adam.zero_grad()
        backward(chosen, rank, step)
        adam.step()
        assert all_equal(weights(chosen), replicate.get_group())
        assert not torch.equal(weights(chosen), before)
    assert all(s["preset"] != "auto" for s in sync.stats.values())

    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    pair = pairs[rank // 2]
    alone = [dist.new_group([r]) for r in range(P)][rank]
    mesh_alone = dist.device_mesh.DeviceMesh.from_group(alone, DEVICE.type)
    again = shard(mesh_alone)
    loaded = register(again, pair, **{**options, "start_iter": 50})  # a start that is over does not begin again
    loaded.load_state_dicts(states)
    loaded.flush()
    torch.testing.assert_close(gradients(again), rest, rtol=1e-5, atol=1e-6)
    backward(again, rank, 1)
    assert [s["dense"] for s in loaded.stats.values()] == [False] * 2

    with pytest.raises(oktopk.UsageError, match="replicas in its own mesh"):
        register(shard(mesh), replicate)
    with pytest.raises(oktopk.UsageError, match="must share this rank"):
        register(shard(shards), shards)
    with pytest.raises(oktopk.UsageError, match="no module"):
        register(Net(), replicate)
    with pytest.raises(oktopk.UsageError, match="start_iter = -1"):
        register(shard(shards), replicate, start_iter=-1)


def test_other_numbers_of_replicas_and_errors(tmp_path):
    run_processes(4, work_elastic, tmp_path)
