# SPDX-License-Identifier: Apache-2.0
"""Levelled selection: which values of a gradient are the largest, in units between the gradient's and the optimiser's.

Adam divides by the root of the second moment v, so a coordinate with small gradients moves as far as one with large
ones. A selection by magnitude would let it wait almost for ever. One by magnitude / sqrt(v), the length of the move,
was no better. In between, magnitude / v^(1/4) trained best (docs/decisions/0028-levelled-selection.md). Gradients are
multiplied by a factor of about v^(-1/4) per coordinate before they are added to what is unsent, and means are divided
by it afterwards. The exchange sees levelled values only, so nothing in it changes, and its coarse codings have smaller
ranges to code.

The factors are equal on all ranks, bit by bit: they follow from v, which is, by integer operations. They stay as they
are until the number of steps has doubled; what is unsent then gets the new ones.
COST: n floats; a pass over n values per sparse step, on a GPU two.
"""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

import torch

from oktopk import _core
from oktopk._core import UsageError
from oktopk.torch.flat import hashes_of, local

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


class Levels(NamedTuple):
    """For a saved state."""

    factors: torch.Tensor
    next_time: int  # the number of steps when new ones are made

    @staticmethod
    def read(saved: Mapping[str, Any]) -> Optional[Levels]:
        return Levels(saved["levels"], saved["next_levels"]) if "levels" in saved else None

    @staticmethod
    def write(levels: Optional[Levels]) -> Dict[str, Any]:
        return {} if levels is None else {"levels": levels.factors, "next_levels": levels.next_time}


class SecondMoments:
    """Those of the optimisers of a model."""

    def __init__(self) -> None:
        self._optimisers: List[Any] = []  # weak references
        self.is_decided = self.in_use = False

    def add(self, optimiser: Any) -> None:
        self._optimisers.append(weakref.ref(optimiser))

    def use_for(self, parameters: Sequence[torch.Tensor]) -> None:
        """They are used where the optimisers of this rank have all parameters that are trained. Those of
        ZeroRedundancyOptimizer have a part of them on each rank."""
        own = [optimiser for optimiser in (ref() for ref in self._optimisers) if optimiser is not None]
        known = {id(p) for optimiser in own for group in optimiser.param_groups for p in group["params"]}
        self.is_decided, self.in_use = True, bool(parameters) and all(id(p) in known for p in parameters)

    def of(self, parameters: Sequence[torch.Tensor]) -> Optional[torch.Tensor]:
        """One after the other, flat, in the order of their memory; None: some parameter has none yet."""
        found = [self._of(p) for p in parameters]
        return None if any(m is None for m in found) else torch.cat([in_memory(m) for m in found if m is not None])

    def _of(self, parameter: torch.Tensor) -> Optional[torch.Tensor]:
        for ref in self._optimisers:
            optimiser = ref()
            if optimiser is not None and parameter in optimiser.state:
                moment: Optional[torch.Tensor] = optimiser.state[parameter].get("exp_avg_sq")
                return None if moment is None else local(moment)
        return None


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Flat, in the order of its memory, as a bucket of DDP has it."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)).float()


def require_equal_moments(comm: Any, second: torch.Tensor) -> None:
    """Ranks with other moments would sum values in other units. COST: a pass and a small message, in a few steps."""
    (value,) = hashes_of([second])
    try:
        _core.require_equal(comm, "oktopk: the levelled selection", f"second moments {value:016x} of SparseAdamW")
    except UsageError as error:
        raise UsageError(
            f"{error}: give all ranks the same options of the optimiser, and load its state on all of them, or on none"
        ) from None
