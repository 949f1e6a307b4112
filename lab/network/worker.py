# SPDX-License-Identifier: Apache-2.0
"""One rank of a training run, with one method, in its namespace. Started by launch.py.

A perceptron of four square layers is trained on the labels of a fixed random teacher with a few
samples per step: the gradient is large and the computation small, so that the network decides.
After the warm-up (dense steps of the hooks, DDP's buckets) the ranks agree on how many steps fit
the time, and note when each of them ended: the clock is the machine's, the same for all. Wire bytes
are read between two barriers: a barrier's message leaves a rank after all that this rank sent
before it. At the end all ranks must hold the same weights, bit by bit.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from network import counters, methods

CLASSES = 10
LAYERS = 4
LEAST_WARMUP = 6


def width_for(parameters: int) -> int:
    """The least width w with at least so many: LAYERS w^2 + (LAYERS + CLASSES) w + CLASSES."""
    linear = LAYERS + CLASSES
    root = math.sqrt(linear**2 + 4 * LAYERS * max(parameters - CLASSES, 0))
    return max(1, math.ceil((root - linear) / (2 * LAYERS)))


def make_model(width: int) -> nn.Sequential:
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def make_step(ddp: Any, method: str, width: int, batch: int) -> Callable[[], float]:
    """A function that does one training step and returns its loss."""
    teacher = torch.randn(width, CLASSES, generator=torch.Generator().manual_seed(2))
    samples = torch.Generator().manual_seed(100 + dist.get_rank())
    optimiser = torch.optim.SGD(ddp.parameters(), lr=0.05)

    def step() -> float:
        x = torch.randn(batch, width, generator=samples)
        with ddp.no_sync() if method == "none" else contextlib.nullcontext():
            optimiser.zero_grad(set_to_none=method == "none")
            loss = nn.functional.cross_entropy(ddp(x), (x @ teacher).argmax(1))
            loss.backward()
        optimiser.step()
        return loss.item()

    return step


def fitting_steps(seconds_per_step: float, seconds: float, most: int) -> int:
    """As many as fit the time, by the slowest rank's word: the same number on all ranks."""
    slowest = torch.tensor([seconds_per_step], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return min(most, int(seconds / max(slowest.item(), 1e-6)))


def same_everywhere(model: nn.Module) -> bool:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    digests: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(digests, digest.hexdigest())
    return len(set(digests)) == 1


def warm_up(step: Callable[[], float], plan: dict) -> float:
    """LEAST_WARMUP steps, and more while there is time; returns the seconds of the last one."""
    taken, todo, done = 0.0, LEAST_WARMUP, 0
    while done < todo:
        begin = time.monotonic()
        step()
        taken, done = time.monotonic() - begin, done + 1
        if done == LEAST_WARMUP:
            todo += fitting_steps(taken, plan["seconds"], plan["warmup"] - LEAST_WARMUP)
    return taken


def measure(step: Callable[[], float], state: Any, plan: dict) -> dict:
    """Warm-up, then the steps that count."""
    taken = warm_up(step, plan)
    steps = max(plan["least_steps"], fitting_steps(taken, plan["seconds"], plan["steps"]))
    dist.barrier()
    counted, before = methods.counted_bytes(state), counters.read()
    start, ends, loss = time.monotonic(), [], 0.0
    for _ in range(steps):
        loss = step()
        ends.append(time.monotonic())
    dist.barrier()
    sent = counters.between(before, counters.read())
    sent["counted"] = methods.counted_bytes(state) - counted
    return {"start": start, "ends": ends, "sent": sent, "loss": loss}


def main() -> None:
    plan, out = json.loads(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=plan["timeout"]))
    width = width_for(plan["parameters"])
    model = make_model(width)
    count = sum(p.numel() for p in model.parameters())
    ddp = nn.parallel.DistributedDataParallel(
        model,
        gradient_as_bucket_view=True,
        **methods.bucket_options(plan["method"], count),
    )
    state = methods.register(ddp, plan["method"], plan["density"], plan["codec"])
    result = measure(make_step(ddp, plan["method"], width, plan["batch"]), state, plan)
    result["same_weights"] = plan["method"] == "none" or same_everywhere(model)
    result["parameters"] = count
    out.write_text(json.dumps(result))
    dist.barrier()  # nobody leaves while another still needs it
    sys.stdout.flush()
    os._exit(0)  # no destructor order to depend on: the result is written


if __name__ == "__main__":
    main()
