# SPDX-License-Identifier: Apache-2.0
"""Interval-aware AdamW in operations of torch over all n coordinates, to try variants of the rule in
oktopk/optim/adam_rule.h before they are code there (docs/optimisers.md).

most: an arrival ages the second moment by at most so many steps; 1 is the rule as it stands there.
share(): second moments of the ranks' own gradients instead, divided by P as noise would be; the square of the mean
gradient is added to them.
"""

from __future__ import annotations

from typing import Any, Dict

import torch
from torch import Tensor

from .schedule import Rules

SURPRISE = 5.0


class IntervalAdam:
    def __init__(self, weights: Tensor, rules: Rules, most: float):
        self._weights, self._rules, self._most = weights, rules, most
        self.m, self.v = torch.zeros_like(weights), torch.zeros_like(weights)
        self.last, self.age = torch.zeros_like(weights), torch.zeros_like(weights)
        self.rate_at = torch.zeros_like(weights)  # the sum of the rates up to the last arrival
        self._rates, self._is_shared = 0.0, False

    def step(self, step: int, mean: Tensor, is_dense: bool) -> None:
        rules, rate = self._rules, self._rules.rate(step)
        now = step + 1.0
        self._rates += rate
        here = torch.ones_like(mean, dtype=torch.bool) if is_dense else mean != 0
        q = now - self.last
        each = mean / q
        aged = q.clamp(max=self._most)
        keep = rules.beta2**aged
        self.age += torch.where(here, aged, 0)
        bias2 = 1 - rules.beta2 ** self.age.clamp(min=1)
        square = mean * each
        v = self.v * keep + (1 - keep) * square
        surprise = bias2 / SURPRISE**2 * square
        v = torch.where((q > 1) & (surprise > v), surprise, v)
        if self._is_shared:
            v = self.v
            root = (v + (1 - 1 / rules.ranks) * each * each).sqrt()
        else:
            root = (v / bias2).sqrt()
        fresh = 1 - rules.beta1**q
        gone = 0.0 if is_dense else 1 - rules.beta1 ** (q - 1)
        reach = rules.beta1 / ((1 - rules.beta1) * q)
        drift = torch.lerp(self.m, each, 1 - reach * fresh)
        m = torch.lerp(self.m, each, fresh)
        drift = torch.where(q > 1, drift + reach * gone * m, m)
        m = (1 - gone) * m
        rates = self._rates - self.rate_at
        move = rates * drift / (1 - rules.beta1**now) / (root + 1e-8)
        kept = torch.exp(-rates * rules.weight_decay)
        self._weights.copy_(torch.where(here, self._weights * kept - move, self._weights))
        self.m.copy_(torch.where(here, m, self.m))
        self.v.copy_(torch.where(here, v, self.v))
        self.last.masked_fill_(here, now)
        self.rate_at.masked_fill_(here, self._rates)

    def share(self, second: Tensor) -> None:
        """Takes second moments from elsewhere."""
        self.v.copy_(second)
        self._is_shared = True

    def catch_up(self) -> None:
        self._weights.mul_(torch.exp(-(self._rates - self.rate_at) * self._rules.weight_decay))

    def state_dict(self) -> Dict[str, Any]:
        return dict(vars(self), _weights=None, _rules=None)

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        for name, value in state.items():
            if isinstance(value, Tensor):
                getattr(self, name).copy_(value)
            elif value is not None:
                setattr(self, name, value)
