# SPDX-License-Identifier: Apache-2.0
"""One bucket of parameters and the Reducer that synchronises their gradients.

A channel lives as long as the bucket's layout: when DDP rebuilds its buckets, what is unsent moves,
parameter by parameter, to the channels of the new layout, and nothing is lost.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence

import torch

from oktopk import _core
from oktopk.torch._applied import undo
from oktopk.torch._flat_reducer import FlatReducer, Span


class Slot(NamedTuple):
    """A parameter's place in the flat gradient."""

    name: str
    begin: int
    end: int


class Channel:
    """Belongs to one rank; all ranks have the same channels in the same order."""

    def __init__(
        self,
        comm: _core.Communicator,
        names: Sequence[str],
        sizes: Sequence[int],
        options: Dict[str, Any],
    ):
        self.slots: List[Slot] = []
        begin = 0
        for name, size in zip(names, sizes):
            self.slots.append(Slot(name, begin, begin + size))
            begin += size
        self.n = begin
        self._reducer = FlatReducer(comm, self.n, options)
        self.core = self._reducer.core

    @property
    def names(self) -> List[str]:
        return [slot.name for slot in self.slots]

    def step(self, buffer: torch.Tensor, scale: float) -> bool:
        """Collective: the buffer becomes the mean over the ranks. False: the step was skipped, and
        what is in the buffer means nothing. The mean is of scale * gradient, divided by scale
        again."""
        self._reducer.step(buffer, scale)
        if self.core.skipped:
            return False
        self._reducer.write(buffer, 1.0 / scale)
        return True

    def span(self, place: int) -> Span:
        """Of the parameter at this place of the bucket."""
        return Span(self._reducer, self.slots[place].begin, self.slots[place].end)

    def keep_snapshot(self) -> None:
        """Remembers all that the next step changes, for undo()."""
        self._reducer.keep_snapshot()

    def undo(self, applied: Sequence[bool]) -> None:
        """After a step of which not all parameters were applied: see _applied.py."""
        undo(self._reducer, [(slot.begin, slot.end) for slot in self.slots], applied)

    def residual_norm(self) -> float:
        """The norm of all that is unsent on this rank. COST: a pass over n values."""
        return float(self.core.unsent_norm)

    def unsent(self) -> Dict[str, torch.Tensor]:
        """A copy of this rank's residual and owner memory, by parameter."""
        flat = torch.from_numpy(self.core.residual)
        first, memory = self.core.memory
        flat[first : first + len(memory)] += torch.from_numpy(memory)
        return {slot.name: flat[slot.begin : slot.end] for slot in self.slots}

    def take_unsent(self) -> Dict[str, torch.Tensor]:
        """By parameter; afterwards nothing is unsent here."""
        flat = torch.empty(self.n, dtype=torch.float32)
        self.core.take_unsent(flat)
        return {slot.name: flat[slot.begin : slot.end] for slot in self.slots}

    def give_unsent(self, unsent: Dict[str, torch.Tensor]) -> None:
        """Takes the parts that are this channel's out of `unsent`."""
        mine = [slot for slot in self.slots if slot.name in unsent]
        if not mine:
            return
        flat = torch.zeros(self.n, dtype=torch.float32)
        for slot in mine:
            flat[slot.begin : slot.end] = unsent.pop(slot.name)
        self.core.give_unsent(flat)
