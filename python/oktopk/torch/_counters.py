# SPDX-License-Identifier: Apache-2.0
"""How much was sent, and how much a dense allreduce would have."""

from __future__ import annotations

import threading
from typing import NamedTuple


class CompressionStats(NamedTuple):
    """Since the state was made, on this rank."""

    rate: float  # dense_bytes / wire_bytes
    numel_before: int  # gradient values that steps synchronised
    numel_after: float  # what was sent for them, in 4-byte words
    wire_bytes: int
    dense_bytes: int  # what a dense fp32 allreduce would have sent


def dense_bytes(numel: int, world: int, itemsize: int = 4) -> float:
    """Per rank and allreduce: 2 n (P - 1) / P values, in any bandwidth-optimal algorithm."""
    return 2 * numel * (world - 1) / world * itemsize


class Counters:
    """Added to by the exchanging thread and by backward's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numel = 0
        self._wire = 0.0
        self._dense = 0.0

    def add(self, numel: int, wire: float, world: int) -> None:
        with self._lock:
            self._numel += numel
            self._wire += wire
            self._dense += dense_bytes(numel, world)

    def stats(self) -> CompressionStats:
        with self._lock:
            rate = self._dense / self._wire if self._wire > 0 else 1.0
            return CompressionStats(
                rate, self._numel, self._wire / 4, int(self._wire), int(self._dense)
            )
