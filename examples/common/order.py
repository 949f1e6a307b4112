# SPDX-License-Identifier: Apache-2.0
"""Which samples a rank sees in a step: a function of the seed alone, hence the same for every
recipe."""

import torch


class Order:
    """An endless stream of shuffled epochs; a step takes the next batch * size samples of it, a
    rank its part of those."""

    def __init__(self, count: int, batch: int, rank: int, size: int, seed: int):
        self._count, self._batch, self._rank, self._size, self._seed = (
            count,
            batch,
            rank,
            size,
            seed,
        )
        self._shuffled: dict[int, torch.Tensor] = {}

    def indices(self, step: int) -> torch.Tensor:
        """int64 [batch], on the host."""
        first = (step * self._size + self._rank) * self._batch
        parts = []
        at, end = first, first + self._batch
        while at < end:
            epoch, offset = divmod(at, self._count)
            piece = self._epoch(epoch)[offset : offset + end - at]
            parts.append(piece)
            at += len(piece)
        return torch.cat(parts)

    def _epoch(self, epoch: int) -> torch.Tensor:
        if epoch not in self._shuffled:
            rng = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            self._shuffled = {epoch: torch.randperm(self._count, generator=rng)}
        return self._shuffled[epoch]
