# SPDX-License-Identifier: Apache-2.0
"""How much was sent, and how much a dense allreduce would have."""

from __future__ import annotations

import threading
from typing import NamedTuple, Tuple

import torch


class _Three(NamedTuple):
    rate: float
    numel_before: int
    numel_after: float


class CompressionStats(_Three):
    """Counts of this rank since the state was made. Unpacks as PowerSGDState.compression_stats() does:

        rate, numel_before, numel_after = state.compression_stats()

    rate: dense_bytes / wire_bytes.
    numel_before: gradient values that steps synchronised.
    numel_after: what was sent for them, in 4-byte words.
    wire_bytes: the same in bytes, with those that preset auto sent to measure the network.
    dense_bytes: what DDP would have sent without a hook: dense allreduces in the type of the gradients.
    """

    wire_bytes: int
    dense_bytes: int

    def __new__(cls, numel: int, wire: float, dense: float) -> "CompressionStats":
        stats = super().__new__(cls, dense / wire if wire > 0 else 1.0, numel, wire / 4)
        stats.wire_bytes, stats.dense_bytes = int(wire), int(dense)
        return stats

    def __getnewargs__(self) -> Tuple[int, float, float]:  # type: ignore[override]
        return self.numel_before, self.wire_bytes, self.dense_bytes


def dense_bytes(numel: int, world: int, itemsize: int = 4) -> float:
    """Per rank and allreduce: 2 n (P - 1) / P values, in any bandwidth-optimal algorithm."""
    return 2 * numel * (world - 1) / world * itemsize


class Counters:
    """Counts of the exchanging thread and of the thread of backward()."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numel = 0
        self._wire = 0.0
        self._dense = 0.0

    def add(self, gradient: torch.Tensor, wire: float, world: int) -> None:
        with self._lock:
            self._numel += gradient.numel()
            self._wire += wire
            self._dense += dense_bytes(gradient.numel(), world, gradient.element_size())

    def add_measured(self, wire: float) -> None:
        """Bytes that were sent to choose a method."""
        with self._lock:
            self._wire += wire

    def stats(self) -> CompressionStats:
        with self._lock:
            return CompressionStats(self._numel, self._wire, self._dense)
