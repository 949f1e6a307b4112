# SPDX-License-Identifier: Apache-2.0
"""The command line the examples have in common."""

import argparse
import importlib.util
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NoReturn

from common.exchange import check
from common.recipes import Recipe, parse_recipes

OPTIMISERS = ("sgd", "momentum", "adam")


@dataclass(frozen=True)
class Settings:
    """Settings that all runs of a comparison share."""

    steps: int
    batch: int
    optimiser: str
    lr: float
    weight_decay: float
    schedule: str
    seed: int
    eval_every: int
    eval_samples: int
    bucket_mb: float


class _Parser(argparse.ArgumentParser):
    """Complains on rank 0 alone."""

    def error(self, message: str) -> NoReturn:
        if os.environ.get("RANK", "0") != "0":
            raise SystemExit(2)
        super().error(message)


def make_parser(
    doc: str,
    *,
    steps: int,
    batch: int,
    optimiser: str,
    lr: dict[str, float],
    weight_decay: float = 0.0,
) -> argparse.ArgumentParser:
    """The shared options with an example's defaults; `lr` has one for each optimiser that makes
    sense."""
    parser = _Parser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "--data",
        type=Path,
        metavar="PATH",
        help="folder or file with the data; without it, a generated stand-in",
    )
    add(
        "--compress",
        default="dense,circulant",
        metavar="LIST",
        help="dense, bf16, powersgd, and presets of oktopk (auto, circulant, oktopk, topka, ...), "
        "one run each; options after colons: circulant:density=0.05:codec=elias_fano+bf16 "
        "(default: %(default)s)",
    )
    add(
        "--density",
        type=float,
        default=0.05,
        help="fraction of the gradient applied per step (default: %(default)s)",
    )
    add(
        "--codec",
        default="",
        help="coding of sparse frames, for example elias_fano+bf16 (default: oktopk's)",
    )
    warmup = parser.add_mutually_exclusive_group()
    warmup.add_argument("--warmup-steps", type=int, help="dense steps first")
    warmup.add_argument(
        "--warmup-fraction",
        type=float,
        default=0.05,
        help="the same as a fraction of the steps (default: %(default)s)",
    )
    add("--steps", type=int, default=steps, help="default: %(default)s")
    add("--batch", type=int, default=batch, help="samples per rank and step (default: %(default)s)")
    add(
        "--optimiser",
        choices=[name for name in OPTIMISERS if name in lr],
        default=optimiser,
        help="default: %(default)s",
    )
    add(
        "--lr",
        type=float,
        help=f"learning rate (default: {', '.join(f'{v} for {k}' for k, v in lr.items())})",
    )
    add("--weight-decay", type=float, default=weight_decay, help="default: %(default)s")
    add(
        "--schedule",
        choices=["cosine", "constant"],
        default="cosine",
        help="of the learning rate (default: %(default)s)",
    )
    add(
        "--seed",
        type=int,
        default=0,
        help="of weights, order of samples, augmentation (default: %(default)s)",
    )
    add("--eval-every", type=int, metavar="STEPS", help="default: a tenth of the steps")
    add(
        "--eval-samples",
        type=int,
        default=2000,
        metavar="N",
        help="held-out samples used; 0 for all (default: %(default)s)",
    )
    add("--bucket-mb", type=float, default=25.0, help="DDP's bucket_cap_mb (default: %(default)s)")
    add(
        "--backend",
        help="of the process group (default: NCCL where each rank has its own GPU, else Gloo)",
    )
    add("--json", type=Path, metavar="FILE", help="write everything measured")
    add(
        "--plot",
        type=Path,
        metavar="FILE.png",
        help="draw held-out loss over bytes (needs Matplotlib)",
    )
    parser.set_defaults(default_lr=lr)
    return parser


def read_options(
    parser: argparse.ArgumentParser,
) -> tuple[argparse.Namespace, Settings, list[Recipe]]:
    """The command line, checked before anything starts."""
    args = parser.parse_args()
    args.lr = args.default_lr[args.optimiser] if args.lr is None else args.lr
    args.eval_every = max(1, args.steps // 10) if args.eval_every is None else args.eval_every
    for name in ("steps", "batch", "eval_every", "lr", "bucket_mb"):
        _require(parser, name, getattr(args, name), getattr(args, name) > 0, "must be positive")
    for name in ("eval_samples", "seed", "weight_decay"):
        _require(parser, name, getattr(args, name), getattr(args, name) >= 0, "must be >= 0")
    share = args.warmup_fraction
    _require(parser, "warmup_fraction", share, 0 <= share <= 1, "must be in [0, 1]")
    if args.warmup_steps is None:
        args.warmup_steps = round(args.warmup_fraction * args.steps)
    recipe = None
    try:
        recipes = parse_recipes(args.compress, args)
        for recipe in recipes:
            check(recipe)
    except ValueError as error:
        parser.error(f"--compress {recipe.label}: {error}" if recipe else str(error))
    if args.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot: needs Matplotlib: pip install matplotlib")
    for path in filter(None, (args.json, args.plot)):
        if not path.absolute().parent.is_dir():
            parser.error(f"{path}: its folder does not exist")
    settings = Settings(**{item.name: getattr(args, item.name) for item in fields(Settings)})
    return args, settings, recipes


def _require(
    parser: argparse.ArgumentParser, name: str, value: float, fits: bool, rule: str
) -> None:
    if not fits:
        parser.error(f"--{name.replace('_', '-')} {value}: {rule}")
