# SPDX-License-Identifier: Apache-2.0
"""The steps of SparseAdamW and SparseSGD over parameters in host memory: one native call for all of a group
(oktopk/optim/tensor_step.h), on as many threads as torch uses. The number of threads changes no result. COST: O(k) per
sparse step, some microseconds per parameter here.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Tuple

import torch
from torch import Tensor

from oktopk import _core
from oktopk.torch.coordinates import WEIGHT_TYPES, Job, Layout, bad_indices, checked_state, clock_of
from oktopk.torch.interval_clock import IntervalClock

Row = Tuple[int, ...]  # the fields of TensorState, in their order

_ROOTS_AT = 6  # the place of `roots` in a row
_CHUNK = 1 << 22  # coordinates whose roots are in memory at a time


def check_indices(jobs: List[Job]) -> None:
    """UsageError where the indices of a parameter do not increase strictly within its size."""
    lists, sparse = [], []
    for job in jobs:
        if job.indices is not None and job.layout.is_native and job.indices.numel() > 0:
            lists.append((job.indices.data_ptr(), job.indices.numel(), job.layout.size))
            sparse.append(job)
    bad = _core.find_bad_indices(lists)
    if bad >= 0:
        raise bad_indices(sparse[bad])


def fits(job: Job) -> bool:
    """Whether a native step can be made with a parameter and its gradient."""
    grad = job.param.grad
    return job.layout.is_native and grad is not None and grad.dtype == job.layout.dtype


class Rows:
    """The parameters of a group as rows for a native call. Keeps copies alive that were made for it."""

    def __init__(self, names: Tuple[str, ...]) -> None:
        """names: of the moments in the state."""
        self.dense: List[Row] = []  # all arrive, now and in all steps before
        self.lazy: List[Row] = []
        self.seconds: List[Tensor] = []  # the second moments of the dense ones
        self._names = names
        self._alive: List[Tensor] = []

    def add(self, job: Job, state: Dict[str, Any], is_dense: bool) -> None:
        indices = count = 0
        if job.indices is not None:
            indices, count = job.indices.data_ptr(), job.indices.numel()
        if not is_dense and job.indices is not None and count == 0:
            return  # nobody: but for the native step, no indices are all of them
        layout = job.layout
        own, grad = job.param, job.param.grad
        assert grad is not None
        if layout.is_sharded:
            own, grad = own.to_local(), grad.to_local()  # type: ignore[attr-defined]
        if grad.stride() != layout.stride or not grad.is_cpu:
            grad = torch.empty_like(own).copy_(grad)
            self._alive.append(grad)
        moments = [checked_state(state, name, own, layout) for name in self._names if name in state]
        first, second = [m.data_ptr() for m in moments] + [0] * (2 - len(moments))
        steps = int(state["step"].item()) if "step" in state else 0
        head = (WEIGHT_TYPES[layout.dtype], layout.size, own.data_ptr(), grad.data_ptr())
        if is_dense:
            self.dense.append((*head, first, second, 0, 0, 0, 0, 0, steps, 0, 0))
            self.seconds.extend(moments[1:])
            return
        last = checked_state(state, "last", own, layout).data_ptr()
        arrivals = (checked_state(state, "arrivals", own, layout).data_ptr() if "arrivals" in state else 0)
        caught_up = state["caught_up"].item() if "caught_up" in state else 0
        self.lazy.append((*head, first, second, 0, last, arrivals, indices, count, steps, caught_up, 0))

    def owing(self, state: Dict[str, Any], param: Tensor, layout: Layout) -> None:
        """Adds a parameter whose decay is to be paid up to the step of its clock."""
        own = param.to_local() if layout.is_sharded else param  # type: ignore[attr-defined]
        last = checked_state(state, "last", own, layout).data_ptr()
        head = (WEIGHT_TYPES[layout.dtype], layout.size, own.data_ptr(), 0, 0, 0, 0, last)
        self.lazy.append((*head, 0, 0, 0, 0, state["caught_up"].item(), clock_of(state)))


def adam(rows: Rows, clock: IntervalClock) -> None:
    """Dense steps are made in two passes, with torch's square roots in between, to get the bits of torch: it takes
    roots from a library that does not round correctly."""
    group, threads = clock.group, torch.get_num_threads()
    beta1, beta2 = group["betas"]
    options = {
        "beta1": float(beta1),
        "beta2": float(beta2),
        "eps": group["eps"],
        "rate": clock.rate,
        "kept": clock.kept,
    }
    if rows.lazy:
        clock.native.adam(rows.lazy, options, threads)
    for part in _chunks(rows.dense):
        chunk = rows.dense[part]
        clock.native.adam_moments(chunk, options, threads)
        roots = torch._foreach_sqrt(rows.seconds[part])
        moves = [(*row[:_ROOTS_AT], root.data_ptr(), *row[_ROOTS_AT + 1 :]) for row, root in zip(chunk, roots)]
        clock.native.adam_move(moves, options, threads)


def _chunks(rows: List[Row]) -> Iterator[slice]:
    """Slices of rows with about _CHUNK coordinates together, at least one row each."""
    begin = size = 0
    for end, row in enumerate(rows, 1):
        size += row[1]
        if size >= _CHUNK or end == len(rows):
            yield slice(begin, end)
            begin, size = end, 0


def sgd(rows: Rows, clock: IntervalClock) -> None:
    group = clock.group
    options = {
        "momentum": group["momentum"],
        "weight_decay": group["weight_decay"],
        "nesterov": group["nesterov"],
        "rate": clock.rate,
        "kept": clock.kept,
    }
    clock.native.sgd(rows.dense + rows.lazy, options, torch.get_num_threads())


def pay_decay(rows: Rows, clock: IntervalClock) -> None:
    clock.native.pay_decay(rows.lazy, torch.get_num_threads())
