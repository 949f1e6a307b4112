#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times a step of SparseAdamW beside torch's AdamW, on this machine's processor or on its GPU.

    PYTHONPATH=python python lab/bench/optimiser_step.py [--scale 0.01] [--steps 5] [--threads N]
    PYTHONPATH=python python lab/bench/optimiser_step.py --device cuda [--model gpt,gpt-medium]

Models: bert (400 tensors, 110M elements), gpt (76, 10.9M), gpt-medium (292, 354M). Each row is the median of the steps.
Everything arrives densely (as in warm-up), as a list of all indices, or 1% arrives, at random, as a list or where the
gradient is not zero. Columns: the step until all is done ("step"), until step() returns ("host"), and on a GPU between
events that are queued behind a pause, so that it never waits for the host ("gpu"). Four sets of arrivals take turns.
The columns "x" compare with torch's faster row. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from oktopk.torch import SparseAdamW
from oktopk.torch.optim import WHERE_NONZERO

Shape = Tuple[int, ...]
SETS = 4
PAUSE = 40_000_000  # cycles of a GPU, about 20 ms: longer than any step() takes to return


def bert(scale: float) -> List[Shape]:
    """400 of them, 110M elements in all: a vocabulary, 12 layers of 33 tensors, and a head."""
    side = max(8, int(768 * scale**0.5))
    layer: List[Shape] = [(side, side)] * 4 + [(4 * side, side), (side, 4 * side)]
    layer += [(side,)] * 26 + [(4 * side,)]
    return [(int(40 * side), side), (512, side)] + layer * 12 + [(side, side), (side,)]


def gpt(layers: int, width: int, vocabulary: int, scale: float) -> List[Shape]:
    """12 tensors for each layer, and four more."""
    side = max(8, int(width * scale**0.5))
    norm: List[Shape] = [(side,), (side,)]
    attention: List[Shape] = [(3 * side, side), (3 * side,), (side, side), (side,)]
    network: List[Shape] = [(4 * side, side), (4 * side,), (side, 4 * side), (side,)]
    return [(vocabulary, side), (256, side)] + (2 * norm + attention + network) * layers + norm


MODELS: Dict[str, Callable[[float], List[Shape]]] = {
    "bert": bert,
    "gpt": partial(gpt, 6, 384, 256),
    "gpt-medium": partial(gpt, 24, 1024, 50_257),
}


class Source:
    """What a hook would say: all arrived (None), these indices of each parameter, or where it is not zero."""

    def __init__(self) -> None:
        self.answers: Dict[int, object] = {}

    def arrived(self, param: Tensor) -> object:
        return self.answers[id(param)]

    def arrived_of(self, params: List[Tensor]) -> List[object]:
        return [self.answers[id(param)] for param in params]


class Times(NamedTuple):
    """Seconds."""

    step: float
    host: float
    gpu: Optional[float]


class Means:
    """Gradients in which a share of the elements arrives, in sets that take turns; they stay where they are."""

    def __init__(self, params: List[Tensor], density: float) -> None:
        self.params, self._turn = params, 0
        self._means = [[self._draw(param, density) for param in params] for _ in range(SETS)]
        self._indices: Dict[int, List[Tensor]] = {}
        for param in params:
            param.grad = torch.zeros_like(param)

    @staticmethod
    def _draw(param: Tensor, density: float) -> Tensor:
        mean = torch.randn_like(param)
        return mean if density == 1 else mean.mul_(torch.rand_like(param) < density)

    def next(self) -> None:
        """Puts the next set into the gradients."""
        self._turn = (self._turn + 1) % SETS
        for param, mean in zip(self.params, self._means[self._turn]):
            assert param.grad is not None
            param.grad.copy_(mean)

    def indices(self) -> List[Tensor]:
        """Where this set arrives."""
        if self._turn not in self._indices:
            self._indices[self._turn] = [mean.view(-1).nonzero().view(-1) for mean in self._means[self._turn]]
        return self._indices[self._turn]


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def times(step: Callable[[], object], before: Callable[[], object], steps: int, device: torch.device) -> Times:
    spans, hosts, gpus = [], [], []
    for _ in range(steps + 2):
        before()
        wait(device)
        begin = time.perf_counter()
        step()
        hosts.append(time.perf_counter() - begin)
        wait(device)
        spans.append(time.perf_counter() - begin)
    for _ in range(steps + 2 if device.type == "cuda" else 0):
        before()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(PAUSE)
        first.record()
        step()
        last.record()
        last.synchronize()
        gpus.append(first.elapsed_time(last) / 1e3)
    median = [statistics.median(values[2:]) if values else None for values in (spans, hosts, gpus)]  # two to warm up
    assert median[0] is not None and median[1] is not None
    return Times(median[0], median[1], median[2])


