# SPDX-License-Identifier: Apache-2.0
"""Every option of a Reducer, in one table, for type checkers, help() and messages.

`Reducer`, `OkTopkState`, `LocalSteps` and `register_fsdp` take these by keyword. The native module checks the values; a
test compares this table with the names that it knows.
"""

from __future__ import annotations

import difflib
import inspect
from typing import Any, Callable, Mapping, Optional, Sequence, Tuple, TypedDict, TypeVar, Union

from oktopk._core import Profile, Trace, UsageError

F = TypeVar("F", bound=Callable[..., Any])


class MoreOptions(TypedDict, total=False):
    """Taken by all of them by keyword. None: the default."""

    k: Optional[int]  # entries per step, instead of density
    skips: Optional[str]  # preset circulant: its schedule
    residual: Optional[str]  # which mass stays on this rank: "owner_memory", "sender_keeps", ...
    selector: Optional[str]  # what leaves a rank: "exact", "reused", "controlled", ...
    tau: Optional[int]  # preset oktopk: steps between new cuts
    tau_prime: Optional[int]  # preset oktopk: steps between new thresholds
    thresholds: Optional[str]  # "steered", "published" or "paper"
    threads: Optional[int]  # that share each pass over the gradient
    warmup: Optional[Sequence[Tuple[int, float]]]  # stages (steps, density) before the others
    adaptive_share: Optional[float]  # docs/adaptive_density.md, and the four below
    adaptive_budget: Optional[float]
    adaptive_least: Optional[float]
    adaptive_most: Optional[float]
    adaptive_interval: Optional[int]
    nan_policy: Optional[str]  # "error", "skip" or "local": docs/errors.md
    coarsest: Optional[str]  # preset auto: the coarsest coding of values that it may take
    review: Optional[bool]  # preset auto: False keeps its first choice, so that runs can repeat (docs/tuning.md)
    overrides: Optional[str]  # preset auto: rules of the user (docs/tuning.md)
    group_size: Union[int, str, None]  # ranks that sum densely first; "host": those of a host (docs/hierarchy.md)
    profile: Optional[Profile]  # preset auto: of the network, instead of measuring one
    trace: Optional[Trace]  # events for a viewer (docs/observability.md)


class ReducerOptions(MoreOptions, total=False):
    """All options. Classes of the PyTorch layer have these four in their signatures, with defaults."""

    preset: Optional[str]  # "auto", or a name of oktopk.presets()
    density: Optional[float]  # the share of the values that a step sends
    codec: Optional[str]  # how entries are coded on the wire, such as "elias_fano+bf16"
    decay: Optional[float]  # multiplies what is unsent in each step; 1: nothing is forgotten


def show_options(function: F) -> F:
    """Replaces **options by the options in the signature that help() and inspect show."""
    signature = inspect.signature(function)
    shown = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    named = {p.name for p in shown}
    shown += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_words(kind))
        for name, kind in ReducerOptions.__annotations__.items()
        if name not in named
    ]
    function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return function


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
