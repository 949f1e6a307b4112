#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of a small DDP training run with the hook, started by torchrun; kill.py disturbs it and reads its lines."""

import os
import sys
import time

import torch
import torch.distributed as dist

import oktopk.torch


def say(text: str) -> None:
    """One write: print() writes text and end of line apart, and lines of several ranks mix."""
    os.write(1, f"rank {dist.get_rank()} {text}\n".encode())


def train(steps: int) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    model = torch.nn.parallel.DistributedDataParallel(net)
    state = oktopk.torch.OkTopkState(preset="circulant", density=0.05, start_iter=2)
    model.register_comm_hook(state, oktopk.torch.oktopk_hook)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05)
    for step in range(steps):
        if step == 3:
            say(f"ready pid {os.getpid()} member {dist.get_rank()}")
        optimiser.zero_grad()
        x = torch.randn(8, 64)
        torch.nn.functional.mse_loss(model(x), x[:, :4]).backward()
        optimiser.step()
        time.sleep(0.002)
    say("done loss 0 weights 0 messages 0")


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        train(int(sys.argv[1]))
    except Exception as error:  # noqa: BLE001, all that a user would see
        say(f"error: {type(error).__name__}: {str(error).splitlines()[0]}")
        time.sleep(1)  # torchrun ends the others as soon as one has failed: let them have their say
        os._exit(3)
    dist.barrier()
    dist.destroy_process_group()


main()
