# SPDX-License-Identifier: Apache-2.0
"""Checks of the settings of OkTopkState and register_fsdp, and a guard for settings that cannot change later."""

from __future__ import annotations

import operator
from typing import Any, ClassVar, Dict, Mapping, Optional, Tuple, Union

from oktopk import _core
from oktopk._core import UsageError

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


def density_of(density: Any, options: Mapping[str, Any], default: float) -> Any:
    """As given; the default unless k says how many entries are sent."""
    return default if density is None and options.get("k") is None else density


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


class Guarded:
    """An assignment to an attribute takes effect or is an error. Names with an underscore are free."""

    CHANGEABLE: ClassVar[Tuple[str, ...]] = ()
    UNTIL_FIRST_STEP: ClassVar[Tuple[str, ...]] = ()
    _has_begun = False  # the first step was made

    def __setattr__(self, name: str, value: Any) -> None:
        kind = type(self).__name__
        if name in self.UNTIL_FIRST_STEP and self._has_begun:
            raise UsageError(f"oktopk: {name} of an {kind} cannot be changed after its first step: set it before")
        if not (name.startswith("_") or name in self.CHANGEABLE + self.UNTIL_FIRST_STEP):
            raise UsageError(
                f"oktopk: {name} of an {kind} cannot be changed: give it to {kind}(...) when you "
                f"make one. These can be set: {', '.join(self.CHANGEABLE + self.UNTIL_FIRST_STEP)}"
            )
        object.__setattr__(self, name, value)
