# SPDX-License-Identifier: Apache-2.0
"""The library's Reducer on flat tensors, of any float type and on any device: what a Reducer of
parameters (reducer.py) and a bucket of DDP (_channel.py) are made around.

COST: for tensors that are not in host memory, n values of theirs there.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch

from oktopk import _core


class FlatReducer:
    """Belongs to one rank; all ranks make the same calls. `core` has the rest."""

    def __init__(self, comm: _core.Communicator, n: int, options: Dict[str, Any]):
        self.core: Any = _core.Reducer(comm, n, options)  # Any: tensors as well as arrays
        self._staging: Optional[torch.Tensor] = None
        self._indices: Optional[np.ndarray] = None  # of the last mean; None: all of them

    def step(self, flat: torch.Tensor, scale: float) -> None:
        """Collective: adds scale * flat to what is unsent, and synchronises."""
        self._indices = np.empty(0, np.int64)  # what arrived, should the step fail
        self.core.step(self._on_host(flat), scale)
        self._indices = None if self.core.is_dense else self.core.indices.astype(np.int64)

    def flush(self) -> None:
        """Collective: synchronises everything that is unsent, densely."""
        self._indices = None
        self.core.flush()

    def go_back(self) -> None:
        """As if the steps since core.keep_snapshot() had not been. All ranks together."""
        self._indices = None
        self.core.go_back()

    @torch.no_grad()
    def write(self, flat: torch.Tensor, factor: float = 1.0) -> None:
        """The last mean times factor, as all n values. Not after a step that was skipped."""
        core = self.core
        if flat.device.type == "cpu" and flat.dtype == torch.float32:
            core.write_update(flat.detach(), factor)
        elif self._indices is None:
            flat.copy_(torch.from_numpy(core.dense).mul_(factor))
        else:
            flat.zero_()  # and only what arrived goes to the device
            indices = torch.from_numpy(self._indices).to(flat.device)
            flat.index_copy_(0, indices, torch.from_numpy(core.values).mul_(factor).to(flat))

    def arrived(
        self, bounds: Sequence[Tuple[int, int]], device: torch.device
    ) -> List[Optional[torch.Tensor]]:
        """For each (begin, end): where in begin..end-1 the last mean arrived, counted from begin;
        None: everywhere. One copy to the device for all of them."""
        if self._indices is None:
            return [None] * len(bounds)
        places = np.searchsorted(self._indices, np.asarray(bounds, np.int64).reshape(-1))
        pairs = list(zip(places[0::2].tolist(), places[1::2].tolist()))
        found = [self._indices[i:j] - begin for (i, j), (begin, _) in zip(pairs, bounds)]
        on_device = torch.from_numpy(np.concatenate(found)).to(device)
        return list(on_device.split([j - i for i, j in pairs]))

    def _on_host(self, flat: torch.Tensor) -> torch.Tensor:
        if flat.device.type == "cpu":
            return flat.detach()
        if self._staging is None or self._staging.dtype != flat.dtype:
            pinned = flat.device.type == "cuda"
            self._staging = torch.empty(len(flat), dtype=flat.dtype, pin_memory=pinned)
        return self._staging.copy_(flat.detach())


class Span(NamedTuple):
    """A parameter's place: begin..end-1 of the flat gradient of a reducer."""

    reducer: FlatReducer
    begin: int
    end: int


def arrived_of(
    spans: Sequence[Optional[Span]], parameters: Sequence[torch.Tensor]
) -> List[Optional[torch.Tensor]]:
    """Where the last mean arrived in each of the parameters, on their devices; None: everywhere, as
    where there is no span. COST: a few microseconds per parameter, one copy to a device per reducer.
    """
    arrived: List[Optional[torch.Tensor]] = [None] * len(spans)
    together: Dict[Tuple[FlatReducer, torch.device], List[int]] = {}
    bounds: Dict[int, Tuple[int, int]] = {}
    for i, span in enumerate(spans):
        if span is not None:
            bounds[i] = (span.begin, span.end)
            together.setdefault((span.reducer, parameters[i].device), []).append(i)
    for (reducer, device), places in together.items():
        for i, indices in zip(places, reducer.arrived([bounds[i] for i in places], device)):
            arrived[i] = indices
    return arrived
