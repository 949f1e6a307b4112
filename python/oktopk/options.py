# SPDX-License-Identifier: Apache-2.0
"""Every option of a Reducer, in one table, for type checkers, help() and messages.

The Reducers, `OkTopkState`, `LocalSteps` and `register_fsdp` take these by keyword. The native module checks the
values; a test compares this table with the names that it knows.
"""

from __future__ import annotations

import difflib
import inspect
from typing import Any, Callable, Mapping, Optional, Sequence, Tuple, TypedDict, TypeVar, Union

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
