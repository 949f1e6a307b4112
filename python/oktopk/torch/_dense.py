# SPDX-License-Identifier: Apache-2.0
"""A bucket that is synchronised densely, as DDP does it without a hook, bit by bit."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from oktopk._core import CommError


class DenseSum:
    """The all-reduce of one bucket. Begun in backward's thread, in DDP's order; ended in the
    exchanging thread, which may wait for the device."""

    def __init__(self, buffer: torch.Tensor, group: Any, index: int):
        """buffer: becomes the mean."""
        self._buffer = buffer
        self._index = index
        buffer.mul_(1.0 / dist.get_world_size(group))
        try:
            self._work = dist.all_reduce(buffer, group=group, async_op=True)
        except RuntimeError as error:
            raise self._in_words(error) from error

    def wait(self) -> None:
        try:
            self._work.wait()
        except RuntimeError as error:
            raise self._in_words(error) from error

    def is_finite(self) -> bool:
        """The same on all ranks. COST: one pass, on the buffer's device."""
        x = self._buffer
        values = x._values() if x.layout != torch.strided else x
        half = values.dtype in (torch.float16, torch.bfloat16)
        total = values.sum(dtype=torch.float32) if half else values.sum()
        return bool(total.isfinite()) or bool(values.isfinite().all())  # sums may overflow

    def _in_words(self, error: RuntimeError) -> CommError:
        return CommError(f"oktopk: the dense all-reduce of bucket {self._index} failed: {error}")
