# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism: gradients that are partial sums, and parameters that several ranks hold as a whole."""

from __future__ import annotations

import pytest
import torch
from ranks import in_processes, on_ranks
from torch import nn
from versions import TORCH

import oktopk
from oktopk.torch import LocalSteps, Reducer, SparseAdamW, SparseSGD, register_fsdp

if TORCH < (2, 7):
    pytest.skip("DTensors of torch 2.7", allow_module_level=True)

SPARSE = {"preset": "circulant", "density": 0.05}


def plain_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32))
    with torch.no_grad():
        model[0].weight.uniform_(0.5, 1.5)
    return model


def sharded_model(mesh):
    """The norm and the last bias are whole on all ranks of the mesh; the norm's gradients are partial sums."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

    plan = {
        "0": SequenceParallel(),
        "1": ColwiseParallel(input_layouts=Shard(1)),
        "2": RowwiseParallel(output_layouts=Replicate()),
    }
    return parallelize_module(plain_model(), mesh, plan)


def backward(model, mesh, seed):
    """Each rank of the mesh has a part of the sequence; None: the whole one."""
    x = torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(seed))
    part = x if mesh is None else x.chunk(mesh.size(), 1)[mesh.get_local_rank()]
    model(part).square().mean().backward()


def meshes(*sizes):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", sizes, mesh_dim_names=("data", "shard", "tensor")[-len(sizes) :])


@on_ranks(2)
def test_optimisers_add_up_partial_gradients(rank, P):
    mesh = meshes(P)
    for make in (SparseAdamW, SparseSGD):
        model, whole = sharded_model(mesh), plain_model()
        optimisers = [make(m.parameters(), lr=0.1) for m in (model, whole)]
        for step in range(3):
            for m, on, optimiser in zip((model, whole), (mesh, None), optimisers):
                optimiser.zero_grad()
                backward(m, on, step)
                optimiser.step()
        for own, expected in zip(model.parameters(), whole.parameters()):
            torch.testing.assert_close(own.full_tensor(), expected, rtol=1e-4, atol=1e-5)


def replicated(model):
    return [(name, p) for name, p in model.named_parameters() if all(one.is_replicate() for one in p.placements)]


def two_reducers(rank, P):
    mesh = meshes(2, 2)
    data, tensor = mesh["shard"], mesh["tensor"]
    model = sharded_model(tensor)
    whole = replicated(model)
    names = [name for name, _ in whole]
    parts = [(name, p) for name, p in model.named_parameters() if name not in names]
    words = "parameter 0 '0.weight' is sharded over no ranks, parameter 2 '1.weight' over ranks "
    for make in (Reducer, LocalSteps):
        with pytest.raises(oktopk.UsageError, match=words):
            make(model.named_parameters(), data, **SPARSE)
    reducers = [Reducer(parts, data, **SPARSE), Reducer(whole, data, preset="dense")]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        optimiser.zero_grad()
        backward(model, tensor, 10 * step + data.get_local_rank())
        for reducer in reducers:
            reducer.reduce_gradients()
        optimiser.step()
    return torch.cat([p.to_local().detach().flatten() for _, p in whole]).numpy()


def test_parameters_that_ranks_hold_as_a_whole_need_a_reducer_of_their_own():
    results = in_processes(4, two_reducers)
    assert all((one == results[0]).all() for one in results)


def with_fsdp(rank, P):
    from torch.distributed.fsdp import fully_shard

    mesh = meshes(2, 1, 2)
    options = {**SPARSE, "start_iter": 0}
    model = sharded_model(mesh["tensor"])
    fully_shard(model, mesh=mesh["shard"])
    with pytest.raises(oktopk.UsageError, match="'.0' is sharded over no ranks, .* modules of their own"):
        register_fsdp(model, mesh["data"], min_numel=0, **options)
    model = sharded_model(mesh["tensor"])
    model[2].bias.requires_grad_(False)
    for part in (model[0], model):
        fully_shard(part, mesh=mesh["shard"])
    register_fsdp(model, mesh["data"], min_numel=65, **options)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        optimiser.zero_grad()
        backward(model, mesh["tensor"], 10 * step + mesh["data"].get_local_rank())
        optimiser.step()
    return torch.cat([p.to_local().detach().flatten() for p in model[0].parameters()]).numpy()


def test_fsdp_with_tensor_parallelism_refuses_groups_of_both_kinds():
    results = in_processes(4, with_fsdp)
    assert all((one == results[0]).all() for one in results)
