# SPDX-License-Identifier: Apache-2.0
"""The coordinates of a parameter, its gradient and its optimiser state, in the order of the parameter's memory (that of
DDP's buckets too), and the precision they are computed in. A sharded parameter (DTensor) has the coordinates that this
rank holds.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Dict, Final, Literal, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor

from oktopk._core import UsageError
from oktopk.torch.flat import local, order_of

# By the numbers that oktopk/optim/tensor_step.h has for them.
WEIGHT_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}

# Entries of a parameter's state that have no element per coordinate: tensors without dimensions.
NUMBERS = {"step": torch.float32, "skew": torch.int64, "caught_up": torch.int64, "whole": torch.int64}


class _Where(Enum):
    NONZERO = "nonzero"


# An answer of arrived(): the mean arrived at every coordinate where it is not zero.
WHERE_NONZERO: Final = _Where.NONZERO

# Increasing indices, WHERE_NONZERO, or None: everywhere.
Arrived = Union[Tensor, Literal[_Where.NONZERO], None]


class Layout(NamedTuple):
    """How a parameter lies in memory, and whether a native call of host_step.py can make a step with it."""

    stride: Tuple[int, ...]
    dtype: torch.dtype
    size: int
    is_sharded: bool
    is_gapless: bool
    is_native: bool


class Job(NamedTuple):
    """A parameter that makes a step: where its mean arrived; None: everywhere."""

    group: Dict[str, Any]
    param: Tensor
    layout: Layout
    indices: Optional[Tensor]


def layout_of(param: Tensor) -> Layout:
    own = local(param)
    gapless = own.permute(order_of(own)).is_contiguous()
    native = own.device.type == "cpu" and own.dtype in WEIGHT_TYPES and gapless
    return Layout(own.stride(), own.dtype, own.numel(), hasattr(param, "to_local"), gapless, native)


def state_dtype(param: Tensor) -> torch.dtype:
    """float for half precision: moments of half precision would lose what a step adds to them."""
    return torch.float64 if param.dtype == torch.float64 else torch.float32


def clock_of(state: Dict[str, Any]) -> int:
    """The step of its group that a parameter has reached."""
    return int(state["step"].item()) + int(state["skew"].item())


def checked_parameter(param: Tensor) -> None:
    """UsageError where the optimiser does not support the kind of a parameter or its gradient."""
    if param.grad is not None and param.grad.layout != torch.strided:
        raise UsageError(
            f"oktopk: the gradient of a parameter of shape {tuple(param.shape)} is a sparse "
            "tensor, but a dense one is needed: use Embedding(sparse=False)"
        )
    if not param.is_floating_point():
        raise UsageError(f"oktopk: a parameter of shape {tuple(param.shape)} is {param.dtype}, not real")


def checked_indices(indices: Tensor, param: Tensor, layout: Layout) -> Tensor:
    """The result of arrived() on the device of the parameter; UsageError where it cannot be right."""
    shape = tuple(param.shape)
    if not isinstance(indices, Tensor):
        raise UsageError(
            f"oktopk: arrived() of a parameter of shape {shape} gave a {type(indices).__name__}, but it must give a "
            "tensor of indices, WHERE_NONZERO or None"
        )
    if not layout.is_gapless:
        raise UsageError(
            f"oktopk: a parameter of shape {shape} and strides {layout.stride} has gaps or "
            "overlaps in memory: make it contiguous before training"
        )
    if indices.dim() != 1 or indices.dtype != torch.int64:
        raise UsageError(
            f"oktopk: arrived() of a parameter of shape {shape} gave {indices.dtype} of "
            f"{indices.dim()} dimensions, but indices are int64 of one dimension"
        )
    return indices.contiguous() if layout.is_native else indices.to(param.device)


def nonzero_of(param: Tensor) -> Tensor:
    """Where the gradient of a parameter is not zero, as indices. Waits for a GPU."""
    assert param.grad is not None
    flat = local(param.grad).permute(order_of(local(param))).reshape(-1)
    return flat.nonzero().view(-1)


def checked_state(state: Dict[str, Any], name: str, own: Tensor, layout: Layout) -> Tensor:
    """The tensor of this name in a state; UsageError unless it is where the parameter is, and laid out as it."""
    value: Tensor = state[name]
    if layout.is_sharded:
        value = value.to_local()  # type: ignore[attr-defined]
    dtype = torch.int32 if name in ("last", "arrivals") else state_dtype(own)
    if value.device != own.device or value.dtype != dtype or value.stride() != layout.stride:
        raise UsageError(
            f"oktopk: '{name}' in the state of a parameter of shape {tuple(own.shape)} is {value.dtype} on "
            f"{value.device} with strides {value.stride()}, but it must be {dtype} on {own.device} with strides "
            f"{layout.stride}: load states by load_state_dict()"
        )
    return value


def bad_indices(job: Job) -> UsageError:
    """The error for indices that do not increase strictly within the parameter."""
    assert job.indices is not None
    first, last = int(job.indices.min()), int(job.indices.max())
    return UsageError(
        f"oktopk: arrived() of a parameter of shape {tuple(job.param.shape)} gave indices from "
        f"{first} to {last}, but it has {local(job.param).numel()} elements, and indices increase"
    )
