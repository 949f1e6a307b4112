# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPUs: whether this package's kernels work on one, the copies of entries to it, and steps that stay there. What
is of length n stays on the GPU (docs/gpu.md); entries, about k of them, pass through pinned host memory.

Steps that stay on the GPU are those of preset slots over NCCL. The kernels are the native module's, the messages travel
by the process group's own collectives, and the host only queues both on the current stream; it learns no counts and
waits for nothing.

    send:  residual += gradient; a message of one size for each owner
    own:   the messages of all ranks become this rank's share of the result
    apply: the shares of all ranks become the mean, all n values

COST: per step 16 bytes of GPU memory traffic per value; buffers of about 13 bytes per entry that a step sends.
"""

from __future__ import annotations

import atexit
import functools
import weakref
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from oktopk._core import CommError, CudaDevice, DeviceError, UsageError
from oktopk.torch._group import sends_gpu_memory

FLOATS = (torch.float32, torch.bfloat16, torch.float16)  # by the numbers that the native module has for them


def ordinal_of(device: torch.device) -> int:
    """The number of a GPU; "cuda" alone is the current one."""
    return torch.cuda.current_device() if device.index is None else device.index


@functools.lru_cache(maxsize=None)
def trouble(ordinal: int) -> str:
    """Why no Reducer can work on this GPU; empty where one can. Looks once: the answer does not change."""
    try:
        CudaDevice(ordinal)
    except DeviceError as error:
        return str(error)
    return ""


def require_reachable(device: torch.device, what: str, host_staging: bool) -> None:
    """UsageError, or DeviceError, unless tensors of this device can be synchronised. what: the subject of the error."""
    if device.type == "cpu" or host_staging:
        return
    if device.type != "cuda":
        raise UsageError(
            f"oktopk: {what} on {device}, but messages leave from host memory: pass "
            "host_staging=True to have gradients copied there and back in every step"
        )
    why = trouble(ordinal_of(device))
    if why:
        raise DeviceError(
            f"oktopk: {what} on {device}, which this package cannot use: install it where nvcc is found, or pass "
            f"host_staging=True to have gradients copied to the host and back in every step. The reason: {why}"
        )


def gpu_of(transport: Any, device: torch.device) -> CudaDevice:
    """The native device. All Reducers of a communicator share one, since one thread at a time uses them; those of a
    native communicator, which has no transport in Python, have their own."""
    ordinal = ordinal_of(device)
    made: Optional[Dict[int, CudaDevice]] = getattr(transport, "gpus", None)
    if made is None:
        return CudaDevice(ordinal)
    if ordinal not in made:
        made[ordinal] = CudaDevice(ordinal)
        _with_gpus.add(transport)
    return made[ordinal]


_with_gpus: "weakref.WeakSet[Any]" = weakref.WeakSet()


@atexit.register
def forget_all() -> None:
    """Lets the devices go before the interpreter ends, because DDP keeps a hook's state, and the transport with it."""
    for transport in list(_with_gpus):
        transport.gpus.clear()


def stream_of(device: torch.device) -> int:
    """The current stream of this thread, as the native module takes it; 0 for the host."""
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0


