# SPDX-License-Identifier: Apache-2.0
"""Methods by name. A name may have arguments, separated by colons: `circulant:1%:elias_fano+bf16:ramp`.

    dense, bf16                     sums of all values
    powersgd:R[:warm]               rank R
    onebit[:warm]                   1-bit Adam
    dgc:D, ef21:D, demo:K           rivals that select entries; D: density, K: coefficients of 64
    topka:D, published:D            TopkA; Ok-Topk with plain Adam, as published
    circulant:D[:codec][:start]     ours; also slots, oktopk, spardl, ... (oktopk.presets()); further: adaptive=F, the
                                    adaptive density that sends a share F of the squared norm, D on average
    owner:D[:coding][:start][...]   the same in a few operations of a GPU; also votes, sketch, sums (simulated.py);
                                    coding: fp32, bf16, log8, log4; further: level, power=F, scaled, local=F, most=N,
                                    end=F, share, low, muon
    local:H:D[:codec][:start]       ours: LocalSteps
    meet:H:D[:coding][:start][...]  the same in a few operations of a GPU; further: momentum=F, decay=F, local=F,
                                    gather
    diloco:H[:rate:momentum]        rivals of LocalSteps; rate and momentum of the outer steps: 0.7 and 0.9
    sparseloco:H:D

warm: the share of dense steps at the start, 10% by default. start: a name of schedule.py, half10 by default: half of
the values in the first tenth of the steps.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

from .coding import BITS
from .dense import Dense, OneBitAdam, PowerSgd
from .local import DiLoCo, OwnerLocalSteps, SparseLoCo
from .method import Method
from .ours import OkTopk, OurLocalSteps
from .schedule import STARTS, Rules, Stages, in_steps
from .simulated import Simulated
from .sparse import Demo, Dgc, Ef21
from .tasks import Task

START = "half10"  # where a name has none
WAYS = ("owner", "votes", "sketch", "sums")
Make = Callable[[Task, Rules], Method]


def make(name: str, task: Task, rules: Rules) -> Method:
    kind, *arguments = name.split(":")
    try:
        return _maker(kind, arguments)(task, rules)
    except (ValueError, IndexError) as error:
        raise SystemExit(f"frontier: method {name}: {error}; see lab/frontier/registry.py for the names") from error


def _maker(kind: str, arguments: List[str]) -> Make:
    if kind in ("dense", "bf16"):
        return lambda task, rules: Dense(task, rules, bf16=kind == "bf16")
    if kind == "powersgd":
        return lambda task, rules: PowerSgd(task, rules, int(arguments[0]), _share(arguments, 1, 0.1))
    if kind == "onebit":
        return lambda task, rules: OneBitAdam(task, rules, _share(arguments, 0, 0.1))
    if kind == "dgc":
        return lambda task, rules: Dgc(task, rules, _share(arguments, 0), _share(arguments, 1, 0.1))
    if kind == "ef21":
        return lambda task, rules: Ef21(task, rules, _share(arguments, 0))
    if kind == "demo":
        return lambda task, rules: Demo(task, rules, int(arguments[0]))
    if kind == "diloco":
        outer = [float(argument) for argument in arguments[1:3]]
        return lambda task, rules: DiLoCo(task, rules, int(arguments[0]), *outer)
    if kind == "sparseloco":
        return lambda task, rules: SparseLoCo(task, rules, int(arguments[0]), _share(arguments, 1))
    if kind == "meet":
        return _meet(arguments)
    if kind in WAYS:
        return _simulated(kind, arguments)
    return _ours(kind, arguments)


def _simulated(way: str, arguments: List[str]) -> Make:
    numbers, switches = ("local", "most", "end", "power"), ("level", "scaled", "muon", "low", "share")
    start, options = _start_and_options(arguments[1:], numbers, switches)
    density = _share(arguments, 0)
    return lambda task, rules: Simulated(task, rules, density, start, way, **options)


def _meet(arguments: List[str]) -> Make:
    every, density = int(arguments[0]), _share(arguments, 1)
    start, options = _start_and_options(arguments[2:], ("momentum", "decay", "local"), ("gather",))
    return lambda task, rules: OwnerLocalSteps(task, rules, every, density, start, **options)


def _start_and_options(
    arguments: List[str], numbers: Tuple[str, ...], switches: Tuple[str, ...]
) -> Tuple[Stages, Dict[str, Any]]:
    start = STARTS[START]
    options: Dict[str, Any] = {}
    for argument in arguments:
        name, _, value = argument.partition("=")
        if argument in STARTS:
            start = STARTS[argument]
        elif argument in BITS:
            options["coding"] = argument
        elif name in numbers and value:
            options[name] = float(value)
        elif argument in switches:
            options[argument] = True
        else:
            raise ValueError(f"{argument} is no start, coding or option of a simulated method")
    return start, options


def _ours(kind: str, arguments: List[str]) -> Make:
    if kind == "local":
        every = int(arguments[0])
        return lambda task, rules: OurLocalSteps(task, rules, every, **local_options(arguments, rules))
    shares = [word for word in arguments if word.startswith("adaptive=")]
    density, codec, start = sparse_arguments([word for word in arguments if word not in shares])
    share = {"adaptive_share": float(shares[0].partition("=")[2]), "adaptive_budget": density} if shares else {}
    mode = "published" if kind in ("published", "topka") else "interval_aware"
    preset = "oktopk" if kind == "published" else kind
    return lambda task, rules: OkTopk(task, rules, preset, density, start, mode, codec=codec, **share)


def sparse_arguments(arguments: List[str]) -> Tuple[float, Optional[str], Stages]:
    """Of D[:codec][:start]."""
    has_start = bool(arguments) and arguments[-1] in STARTS
    start, others = STARTS[arguments[-1] if has_start else START], arguments[: len(arguments) - has_start]
    return _share(others, 0), others[1] if len(others) > 1 else None, start


def local_options(arguments: List[str], rules: Rules) -> Dict[str, Any]:
    """Of H:D[:codec][:start], as options of LocalSteps."""
    density, codec, start = sparse_arguments(arguments[1:])
    warmup = in_steps(start, max(1, rules.steps // int(arguments[0])))
    return {"density": density, "warmup": warmup or None, **({"codec": codec} if codec else {})}


def _share(arguments: List[str], place: int, default: float = -1.0) -> float:
    """A number such as 0.01 or 1%."""
    if place >= len(arguments):
        if default < 0:
            raise ValueError("a density is missing")
        return default
    text = arguments[place]
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)
