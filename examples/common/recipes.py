# SPDX-License-Identifier: Apache-2.0
"""The grammar of --compress: names with options, "dense", "powersgd:rank=4",
"circulant:density=0.05:optimiser=plain".

dense, bf16 and powersgd are PyTorch's own; every other name is a preset of oktopk (`oktopk list`
shows them). Options:

    density, codec, warmup    as --density, --codec, --warmup-steps, for this one
    optimiser=plain           PyTorch's optimiser on the sparse mean, as published; without it,
                              oktopk's, which knows how long each entry waited
    rank                      of PowerSGD's matrices
    anything else             goes to oktopk.torch.OkTopkState by its name
"""

import argparse
import ast
from dataclasses import dataclass, field
from typing import Any

TORCH_METHODS = ("dense", "bf16", "powersgd")


@dataclass(frozen=True)
class Recipe:
    """One way to train. label: as the user wrote it."""

    label: str
    method: str
    density: float
    codec: str | None
    warmup: int
    plain_optimiser: bool = False
    matrix_rank: int = 2
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def is_sparse(self) -> bool:
        """Whether oktopk exchanges the gradients."""
        return self.method not in TORCH_METHODS


def parse_recipes(text: str, args: argparse.Namespace) -> list[Recipe]:
    """--compress of the command line, with what the other options say where a recipe does not.
    Raises ValueError."""
    recipes = [_parse(part.strip(), args) for part in text.split(",") if part.strip()]
    if not recipes:
        raise ValueError("--compress names nothing; for example: --compress dense,circulant")
    labels = [recipe.label for recipe in recipes]
    if len(set(labels)) != len(labels):
        raise ValueError(f"--compress {text}: names one twice")
    return recipes


def _parse(label: str, args: argparse.Namespace) -> Recipe:
    method, *options = label.split(":")
    given: dict[str, str] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key or not value:
            raise ValueError(f"--compress {label}: {option!r} is not key=value")
        given[key] = value
    optimiser = given.pop("optimiser", "sparse")
    if optimiser not in ("sparse", "plain"):
        raise ValueError(f"--compress {label}: optimiser={optimiser} is neither sparse nor plain")
    try:
        density = float(given.pop("density", args.density))
        warmup = int(given.pop("warmup", args.warmup_steps))
        rank = int(given.pop("rank", 2))
    except ValueError as error:
        raise ValueError(f"--compress {label}: {error}") from error
    if not 0 < density <= 1:
        raise ValueError(f"--compress {label}: density {density} is not in (0, 1]")
    if warmup < 0 or rank < 1:
        raise ValueError(f"--compress {label}: warmup {warmup} must be >= 0, rank {rank} >= 1")
    if given.get("codec", "") == "none":
        given["codec"] = ""
    codec = given.pop("codec", args.codec) or None
    if given and method in TORCH_METHODS:
        raise ValueError(f"--compress {label}: {method} has no option {', '.join(given)}")
    extra = {key: _literal(value) for key, value in given.items()}
    return Recipe(label, method, density, codec, warmup, optimiser == "plain", rank, extra)


def _literal(text: str) -> Any:
    """A number or truth value as such; anything else is a string."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
