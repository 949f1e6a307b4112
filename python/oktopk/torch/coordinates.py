# SPDX-License-Identifier: Apache-2.0
"""The coordinates of a parameter, its gradient and its optimiser state: flat views of all that has
one element per coordinate, in the order of the parameter's memory (that of DDP's buckets too), and
the precision they are computed in. Of a sharded parameter (DTensor), those this rank holds.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional, Union

import torch
from torch import Tensor

from oktopk._core import UsageError
from oktopk.torch.flat import local
from oktopk.torch.interval_clock import IntervalClock

Flats = Dict[str, Tensor]
Where = Union[slice, Tensor]

_BLOCK = 1 << 22  # coordinates at a time


class Arrivers:
    """The coordinates of one parameter that arrive: reads and writes their values by name."""

    def __init__(
        self,
        group: Dict[str, Any],
        state: Dict[str, Any],
        flats: Flats,
        where: Where,
        silence_follows: bool,
    ):
        self.group, self.state = group, state
        self.clock = IntervalClock(group)
        self._flats, self._where = flats, where
        self.last = self["last"]
        self.tau = self.clock.now - self.last  # steps since they last arrived, this one included
        # Steps in which they are likely not to arrive, after this one: the best guess for a silence
        # is the last one. After a dense step, none.
        self.silence = self.tau - 1 if silence_follows else torch.zeros_like(self.tau)

    def __getitem__(self, name: str) -> Tensor:
        return self._flats[name][self._where]

    def __setitem__(self, name: str, values: Tensor) -> None:
        self._flats[name][self._where] = values.to(self._flats[name].dtype)


def flat_views(param: Tensor, state: Dict[str, Any]) -> Flats:
    """Views of all that has one element per coordinate. The gradient may be a copy."""
    order = _order(param)
    flats = {"param": local(param).permute(order).view(-1)}
    for name, value in state.items():
        if isinstance(value, Tensor) and value.shape == param.shape and name != "step":
            flats[name] = local(value).permute(order).view(-1)
    if param.grad is not None:
        flats["grad"] = local(param.grad).permute(order).reshape(-1)
    return flats


def _order(param: Tensor) -> List[int]:
    """The dimensions as they lie in memory, widest stride first."""
    own = local(param)
    order = sorted(range(own.dim()), key=own.stride, reverse=True)
    if not own.permute(order).is_contiguous():
        raise UsageError(
            f"oktopk: a parameter of shape {tuple(param.shape)} and strides {own.stride()} has "
            "gaps or overlaps in memory: make it contiguous before training"
        )
    return order


def state_dtype(param: Tensor) -> torch.dtype:
    """Moments of half precision would round away what a step adds to them."""
    return torch.float64 if param.dtype == torch.float64 else torch.float32


def widened(param: Tensor) -> Tensor:
    """The parameter itself, or a copy in the precision of its state."""
    return local(param).to(state_dtype(param))


def mean_gradient(param: Tensor) -> Tensor:
    """param.grad in the precision of the state."""
    assert param.grad is not None
    return local(param.grad).to(state_dtype(param))


def write_back(param: Tensor, weight: Tensor) -> None:
    """Rounds a widened copy into the parameter."""
    if weight.dtype != param.dtype:
        local(param).copy_(weight)


def checked(indices: Tensor, param: Tensor) -> Tensor:
    """What arrived() gave, on the parameter's device; UsageError where it cannot be."""
    size, shape = local(param).numel(), tuple(param.shape)
    _order(param)
    if indices.dim() != 1 or indices.dtype != torch.int64:
        raise UsageError(
            f"oktopk: arrived() of a parameter of shape {shape} gave {indices.dtype} of "
            f"{indices.dim()} dimensions, but indices are int64 of one dimension"
        )
    if indices.device.type == "cpu" and indices.numel() > 0:  # elsewhere it would have to wait
        first, last = int(indices[0]), int(indices[-1])
        if first < 0 or last >= size:
            raise UsageError(
                f"oktopk: arrived() of a parameter of shape {shape} gave indices from {first} to "
                f"{last}, but it has {size} elements"
            )
    return indices.to(param.device)


def blocks(indices: Optional[Tensor], size: int) -> Iterator[Where]:
    """Indices, or all coordinates, in pieces that bound temporary memory."""
    count = size if indices is None else indices.numel()
    for begin in range(0, count, _BLOCK):
        block = slice(begin, min(begin + _BLOCK, count))
        yield block if indices is None else indices[block]
