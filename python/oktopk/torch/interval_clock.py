# SPDX-License-Identifier: Apache-2.0
"""What happened to a coordinate since it last arrived: how many steps, the sum of their learning
rates, the product of their weight decays; and the powers of a beta that go with them.

As oktopk/optim/interval_clock.h, for one parameter group. Everything lives in the group's own
dictionary, so that state_dict() holds it. Only operations with one right result (+ - * / and
tables), so that ranks agree bit by bit however their libraries cut a tensor into vectors and
threads. Memory: 16 B per step and group. Fewer than 2^31 steps.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Dict

import torch
from torch import Tensor

from oktopk._core import UsageError

_GROWTH = 1024  # steps
_UNDERFLOW = 2.0**-512


class IntervalClock:
    """The clock of one parameter group. It counts optimiser steps."""

    def __init__(self, group: Dict[str, Any]):
        self._group = group
        group.setdefault("clock", 0)
        group.setdefault("clock_rate", 0.0)  # sum of the rates of all steps
        group.setdefault("clock_kept", 1.0)  # product of what decay left, up to a factor
        group.setdefault("clock_totals", torch.zeros(2, 0, dtype=torch.float64))  # by step

    @property
    def now(self) -> int:
        """Steps made, this one included."""
        return int(self._group["clock"])

    @property
    def rate(self) -> float:
        """The learning rate of this step."""
        return float(self._group["lr"])

    @property
    def kept(self) -> float:
        """What decoupled weight decay leaves of a weight in this step."""
        return 1 - self.rate * self._group["weight_decay"]

    def check(self) -> None:
        """UsageError where a step would decay a weight to nothing or beyond."""
        if not self.kept > 0:
            raise UsageError(
                f"oktopk: lr = {self.rate} times weight_decay = {self._group['weight_decay']} "
                "must be less than 1"
            )

    def tick(self, device: torch.device, decays: bool) -> None:
        """A step begins. decays: weight decay is decoupled, and owed by who is silent."""
        group = self._group
        if self.now == 0:
            self._note(device)
        group["clock"] += 1
        group["clock_rate"] += self.rate
        if decays:
            group["clock_kept"] *= self.kept
        if group["clock_kept"] < _UNDERFLOW:  # only ratios count; an old inf is a ratio of 0
            group["clock_kept"] /= _UNDERFLOW
            group["clock_totals"][1] /= _UNDERFLOW
        self._note(device)

    def _note(self, device: torch.device) -> None:
        group, totals = self._group, self._group["clock_totals"].to(device)
        if totals.shape[1] <= self.now:
            totals = torch.cat([totals, totals.new_zeros(2, _GROWTH)], dim=1)
        totals[0, self.now] = group["clock_rate"]
        totals[1, self.now] = group["clock_kept"]
        group["clock_totals"] = totals

    def rate_since(self, last: Tensor) -> Tensor:
        """The sum of the rates since step `last` of each coordinate, in double. One step is exact,
        not a difference of sums: that is what makes SparseAdamW AdamW."""
        before = self._totals(last)[0].index_select(0, last)
        rates = self._group["clock_rate"] - before
        return rates.masked_fill_(last == self.now - 1, self.rate)

    def kept_since(self, last: Tensor) -> Tensor:
        """What weight decay leaves of each coordinate since step `last`, in double."""
        before = self._totals(last)[1].index_select(0, last)
        kept = self._group["clock_kept"] / before
        return kept.masked_fill_(last == self.now - 1, self.kept)

    def kept_between(self, last: Tensor, end: int) -> Tensor:
        """The same up to step `end`; 1 where both are so long ago that only inf is left."""
        totals = self._totals(last)[1]
        before = totals.index_select(0, last)
        return (totals[end] / before).masked_fill_(before == totals[end], 1.0)

    def never_decayed(self) -> bool:
        """True while kept_since() is 1 for every coordinate."""
        return bool(self._group["clock_kept"] == 1.0)

    def _totals(self, like: Tensor) -> Tensor:
        totals: Tensor = self._group["clock_totals"]
        return totals.to(like.device)


def one_minus_power(beta: float, exponent: Tensor, limit: int) -> Tensor:
    """1 - beta ** exponent, in double, for integer exponents up to `limit`."""
    size = 1 << limit.bit_length()  # few tables, and none is longer than twice the steps made
    return _table(float(beta), size, str(exponent.device)).index_select(0, exponent)


@lru_cache(maxsize=16)
def _table(beta: float, size: int, device: str) -> Tensor:
    return torch.tensor([1 - beta**j for j in range(size)], dtype=torch.float64, device=device)
