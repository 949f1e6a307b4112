# SPDX-License-Identifier: Apache-2.0
"""A small model and its data for tests of hooks and optimisers.

OKTOPK_TEST_DEVICE=cuda puts both on a GPU, all ranks on the same one: the tests must pass there as on the CPU.
OKTOPK_TEST_STAGING=1 copies its gradients to the host. Only processes of in_processes() touch the device.
"""

import os

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import oktopk.torch
from oktopk.torch import _gpu

DEVICE = torch.device(os.environ.get("OKTOPK_TEST_DEVICE", "cpu"))
STAGING = {"host_staging": os.environ.get("OKTOPK_TEST_STAGING") == "1"}
needs_cpu = pytest.mark.skipif(DEVICE.type != "cpu", reason="pretends that CPU tensors are a GPU's")
needs_gpu = pytest.mark.skipif(DEVICE.type != "cuda", reason="NOT RUN: OKTOPK_TEST_DEVICE is not cuda")


def use_gpu():
    """In a rank's process: the GPU, after a check that the package can use it. All ranks share the first one."""
    trouble = _gpu.trouble(0)
    assert not trouble, trouble  # no skip: the package on a machine with a GPU must have its kernels
    torch.cuda.set_device(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    return torch.device("cuda", 0)


def several_on_one_gpu(rank):
    """Before NCCL connects: several ranks share a GPU when each says that it is another host."""
    os.environ.update(NCCL_HOSTID=f"rank{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")


def nccl_group(rank, P):
    """Collective: the same ranks over NCCL."""
    several_on_one_gpu(rank)
    return dist.new_group(list(range(P)), backend="nccl")


def same_bits(a, b):
    a, b = a.detach().cpu().contiguous(), b.detach().cpu().contiguous()
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def small_model(seed=0, device=DEVICE):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 10),
    )
    return model.to(device)


def batch(rank, step, size=16):
    """Ranks see different data: odd ones have larger inputs."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(size, 32, generator=generator) * (1 + 3 * (rank % 2))
    y = (x[:, :10] + 0.1 * torch.randn(size, 10, generator=generator)).argmax(1)
    return x.to(DEVICE), y.to(DEVICE)


def loss_of(model, rank, step):
    x, y = batch(rank, step)
    return torch.nn.functional.cross_entropy(model(x), y)


def make_ddp(hook="sparse", state=None, ddp_options=None, **options):
    """A DDP model in several small buckets, and its hook's state."""
    settings = {"bucket_cap_mb": 0.01, **(ddp_options or {})}
    # Before torch 2.4 the first bucket's cap is one of its own.
    dist._DEFAULT_FIRST_BUCKET_BYTES = int(settings["bucket_cap_mb"] * 2**20)
    model = DistributedDataParallel(small_model(), **settings)
    if hook is None:
        return model, None
    defaults = dict(density=0.05, preset="circulant", start_iter=2, min_numel=100, timeout=30.0)
    defaults.update(STAGING)
    if state is None:
        state = oktopk.torch.OkTopkState(**{**defaults, **options})
    wrapped = oktopk.torch.oktopk_hook if hook == "sparse" else hook(oktopk.torch.oktopk_hook)
    model.register_comm_hook(state, wrapped)
    return model, state


def train(model, rank, steps, first=0, lr=0.05, optimiser=None, scaler=None):
    optimiser = optimiser or torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    scale = scaler.scale if scaler else lambda loss: loss
    for step in range(first, first + steps):
        optimiser.zero_grad()
        loss = loss_of(model, rank, step)
        scale(loss).backward()
        if scaler:
            scaler.step(optimiser)
            scaler.update()
        else:
            optimiser.step()
    return float(loss.detach())


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).cpu().numpy()


def flat_gradients(model):
    """By parameter name, as float64."""
    module = model.module if isinstance(model, DistributedDataParallel) else model
    return {n: p.grad.double().flatten().cpu().numpy().copy() for n, p in module.named_parameters()}


def unsent_of(state):
    return {name: t.double().cpu().numpy() for name, t in state.unsent().items()}


def add(into, other, factor=1.0):
    for name, x in other.items():
        into[name] = into.get(name, np.zeros(len(x))) + factor * x
    return into
