# SPDX-License-Identifier: Apache-2.0
"""The steps of SparseAdamW and SparseSGD that the host makes. Parameters in host memory make them by one native call
for all of a group (oktopk/optim/tensor_step.h), on as many threads as torch uses; the number of threads changes no
result. Parameters that are not in one piece of memory, or on a device that neither this call nor cuda_step.py can use,
make them by torch's own operations. All compute the formulas of docs/optimisers.md, and agree up to rounding.
COST: O(k) per sparse step; here some microseconds per parameter, by torch some 50 operations.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

import torch
from torch import Tensor

from oktopk import _core
from oktopk.torch.coordinates import NUMBERS, WEIGHT_TYPES, Job, Layout, bad_indices, checked_state, clock_of
from oktopk.torch.coordinates import state_dtype
from oktopk.torch.flat import local, order_of
from oktopk.torch.interval_clock import IntervalClock, one_minus_power

_CHUNK = 1 << 22  # coordinates whose roots are in memory at a time


def row_of(**fields: int) -> _core.TensorState:
    """A parameter for a native call. Memory is an address."""
    row = _core.TensorState()
    for name, value in fields.items():
        setattr(row, name, value)
    return row


def check_indices(jobs: List[Job]) -> None:
    """UsageError where the indices of a parameter do not increase strictly within its size."""
    rows, sparse = [], []
    for job in jobs:
        if job.indices is not None and job.layout.is_native and job.indices.numel() > 0:
            indices, count = job.indices.data_ptr(), job.indices.numel()
            rows.append(row_of(size=job.layout.size, indices=indices, count=count))
            sparse.append(job)
    bad = _core.find_bad_indices(rows)
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
        self.dense: List[_core.TensorState] = []  # all arrive, now and in all steps before
        self.lazy: List[_core.TensorState] = []
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
        row = row_of(
            type=WEIGHT_TYPES[layout.dtype],
            size=layout.size,
            weights=own.data_ptr(),
            mean=grad.data_ptr(),
            first=first,
            second=second,
            steps=steps,
        )
        if is_dense:
            self.dense.append(row)
            self.seconds.extend(moments[1:])
            return
        row.last = checked_state(state, "last", own, layout).data_ptr()
        if "arrivals" in state:
            row.arrivals = checked_state(state, "arrivals", own, layout).data_ptr()
        row.indices, row.count = indices, count
        row.caught_up = state["caught_up"].item() if "caught_up" in state else 0
        self.lazy.append(row)

    def owing(self, state: Dict[str, Any], param: Tensor, layout: Layout) -> None:
        """Adds a parameter whose decay is to be paid up to the step of its clock."""
        own = param.to_local() if layout.is_sharded else param  # type: ignore[attr-defined]
        row = row_of(
            type=WEIGHT_TYPES[layout.dtype],
            size=layout.size,
            weights=own.data_ptr(),
            last=checked_state(state, "last", own, layout).data_ptr(),
            caught_up=state["caught_up"].item(),
            end=clock_of(state),
        )
        self.lazy.append(row)


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
        for row, root in zip(chunk, roots):
            row.roots = root.data_ptr()
        clock.native.adam_move(chunk, options, threads)


def _chunks(rows: List[_core.TensorState]) -> Iterator[slice]:
    """Slices of rows with about _CHUNK coordinates together, at least one row each."""
    begin = size = 0
    for end, row in enumerate(rows, 1):
        size += row.size
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


Where = Union[slice, Tensor]

_BLOCK = 1 << 22  # coordinates at a time


class Arrivers:
    """The coordinates of one parameter that arrive: reads and writes their values by name."""

    def __init__(self, job: Job, state: Dict[str, Any], clock: IntervalClock, flats: Dict[str, Tensor]):
        self.group, self.state, self.clock = job.group, state, clock
        self._silence_follows = job.indices is not None
        self._flats = flats

    def at(self, where: Where) -> Arrivers:
        """This object, set to these coordinates."""
        self._where = where
        self.last = self["last"]
        self.tau = self.clock.now - self.last  # steps since they last arrived, this one included
        # Steps in which they are likely not to arrive, after this one: the best guess for a silence is the last one.
        # After a dense step, none.
        self.silence = self.tau - 1 if self._silence_follows else torch.zeros_like(self.tau)
        return self

    def __getitem__(self, name: str) -> Tensor:
        return self._flats[name][self._where]

    def __setitem__(self, name: str, values: Tensor) -> None:
        self._flats[name][self._where] = values.to(self._flats[name].dtype)


def flat_views(param: Tensor, state: Dict[str, Any]) -> Dict[str, Tensor]:
    """Views of all that has one element per coordinate. The gradient may be a copy."""
    order = order_of(local(param))
    flats = {"param": local(param).permute(order).view(-1)}
    for name, value in state.items():
        if isinstance(value, Tensor) and value.shape == param.shape and name not in NUMBERS:
            flats[name] = local(value).permute(order).view(-1)
    if param.grad is not None:
        flats["grad"] = local(param.grad).permute(order).reshape(-1)
    return flats


def blocks(indices: Optional[Tensor], size: int) -> Iterator[Where]:
    """Indices, or all coordinates, in pieces that bound temporary memory."""
    count = size if indices is None else indices.numel()
    for begin in range(0, count, _BLOCK):
        block = slice(begin, min(begin + _BLOCK, count))
        yield block if indices is None else indices[block]


def arrivers(job: Job, state: Dict[str, Any], clock: IntervalClock) -> Iterator[Arrivers]:
    """Yields the arriving coordinates of a step block by block, and marks each block as arrived afterwards."""
    flats = flat_views(job.param, state)
    here = Arrivers(job, state, clock, flats)
    for where in blocks(job.indices, flats["param"].numel()):
        yield here.at(where)
        flats["last"][where] = clock.now


def pay_by_torch(param: Tensor, state: Dict[str, Any], clock: IntervalClock) -> None:
    """The weight decay that coordinates owe since they last arrived."""
    flats, end = flat_views(param, state), clock_of(state)
    for where in blocks(None, flats["param"].numel()):
        begin = flats["last"][where].clamp(min=int(state["caught_up"]))
        kept = clock.kept_between(begin, end).to(state_dtype(param))
        weight = flats["param"][where]
        weight.copy_(weight.to(kept.dtype) * kept)


def _widened(tensor: Optional[Tensor], like: Tensor) -> Tensor:
    """The tensor itself, or a copy in the precision of the state."""
    assert tensor is not None
    return local(tensor).to(state_dtype(like))


def _write_back(param: Tensor, weight: Tensor) -> None:
    """Rounds a widened copy into the parameter."""
    if weight.dtype != param.dtype:
        local(param).copy_(weight)


# AdamW


def adam_dense(job: Job, state: Dict[str, Any]) -> None:
    """The operations of torch.optim.AdamW(foreach=False), in its order."""
    group, param = job.group, job.param
    beta1, beta2 = group["betas"]
    lr, step = float(group["lr"]), int(state["step"])
    grad, weight = _widened(param.grad, param), _widened(param, param)
    m, v = local(state["exp_avg"]), local(state["exp_avg_sq"])
    if group["weight_decay"] != 0:
        weight.mul_(1 - lr * group["weight_decay"])
    m.lerp_(grad, 1 - beta1)
    v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    scale = (1 - beta2**step) ** 0.5
    weight.addcdiv_(m, (v.sqrt() / scale).add_(group["eps"]), value=-lr / (1 - beta1**step))
    _write_back(param, weight)


def adam_arrive(here: Arrivers) -> None:
    """S after tau steps: its mean per step is S / tau, and where noise dominates, S^2 / tau estimates the mean of the
    squares."""
    beta1 = here.group["betas"][0]
    old, tau = here["exp_avg"], here.tau
    dtype = old.dtype
    total = here["grad"].to(dtype)
    mean = total / tau
    fresh = one_minus_power(beta1, tau, here.clock.now)
    m = torch.lerp(old, mean, fresh.to(dtype))
    # The mean of m over the tau steps, as if S / tau had come in each, plus the move of m in the next silence.
    gone = one_minus_power(beta1, here.silence, here.clock.now)
    reach = beta1 / ((1 - beta1) * tau.double())
    share, ahead = (1 - reach * fresh).to(dtype), (reach * gone).to(dtype)
    drift = torch.where(tau == 1, m, torch.lerp(old, mean, share) + ahead * m)
    m = (1 - gone).to(dtype) * m
    scale = _age(here, total, mean)
    bias = 1 - beta1 ** int(here.state["step"])
    rate = (here.clock.rate_since(here.last) / bias).to(dtype)
    weight = here["param"].to(dtype)
    if here.clock.native.has_decayed:
        begin = here.last.clamp(min=int(here.state["caught_up"]))
        weight = weight * here.clock.kept_since(begin).to(dtype)
    here["param"] = weight - rate * drift / scale.add_(here.group["eps"])
    here["exp_avg"] = m


def _age(here: Arrivers, total: Tensor, mean: Tensor) -> Tensor:
    """Adds S^2 / tau to the second moment as an observation of up to ADAM_MOST_AGE steps. Returns sqrt(vhat)."""
    beta2, step = here.group["betas"][1], int(here.state["step"])
    more = here.tau.clamp(max=_core.ADAM_MOST_AGE)
    arrivals = (here["arrivals"] + more.to(here["arrivals"].dtype)).clamp(max=step)
    bias = one_minus_power(beta2, arrivals, step)
    old = here["exp_avg_sq"]
    fresh = one_minus_power(beta2, more, step).to(old.dtype)
    v = torch.where(
        here.tau == 1,
        old.mul(beta2).addcmul_(total, mean, value=1 - beta2),
        old.mul(1 - fresh).addcmul_(fresh * total, mean),
    )
    surprise = (bias / _core.ADAM_SURPRISE**2).to(v.dtype) * (total * mean)
    v = torch.where(here.tau > 1, torch.maximum(v, surprise), v)
    here["exp_avg_sq"], here["arrivals"] = v, arrivals
    return v.sqrt() / bias.sqrt().to(v.dtype)


# SGD


def sgd_dense(job: Job, state: Dict[str, Any]) -> None:
    """The operations of torch.optim.SGD(foreach=False), in its order."""
    group, param, mu = job.group, job.param, job.group["momentum"]
    grad, weight = _widened(param.grad, param), _widened(param, param)
    if group["weight_decay"] != 0:
        grad = grad.add(weight, alpha=group["weight_decay"])
    if mu != 0:
        velocity = local(state["momentum_buffer"]).mul_(mu).add_(grad)
        grad = grad.add(velocity, alpha=mu) if group["nesterov"] else velocity
    weight.add_(grad, alpha=-float(group["lr"]))
    _write_back(param, weight)


def sgd_arrive(here: Arrivers) -> None:
    """Momentum over the tau steps as if S / tau had come in each, at their mean rate."""
    group, tau, mu = here.group, here.tau, here.group["momentum"]
    weight = here["param"].to(state_dtype(here["param"]))
    total = here["grad"].to(weight.dtype)
    if group["weight_decay"] != 0:  # the weight rested: each silent step pulled alike
        total = total + group["weight_decay"] * tau.to(weight.dtype) * weight
    move = total if mu == 0 else _move_with_momentum(here, total)
    if group["nesterov"]:
        move = total + mu * move
    rate = (here.clock.rate_since(here.last) / tau).to(weight.dtype)
    here["param"] = weight - rate * move


def _move_with_momentum(here: Arrivers, total: Tensor) -> Tensor:
    """The sum of the tau velocities v_j = mu v_(j-1) + S / tau, plus those of the next silence. Keeps the last one."""
    mu, tau, old = here.group["momentum"], here.tau, here["momentum_buffer"]
    fresh = one_minus_power(mu, tau, here.clock.now)
    carried = mu * fresh / (1 - mu)  # mu + mu^2 + ... + mu^tau: what of v is still to be moved
    settled = total / tau / (1 - mu)  # what v tends to
    velocity = (1 - fresh).to(old.dtype) * old + fresh.to(old.dtype) * settled
    gone = one_minus_power(mu, here.silence, here.clock.now)
    ahead = mu * gone / (1 - mu)  # mu + mu^2 + ..., as many as silent steps are to come
    move = carried.to(old.dtype) * old + (tau - carried).to(old.dtype) * settled
    move += ahead.to(old.dtype) * velocity
    once = mu * old + total
    here["momentum_buffer"] = torch.where(tau == 1, once, (1 - gone).to(old.dtype) * velocity)
    return torch.where(tau == 1, once, move)
