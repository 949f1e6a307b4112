# SPDX-License-Identifier: Apache-2.0
"""Methods by name. A name may have arguments, separated by colons: `circulant:1%:elias_fano+bf16:ramp`.

    dense, bf16                     sums of all values
    powersgd:R[:warm]               rank R
    onebit[:warm]                   1-bit Adam
    dgc:D, ef21:D, demo:K           rivals that select entries; D: density, K: coefficients of 64
    topka:D, published:D            TopkA; Ok-Topk with plain Adam, as published
    circulant:D[:codec][:start]     ours; also slots, oktopk, spardl, ... (oktopk.presets())
    local:H:D[:codec]               ours: LocalSteps
    diloco:H, sparseloco:H:D        rivals of LocalSteps

warm: the share of dense steps at the start, 10% by default. start: dense10, dense2, ramp (density 25%, then 5%, in the
first tenth of the steps) or none, the default being ramp.
"""

from __future__ import annotations

from typing import Callable, Dict, List, Tuple

from .dense import Dense, OneBitAdam, PowerSgd
from .local import DiLoCo, SparseLoCo
from .method import Method
from .models import FlatModel
from .ours import OkTopk, OurLocalSteps
from .schedule import Rules
from .sparse import Demo, Dgc, Ef21

STARTS: Dict[str, List[Tuple[float, float]]] = {
    "none": [],
    "dense2": [(0.02, 1.0)],
    "dense10": [(0.1, 1.0)],
    "ramp": [(0.02, 0.25), (0.08, 0.05)],
}
Make = Callable[[FlatModel, Rules], Method]


def make(name: str, model: FlatModel, rules: Rules) -> Method:
    kind, *arguments = name.split(":")
    try:
        return _maker(kind, arguments)(model, rules)
    except (ValueError, IndexError) as error:
        raise SystemExit(f"frontier: method {name}: {error}; see bench/frontier/registry.py for the names") from error


def _maker(kind: str, arguments: List[str]) -> Make:
    if kind in ("dense", "bf16"):
        return lambda model, rules: Dense(model, rules, bf16=kind == "bf16")
    if kind == "powersgd":
        return lambda model, rules: PowerSgd(model, rules, int(arguments[0]), _share(arguments, 1, 0.1))
    if kind == "onebit":
        return lambda model, rules: OneBitAdam(model, rules, _share(arguments, 0, 0.1))
    if kind == "dgc":
        return lambda model, rules: Dgc(model, rules, _share(arguments, 0), _share(arguments, 1, 0.1))
    if kind == "ef21":
        return lambda model, rules: Ef21(model, rules, _share(arguments, 0))
    if kind == "demo":
        return lambda model, rules: Demo(model, rules, int(arguments[0]))
    if kind == "diloco":
        return lambda model, rules: DiLoCo(model, rules, int(arguments[0]))
    if kind == "sparseloco":
        return lambda model, rules: SparseLoCo(model, rules, int(arguments[0]), _share(arguments, 1))
    return _ours(kind, arguments)


def _ours(kind: str, arguments: List[str]) -> Make:
    if kind == "local":
        codec = {"codec": arguments[2]} if len(arguments) > 2 else {}
        return lambda model, rules: OurLocalSteps(
            model, rules, int(arguments[0]), density=_share(arguments, 1), preset="circulant", **codec
        )
    start = STARTS[arguments.pop()] if arguments and arguments[-1] in STARTS else STARTS["ramp"]
    density = _share(arguments, 0)
    codec = arguments[1] if len(arguments) > 1 else None
    mode = "published" if kind in ("published", "topka") else "interval_aware"
    preset = "oktopk" if kind == "published" else kind
    return lambda model, rules: OkTopk(model, rules, preset, density, start, mode, codec=codec)


def _share(arguments: List[str], place: int, default: float = -1.0) -> float:
    """A number such as 0.01 or 1%."""
    if place >= len(arguments):
        if default < 0:
            raise ValueError("a density is missing")
        return default
    text = arguments[place]
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)