def torch_step(means: Means, how: str, steps: int) -> Times:
    optimiser = torch.optim.AdamW(means.params, **{how: True})  # type: ignore[arg-type]
    return times(optimiser.step, means.next, steps, means.params[0].device)


def sparse_step(means: Means, answer: str, steps: int) -> Times:
    source = Source()
    optimiser = SparseAdamW(means.params, source)  # type: ignore[arg-type]

    def exchange() -> None:
        means.next()
        others: object = WHERE_NONZERO if answer == "nonzero" else None
        lists = means.indices() if answer == "list" else [others] * len(means.params)
        for param, arrived in zip(means.params, lists):
            source.answers[id(param)] = arrived

    return times(optimiser.step, exchange, steps, means.params[0].device)


def rows_of(params: List[Tensor], steps: int) -> List[Tuple[str, Callable[[], Times]]]:
    def on(density: float, run: Callable[[Means, str, int], Times], how: str) -> Times:
        return run(Means(params, density), how, steps)

    rows: List[Tuple[str, Callable[[], Times]]]
    rows = [(f"torch AdamW, {how}", partial(on, 1.0, torch_step, how)) for how in ("foreach", "fused")]
    ours = [("densely", 1.0, "all"), ("all as a list", 1.0, "list"), ("1% as a list", 0.01, "list")]
    for name, density, answer in [*ours, ("1% not zero", 0.01, "nonzero")]:
        rows.append((f"SparseAdamW, {name}", partial(on, density, sparse_step, answer)))
    return rows


def show(name: str, taken: Times, best: Times) -> None:
    gpu = "" if taken.gpu is None else f"{1e3 * taken.gpu:9.3f}"
    beside = f"{taken.step / best.step:8.2f}"
    if taken.gpu is not None and best.gpu is not None:
        beside += f" {taken.gpu / best.gpu:8.2f}"
    print(f"{name:28}{1e3 * taken.step:9.3f}{1e3 * taken.host:9.3f}{gpu}{beside}", flush=True)


def measure(model: str, options: argparse.Namespace) -> None:
    device = torch.device(options.device)
    torch.manual_seed(0)
    shapes = MODELS[model](options.scale)
    params: List[Tensor] = [torch.nn.Parameter(torch.randn(shape, device=device)) for shape in shapes]
    elements = sum(param.numel() for param in params)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{options.threads} threads"
    print(f"{model}: {len(params)} tensors, {elements / 1e6:.1f}M elements, {where}, torch {torch.__version__}")
    gpu = ("gpu", "x gpu") if device.type == "cuda" else ("", "")
    print(f"{'median, ms':28}{'step':>9}{'host':>9}{gpu[0]:>{9 if gpu[0] else 0}}{'x step':>8} {gpu[1]:>8}".rstrip())
    best: Optional[Times] = None
    for name, run in rows_of(params, options.steps):
        try:
            taken = run()
        except (RuntimeError, TypeError) as error:  # fused on the CPU: torch 2.4
            print(f"{name:28} not available: {error}")
            continue
        if name.startswith("torch") and (best is None or taken.step < best.step):
            best = taken
        show(name, taken, best or taken)  # foreach comes before fused, and is shown beside itself


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--model", help="of " + ", ".join(MODELS) + "; several with commas")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of elements")
    parser.add_argument("--steps", type=int, default=0, help="default: 5, on a GPU 15")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    is_gpu = options.device == "cuda"
    if is_gpu and not torch.cuda.is_available():
        parser.error("--device cuda, but torch finds no GPU")
    models = (options.model or ("gpt,gpt-medium" if is_gpu else "bert")).split(",")
    for unknown in set(models) - set(MODELS):
        parser.error(f"--model {unknown}, but it must be one of {', '.join(MODELS)}")
    options.steps = options.steps or (15 if is_gpu else 5)
    torch.set_num_threads(options.threads)
    for model in models:
        measure(model, options)


if __name__ == "__main__":
    main()
