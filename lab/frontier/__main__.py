# SPDX-License-Identifier: Apache-2.0
"""The race: loss over bytes, every method under the same rules.

    cd lab
    python -m frontier run --model 1M --data ~/src --steps 2000 --methods dense,circulant:1%,powersgd:4 --out results
    python -m frontier report results

A folder holds one JSON file per run; `run` leaves out those that are there, and goes on with those that were
interrupted, so a race can be made in pieces (--minutes), and with more methods or seeds later. --jobs makes several
runs at a time, as processes that share the GPU; start NVIDIA's MPS before. P ranks are simulated in one process: each
has its own gradient, and oktopk's methods exchange them by the code that users run, on P threads.
lab/frontier/registry.py lists the methods. `python -m frontier real` trains with real ranks (real.py).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

import torch

from . import real, report
from .data import Text
from .models import SHAPES
from .race import Entry, Run
from .schedule import Rules
from .speech import SIZES, Speech, Utterances
from .tasks import Language, Task
from .vision import WIDTHS, Pictures, Vision

METHODS = "dense,bf16,powersgd:4,onebit,ef21:1%,demo:2,published:1%,topka:1%,circulant:1%,circulant:5%"


def parse(arguments: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="frontier", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="makes the runs that the folder lacks")
    run.add_argument("--methods", default=METHODS, help=f"names with commas (default: {METHODS})")
    run.add_argument("--model", choices=[*SHAPES, *WIDTHS, *SIZES], default="1M", help="GPT, VGG-16 or LSTM")
    run.add_argument(
        "--data", type=Path, help="text: a file, or a folder with text files; CIFAR-10; AN4; without it, generated data"
    )
    run.add_argument("--ranks", type=int, default=4)
    run.add_argument("--rows", type=int, default=16, help="of a rank's batch")
    run.add_argument("--steps", type=int, default=1000)
    run.add_argument("--lr", default="1e-3", help="learning rates with commas; the report takes each method's best")
    run.add_argument("--seeds", default="1", help="how many: 0, 1, ...; or a range such as 1-2")
    run.add_argument("--optimiser", choices=["adam", "momentum"], help="default: momentum for VGG-16, adam for others")
    run.add_argument("--bf16", action="store_true", help="products of matrices in bfloat16")
    run.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    run.add_argument("--out", type=Path, default=Path("frontier-results"), help="the folder of results")
    run.add_argument("--minutes", type=float, help="stop after this time; the next call goes on")
    run.add_argument("--jobs", type=int, default=1, help="runs at a time")
    run.add_argument("--claim", action="store_true", help=argparse.SUPPRESS)  # one process of several
    show = commands.add_parser("report", help="tables, plots and frontier.json of a folder")
    show.add_argument("folder", type=Path)
    show.add_argument("--no-plots", action="store_true")
    gather = commands.add_parser("collect", help="puts the results of folders and of earlier files into one file")
    gather.add_argument("sources", type=Path, nargs="+")
    gather.add_argument("--into", type=Path, required=True)
    page = commands.add_parser("page", help="writes tables and plots of collected results into a page of the docs")
    page.add_argument("collected", type=Path)
    page.add_argument("--into", type=Path, required=True)
    page.add_argument("--figures", type=Path, required=True)
    real.add_options(commands.add_parser("real", help=real.__doc__))
    return parser.parse_args(arguments)


def seeds_of(text: str) -> range:
    first, dash, last = text.partition("-")
    return range(int(first), int(last) + 1) if dash else range(int(text))


def entries_of(options: argparse.Namespace, data: str) -> List[Entry]:
    """Seeds outermost: after a part of the time every method has some."""
    optimiser = options.optimiser or ("momentum" if options.model in WIDTHS else "adam")
    rules: Dict[str, Any] = {"optimiser": optimiser}
    if optimiser == "momentum":
        rules["weight_decay"] = 5e-4
    elif options.model in SIZES:
        rules["weight_decay"] = 0.01
    return [
        Entry(
            method,
            options.model,
            data,
            seed,
            Rules(options.steps, options.ranks, options.rows, float(lr), **rules),
            options.bf16,
        )
        for seed in seeds_of(options.seeds)
        for method in options.methods.split(",")
        for lr in options.lr.split(",")
    ]


class Source:
    """The data of the race, read when it is first needed."""

    def __init__(self, options: argparse.Namespace):
        self._options, self._device = options, torch.device(options.device)
        self._data: Any = None  # of the kind that the model needs

    def name(self) -> str:
        return "generated" if self._options.data is None else self._options.data.name

    def task(self, seed: int) -> Task:
        options = self._options
        if options.model in SIZES:
            self._data = self._data or Utterances(options.data, self._device)
            return Speech(options.model, self._data, seed, self._device)
        if options.model in WIDTHS:
            self._data = self._data or Pictures(options.data, self._device)
            return Vision(options.model, self._data, seed, options.bf16, self._device)
        self._data = self._data or Text(options.data, SHAPES[options.model], self._device, options.out)
        return Language(options.model, self._data, seed, options.bf16, self._device)


def run_all(options: argparse.Namespace) -> int:
    options.out.mkdir(parents=True, exist_ok=True)
    deadline = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    source, left = Source(options), 0
    for entry in entries_of(options, source.name()):
        if deadline is not None and time.monotonic() > deadline:
            left += 1
            continue
        if options.claim and not claim(options.out / f"{entry.file_name()}.claimed"):
            continue
        is_complete = Run(entry, source.task, options.out).make(deadline)
        left += not is_complete
        print(f"{'done' if is_complete else 'interrupted'}: {entry.file_name()}", flush=True)
    if left:
        print(f"{left} runs are left: call the same command again")
    return 0 if left == 0 else 3


def claim(mark: Path) -> bool:
    try:
        mark.open("x").close()
    except FileExistsError:
        return False
    return True


def run_jobs(options: argparse.Namespace, arguments: List[str]) -> int:
    """Processes that each take the next run that nobody has taken."""
    options.out.mkdir(parents=True, exist_ok=True)
    clear: Callable[[], None] = lambda: [mark.unlink() for mark in options.out.glob("*.claimed")]  # type: ignore
    clear()
    command = [sys.executable, "-m", "frontier", *arguments, "--claim"]
    workers = [subprocess.Popen(command) for _ in range(options.jobs)]
    codes = [worker.wait() for worker in workers]
    clear()
    return max(codes)


def main(arguments: List[str]) -> int:
    options = parse(arguments)
    if options.command == "report":
        print(report.write(options.folder, not options.no_plots))
        return 0
    if options.command == "collect":
        report.collect(options.sources, options.into)
        return 0
    if options.command == "page":
        report.write_page(options.collected, options.into, options.figures)
        return 0
    if options.command == "real":
        return real.main(options, arguments)
    if options.jobs > 1 and not options.claim:
        return run_jobs(options, arguments)
    return run_all(options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
