# SPDX-License-Identifier: Apache-2.0
"""Sums over the ranks by a process group's own all_reduce: NCCL for a GPU's tensors where they lie, Gloo for the
host's. Our own dense exchange passes host memory and messages, and is slower. And counts of how much was sent, and how
much a dense allreduce would have.

COST: one pass before and one after the all_reduce, in place.
"""

from __future__ import annotations

import math
import threading
import time
from datetime import timedelta
from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist

from oktopk import _core, _ends
from oktopk._core import CommError, UsageError
from oktopk._requirements import version_numbers
from oktopk.torch.flat import FLOATS


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


_SIZES = (1 << 12, 1 << 18, 1 << 22)  # values; the last size only where the second one is quick
_QUICK = 4e-3  # seconds
_REPETITIONS = 3
_TURN = timedelta(seconds=0.1)


def sums_in_its_type(dtype: torch.dtype) -> bool:
    """Gloo sums bfloat16 from torch 2.2 on."""
    return dtype != torch.bfloat16 or version_numbers(torch.__version__) >= [2, 2]


def all_reduce(tensor: torch.Tensor, group: Any) -> None:
    """Collective: the tensor becomes the sum over the ranks, bitwise equal on all of them."""
    try:
        dist.all_reduce(tensor, group=group)
    except RuntimeError as error:
        raise CommError(f"oktopk: the process group's all_reduce failed: {error}") from error


def is_finite(tensor: torch.Tensor) -> bool:
    """Waits for the tensor's device. COST: one pass that reads; a second one only where the sum of all values
    overflows."""
    x = tensor if tensor.layout == torch.strided else tensor._values()
    return math.isfinite(x.sum(dtype=torch.float32).item()) or bool(x.isfinite().all())


def zero_unless_finite(tensor: torch.Tensor) -> None:
    """Does not wait for the tensor's device. COST: three passes."""
    good = tensor.isfinite().all()
    tensor.nan_to_num_(0.0, 0.0, 0.0).mul_(good)


class BucketMean:
    """The mean of one bucket as DDP makes it without a hook, bit by bit. Begun in backward's thread, in DDP's order;
    ended in the exchanging thread, which may wait for the device."""

    def __init__(self, buffer: torch.Tensor, group: Any, index: int, dtype: Optional[torch.dtype] = None):
        """buffer: becomes the mean. dtype: the type in which it is summed; None: its own."""
        self._index = index
        self._buffer = buffer
        buffer.mul_(1.0 / dist.get_world_size(group))
        self._sum = buffer if dtype is None else buffer.to(dtype)
        self.itemsize = self._sum.element_size()
        try:
            self._work = dist.all_reduce(self._sum, group=group, async_op=True)
        except RuntimeError as error:
            raise self._in_words(error) from error

    def wait(self) -> None:
        try:
            if not self._sum.is_cuda:
                _await_by_turns(self._work)
            self._work.wait()
        except CommError:
            raise
        except RuntimeError as error:
            raise self._in_words(error) from error
        if self._sum is self._buffer:
            return
        self._buffer.copy_(self._sum)
        if self._sum.is_cuda:  # it was made on backward's stream, which must not use its memory before this copy
            self._sum.record_stream(torch.cuda.current_stream(self._sum.device))

    def _in_words(self, error: RuntimeError) -> CommError:
        return CommError(f"oktopk: the dense all-reduce of bucket {self._index} failed: {error}")


class EncryptedMean:
    """In the place of a BucketMean: by encrypted messages of a communicator, in float32 and in host memory, because the
    process group's all_reduce is not encrypted. COST: n floats of memory for each size of a bucket."""

    itemsize = 4

    def __init__(self, comm: Any, cores: Dict[int, Any], buffer: torch.Tensor, number: int):
        """cores: the native Reducers by size, kept by the caller."""
        if buffer.layout != torch.strided or buffer.dtype not in FLOATS:
            raise UsageError(
                f"oktopk: bucket {number} is of type {buffer.dtype} and layout {buffer.layout}, which cannot be "
                "encrypted: convert its parameters to float32, bfloat16 or float16, or leave encrypt out"
            )
        n = buffer.numel()
        if n not in cores:
            cores[n] = _core.Reducer(comm, n, {"preset": "dense", "nan_policy": "skip"})
        self._core, self._buffer = cores[n], buffer

    def wait(self) -> None:
        """The whole exchange. A mean of gradients that are not finite is NaN."""
        flat = self._buffer.detach().to("cpu", torch.float32, copy=True)
        self._core.step(flat, 1.0)
        if self._core.skipped:
            flat.fill_(math.nan)
        else:
            self._core.write_update(flat, 1.0)
        self._buffer.copy_(flat)


def _await_by_turns(work: Any) -> None:
    """Until it has ended, well or not. A thread that would wait for Gloo longer than the interpreter lives, and come
    back then, would abort the process."""
    while not work.is_completed():
        try:
            work.wait(_TURN)
        except RuntimeError:  # the turn is over, or the work has failed
            _ends.check()


def measure(group: Any, device: torch.device, n: int) -> Tuple[float, float, int]:
    """Collective: the seconds of a dense step of no values, the seconds per byte, and the bytes that were sent for it:
    less than 9 dense steps of n values."""
    least = min(_SIZES[0], -(-n // 16))
    sizes, times = [least], [_seconds(group, device, least)]
    for most in _SIZES[1:]:
        size = min(most, n)
        if size > sizes[-1] and (len(sizes) == 1 or times[-1] < _QUICK):
            sizes.append(size)
            times.append(_seconds(group, device, size))
    per_byte = max(0.0, (times[-1] - times[0]) / max(4 * (sizes[-1] - least), 1))
    P = dist.get_world_size(group)
    sent = sum((1 + _REPETITIONS) * dense_bytes(size, P) for size in sizes)
    return max(0.0, times[0] - 4 * least * per_byte), per_byte, round(sent)


def _seconds(group: Any, device: torch.device, size: int) -> float:
    """The median of a few, on the slowest rank: all ranks get the same number."""
    tensor = torch.zeros(size, device=device)
    times = []
    for _ in range(1 + _REPETITIONS):
        began = time.perf_counter()
        tensor.mul_(0.5)
        all_reduce(tensor, group)
        is_finite(tensor)
        times.append(time.perf_counter() - began)
    median = sorted(times[1:])[_REPETITIONS // 2]  # the first may have to connect
    slowest = torch.tensor([median], device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
    return float(slowest.item())
