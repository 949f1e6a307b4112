# SPDX-License-Identifier: Apache-2.0
"""The race: loss over bytes, every method under the same rules.

    cd bench
    python -m frontier run --size 1M --text ~/src --steps 2000 --methods dense,circulant:1%,powersgd:4 --out results
    python -m frontier report results

A folder holds one JSON file per run; `run` leaves out those that are there, and goes on with those that were
interrupted, so a race can be made in pieces (--minutes), by several processes that share a GPU (--share I/N), and with
more methods or seeds later. P ranks are simulated in one process: each computes its own gradient, and oktopk's methods
exchange them by the code that users run, on P threads. bench/frontier/registry.py lists the methods.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import List

import torch

from . import report
from .data import Text
from .models import SHAPES
from .race import Entry, Run
from .schedule import Rules

METHODS = "dense,bf16,powersgd:4,onebit,ef21:1%,demo:2,published:1%,topka:1%,circulant:1%,circulant:5%"


def parse(arguments: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="frontier", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="makes the runs that the folder lacks")
    run.add_argument("--methods", default=METHODS, help=f"names with commas (default: {METHODS})")
    run.add_argument("--size", choices=list(SHAPES), default="1M", help="of the model")
    run.add_argument("--text", type=Path, help="a file, or a folder with text files; without it, generated text")
    run.add_argument("--ranks", type=int, default=4)
    run.add_argument("--rows", type=int, default=16, help="of a rank's batch")
    run.add_argument("--steps", type=int, default=1000)
    run.add_argument("--lr", default="1e-3", help="learning rates with commas; the report takes each method's best")
    run.add_argument("--seeds", type=int, default=1, help="0, 1, ... below this")
    run.add_argument("--bf16", action="store_true", help="autocast the model to bf16")
    run.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    run.add_argument("--out", type=Path, default=Path("frontier-results"), help="the folder of results")
    run.add_argument("--minutes", type=float, help="stop after this time; the next call goes on")
    run.add_argument("--share", default="0/1", help="I/N: only every N-th run, from the I-th on")
    show = commands.add_parser("report", help="tables, plots and frontier.json of a folder")
    show.add_argument("folder", type=Path)
    show.add_argument("--no-plots", action="store_true")
    return parser.parse_args(arguments)


def entries_of(options: argparse.Namespace, text: Text) -> List[Entry]:
    """Seeds outermost: after a part of the time every method has some."""
    part, parts = (int(number) for number in options.share.split("/"))
    entries = [
        Entry(
            method,
            options.size,
            text.name,
            seed,
            Rules(options.steps, options.ranks, options.rows, float(lr)),
            options.bf16,
        )
        for seed in range(options.seeds)
        for method in options.methods.split(",")
        for lr in options.lr.split(",")
    ]
    return entries[part::parts]


def run_all(options: argparse.Namespace) -> int:
    device = torch.device(options.device)
    text = Text(options.text, SHAPES[options.size].context, device)
    options.out.mkdir(parents=True, exist_ok=True)
    deadline = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    left = 0
    for entry in entries_of(options, text):
        if deadline is not None and time.monotonic() > deadline:
            left += 1
            continue
        is_complete = Run(entry, text, options.out, device).make(deadline)
        left += not is_complete
        print(f"{'done' if is_complete else 'interrupted'}: {entry.file_name()}", flush=True)
    if left:
        print(f"{left} runs are left: call the same command again")
    return 0 if left == 0 else 3


def main() -> int:
    options = parse(sys.argv[1:])
    if options.command == "report":
        print(report.write(options.folder, not options.no_plots))
        return 0
    return run_all(options)


if __name__ == "__main__":
    sys.exit(main())
