# SPDX-License-Identifier: Apache-2.0
"""A model for fully_shard, and what the tests ask of it. OKTOPK_TEST_DEVICE as in models.py."""

from __future__ import annotations

import torch
from models import DEVICE, STAGING
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import oktopk.torch


class Spoil(torch.autograd.Function):
    """Changes nothing, but what comes back is infinite."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * float("inf")


class Net(nn.Module):
    """Odd sizes, so that shards are padded; a branch that some steps leave out."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(9, 33)
        self.side = nn.Linear(33, 33)
        self.last = nn.Linear(33, 5)

    def forward(self, x, with_side=True, spoilt=False):
        x = torch.relu(self.first(x))
        if spoilt:
            x = Spoil.apply(x)
        if with_side:
            x = x + self.side(x)
        return self.last(x)


def shard(mesh, seed=0, **options):
    torch.manual_seed(seed)
    model = Net().to(DEVICE)
    fully_shard(model.first, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)  # side and last
    return model


def meshes(replicas, shards):
    mesh = init_device_mesh(DEVICE.type, (replicas, shards), mesh_dim_names=("replicate", "shard"))
    return mesh, mesh["replicate"], mesh["shard"]


def register(model, replicate, **options):
    return oktopk.torch.register_fsdp(model, replicate, **STAGING, **options)


def backward(model, rank, step, scale=lambda loss: loss, **how):
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(8, 9, generator=generator).to(DEVICE)
    scale(model(x, **how).square().mean()).backward()


def gradients(model):
    return torch.cat([p.grad.to_local().reshape(-1) for p in model.parameters()])


def weights(model):
    return torch.cat([p.detach().to_local().reshape(-1) for p in model.parameters()])
