# SPDX-License-Identifier: Apache-2.0
"""Sparse sums with owner memory in a few operations of a GPU: what presets circulant and slots do, for all ranks at
once. A sender subtracts what it sends; the owner of a coordinate keeps what it does not apply. Thresholds come from
samples; bytes are those of the direct schedule. simulated.py and local.py use it.
"""

from __future__ import annotations

from typing import Callable, List, Optional

import torch
from torch import Tensor

from .coding import BITS, entry_bytes, in_four_bits, rounded
from .method import Bytes, ring

SAMPLE = 400_000  # values of a row, of which a threshold is made; fewer where there are many rows
SAMPLES = 4 * SAMPLE  # of all rows
Unit = Callable[[], Optional[Tensor]]  # by which magnitudes are divided before they are compared


def largest(rows: Tensor, density: float, step: int, unit: Optional[Tensor] = None) -> Tensor:
    """Where about density * n values of each row are. Ties all count."""
    magnitude = rows.abs() if unit is None else rows.abs().div_(unit)
    every = max(1, rows.shape[1] // min(SAMPLE, SAMPLES // rows.shape[0]))
    sample = magnitude[:, step * 31 % every :: every]
    k = max(1, round(min(density, 1.0) * sample.shape[1]))
    threshold = sample.topk(k, dim=1, sorted=False).values.amin(1, keepdim=True)
    return magnitude >= threshold.clamp(min=torch.finfo(torch.float32).tiny)


class OwnerMemory:
    """local: the entries that a rank sends, in units of those that are applied."""

    def __init__(self, unsent: Tensor, coding: str, local: float = 1.0, unit: Unit = lambda: None):
        self.unsent, self.memory = unsent, torch.zeros_like(unsent[0])
        self._coding, self._local, self._unit = coding, local, unit
        self._ranks, self._n = unsent.shape

    def tensors(self) -> List[Tensor]:
        return [self.unsent, self.memory]

    def sum(self, density: float, step: int) -> tuple[Tensor, Bytes]:
        """The sum that all ranks apply, and the bytes that a rank sends for it."""
        places, values = self._take(self.unsent, density * self._local, step)
        self.memory.index_add_(0, places % self._n, values)
        chosen, applied = self._take(self.memory[None], density, step + 7)
        total = torch.zeros_like(self.memory).index_copy_(0, chosen, applied)
        bits, share = BITS[self._coding], (self._ranks - 1) / self._ranks
        sent = len(values) / self._ranks * entry_bytes(min(1.0, density * self._local), bits)
        return total, share * (sent + len(applied) * entry_bytes(density, bits))

    def gather(self, density: float, step: int) -> tuple[Tensor, Bytes]:
        """The sum without owners, as preset topka has it: every rank gets all entries of all others."""
        places, values = self._take(self.unsent, density, step)
        total = torch.zeros_like(self.memory).index_add_(0, places % self._n, values)
        share = (self._ranks - 1) / self._ranks
        return total, share * len(values) * entry_bytes(density, BITS[self._coding])

    def sum_all(self) -> tuple[Tensor, Bytes]:
        """The sum of everything that is unsent."""
        total = self.unsent.sum(0) + self.memory
        self.unsent.zero_()
        self.memory.zero_()
        return total, ring(4 * self._n, self._ranks)

    def sum_all_in_four_bits(self) -> tuple[Tensor, Bytes]:
        sent = in_four_bits(self.unsent)
        self.unsent -= sent
        self.memory += sent.sum(0)
        applied = in_four_bits(self.memory[None])[0]
        self.memory -= applied
        return applied, ring(self._n / 2, self._ranks)

    def _take(self, rows: Tensor, density: float, step: int) -> tuple[Tensor, Tensor]:
        """The largest values of each row as they arrive, and their places in all rows one after the other. What
        rounding changes stays in the row."""
        places = largest(rows, density, step, self._unit()).view(-1).nonzero()[:, 0]
        flat = rows.view(-1)
        given = flat[places]
        values = rounded(given, self._coding)
        flat.index_copy_(0, places, given - values)
        return places, values
