# SPDX-License-Identifier: Apache-2.0
"""Checks of the settings of OkTopkState and register_fsdp, and a guard for settings that cannot change later."""

from __future__ import annotations

import operator
from typing import Any, ClassVar, Mapping, Tuple, Union

from oktopk._core import UsageError

Steps = Union[int, float]


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
