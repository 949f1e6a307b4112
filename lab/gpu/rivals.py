#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Selection by torch on a GPU, for comparison with `oktopk-lab kernels --device cuda`.

    lab/gpu/rivals.py [-n 16777216,134217728] [--density 0.01,0.001] [-r 21] [--device cuda] [--json FILE]

Gaussian values, medians of the GPU's clock, cold caches, another gradient in each repetition. A step is what published
code does with error feedback: residual += gradient, topk of the magnitudes, gather, and zero at what was taken. Limits
are torch's own sum and add_. `--device cpu` only shows that the program runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Callable, Dict, List

import torch
from torch import Tensor

WINDOWS = 8  # different gradients
WINDOW_STEP = 100_004
OTHERS = 1 << 26  # floats that fill the caches
WARM_UP = 3


@dataclass
class Row:
    kernel: str
    n: int
    k: int
    time: float  # seconds
    limit: str = ""
    ratio: float = 0.0

    def line(self) -> str:
        ratio = f"{self.ratio:8.3f} x {self.limit}" if self.limit else ""
        return f"  {self.kernel:31} {self.n:10} {self.k:8} {1e3 * self.time:9.4f} {ratio}"


class Rivals:
    def __init__(self, device: str, n: int, k: int, repetitions: int) -> None:
        self.device, self.n, self.k, self.repetitions = device, n, k, repetitions
        generator = torch.Generator(device).manual_seed(1)
        self.pool = torch.randn(n + WINDOWS * WINDOW_STEP, device=device, generator=generator)
        self.x = torch.randn(n, device=device, generator=generator)
        self.residual = torch.zeros(n, device=device)
        self.others = torch.ones(OTHERS if device != "cpu" else 1, device=device)
        self.turn = 0

    def gradient(self) -> Tensor:
        self.turn += 1
        first = self.turn % WINDOWS * WINDOW_STEP
        return self.pool[first:first + self.n]

    def seconds(self, body: Callable[[Tensor], object], gradient: Tensor) -> float:
        """Of one call, from cold caches, which the sum fills while the call is queued."""
        self.others.sum()
        if self.device == "cpu":
            start = time.perf_counter()
            body(gradient)
            return time.perf_counter() - start
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        body(gradient)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def median(self, body: Callable[[Tensor], object]) -> float:
        times = [self.seconds(body, self.gradient()) for _ in range(WARM_UP + self.repetitions)]
        return statistics.median(times[WARM_UP:])

    def step(self, gradient: Tensor) -> Tensor:
        self.residual.add_(gradient)
        _, indices = torch.topk(self.residual.abs(), self.k, sorted=False)
        values = self.residual[indices]
        self.residual[indices] = 0
        return values

    def rows(self) -> List[Row]:
        threshold = torch.topk(self.x.abs(), self.k).values[-1]

        def scan(gradient: Tensor) -> Tensor:
            indices = torch.nonzero(gradient.abs() >= threshold).squeeze(1)
            return gradient[indices]

        limits = {"read": self.median(lambda g: g.sum()), "axpy": self.median(lambda g: self.x.add_(g, alpha=0.5))}
        bodies: Dict[str, Callable[[Tensor], object]] = {
            "torch.topk(abs)": lambda g: torch.topk(g.abs(), self.k),
            "torch.topk(abs, sorted=False)": lambda g: torch.topk(g.abs(), self.k, sorted=False),
            "torch abs, nonzero, gather": scan,
            "torch step with error feedback": self.step,
        }
        rows = [Row(f"torch limit {name}", self.n, self.k, seconds) for name, seconds in limits.items()]
        for name, body in bodies.items():
            seconds = self.median(body)
            limit = "axpy" if "step" in name else "read"
            rows.append(Row(name, self.n, self.k, seconds, limit, seconds / limits[limit]))
        return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", default="16777216,134217728", help="sizes, with commas")
    parser.add_argument("--density", default="0.01,0.001", help="k / n, with commas")
    parser.add_argument("-r", "--repetitions", type=int, default=21)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", help="also write the rows to this file")
    options = parser.parse_args()
    if options.repetitions < 1:
        parser.error(f"-r {options.repetitions}: at least one repetition is needed")
    if options.device != "cpu" and not torch.cuda.is_available():
        print("gpu_rivals: torch finds no GPU", file=sys.stderr)
        return 3
    name = "the CPU" if options.device == "cpu" else torch.cuda.get_device_name(options.device)
    print(f"# torch {torch.__version__} on {name}, {options.repetitions} repetitions, Gaussian values")
    print(f"# {'kernel':31} {'n':>10} {'k':>8} {'time(ms)':>9}    ratio limit")
    rows: List[Row] = []
    for n in map(int, options.n.split(",")):
        for density in map(float, options.density.split(",")):
            if n < 1 or not 0 < density <= 1:
                parser.error(f"n = {n}, density = {density}: n must be at least 1, the density in (0, 1]")
            for row in Rivals(options.device, n, max(1, int(n * density)), options.repetitions).rows():
                print(row.line(), flush=True)
                rows.append(row)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as stream:
            json.dump({"tool": "gpu_rivals", "torch": torch.__version__, "device": name,
                       "rows": [vars(row) for row in rows]}, stream, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
