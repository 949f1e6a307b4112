# SPDX-License-Identifier: Apache-2.0
"""Nodes of GPUs with group_size: sums inside the node and sparse steps between nodes stay on the GPU, over NCCL. Needs
a GPU; all ranks share it."""

import pytest
import torch
from gloo_ranks import all_equal, run_processes
from gpu import nccl_group, needs_gpu, same_bits, use_gpu
from gpu_models import N, gradient_of, hooked, loss_of, train, weights_of

from oktopk.torch import Reducer
from oktopk.torch._sharded import ShardedReducer
from oktopk.torch._worker import HookStream

pytestmark = needs_gpu


def work_nodes(rank, P, G):
    """Nodes of G ranks: reduce-scatter, slots between the nodes, all-gather; nothing waits for the GPU."""
    device, group = use_gpu(), nccl_group(rank, P)
    ddp, state = hooked(device, group, start_iter=0, group_size=G)
    train(ddp, rank, 6, device)
    assert isinstance(state._worker, HookStream) and all_equal(weights_of(ddp))
    assert all(isinstance(c._reducer, ShardedReducer) for c in state._channels._channels.values())
    loss = loss_of(ddp, rank, 6, device)
    torch.cuda.set_sync_debug_mode("error")
    loss.backward()
    torch.cuda.set_sync_debug_mode("default")
    weights = torch.nn.Parameter(torch.zeros(N, device=device))
    reducers = [Reducer([weights], group, preset="slots", group_size=G) for _ in range(2)]

    def step(reducer, number):
        weights.grad = gradient_of(rank, number).to(device)
        reducer.reduce_gradients()
        return weights.grad.cpu()

    total = sum(step(reducers[0], number) for number in range(4))
    reducers[1].load_state_dict(reducers[0].state_dict())
    last = step(reducers[0], 4)
    assert same_bits(last, step(reducers[1], 4)) and all_equal(last)
    reducers[0].flush()
    want = sum(gradient_of(r, number) for r in range(P) for number in range(5)) / P
    assert torch.allclose(total + last + weights.grad.cpu(), want, atol=1e-4)
    weights.grad = gradient_of(rank, 5).to(device)
    if rank == P - 1:
        weights.grad[17] = float("inf")
    reducers[1].reduce_gradients()
    assert weights.grad.isnan().all() and reducers[1].skipped


@pytest.mark.parametrize("P, G", [(4, 2), (6, 3)])
def test_nodes_stay_on_the_gpu(P, G, tmp_path):
    run_processes(P, work_nodes, tmp_path, G)
