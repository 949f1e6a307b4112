# SPDX-License-Identifier: Apache-2.0
"""One bucket of parameters and the Reducer that synchronises their gradients.

A channel lives as long as the bucket's layout: when DDP rebuilds its buckets, what is unsent moves,
parameter by parameter, to the channels of the new layout, and nothing is lost.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np
import torch

from oktopk import _core


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
        self.core: Any = _core.Reducer(comm, self.n, options)  # takes the host's tensors as arrays
        self._indices: Optional[torch.Tensor] = None
        self._mean: Optional[torch.Tensor] = None  # staging, of what is not fp32 on the host

    @property
    def names(self) -> List[str]:
        return [slot.name for slot in self.slots]

    def step(self, buffer: torch.Tensor, scale: float) -> bool:
        """Collective: the buffer becomes the mean over the ranks. False: the step was skipped, and
        the buffer is as it was. The mean is of scale * gradient, divided by scale again."""
        host = buffer if buffer.device.type == "cpu" else buffer.to("cpu")
        self.core.step(host, scale)
        self._indices = None
        if self.core.skipped:
            return False
        if buffer.device.type == "cpu" and buffer.dtype == torch.float32:
            self.core.write_update(buffer, 1.0 / scale)
        else:
            if self._mean is None:
                self._mean = torch.empty(self.n, dtype=torch.float32)
            self.core.write_update(self._mean, 1.0 / scale)
            buffer.copy_(self._mean)
        return True

    def arrived(self, slot: Slot) -> Optional[torch.Tensor]:
        """Where in the parameter the last mean arrived; None: everywhere."""
        if self.core.is_dense:
            return None
        if self._indices is None:
            self._indices = torch.from_numpy(self.core.indices.astype(np.int64))
        bounds = torch.tensor([slot.begin, slot.end])
        first, last = torch.searchsorted(self._indices, bounds).tolist()
        return self._indices[first:last] - slot.begin

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
