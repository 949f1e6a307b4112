# SPDX-License-Identifier: Apache-2.0
"""The sparse optimisers behind the DDP hook: weights move where a mean arrived."""

import numpy as np
import pytest
import torch
from models import DEVICE, STAGING, flat
from ranks import in_processes


def with_sparse_optimiser(rank, P, name, channels_last):
    import oktopk.torch as ok
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(512, 10),
    ).to(DEVICE)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.001)
    state = ok.OkTopkState(
        density=0.05, preset="circulant", start_iter=3, min_numel=10, timeout=30, **STAGING
    )
    ddp.register_comm_hook(state, ok.oktopk_hook)
    optimiser = getattr(ok, name)(model.parameters(), state, lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(40):
        x = torch.randn(16, 3, 8, 8, generator=generator).to(DEVICE)
        y = x.flatten(1)[:, :10].argmax(1)
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(x), y)
        loss.backward()
        before = [p.detach().clone() for p in model.parameters()]
        optimiser.step()
        for p, old in zip(model.parameters(), before):
            moved = (p.detach() != old) & (p.grad == 0)
            # Only where a mean arrived, in the parameter's own places, does a weight move.
            assert name == "SparseSGD" or state.arrived(p) is None or not moved.any()
        losses.append(float(loss.detach()))
    return flat(ddp), losses


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", ["SparseAdamW", "SparseSGD"])
def test_sparse_optimisers_learn_from_the_hook_what_arrived(name, channels_last):
    results = in_processes(2, with_sparse_optimiser, name, channels_last)
    assert np.array_equal(results[0][0], results[1][0])
    assert np.mean(results[0][1][-10:]) < np.mean(results[0][1][:5])
