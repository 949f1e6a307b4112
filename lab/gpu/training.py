#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps of a GPT, all methods in one run: plain DDP, PowerSGD, and the hook with its optimiser.

    PYTHONPATH=python python lab/gpu/training.py --ranks 4 --device cuda
    PYTHONPATH=python python lab/gpu/training.py --ranks 2 --device cuda --parameters 350M --methods slots --phases

All ranks share one GPU unless there are more; under torchrun each has its own. One line per method: the median time of
a step (forward, backward with the exchange, optimiser) on the slowest rank, and the same over that of the first method.
--phases adds the time that each part of a step takes on the GPU, by events: the kernels and collectives of all buckets
run beside backward, so the parts do not add up to the step. --json prints one object instead.
Needs an idle machine; memory: about 25 bytes per parameter, rank and method.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import local_ranks  # noqa: E402
from frontier.models import Gpt, Shape  # noqa: E402

import oktopk.torch  # noqa: E402
from oktopk.torch import _flat_reducer  # noqa: E402
from oktopk.torch._gpu import ResidentSteps  # noqa: E402

SHAPES = {
    "tiny": Shape(2, 32, 2, 16, 64),
    "10.9M": Shape(6, 384, 6, 256),
    "350M": Shape(24, 1024, 16, 256, 50304),
}
METHODS = ("ddp-gloo", "ddp-nccl", "powersgd", "circulant", "slots", "auto")
COLLECTIVES = {"all_to_all_single": "exchange"}  # by name; the other one gathers


class Phases:
    """The phases of a step by CUDA events: backward, optimiser, and the parts of steps that stay on the GPU
    (oktopk/torch/_gpu.py), summed over the buckets. While it is on, all such steps report to it."""

    def __init__(self, device: torch.device, is_on: bool):
        self._is_on = is_on and device.type == "cuda"
        self._open: List[Tuple[str, Any, Any]] = []
        self._steps: List[Dict[str, float]] = []
        if self._is_on:
            _flat_reducer.ResidentSteps = timed(self)  # type: ignore[misc]

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """What is queued on the current stream within."""
        if not self._is_on:
            yield
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        self._open.append((name, begin, end))

    def clear(self) -> None:
        self._open, self._steps = [], []

    def end_step(self) -> None:
        """After a wait for the device."""
        step: Dict[str, float] = {}
        for name, begin, end in self._open:
            step[name] = step.get(name, 0.0) + begin.elapsed_time(end)
        self._open = []
        self._steps.append(step)

    def medians(self) -> Dict[str, float]:
        """Milliseconds, by phase."""
        names = {name: None for step in self._steps for name in step}
        return {name: statistics.median(step.get(name, 0.0) for step in self._steps) for name in names}


class TimedCore:
    """A native Reducer whose resident_...() calls are timed."""

    def __init__(self, core: Any, phases: Phases):
        self._core, self._phases = core, phases

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._core, name)
        if not name.startswith("resident_") or not callable(found) or name == "resident_state":
            return found

        def timed(*args: Any) -> Any:
            with self._phases.of(name[len("resident_") :]):
                return found(*args)

        return timed


def timed(phases: Phases) -> Any:
    class Timed(ResidentSteps):
        def __init__(self, core: Any, *args: Any):
            super().__init__(TimedCore(core, phases), *args)

        def _exchange(self, collective: Any, into: torch.Tensor, what: torch.Tensor) -> None:
            with phases.of(COLLECTIVES.get(collective.__name__, "gather")):
                super()._exchange(collective, into, what)

    return Timed


