# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPUs: whether this package's kernels work on one, and the copies of entries to it. What is of length n stays
on the GPU (docs/gpu.md); entries, about k of them, pass through pinned host memory."""

from __future__ import annotations

import atexit
import functools
import weakref
from typing import Any, Dict, Optional

import numpy as np
import torch
from numpy.typing import NDArray

from oktopk._core import CudaDevice, DeviceError, UsageError


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
    """The current stream of this thread, as the native module takes it."""
    return int(torch.cuda.current_stream(device).cuda_stream)


def upload(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """A copy of an array on a device. To a GPU it goes by way of pinned memory, behind the work on the current stream,
    and the host does not wait."""
    if device.type != "cuda":
        return torch.from_numpy(array).to(device)
    pinned = torch.empty(len(array), dtype=torch.from_numpy(array).dtype, pin_memory=True)
    np.copyto(pinned.numpy(), array)
    return pinned.to(device, non_blocking=True)  # torch gives the pinned memory to nobody else before the copy is over
