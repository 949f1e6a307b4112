# SPDX-License-Identifier: Apache-2.0
"""Gradients and small models for tests on GPUs: the same on every rank, or by rank and step."""

import torch
from torch.nn.parallel import DistributedDataParallel

from oktopk.torch import OkTopkState, oktopk_hook

N = 300_001


def gradient_of(rank, step, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return (torch.randn(N, generator=generator) * torch.rand(N, generator=generator).square()).to(dtype)


def model_of(device):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(256, 8)).to(device)


def batch_of(rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(32, 64, generator=generator)
    return x, x[:, :8].argmax(1)


def loss_of(model, rank, step, device):
    x, y = batch_of(rank, step)
    return torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))


def hooked(device, group, **options):
    settings = {"density": 0.02, "preset": "slots", "start_iter": 2, "min_numel": 100, **options}
    ddp = DistributedDataParallel(model_of(device), process_group=group, bucket_cap_mb=0.1)
    state = OkTopkState(**settings)
    ddp.register_comm_hook(state, oktopk_hook)
    return ddp, state


def train(ddp, rank, steps, device, optimiser=None):
    optimiser = optimiser or torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step in range(steps):
        optimiser.zero_grad()
        loss = loss_of(ddp, rank, step, device)
        loss.backward()
        optimiser.step()
    return float(loss.detach())


def weights_of(ddp):
    return torch.cat([p.detach().flatten() for p in ddp.parameters()]).cpu()
