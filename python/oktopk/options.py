# SPDX-License-Identifier: Apache-2.0
"""Every option of a Reducer, in one table, for type checkers, help() and messages; the checks of settings that are not
native options; and the recipe (docs/learning.md).

The Reducers, `OkTopkState`, `LocalSteps` and `register_fsdp` take the options by keyword. The native module checks the
values; a test compares this table with the names that it knows.
"""

from __future__ import annotations

import difflib
import inspect
import operator
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple, TypeVar, TypedDict, Union

from oktopk import _core
from oktopk._core import Profile, Trace, UsageError

F = TypeVar("F", bound=Callable[..., Any])


class MoreOptions(TypedDict, total=False):
    """k: entries per step, an integer, instead of density.
    skips: preset circulant: its schedule, such as "halving", "direct" or "8,2,1".
    residual: the rule for values that were sent and not applied: "owner_memory", "sender_keeps", ...
    selector: the rule that selects the entries of a rank: "exact", "reused", "controlled", ...
    tau: preset oktopk: steps between new cuts of the regions.
    tau_prime: preset oktopk: steps between new thresholds.
    thresholds: preset oktopk: "steered" (the default), "published" or "paper".
    threads: threads that share each pass over the gradient.
    warmup: stages (steps, density) before all other steps, such as [(100, 1.0)].
    adaptive_share: the target share of a density that follows it (docs/adaptive_density.md).
    adaptive_budget: the bound of the mean density; with adaptive_share.
    adaptive_least: the smallest density; with adaptive_share.
    adaptive_most: the largest density; with adaptive_share.
    adaptive_interval: sparse steps between two looks at the share; with adaptive_share.
    nan_policy: NaN or Inf in a gradient: "error", "skip" or "local" (docs/errors.md).
    check_every: after every so many steps the ranks compare hashes of their updates. A difference is a UsageError that
        names the ranks (docs/observability.md).
    checked: with check_every: a function that gives more to compare, as one flat float32 array in host memory that is
        equal on all ranks between two steps, such as the weights. The DDP hook calls it once per bucket.
    coarsest: preset auto: the coarsest coding of values that it may choose, "bf16" by default.
    review: preset auto: False keeps its first choice, so that two runs give the same bits (docs/tuning.md).
    overrides: preset auto: rules of the user, such as "dense:n<64K" (docs/tuning.md).
    group_size: "host": the ranks of a host sum densely first, and one of them exchanges entries; a number g does the
        same with g consecutive ranks (docs/hierarchy.md).
    profile: preset auto: an oktopk.Profile of the network; without it one is measured.
    trace: an oktopk.Trace that collects events for a viewer (docs/observability.md).
    """

    k: Optional[int]
    skips: Optional[str]
    residual: Optional[str]
    selector: Optional[str]
    tau: Optional[int]
    tau_prime: Optional[int]
    thresholds: Optional[str]
    threads: Optional[int]
    warmup: Optional[Sequence[Tuple[int, float]]]
    adaptive_share: Optional[float]
    adaptive_budget: Optional[float]
    adaptive_least: Optional[float]
    adaptive_most: Optional[float]
    adaptive_interval: Optional[int]
    nan_policy: Optional[str]
    check_every: Optional[int]
    checked: Optional[Callable[[], Any]]
    coarsest: Optional[str]
    review: Optional[bool]
    overrides: Optional[str]
    group_size: Union[int, str, None]
    profile: Optional[Profile]
    trace: Optional[Trace]


class ReducerOptions(MoreOptions, total=False):
    """preset: "auto" (the default), or a name of oktopk.presets().
    density: the share of the values that a step sends, above 0 and below 1: 0.01 is 1%.
    codec: the coding of entries on the wire, such as "elias_fano+bf16"; None: the preset's own.
    decay: multiplies the unsent values in each step; 1 (the default) forgets nothing.
    """

    preset: Optional[str]
    density: Optional[float]
    codec: Optional[str]
    decay: Optional[float]


def show_options(taker: F) -> F:
    """Replaces **options of a function or class by the options themselves: in the signature that help() and inspect
    show, and, one line each, at the end of the docstring."""
    function: Any = taker.__init__ if isinstance(taker, type) else taker  # type: ignore[misc]
    signature = inspect.signature(function)
    shown = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    named = {p.name for p in shown}
    is_more = named >= ReducerOptions.__annotations__.keys() - MoreOptions.__annotations__.keys()
    shown += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_words(kind))
        for name, kind in ReducerOptions.__annotations__.items()
        if name not in named
    ]
    function.__signature__ = signature.replace(parameters=shown)
    if taker.__doc__:  # python -OO leaves docstrings out
        tables = [MoreOptions] if is_more else [ReducerOptions, MoreOptions]
        lines = [inspect.cleandoc(table.__doc__ or "") for table in tables]
        heading = "Options of every Reducer (None: the default):"
        taker.__doc__ = "\n".join([inspect.cleandoc(taker.__doc__), "", heading, "", *lines])
    return taker


