# SPDX-License-Identifier: Apache-2.0
"""Levelled selection: which values of a gradient are the largest, in units between the gradient's and the optimiser's.

Adam divides by the root of the second moment v, so a coordinate with small gradients moves as far as one with large
ones. A selection by magnitude would let it wait almost for ever. One by magnitude / sqrt(v), the length of the move,
favours noise. In between, magnitude / v^(1/4) trains best (docs/frontier.md). Gradients are multiplied by a factor of
about v^(-1/4) per coordinate before they are added to what is unsent, and means are divided by it afterwards. The
exchange sees levelled values only, so nothing in it changes, and its coarse codings have smaller ranges to code.

The factors are equal on all ranks, bit by bit: they follow from v, which is, by integer operations. They stay as they
are until the number of steps has doubled; what is unsent then gets the new ones.
COST: n floats; two passes over n values per sparse step.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

import torch

FLOOR = 2.0**-16  # of the largest second moment: factors are between 1 and 16
ONE = 0x3F800000  # the bits of 1.0
LEAST_STEPS = 100  # between two sets of factors


def factors_of(second: torch.Tensor) -> torch.Tensor:
    """About (second / its largest value) ** (-1/4), for a flat tensor of second moments. A quarter of the bits of a
    float is a quarter of its logarithm, up to a few percent, and the same on every device."""
    second = second.float()
    most = second.amax()
    bits = torch.maximum(second, most * FLOOR).view(torch.int32)
    return ((most.view(torch.int32) >> 2) - (bits >> 2) + ONE).view(torch.float32)


def next_time(steps: int) -> int:
    """The number of steps from which on factors are made anew that were made after `steps`."""
    return max(2 * steps, steps + LEAST_STEPS)


class LevelledCore:
    """A native Reducer that sees levelled gradients from the first levels on. The base of FlatReducer."""

    def __init__(self, core: Any, options: Dict[str, Any], may_level: bool):
        """may_level: False where ranks come and go, because those that join would have no levels."""
        self.core: Any = core  # Any: tensors and arrays
        self.levels: Optional[torch.Tensor] = None  # the factors, on the device of the gradients
        self.next_levels = sum(steps for steps, _ in options.get("warmup") or [])  # steps, when they are made
        self._may_level = may_level

    def level_by(self, second: Callable[[], Optional[torch.Tensor]]) -> None:
        """Before a step: makes new levels if it is time. second(): the second moments, flat, on the device of the
        gradients and equal on all ranks; None: there are none yet."""
        steps = int(self.core.steps)
        if steps < self.next_levels or not self._may_level:
            return
        found = second()
        if found is None or (found.is_cuda and torch.cuda.is_current_stream_capturing()):
            return
        unsent = self._take_unsent()
        self.levels, self.next_levels = factors_of(found), next_time(steps)
        if unsent is not None:
            self.give_unsent(unsent)

    def take_unsent(self, out: torch.Tensor) -> None:
        """The unsent values of this rank, in host memory; nothing is unsent afterwards."""
        self.core.take_unsent(out)
        self._lowered(out)

    def _take_unsent(self) -> Optional[torch.Tensor]:
        """The same; None: no rank has any."""
        if not self.core.has_unsent:
            return None
        unsent = torch.empty(self.core.n, dtype=torch.float32)
        self.take_unsent(unsent)
        return unsent

    def give_unsent(self, values: torch.Tensor) -> None:
        self.core.give_unsent(values if self.levels is None else values * self.levels.cpu())

    def unsent(self) -> torch.Tensor:
        """A copy of residual and owner memory, in host memory."""
        flat = torch.from_numpy(self.core.residual)
        first, memory = self.core.memory
        flat[first : first + len(memory)] += torch.from_numpy(memory)
        return self._lowered(flat)

    def _raised(self, flat: torch.Tensor) -> torch.Tensor:
        """A gradient for the core; in place where it is of floats."""
        return flat if self.levels is None else flat.float().mul_(self.levels)

    def _lowered(self, flat: torch.Tensor) -> torch.Tensor:
        """Values of the core as they are, in place."""
        return flat if self.levels is None else flat.div_(self.levels.to(flat.device))
