# SPDX-License-Identifier: Apache-2.0
"""Finds out whether the mean of a parameter was applied. A GradScaler may skip the step of each optimiser, so the
answer depends on what the optimiser did, never on the scale.

A step of a torch.optim.Optimizer that has the parameter counts, unless the optimiser was told to do nothing
(`found_inf` of fused ones). For parameters that no such optimiser has ever stepped, as with updates written by hand,
any change of the parameter in place counts.
COST: a few operations of Python per parameter and step, none on its values.
"""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Optional, Protocol, Sequence, Set, Tuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


class Applied:
    """`parameter in applied`: whether it was applied since watch()."""

    def __init__(self) -> None:
        self._watched: Dict[int, Tuple[torch.Tensor, int]] = {}  # by id: parameter, its version
        self._steps: Dict[int, List[Optional[torch.Tensor]]] = {}  # by id: found_inf of each step
        self._has_optimiser: Set[int] = set()
        this = weakref.ref(self)

        def after_step(optimiser: Any, args: Any, kwargs: Any) -> None:
            self = this()
            if self is not None:
                self._note(optimiser)

        handle = register_optimizer_step_post_hook(after_step)
        weakref.finalize(self, handle.remove)

    def watch(self, parameters: Sequence[torch.Tensor]) -> None:
        """Begins to watch these, and forgets earlier steps of them."""
        for p in parameters:
            self._watched[id(p)] = (p, _version(p))
            self._steps.pop(id(p), None)

    def __contains__(self, parameter: torch.Tensor) -> bool:
        """Whether it was applied. May read a value from the device of a fused optimiser."""
        key = id(parameter)
        if key in self._steps:
            return any(inf is None or float(inf) == 0 for inf in self._steps[key])
        if key in self._has_optimiser or key not in self._watched:
            return False
        return _version(parameter) != self._watched[key][1]

    def _note(self, optimiser: Any) -> None:
        found_inf = getattr(optimiser, "found_inf", None)
        for group in optimiser.param_groups:
            for p in group["params"]:
                if id(p) in self._watched:
                    self._has_optimiser.add(id(p))
                    self._steps.setdefault(id(p), []).append(found_inf)


class Undoable(Protocol):
    core: Any

    def go_back(self) -> None: ...

    def last_mean(self) -> torch.Tensor: ...

    def give_unsent(self, values: torch.Tensor) -> None: ...


def undo(reducer: Undoable, spans: Sequence[Tuple[int, int]], applied: Sequence[bool]) -> None:
    """Call it after a step; applied: for each span whether its parameter was applied. A step of which nothing was
    applied leaves no trace. Otherwise the values that arrived and were not applied become unsent again: the mean, times
    the number of ranks whose unsent values this rank holds."""
    if all(applied):
        return
    if not any(applied):
        reducer.go_back()
        return
    if reducer.core.skipped:
        return  # nothing has changed
    mean = reducer.last_mean()
    for (begin, end), is_applied in zip(spans, applied):
        if is_applied:
            mean[begin:end] = 0
    reducer.give_unsent(mean.mul_(reducer.core.ranks_led))


def _version(parameter: torch.Tensor) -> int:
    """The count of changes in place; of the shard where it is a DTensor."""
    part: torch.Tensor = getattr(parameter, "_local_tensor", parameter)
    return part._version