def _words(kind: Any) -> str:
    return getattr(kind, "__forward_arg__", str(kind))


def require_known(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """UsageError for a keyword that the function does not have; the message names the nearest one."""
    known = [name for name in inspect.signature(function).parameters if name != "self"]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise UsageError(f"oktopk: unknown option '{name}': {hint}there are: {', '.join(known)}")


Steps = Union[int, float]

DENSE_STEPS = 100  # at the start of a run of unknown length
DENSITY = 0.01  # there


def with_recipe(
    named: Dict[str, Any], options: Mapping[str, Any], start_iter: Optional[Steps], total_steps: Any
) -> Tuple[int, Dict[str, Any]]:
    """The number of dense steps, and all options. total_steps without start_iter asks for the recipe
    (docs/learning.md): whatever is not given follows from it. named: preset, density, codec, decay."""
    given = {**named, **options}
    if start_iter is None and total_steps is not None:
        return _with_recipe(given, count("total_steps", total_steps, 1))
    if given["density"] is None and given.get("k") is None:
        given["density"] = DENSITY
    return first_sparse_step(DENSE_STEPS if start_iter is None else start_iter, total_steps), given


def _with_recipe(given: Dict[str, Any], total: int) -> Tuple[int, Dict[str, Any]]:
    recipe = _core.recipe(total)
    if given["density"] is None and given.get("k") is None:
        given["density"] = recipe["density"]
    is_ours = given["preset"] in ("auto", recipe["preset"])
    if given["codec"] is None and given["preset"] == recipe["preset"]:
        given["codec"] = recipe["codec"]
    if given.get("coarsest") is None and given["preset"] == "auto":
        given["coarsest"] = recipe["codec"].split("+")[1]
    if given.get("warmup") is not None or given["preset"] == "dense":
        return 0, given
    if is_ours:
        given["warmup"] = recipe["warmup"]
        return 0, given
    return sum(steps for steps, _ in recipe["warmup"]), given  # codings of others would take more bytes than dense


def without_coding(options: Mapping[str, Any]) -> Dict[str, Any]:
    """The options for preset slots, which has a coding of its own: where auto would send most of the values in few
    bits, it is dense."""
    stages = options.get("warmup")
    dense = None if stages is None else [(steps, 1.0 if density > 0.5 else density) for steps, density in stages]
    return {**options, "preset": "slots", "coarsest": None, "warmup": dense}


def first_sparse_step(start_iter: Steps, total_steps: Any) -> int:
    """start_iter as a number of steps: it is one, or a share of total_steps."""
    total = None if total_steps is None else count("total_steps", total_steps, 1)
    if not isinstance(start_iter, float):
        steps = count("start_iter", start_iter, 0)
        if total is None:
            return steps
        raise UsageError(
            f"oktopk: start_iter = {steps} steps, so total_steps = {total} is not used: leave it out, or give "
            "start_iter as a share of it, such as 0.02"
        )
    if total is not None and 0 <= start_iter < 1:
        return round(start_iter * total)
    raise UsageError(
        f"oktopk: start_iter = {start_iter}, but it is a number of steps, such as 500; or a share of all steps, from "
        "0 to below 1, together with their number: start_iter=0.02, total_steps=20_000"
    )


def count(name: str, value: Any, least: int) -> int:
    """An integer of at least `least`; no truth value, no text, no fraction."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"oktopk: {name} = {value!r}, but it must be an integer of at least {least}") from None
    if number < least:
        raise UsageError(f"oktopk: {name} = {number}, but it must be at least {least}")
    return number


def truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"oktopk: {name} = {value!r}, but it must be True or False")
    return value


def active(grad_scaler: Any) -> Any:
    """The GradScaler, or None where there is none or GradScaler(enabled=False), which does nothing."""
    if grad_scaler is None:
        return None
    missing = [x for x in ("get_scale", "is_enabled") if not hasattr(grad_scaler, x)]
    if missing:
        raise UsageError(
            f"oktopk: grad_scaler is a {type(grad_scaler).__name__}, but a GradScaler has "
            f"{' and '.join(f'{x}()' for x in missing)}"
        )
    return grad_scaler if grad_scaler.is_enabled() else None
