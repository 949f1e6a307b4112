# SPDX-License-Identifier: Apache-2.0
"""The interval clock of one parameter group: the C++ one (oktopk/optim/interval_clock.h), or the one on a GPU, and its
tables as tensors for steps by torch (host_step.py).

The dictionary of the group saves it as plain numbers, three at a time: steps, rate and decay of a run of steps with one
rate. A clock of more than MOST_RUNS runs, such as that of a schedule, saves of its older steps only the totals that
some coordinate will ask for, because it last arrived then: -steps since the totals before, sum of the rates, what decay
has left. Resumed, such coordinates get the same bits. Others exist where this rank does not see all parameters (shards,
ZeroRedundancyOptimizer), and where a parameter without a gradient stops its clock: for them there are totals at fewer
and fewer steps the older these are, and a line between two of them.
COST: O(1) per step; 16 B per step and group on the host, 32 B on each such GPU; saved, some 20 B for each of MOST_RUNS
runs and each older step in which a silent coordinate last arrived.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
from torch import Tensor

from oktopk import _core
from oktopk._core import UsageError
from oktopk.torch.flat import local

CAPTURED_STEPS = 1 << 20  # that a group with capturable=True can make: its tables must stay where they are
_FAULTS = {
    1: "the learning rate, a tensor on the GPU, was negative, not finite, or at least 1 / weight_decay: the step was "
    "left out",
    2: f"a group with capturable=True had made the {CAPTURED_STEPS} steps that it can make: save its state, and load "
    "it into a new optimiser",
    3: "arrived() gave an index outside of its parameter: it was passed over",
}


class CudaClock:
    """The clock in the memory of a GPU: OktopkCudaClock and its tables (oktopk/gpu/kernels/cuda_api.h). The kernels
    tick it, because they alone know whether a GradScaler left a step out, or how often a CUDA graph was replayed.
    fetch() brings the host's clock up to date when somebody asks for it; it waits for the GPU."""

    def __init__(self, native: _core.LazyGroup, device: torch.device, is_fixed: bool):
        """is_fixed: the tables never move, so that a CUDA graph can hold their addresses."""
        self.device, self.is_fixed = device, is_fixed
        self.ticks = False  # some parameter has silent coordinates
        self.limit = native.now + (CAPTURED_STEPS if is_fixed else 0)  # no parameter makes more steps
        self.tables: Dict[str, Tensor] = {}  # of powers, which the kernels read
        self._known = native.now  # steps that the host knows of
        self._head = torch.zeros(10, dtype=torch.int32, device=device)
        self._head[0] = native.now
        room = native.now + (CAPTURED_STEPS if is_fixed else 1024) + 1
        self._tables = torch.zeros(2, room, 2, dtype=torch.float64, device=device)  # totals, log
        totals = torch.from_numpy(native.totals(0)).view(2, -1).t()
        self._tables[0, : native.now + 1] = totals.to(device)

    @property
    def now(self) -> Tensor:
        """Steps made."""
        return self._head[0]

    def begin(self, ticks: bool, steps: int) -> None:
        """For a new plan. steps: the most that a parameter of it has made."""
        self.ticks = ticks
        self.limit = max(self.limit, steps + (CAPTURED_STEPS if self.is_fixed else 0))

    def make_room(self) -> None:
        """Before each step that the host queues."""
        if self.is_fixed:
            return
        self.limit += 1
        room = self._tables.shape[1]
        if self.limit + 1 >= room:
            larger = torch.zeros(2, 2 * self.limit, 2, dtype=torch.float64, device=self.device)
            larger[:, :room] = self._tables
            self._tables = larger

    def fields(self) -> Dict[str, Any]:
        totals, log = self._tables
        return {
            "clock": self._head.data_ptr(),
            "totals": totals.data_ptr() if self.ticks else 0,
            "log": log.data_ptr() if self.ticks else 0,
            "room": self._tables.shape[1],
        }

    def fetch(self, native: _core.LazyGroup) -> None:
        """Ticks the host's clock for the steps that it does not know of. UsageError where one of them was wrong."""
        now, _, fault = self._head[:3].tolist()
        steps = self._tables[1, self._known + 1 : now + 1].cpu()
        if len(steps) > 0:
            runs, counts = torch.unique_consecutive(steps, dim=0, return_counts=True)
            for (rate, decay), count in zip(runs.tolist(), counts.tolist()):
                native.tick(rate, decay, count)
        self._known = now
        if fault != 0:
            self._head[2] = 0
            raise UsageError(f"oktopk: in an earlier step {_FAULTS[fault]}")


RUNS = "clock_runs"  # the name in the group: steps, rate, weight decay, steps, rate, ...
MOST_RUNS = 1024
_FINENESS = 16  # of an older step's age, between two totals that are saved in any case


