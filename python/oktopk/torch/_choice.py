# SPDX-License-Identifier: Apache-2.0
"""Preset auto for gradients on NVIDIA GPUs, where the group sends GPU memory itself (NCCL): the fastest of its own
all_reduce, the same in bf16, and slots, each timed on this very group before the first step. Elsewhere the native tuner
decides (docs/tuning.md).

COST: about twenty steps of one bucket, once.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import torch
import torch.distributed as dist

from oktopk import _core
from oktopk.options import without_coding
from oktopk.torch import _dense_sum
from oktopk.torch._dense_sum import dense_bytes
from oktopk.torch._flat_reducer import FlatReducer
from oktopk.torch._gpu import stays_on_gpu

MOST_VALUES = 25 * 2**20 // 4  # of a bucket that DDP makes
ALL = ("dense", "bf16", "slots")
_REPETITIONS = 5
# Options that fit all candidates.
_FIT = ("preset", "density", "k", "decay", "nan_policy", "warmup", "threads", "trace", "coarsest")


def is_open(options: Mapping[str, Any], group: Any, device: torch.device) -> bool:
    """Whether auto chooses here. A user with rules, a profile or a coding of his own leaves it to the native tuner."""
    fits = all(value is None or name in _FIT for name, value in options.items())
    return fits and options.get("preset") == "auto" and stays_on_gpu(without_coding(options), group, device)


def choice_of(comm: _core.Communicator, options: Dict[str, Any], device: torch.device, n: int) -> Optional[str]:
    """Collective: the preset of a Reducer of n values on this device, "dense" or "slots"; None where auto does not
    choose here."""
    group_for_sums = getattr(getattr(comm, "python_transport", None), "group_for_sums", None)
    group = group_for_sums(device) if group_for_sums is not None else None
    if not is_open(options, group, device):
        return None
    sample = torch.empty(min(n, MOST_VALUES), device=device)
    return choose(comm, group, sample, options, ("dense", "slots"))


def with_choice(options: Dict[str, Any], choice: Optional[str]) -> Dict[str, Any]:
    """The options in which the choice has replaced auto."""
    if choice is None or options.get("preset") != "auto":
        return options
    if choice == "slots":
        return without_coding(options)
    return {"preset": "dense", **{name: options.get(name) for name in ("nan_policy", "threads", "trace")}}


def choose(comm: _core.Communicator, group: Any, sample: torch.Tensor, options: Dict[str, Any],
           candidates: Sequence[str] = ALL, count: Callable[[float], None] = lambda sent: None) -> str:
    """Collective: the candidate whose step is the fastest on the slowest rank; the same on all ranks. sample: a tensor
    like the gradients; its values change. count: gets the bytes that this rank sent to find out."""
    before = comm.sent_bytes
    ways: Dict[str, Callable[[torch.Tensor], None]] = {
        "dense": _dense(group),
        "bf16": lambda sample: _dense_sum.BucketMean(sample, group, 0, torch.bfloat16).wait(),
        "slots": _slots(comm, sample, options),
    }
    medians = torch.tensor([_seconds(ways[name], sample) for name in candidates], device=sample.device)
    dist.all_reduce(medians, op=dist.ReduceOp.MAX, group=group)
    slowest: List[float] = medians.tolist()
    widths = {"dense": sample.element_size(), "bf16": 2}
    dense = sum(dense_bytes(sample.numel(), comm.size, widths[name]) for name in candidates if name in widths)
    count((1 + _REPETITIONS) * dense + comm.sent_bytes - before)
    return candidates[slowest.index(min(slowest))]


def _seconds(step: Callable[[torch.Tensor], None], sample: torch.Tensor) -> float:
    times = []
    for _ in range(1 + _REPETITIONS):
        sample.normal_()
        _wait(sample)
        began = time.perf_counter()
        step(sample)
        _wait(sample)
        times.append(time.perf_counter() - began)
    return sorted(times[1:])[_REPETITIONS // 2]  # the first may have to connect and to allocate


def _wait(sample: torch.Tensor) -> None:
    if sample.device.type == "cuda":
        torch.cuda.synchronize(sample.device)


def _dense(group: Any) -> Callable[[torch.Tensor], None]:
    def step(sample: torch.Tensor) -> None:
        sample.mul_(1.0 / dist.get_world_size(group))
        _dense_sum.all_reduce(sample, group)

    return step


def _slots(comm: _core.Communicator, sample: torch.Tensor, options: Dict[str, Any]) -> Callable[[torch.Tensor], None]:
    size = {name: options.get(name) for name in ("density", "k")}
    if size["k"] is not None:
        size["k"] = min(size["k"], sample.numel())
    reducer = FlatReducer(comm, sample.numel(), {**size, "preset": "slots"})

    def step(flat: torch.Tensor) -> None:
        reducer.step(flat, 1.0)
        reducer.write(flat)

    return step