class Run:
    """One method: its model, optimiser and hook."""

    def __init__(self, method: str, options: argparse.Namespace, device: torch.device, groups: Dict[str, Any]):
        torch.manual_seed(0)
        model = Gpt(SHAPES[options.parameters]).to(device)
        over = groups["gloo"] if method == "ddp-gloo" or device.type == "cpu" else groups["nccl"]
        settings: Dict[str, Any] = {"bucket_cap_mb": 10_000} if method == "powersgd" else {}
        self.method, self.device, self.shape, self.options = method, device, SHAPES[options.parameters], options
        self.ddp = DistributedDataParallel(model, process_group=over, **settings)
        self.state: Any = None
        self.optimiser: Any
        if method in ("circulant", "slots", "auto"):
            self.state = oktopk.torch.OkTopkState(preset=method, density=options.density, start_iter=0)
            self.ddp.register_comm_hook(self.state, oktopk.torch.oktopk_hook)
            self.optimiser = oktopk.torch.SparseAdamW(self.ddp.parameters(), self.state, lr=1e-4)
            return
        if method == "powersgd":
            from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

            state = power.PowerSGDState(over, matrix_approximation_rank=4, start_powerSGD_iter=2)
            self.ddp.register_comm_hook(state, power.powerSGD_hook)
        self.optimiser = torch.optim.AdamW(self.ddp.parameters(), lr=1e-4, fused=device.type == "cuda")

    def step(self, phases: Phases) -> float:
        """Seconds of one step."""
        size = (self.options.batch, self.shape.context + 1)
        tokens = torch.randint(self.shape.vocabulary, size, device=self.device)
        self.optimiser.zero_grad()
        wait_for(self.device)
        began = time.perf_counter()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.bf16):
            logits = self.ddp(tokens[:, :-1])
            loss = cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        with phases.of("backward"):
            loss.backward()
        with phases.of("optimiser"):
            self.optimiser.step()
        wait_for(self.device)
        return time.perf_counter() - began

    def words(self) -> str:
        """The choice of preset auto, and how much less was sent."""
        if self.state is None:
            return ""
        chosen = getattr(self.state, "_choice", None)
        rate = self.state.compression_stats().rate
        return f"{chosen + ', ' if chosen else ''}{rate:.1f} x fewer bytes"


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_of(options: argparse.Namespace, rank: int) -> torch.device:
    if options.device == "cpu":
        return torch.device("cpu")
    # Several ranks share a GPU when each says that it is another host.
    os.environ.update(NCCL_HOSTID=f"rank{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def measure(run: Run, options: argparse.Namespace) -> Tuple[float, Dict[str, float]]:
    """Milliseconds of a step and of its phases, medians, on the slowest rank."""
    phases = Phases(run.device, options.phases)
    for _ in range(options.warmup):
        run.step(phases)
    phases.clear()
    times = []
    for _ in range(options.steps):
        times.append(run.step(phases))
        phases.end_step()
    parts = phases.medians()
    slowest = local_ranks.slowest([1e3 * statistics.median(times), *parts.values()])
    return slowest[0], dict(zip(parts, slowest[1:]))


def work(rank: int, P: int, options: argparse.Namespace) -> None:
    device = device_of(options, rank)
    ranks = list(range(P))
    groups = {"gloo": dist.new_group(ranks, backend="gloo")}
    if device.type == "cuda":
        groups["nccl"] = dist.new_group(ranks, backend="nccl")
    rows: List[Dict[str, Any]] = []
    for method in options.methods.split(","):
        run = Run(method, options, device, groups)
        milliseconds, parts = measure(run, options)
        rows.append({"method": method, "ms": milliseconds, "phases": parts, "words": run.words()})
        n = sum(p.numel() for p in run.ddp.parameters())
        del run
        gc.collect()  # hooks and models hold each other
    if rank == 0:
        show(rows, {"n": n, "P": P, "device": describe(device), "density": options.density}, options.json)


def describe(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return f"{name}, torch {torch.__version__}"


def show(rows: List[Dict[str, Any]], head: Dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps({**head, "rows": rows}))
        return
    print(", ".join(f"{name} {value}" for name, value in head.items()))
    for row in rows:
        times = f"{row['ms']:9.2f} ms {row['ms'] / rows[0]['ms']:6.2f} x {rows[0]['method']}"
        print(f"{row['method']:10}{times}   {row['words']}".rstrip())
        for name, milliseconds in row["phases"].items():
            print(f"    {name:10}{milliseconds:9.3f} ms")


def parse(arguments: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--parameters", choices=tuple(SHAPES), default="10.9M")
    parser.add_argument("--methods", default="ddp-gloo,ddp-nccl,circulant,slots")
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--batch", type=int, default=8, help="sequences per rank")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--phases", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    unknown = [method for method in options.methods.split(",") if method not in METHODS]
    if unknown:
        parser.error(f"method '{unknown[0]}': there are {', '.join(METHODS)}")
    if options.device == "cpu" and "ddp-nccl" in options.methods:
        parser.error("ddp-nccl needs --device cuda")
    return options


if __name__ == "__main__":
    options = parse(sys.argv[1:])
    local_ranks.run(options.ranks, work, options, backend="cpu:gloo,cuda:nccl" if options.device == "cuda" else "gloo")