class IntervalClock:
    """The clock of one parameter group. It counts optimiser steps."""

    def __init__(self, group: Dict[str, Any], decays: bool):
        """decays: weight decay is decoupled, and coordinates owe it until they arrive."""
        self.group = group
        self._native = _core.LazyGroup()
        self._on_gpu: Optional[CudaClock] = None
        self._decays = decays
        self._totals: Dict[torch.device, Tuple[int, int, Tensor]] = {}
        runs = group[RUNS]
        for i in range(0, len(runs), 3):
            begin = self._native.tick if runs[i] > 0 else self._native.jump
            begin(runs[i + 1], runs[i + 2], abs(int(runs[i])))
        self._jumps = [x for i in range(0, len(runs), 3) if runs[i] <= 0 for x in runs[i : i + 3]]  # they come first

    @property
    def native(self) -> _core.LazyGroup:
        """The host's clock. Waits for the GPU where the clock is there."""
        if self._on_gpu is not None:
            self._on_gpu.fetch(self._native)
        return self._native

    @property
    def has_started(self) -> bool:
        return self._native.now > 0 or (self._on_gpu is not None and self._on_gpu.ticks)

    def on_gpu(self, device: torch.device, is_fixed: bool) -> CudaClock:
        """The clock on a GPU, where the kernels tick it from now on."""
        found = self._on_gpu
        if found is None or found.device != device or found.is_fixed != is_fixed:
            found = self._on_gpu = CudaClock(self.native, device, is_fixed)
        return found

    def leave_gpu(self) -> None:
        """From now on the host ticks."""
        if self._on_gpu is not None:
            self._on_gpu.fetch(self._native)
            self._on_gpu = None

    @property
    def now(self) -> int:
        """Steps made, this one included."""
        return self.native.now

    @property
    def rate(self) -> float:
        """The learning rate of this step."""
        return float(self.group["lr"])

    @property
    def kept(self) -> float:
        """The factor of decoupled weight decay in this step."""
        return 1 - self.rate * self.group["weight_decay"] if self._decays else 1.0

    def tick(self) -> None:
        """Begins a step."""
        self.native.tick(self.rate, self.group["weight_decay"] if self._decays else 0.0)

    def note(self, states: List[Dict[str, Any]]) -> None:
        """Brings the group's dictionary up to date. states: those of parameters with silent coordinates."""
        runs = self._jumps + self.native.runs()
        self.group[RUNS] = runs if len(runs) <= 3 * MOST_RUNS else self._shortened(runs, states)

    def _shortened(self, runs: List[float], states: List[Dict[str, Any]]) -> List[float]:
        tail = [x for i in range(len(runs) - 3 * MOST_RUNS, len(runs), 3) if runs[i] > 0 for x in runs[i : i + 3]]
        begin = self.now - int(sum(tail[::3]))  # of the runs that stay; older steps get totals
        known = {begin, *_spread_steps(begin, self.now)}
        for state in states:
            last = local(state["last"])
            known.update(last[last < begin].unique().tolist(), [int(state.get("caught_up", 0))])
        steps = [0, *sorted(step for step in known if 0 < step <= begin)]
        rates, kept = self.native.totals(0).reshape(2, -1)[:, steps].tolist()
        short = [x for i in range(1, len(steps)) for x in (steps[i - 1] - steps[i], rates[i], kept[i])]
        return ([] if kept[0] == 1 else [0, 0.0, kept[0]]) + short + tail

    # As tensors, in double

    def rate_since(self, last: Tensor) -> Tensor:
        """The sum of the rates since step `last` of each coordinate; exact for one step, as in C++."""
        rates = self._table(last)[0]
        since = rates[self.now] - rates.index_select(0, last)
        return since.masked_fill_(last == self.now - 1, self.rate)

    def kept_since(self, last: Tensor) -> Tensor:
        """The factor of weight decay for each coordinate since step `last`."""
        return self.kept_between(last, self.now).masked_fill_(last == self.now - 1, self.kept)

    def kept_between(self, last: Tensor, end: int) -> Tensor:
        """The same up to step `end`; 1 where both totals are infinite, because they are too long ago."""
        kept = self._table(last)[1]
        before = kept.index_select(0, last)
        return (kept[end] / before).masked_fill_(before == kept[end], 1.0)

    def _table(self, like: Tensor) -> Tensor:
        """Rates and decays by step, on the device of a tensor; copies only the new steps there."""
        known, rescalings, table = self._totals.get(like.device, (0, 0, None))
        if table is None or table.shape[1] <= self.now:
            larger = torch.zeros(2, 2 * self.now + 2, dtype=torch.float64, device=like.device)
            if table is not None:
                larger[:, :known] = table[:, :known]
            table = larger
        begin = known if rescalings == self.native.rescalings else 0
        if begin <= self.now:
            fresh = torch.from_numpy(self.native.totals(begin)).view(2, -1)
            table[:, begin : self.now + 1] = fresh.to(like.device)
        self._totals[like.device] = (self.now + 1, self.native.rescalings, table)
        return table


def one_minus_power(beta: float, exponent: Tensor, limit: int) -> Tensor:
    """1 - beta ** exponent, in double, for integer exponents up to `limit`."""
    table = powers_of(float(beta), 1 << limit.bit_length(), str(exponent.device))
    return table.index_select(0, exponent.clamp(max=len(table) - 1))


@lru_cache(maxsize=16)
def powers_of(beta: float, limit: int, device: str) -> Tensor:
    """1 - beta ** j for j up to `limit`, or to where it is 1."""
    return torch.from_numpy(_core.one_minus_powers(beta, limit)).to(device, non_blocking=True)


def _spread_steps(begin: int, now: int) -> Iterator[int]:
    """Steps before `begin`, further and further apart; the same on all ranks."""
    while begin > 0:
        apart = 1 << max((now - begin) // _FINENESS, 1).bit_length() - 1
        begin = (begin - 1) // apart * apart
        yield begin


def checked_runs(group: Dict[str, Any]) -> List[float]:
    """The clock of a saved group, from any version. Empty: the group has none."""
    runs = group.get(RUNS, [])
    if "clock_totals" in group:  # version 0.1: sums of rates by step; decays follow from them
        sums = group["clock_totals"][0, : group["clock"] + 1].tolist()
        decay = float(group["weight_decay"])
        runs = [x for a, b in zip(sums, sums[1:]) for x in (1, b - a, decay)]
    fits = isinstance(runs, (list, tuple)) and len(runs) % 3 == 0
    if not fits or not all(isinstance(x, (int, float)) and (x >= 0 or i % 3 == 0) for i, x in enumerate(runs)):
        raise UsageError(f"oktopk: {RUNS} in a saved state is no list of steps, rates and decays")
    return list(runs)
