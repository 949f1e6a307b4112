# SPDX-License-Identifier: Apache-2.0
"""Optimisers that take a coordinate that was not sent in a step for one whose gradient was zero: all but plain SGD and
ours with a source. The front-ends find them before training (_frontend.py). With plain DDP nobody hands an optimiser
over, so a watch looks at those that make a step after the first sparse one.
COST: nothing once the optimisers of the model have made a step.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any, Callable, Iterable, Optional, Set

import torch
import torch.distributed as dist
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from oktopk.torch.optim import SparseAdamW, SparseSGD

SPARSE = (SparseAdamW, SparseSGD)
_LONG_ENOUGH = 100  # iterations in which no optimiser made a step


def unwrapped(optimiser: Optimizer) -> Optimizer:
    """The optimiser inside the wrappers of front-ends and of ZeroRedundancyOptimizer."""
    while True:
        inner = getattr(optimiser, "optimizer", None) or getattr(optimiser, "optim", None)
        if not isinstance(inner, Optimizer):
            return optimiser
        optimiser = inner


def trouble_with(optimiser: Optimizer) -> Optional[str]:
    """The text of a warning; None: the optimiser knows which coordinates arrived, or need not."""
    groups, name = optimiser.param_groups, type(optimiser).__name__
    is_sgd = isinstance(optimiser, (torch.optim.SGD, SparseSGD))
    if is_sgd and all(group.get("momentum", 0) == 0 for group in groups):
        return None
    if not isinstance(optimiser, SPARSE):
        who, instead = name, f"use oktopk.torch.{'SparseSGD' if is_sgd else 'SparseAdamW'} in its place"
    elif optimiser.source is None and any(group["mode"] != "published" for group in groups):
        who, instead = f"{name} without a source", f"give it the state of the hook, {name}(params, state, ...)"
    else:
        return None
    return (
        f"oktopk: {who} takes a coordinate that was not sent in a step for one "
        f"whose gradient was zero, and learns less well: {instead}"
    )


def warn(text: str, stacklevel: int = 2) -> None:
    """Warns on one rank only."""
    if not dist.is_initialized() or dist.get_rank() == 0:
        warnings.warn(text, stacklevel=stacklevel + 1)


class Watch:
    """Warns once if an optimiser of these parameters is such a one. Nothing keeps the watch alive but its owner."""

    def __init__(self) -> None:
        self._ids: Set[int] = set()
        self._iterations = 0
        self._has_seen_step = self._has_warned = False
        self._end: Optional[Callable[[], Any]] = None
        self.is_over = False

    def add(self, parameters: Iterable[torch.Tensor]) -> None:
        """They are synchronised sparsely in this iteration."""
        self._ids.update(id(p) for p in parameters)
        if self._end is not None:
            return
        this = weakref.ref(self)

        def after_step(optimiser: Any, args: Any, kwargs: Any) -> None:
            watch = this()
            if watch is not None:
                watch._look_at(optimiser)

        handle = register_optimizer_step_post_hook(after_step)
        self._end = weakref.finalize(self, handle.remove)

    def begin_iteration(self) -> None:
        """The optimisers of an earlier sparse iteration have made their steps, unless a GradScaler left them out."""
        if self._end is None:
            return
        self._iterations += 1  # not in a hook: torch walks through all of them
        if self._has_seen_step or self._iterations > _LONG_ENOUGH:
            self.close()

    def close(self) -> None:
        """Not inside of an optimiser's step."""
        self.is_over = True
        self._ids.clear()
        if self._end is not None:
            self._end()

    def _look_at(self, optimiser: Optimizer) -> None:
        bare = unwrapped(optimiser)
        if self._has_warned or not any(id(p) in self._ids for group in bare.param_groups for p in group["params"]):
            return
        self._has_seen_step = True
        text = trouble_with(bare)
        if text is not None:
            self._has_warned = True
            warn(text, stacklevel=4)
