# SPDX-License-Identifier: Apache-2.0
"""Bad use of register_fsdp: an error of the true type, from the first call that can know it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from ranks import in_processes
from versions import needs_torch

import oktopk
import oktopk.torch
from oktopk.torch import fsdp
from oktopk.torch.fsdp_unit import Unit, check_gradients

try:
    from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_module
except ImportError:  # older torch
    replicate_module = None

needs_fsdp = needs_torch((2, 7), "set_all_reduce_hook() of fully_shard")

def test_a_torch_without_the_hook_is_told_which_version_has_it(monkeypatch):
    monkeypatch.setattr(fsdp, "FSDPModule", None)
    with pytest.raises(RuntimeError, match=r"needs torch 2\.7 or newer.*this is torch \d"):
        fsdp.register_fsdp(torch.nn.Linear(2, 2), None)


def work_register(rank, P):
    """All that register_fsdp() can see."""
    from fsdp_models import Net, meshes, register, shard
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh, replicate, shards = meshes(2, 1)
    model = shard(shards)
    with pytest.raises(oktopk.UsageError, match=r"DeviceMesh of 2 dimensions.*mesh\['replicate'\]"):
        register(model, mesh)
    replicated = Net()
    if replicate_module is not None:
        replicate_module(replicated, mesh=replicate)
        with pytest.raises(oktopk.UsageError, match=r"'' was given to replicate\(\).*DistributedDataParallel and reg"):
            register(replicated, replicate)
    with pytest.raises(oktopk.UsageError, match=r"_group = \[0, 1\], but it must be a process"):
        register(model, [0, 1])
    register(model, replicate)  # none of them has left a hook behind
    with pytest.raises(oktopk.UsageError, match="'' has an all-reduce hook.*once per model"):
        register(model, replicate)
    double = Net().double()
    fully_shard(double, mesh=shards)
    with pytest.raises(oktopk.UsageError, match="reduced as torch.float64.*as reduce_dtype"):
        register(double, replicate)
    double = Net().double()
    fully_shard(double, mesh=shards, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))
    register(double, replicate)


def work_backward(rank, P):
    """What only a step shows: from backward(), whole."""
    from fsdp_models import backward, meshes, register, shard

    _, replicate, shards = meshes(2, 1)
    options = {"preset": "circulant", "density": 0.05, "start_iter": 0, "min_numel": 0}
    model = shard(shards)
    register(model, replicate, **options)
    with pytest.raises(oktopk.UsageError, match=r"rank 1: gradient\[0\] = nan"):
        backward(model, rank, 0, lambda loss: loss * float("nan") if rank == 1 else loss)


def work_frozen(rank, P):
    """Frozen from the start: they do not count. Groups of other types side by side."""
    from fsdp_models import Net, backward, meshes, register
    from torch.distributed.fsdp import fully_shard

    _, replicate, shards = meshes(2, 1)
    torch.manual_seed(0)
    model = Net()
    model.first.bfloat16()
    model.first.register_forward_pre_hook(lambda module, given: given[0].bfloat16())
    model.first.register_forward_hook(lambda module, given, result: result.float())
    for frozen in (model.first.weight, model.last.weight, model.last.bias):
        frozen.requires_grad_(False)
    for module in (model.first, model.last, model):
        fully_shard(module, mesh=shards)
    options = {"preset": "circulant", "density": 0.05, "start_iter": 0, "min_numel": 0}
    state = register(model, replicate, **options)
    for step in range(3):
        model.zero_grad()
        backward(model, rank, step)
    assert set(state.stats) == {"", "first"}
    trained = [p for p in model.parameters() if p.requires_grad]
    assert trained[0].grad.dtype == torch.bfloat16 and trained[1].grad.dtype == torch.float32
    for p, arrived in zip(trained, state.arrived_of(trained)):
        assert torch.equal(arrived, p.grad.to_local().reshape(-1).nonzero().reshape(-1))
    with pytest.raises(oktopk.UsageError, match=r"shape \(33, 9\).*was not given, or that was froz"):
        state.arrived(model.first.weight)
    state.load_state_dict(state.state_dict())
    model.first.weight.requires_grad_(True)
    with pytest.raises(oktopk.UsageError, match="'first': a gradient of 330 values, 33 before"):
        backward(model, rank, 3)


def work_many(rank, P):
    """Asking for all parameters looks through them once."""
    from fsdp_models import backward, meshes, register, shard

    _, replicate, shards = meshes(2, 1)
    model = shard(shards)
    state = register(model, replicate, preset="circulant", start_iter=0, min_numel=0)
    backward(model, rank, 0)
    looks, layout = [], Unit.layout
    Unit.layout = lambda unit: looks.append(unit) or layout(unit)
    for _ in range(3):
        for p in model.parameters():
            state.arrived(p)
    assert len(looks) == 2  # one per unit


def work_all(rank, P):
    for work in (work_register, work_backward, work_frozen, work_many):
        work(rank, P)


@needs_fsdp
def test_bad_use_is_refused_and_frozen_parameters_are_not():
    in_processes(2, work_all)


def test_gradients_on_a_device_need_staging():
    group = SimpleNamespace(device=torch.device("cuda", 1), fsdp_params=[], mp_policy=None)
    check_gradients("net", group, host_staging=True)
    group.device = torch.device("meta")
    with pytest.raises(oktopk.UsageError, match="'net'.* are on meta.*host_staging=True"):
        check_gradients("net", group, host_staging=False)
