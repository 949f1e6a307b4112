# SPDX-License-Identifier: Apache-2.0
"""The interval clock of a parameter group in the memory of a GPU. The kernels tick it (oktopk/gpu/kernels/optim.cu),
because they alone know whether a GradScaler left a step out, or how often a CUDA graph was replayed. fetch() brings the
host's clock up to date when somebody asks for it.
COST: 32 B per step; fetch() waits for the GPU.
"""

from __future__ import annotations

from typing import Any, Dict

import torch
from torch import Tensor

from oktopk import _core
from oktopk._core import UsageError

CAPTURED_STEPS = 1 << 20  # that a group with capturable=True can make: its tables must stay where they are
_FAULTS = {
    1: "the learning rate, a tensor on the GPU, was negative, not finite, or at least 1 / weight_decay: the step was "
    "left out",
    2: f"a group with capturable=True had made the {CAPTURED_STEPS} steps that it can make: save its state, and load "
    "it into a new optimiser",
    3: "arrived() gave an index outside of its parameter: it was passed over",
}


class CudaClock:
    """OktopkCudaClock and its tables (oktopk/gpu/kernels/cuda_api.h)."""

    def __init__(self, native: _core.LazyGroup, device: torch.device, is_fixed: bool):
        """is_fixed: the tables never move, so that a CUDA graph can hold their addresses."""
        self.device, self.is_fixed = device, is_fixed
        self.ticks = False  # some parameter has silent coordinates
        self.limit = native.now + (CAPTURED_STEPS if is_fixed else 0)  # no parameter makes more steps
        self.tables: Dict[str, Tensor] = {}  # of powers, which the kernels read
        self._known = native.now  # steps that the host knows of
        self._head = torch.zeros(10, dtype=torch.int32, device=device)
        self._head[0] = native.now
        room = native.now + (CAPTURED_STEPS if is_fixed else 1024) + 1
        self._tables = torch.zeros(2, room, 2, dtype=torch.float64, device=device)  # totals, log
        totals = torch.from_numpy(native.totals(0)).view(2, -1).t()
        self._tables[0, : native.now + 1] = totals.to(device)

    @property
    def now(self) -> Tensor:
        """Steps made."""
        return self._head[0]

    def begin(self, ticks: bool, steps: int) -> None:
        """For a new plan. steps: the most that a parameter of it has made."""
        self.ticks = ticks
        self.limit = max(self.limit, steps + (CAPTURED_STEPS if self.is_fixed else 0))

    def make_room(self) -> None:
        """Before each step that the host queues."""
        if self.is_fixed:
            return
        self.limit += 1
        room = self._tables.shape[1]
        if self.limit + 1 >= room:
            larger = torch.zeros(2, 2 * self.limit, 2, dtype=torch.float64, device=self.device)
            larger[:, :room] = self._tables
            self._tables = larger

    def fields(self) -> Dict[str, Any]:
        totals, log = self._tables
        return {
            "clock": self._head.data_ptr(),
            "totals": totals.data_ptr() if self.ticks else 0,
            "log": log.data_ptr() if self.ticks else 0,
            "room": self._tables.shape[1],
        }

    def fetch(self, native: _core.LazyGroup) -> None:
        """Ticks the host's clock for the steps that it does not know of. UsageError where one of them was wrong."""
        now, _, fault = self._head[:3].tolist()
        steps = self._tables[1, self._known + 1 : now + 1].cpu()
        if len(steps) > 0:
            runs, counts = torch.unique_consecutive(steps, dim=0, return_counts=True)
            for (rate, decay), count in zip(runs.tolist(), counts.tolist()):
                native.tick(rate, decay, count)
        self._known = now
        if fault != 0:
            self._head[2] = 0
            raise UsageError(f"oktopk: in an earlier step {_FAULTS[fault]}")