def upload(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """A copy of an array on a device. To a GPU it goes by way of pinned memory, behind the work on the current stream,
    and the host does not wait."""
    if device.type != "cuda":
        return torch.from_numpy(array).to(device)
    pinned = torch.empty(len(array), dtype=torch.from_numpy(array).dtype, pin_memory=True)
    np.copyto(pinned.numpy(), array)
    return pinned.to(device, non_blocking=True)  # torch gives the pinned memory to nobody else before the copy is over


LOOK_EVERY = 100  # steps between two looks for trouble on the GPU, each of which waits for it


def stays_on_gpu(options: Dict[str, Any], group: Optional[Any], device: torch.device) -> bool:
    """Whether steps with these options stay on the device. The same on all ranks that have such a device."""
    others = ("group_size", "adaptive_share", "selector", "check_every")  # their steps need the host
    return (
        device.type == "cuda"
        and options.get("preset") == "slots"
        and all(options.get(name) is None for name in others)
        and group is not None
        and sends_gpu_memory(group)
    )


class _Room(NamedTuple):
    """Messages, as 32-bit words: of and for all ranks, and shares."""

    messages: torch.Tensor
    arrived: torch.Tensor
    share: torch.Tensor
    shares: torch.Tensor

    @staticmethod
    def of(words: int, ranks: int, device: torch.device) -> "_Room":
        sizes = (ranks * words, ranks * words, words, ranks * words)
        return _Room(*(torch.empty(size, dtype=torch.int32, device=device) for size in sizes))


class ResidentSteps:
    """The steps of one native Reducer. All ranks make the same calls in the same order, as for any collective."""

    def __init__(self, core: Any, group: Any, nan_policy: Optional[str], look_every: int = LOOK_EVERY):
        """core: of preset slots, on the GPU of its tensors."""
        self._core = core
        self._group = group
        self._ranks: int = dist.get_world_size(group)
        self._nan_is_error = nan_policy in (None, "error")
        self._room: Optional[_Room] = None
        self._kept: Optional[torch.Tensor] = None  # the last mean, for give_back()
        self._steps = 0
        self._look_every = look_every
        self._void_steps = 0  # that are known

    def step(self, flat: torch.Tensor, scale: float, out: torch.Tensor) -> None:
        """Collective: `out` becomes the mean over the ranks of what is sent, zeros included. If some rank's gradient is
        not finite, it is NaN everywhere, and all finite values stay unsent. It may be `flat` itself."""
        core, stream = self._core, stream_of(flat.device)
        room, words = self._room, core.resident_words
        if room is None or len(room.share) != words:  # k has changed: a stage of the warm-up
            room = self._room = _Room.of(words, self._ranks, flat.device)
        core.resident_send(flat.data_ptr(), FLOATS.index(flat.dtype), scale, room.messages.data_ptr(), stream)
        exchange(core, dist.all_to_all_single, room.arrived, room.messages, self._group)
        core.resident_own(room.arrived.data_ptr(), room.share.data_ptr(), stream)
        exchange(core, all_gather, room.shares, room.share, self._group)
        kind = FLOATS.index(out.dtype)
        core.resident_apply(room.shares.data_ptr(), room.messages.data_ptr(), out.data_ptr(), kind, stream)
        self._kept = None
        self._steps += 1
        if self._steps % self._look_every == 0:
            self.look()

    def look(self) -> None:
        """Waits for the GPU. CommError after messages that made no sense; UsageError after a sum that overflowed, and
        after a gradient that was not finite where nan_policy is "error"."""
        known, self._void_steps = self._void_steps, self._core.resident_state()["void_steps"]
        if self._void_steps > known and self._nan_is_error:
            raise UsageError(
                f"oktopk: in {self._void_steps - known} of the last {self._look_every} steps some rank's gradient held "
                "nan or inf, and the mean was NaN on all ranks (nan_policy='skip' leaves such steps out)"
            )

    def keep(self, mean: torch.Tensor) -> None:
        """Remembers the mean of this step, a copy of n floats on the GPU, for give_back()."""
        self._kept = mean.float() if mean.dtype != torch.float32 else mean.clone()

    def give_back(self, spans: Sequence[Tuple[int, int]], applied: Sequence[bool]) -> None:
        """The values of the kept mean that were not applied become unsent again, on all ranks. A step that was void
        gives nothing."""
        mean, self._kept = self._kept, None
        if mean is None or all(applied):
            return
        mean.nan_to_num_(0.0, 0.0, 0.0)
        for (begin, end), is_applied in zip(spans, applied):
            if is_applied:
                mean[begin:end] = 0
        self._core.give_on_gpu(mean.data_ptr(), stream_of(mean.device))
        mean.record_stream(torch.cuda.current_stream(mean.device))


def exchange(core: Any, collective: Any, into: torch.Tensor, what: torch.Tensor, group: Any) -> None:
    """A collective of the process group. CommError where it fails; the native Reducer `core` is then dead."""
    try:
        collective(into, what, group=group)
    except RuntimeError as error:
        core.fail_external()
        raise CommError(f"oktopk: an exchange between GPUs failed: {error}") from error


# torch 2.13 has new names for these.
all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
