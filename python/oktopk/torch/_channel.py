# SPDX-License-Identifier: Apache-2.0
"""A channel: the parameters of one bucket of DDP, one after the other, and the Reducer of their flat gradient."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Union

import torch

from oktopk import _core
from oktopk._core import UsageError
from oktopk.torch._flat_reducer import FlatReducer
from oktopk.torch._levels import Levels, SecondMoments
from oktopk.torch._sharded import make_reducer
from oktopk.torch._spans import Span


class Slot(NamedTuple):
    """The place of a parameter in the flat gradient."""

    name: str
    begin: int
    end: int


class Settings(NamedTuple):
    """Equal for all channels."""

    options: Dict[str, Any]  # of their Reducers
    host_staging: bool
    device: Optional[torch.device] = None  # of the gradients
    step_values: int = 0  # of all channels


class Channel:
    """The parameters of one bucket and their Reducer. All ranks have the same channels in the same order."""

    def __init__(self, comm: _core.Communicator, names: Sequence[str], sizes: Sequence[int], settings: Settings):
        self.slots: List[Slot] = []
        self.n = 0
        for name, size in zip(names, sizes):
            self.slots.append(Slot(name, self.n, self.n + size))
            self.n += size
        self._reducer = make_reducer(comm, self.n, settings.options, settings.host_staging, settings.device)
        self._reducer.measure_for(settings.step_values)
        self.core: Any = self._reducer.core

    @property
    def names(self) -> List[str]:
        return [slot.name for slot in self.slots]

    def level_by(self, moments: SecondMoments, parameters: Sequence[torch.Tensor]) -> None:
        """Before a step: levels for the selection, if it is time (_levels.py). Shards of a node have none."""
        if isinstance(self._reducer, FlatReducer):
            self._reducer.level_by(moments, parameters)

    @property
    def levels(self) -> Optional[Levels]:
        return self._reducer.saved_levels if isinstance(self._reducer, FlatReducer) else None

    def load_levels(self, levels: Optional[Levels]) -> None:
        """Together with the state of the Reducer."""
        if isinstance(self._reducer, FlatReducer):
            self._reducer.load_levels(levels)
        elif levels is not None:
            raise UsageError("oktopk: the saved state has a levelled selection, which group_size on GPUs has not")

    def step(self, buffer: torch.Tensor, scale: Union[float, torch.Tensor]) -> bool:
        """Collective: the buffer becomes the mean over the ranks. scale: of the loss; the Reducer sees the gradient
        without it. False: the step was skipped, and the contents of the buffer are undefined."""
        if isinstance(scale, torch.Tensor):
            return self._step_unscaled(buffer, scale)
        self._reducer.step(buffer, 1.0 / scale)
        if self.core.skipped:
            return False
        self._reducer.write(buffer, scale)
        return True

    def _step_unscaled(self, buffer: torch.Tensor, scale: torch.Tensor) -> bool:
        """The host does not know the scale. 16-bit gradients are widened, since they could vanish without it."""
        wide = buffer.float()  # the buffer itself where it has this type
        is_made = self.step(wide.mul_(scale.reciprocal()), 1.0)
        wide.mul_(scale)
        if wide is not buffer:
            buffer.copy_(wide)
        return is_made

    def span(self, place: int) -> Span:
        """The span of the parameter at this place of the bucket."""
        return Span(self._reducer, self.slots[place].begin, self.slots[place].end)

    def keep_for_undo(self, device: torch.device) -> None:
        """Before a step with a buffer of this device, so that undo() can follow."""
        self._reducer.keep_for_undo(device)

    def undo(self, applied: Sequence[bool]) -> None:
        """After a step of which not all parameters were applied (_applied.py)."""
        self._reducer.undo([(slot.begin, slot.end) for slot in self.slots], applied)

    def residual_norm(self) -> float:
        """The norm of all that is unsent on this rank. COST: a pass over n values, with levels a few."""
        if isinstance(self._reducer, FlatReducer) and self._reducer.levels is not None:
            return float(self._reducer.unsent().norm())
        return float(self.core.unsent_norm)

    def unsent(self) -> Dict[str, torch.Tensor]:
        """A copy of this rank's residual and owner memory, by parameter."""
        return self._by_name(self._reducer.unsent())

    def take_unsent(self) -> Dict[str, torch.Tensor]:
        """The same, and nothing is unsent here afterwards."""
        flat = torch.empty(self.n, dtype=torch.float32)
        self._reducer.take_unsent(flat)
        return self._by_name(flat)

    def _by_name(self, flat: torch.Tensor) -> Dict[str, torch.Tensor]:
        return {slot.name: flat[slot.begin : slot.end] for slot in self.slots}

    def give_unsent(self, unsent: Dict[str, torch.Tensor]) -> None:
        """Removes the entries of this channel's parameters from `unsent` and makes them unsent here."""
        mine = [slot for slot in self.slots if slot.name in unsent]
        if not mine:
            return
        flat = torch.zeros(self.n, dtype=torch.float32)
        for slot in mine:
            flat[slot.begin : slot.end] = unsent.pop(slot.name)
        self._reducer.give_unsent(flat)
