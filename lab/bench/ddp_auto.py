#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Is preset auto ever slower than plain DDP? Real training steps, all methods in one run.

    PYTHONPATH=python python lab/bench/ddp_auto.py --ranks 2 --parameters 33.5M
    PYTHONPATH=python torchrun --nproc-per-node 2 lab/bench/ddp_auto.py --device cuda

Each round makes one step with every method in turn, so that whatever disturbs the machine disturbs
all. A step is forward, backward with the exchange, and SGD. One line per method: the median time of
the slowest rank, and the same over plain DDP's. Methods: ddp, auto, or a preset of oktopk. With
--most 1.1, exit code 1 if auto takes more than 1.1 times the fastest of the others. Needs an idle
machine and memory: about 5 times the parameters per method and rank.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import local_ranks  # noqa: E402

WIDTH = 1024


def count(text: str) -> int:
    factor = {"K": 1e3, "M": 1e6}.get(text[-1:].upper())
    return int(float(text[:-1]) * factor) if factor else int(text)


def make_model(parameters: int) -> nn.Module:
    layers: List[nn.Module] = []
    for _ in range(max(1, round(parameters / (WIDTH * WIDTH + WIDTH)))):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers)


def make(method: str, options: argparse.Namespace, device: torch.device) -> Tuple[Any, Any]:
    """A DDP model and the hook's state; None: plain DDP."""
    import oktopk.torch

    torch.manual_seed(0)
    ids = [device.index] if device.type == "cuda" else None
    ddp = DistributedDataParallel(make_model(options.parameters).to(device), device_ids=ids)
    if method == "ddp":
        return ddp, None
    state = oktopk.torch.OkTopkState(preset=method, density=options.density, start_iter=0)
    ddp.register_comm_hook(state, oktopk.torch.oktopk_hook)
    return ddp, state


def step(ddp: Any, optimiser: torch.optim.Optimizer, batch: torch.Tensor) -> float:
    if batch.is_cuda:
        torch.cuda.synchronize(batch.device)
    began = time.perf_counter()
    optimiser.zero_grad()
    ddp(batch).square().mean().backward()
    optimiser.step()
    if batch.is_cuda:
        torch.cuda.synchronize(batch.device)
    return time.perf_counter() - began


def chosen(state: Any) -> str:
    """The methods in force, and of how many buckets."""
    if state is None:
        return "all_reduce"
    counts: Dict[str, int] = {}
    for channel in state._channels._channels.values():
        stats = channel.core.stats
        is_theirs = stats["dense"] and "fp32" in stats["codec"]
        name = "all_reduce" if is_theirs else f"{stats['preset']} {stats['codec']}"
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{name} x{number}" for name, number in counts.items())


def work(rank: int, P: int, options: argparse.Namespace) -> None:
    device = torch.device("cpu")
    if options.device == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    torch.manual_seed(rank)
    batch = torch.randn(options.batch, WIDTH, device=device)
    made = {method: make(method, options, device) for method in options.methods}
    optimisers = {m: torch.optim.SGD(ddp.parameters(), lr=1e-3) for m, (ddp, _) in made.items()}
    times: Dict[str, List[float]] = {method: [] for method in made}
    for number in range(options.warmup + options.steps):
        for method, (ddp, _) in made.items():
            seconds = step(ddp, optimisers[method], batch)
            if number >= options.warmup:
                times[method].append(seconds)
    medians = local_ranks.slowest([statistics.median(times[method]) for method in made])
    if rank == 0:
        report(dict(zip(made, medians)), made, P, options)


def report(medians: Dict[str, float], made: Dict[str, Any], P: int, options: Any) -> None:
    n = sum(p.numel() for p in make_model(options.parameters).parameters())
    print(f"n = {n}, P = {P}, {options.device}, density {options.density}")
    for method, seconds in medians.items():
        beside = f"{seconds / medians['ddp']:6.2f} x ddp" if "ddp" in medians else ""
        name = chosen(made[method][1])
        print(f"{method:12} {1e3 * seconds:9.1f} ms {beside}   {name}", flush=True)
    others = [seconds for method, seconds in medians.items() if method != "auto"]
    if options.most and medians["auto"] > options.most * min(others):
        print(f"auto takes {medians['auto'] / min(others):.2f} times the fastest", file=sys.stderr)
        sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--parameters", type=count, default=count("33.5M"))
    parser.add_argument("--methods", default="ddp,auto,circulant,oktopk,topka")
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=20, help="auto's first review is at 16")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--backend", default=None, help="default: nccl for cuda, else gloo")
    parser.add_argument("--most", type=float, default=0.0)
    options = parser.parse_args()
    options.methods = options.methods.split(",")
    if options.most and (len(options.methods) < 2 or "auto" not in options.methods):
        parser.error("--most compares auto with others: name them in --methods")
    backend = options.backend or ("nccl" if options.device == "cuda" else "gloo")
    local_ranks.run(options.ranks, work, options, backend=backend)


if __name__ == "__main__":
    main()
