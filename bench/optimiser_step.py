#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times a step of SparseAdamW beside torch's AdamW: 400 tensors, as large together as BERT-base,
on this machine's processor.

    PYTHONPATH=python python bench/optimiser_step.py [--scale 0.01] [--steps 5] [--threads N]

Each row is the median of the steps. Everything arrives densely (as in warm-up), as a list of all
indices, or 1% of it arrives, at random. The columns "x foreach" compare with torch's foreach AdamW of
the same run. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from oktopk.torch import SparseAdamW


def shapes(scale: float) -> List[Tuple[int, ...]]:
    """400 of them, 110M elements in all: a vocabulary, 12 layers of 33 tensors, and a head."""
    side = max(8, int(768 * scale**0.5))
    layer: List[Tuple[int, ...]] = [(side, side)] * 4 + [(4 * side, side), (side, 4 * side)]
    layer += [(side,)] * 26 + [(4 * side,)]
    return [(int(40 * side), side), (512, side)] + layer * 12 + [(side, side), (side,)]


class Source:
    """What a hook would say: all arrived (None), or these indices of each parameter."""

    def __init__(self) -> None:
        self.indices: Dict[Tensor, Optional[Tensor]] = {}

    def arrived(self, param: Tensor) -> Optional[Tensor]:
        return self.indices[param]


def arrivals(param: Tensor, density: float) -> Tensor:
    if density == 1:
        return torch.arange(param.numel())
    return (torch.rand(param.numel()) < density).nonzero().view(-1)


def seconds(step: Callable[[], object], before: Callable[[], object], steps: int) -> float:
    taken = []
    for i in range(steps + 2):  # two to warm up
        before()
        begin = time.perf_counter()
        step()
        if i >= 2:
            taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def torch_step(params: List[Tensor], how: str, steps: int) -> float:
    optimiser = torch.optim.AdamW(params, **{how: True})  # type: ignore[arg-type]
    return seconds(optimiser.step, lambda: None, steps)


def sparse_step(params: List[Tensor], density: Optional[float], steps: int) -> float:
    source = Source()
    optimiser = SparseAdamW(params, source)

    def exchange() -> None:
        for param in params:
            source.indices[param] = None if density is None else arrivals(param, density)

    return seconds(optimiser.step, exchange, steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of elements")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes(options.scale)]
    for param in params:
        param.grad = torch.randn_like(param)
    rows: List[Tuple[str, Callable[[], float]]] = [
        (f"torch AdamW, {how}", partial(torch_step, params, how, options.steps))
        for how in ("foreach", "fused")
    ]
    for name, density in (("densely", None), ("as a list", 1.0), ("1%", 0.01)):
        measure = partial(sparse_step, params, density, options.steps)
        rows.append((f"SparseAdamW, {name}", measure))
    elements = sum(param.numel() for param in params)
    print(f"{len(params)} tensors, {elements / 1e6:.1f}M elements, {options.threads} threads")
    base = 0.0
    for name, measure in rows:
        try:
            taken = measure()
        except (RuntimeError, TypeError) as error:  # fused on the CPU: torch 2.4
            print(f"{name:28} not available: {error}")
            continue
        base = base or taken
        print(f"{name:28}{1e3 * taken:9.1f} ms {taken / base:7.2f} x foreach", flush=True)


if __name__ == "__main__":
    main()
