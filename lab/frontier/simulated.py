# SPDX-License-Identifier: Apache-2.0
"""Sparse sums of all ranks in a few operations of a GPU: for long runs, many ranks, and for ideas before they are code.

`owner` is what presets circulant and slots do (owner.py). The other ways choose the coordinates of a step from more
than that:

    owner    a rank sends its k largest values; the owners apply the k largest sums
    votes    a rank sends where its k largest values are; the owners add up votes until a coordinate is chosen; then all
             ranks send their values there: whole sums, with as many bytes as `owner`, and one message round more
    sketch   the same, but a vote comes with its value in 4 bits, and the owners add those up
    sums     the k largest true sums: no method can know them without sending everything; a bound

`scaled` divides by the root of the second moment before magnitudes are compared: units of the optimiser's steps.
`power=F` divides by its root to the power F; `level` is power=0.5 as the library has it (_levels.py), by factors that
are made anew when the number of steps has doubled.
"""

from __future__ import annotations

from typing import Any, Dict, Optional

import torch
from torch import Tensor

from oktopk.torch._levels import factors_of, next_time
from oktopk.torch.optim import WHERE_NONZERO

from .coding import BITS, entry_bytes, rounded
from .interval_adam import IntervalAdam
from .method import Bytes, Method, ring
from .muon import Muon
from .ours import sparse_optimiser
from .owner import OwnerMemory, largest
from .schedule import Rules, Stages, density_at, in_steps
from .tasks import Task


class Simulated(Method):
    def __init__(
        self,
        task: Task,
        rules: Rules,
        density: float,
        start: Stages,
        way: str = "owner",
        coding: str = "bf16",
        scaled: bool = False,
        local: float = 1.0,
        muon: bool = False,
        most: float = 0.0,
        share: bool = False,
        low: bool = False,
        end: float = 0.0,
        power: float = 0.0,
        level: bool = False,
    ):
        """local: the entries that a rank sends, in units of those that are applied. muon: matrices by Muon. most: the
        optimiser's rule in operations of torch, with this bound (interval_adam.py); share: its second moments come
        from all ranks now and then. low: dense steps move four bits of each value (coding.py). end: the share of the
        last steps that have a density of 25%, to apply what waits."""
        super().__init__(task, rules)
        self._density, self._stages = density, in_steps(start, rules.steps)
        self._way, self._coding, self._scaled, self._local = way, coding, scaled, local
        self._param = torch.nn.Parameter(self.weights)
        self._param.grad = torch.zeros_like(self.weights)
        self._is_dense = True
        self._optimiser = sparse_optimiser(self._param, self, rules)
        self._rule = IntervalAdam(self.weights, rules, most) if most else None
        self._power = power
        self._next_levels = sum(count for count, _ in self._stages) if level else rules.steps + 1
        self.factors = torch.ones_like(self.weights) if level else torch.ones(1, device=self.weights.device)
        self._low, self._is_sharing = low, share
        self._last_stage = rules.steps - round(end * rules.steps)
        self.squares = self.new_rows() if share else self.new_rows(1)
        self._muon = Muon(task, self.weights, rules) if muon else None
        self.velocity = [self._muon.velocity] if self._muon else []
        self._owners = OwnerMemory(self.new_rows(), coding, local, self._unit)
        self.unsent, self.memory = self._owners.tensors()  # of owners: values, or votes
        generator = torch.Generator().manual_seed(1)  # coordinates with as many votes: always the same ones first
        jitter = torch.rand(self.n if way == "votes" else 0, generator=generator)
        self._jitter = jitter.to(self.weights.device)

    def arrived(self, _: Tensor) -> Any:
        """For the optimiser."""
        return None if self._is_dense else WHERE_NONZERO

    def step(self, step: int, gradients: Tensor) -> Bytes:
        if step > 0 and step >= self._next_levels:
            self._make_levels(step)
        self.unsent.addcmul_(gradients, self.factors)
        shared = self._share_second_moments(step, gradients) if self._is_sharing else 0.0
        density = density_at(step, self._stages, self._density if step < self._last_stage else max(0.25, self._density))
        self._is_dense = density >= 1
        if self._is_dense:
            total, sent = self._everything()
        elif self._way == "owner":
            total, sent = self._owners.sum(density, step)
        else:
            total, sent = self._chosen(density, step)
        assert self._param.grad is not None
        torch.div(total, self.rules.ranks * self.factors, out=self._param.grad)
        self._move(step, self._param.grad)
        return sent + shared

    def _make_levels(self, step: int) -> None:
        """As python/oktopk/torch/_levels.py does it."""
        factors = factors_of(self._second())
        self.unsent *= factors / self.factors
        self.memory *= factors / self.factors
        self.factors.copy_(factors)
        self._next_levels = next_time(step)

    def _share_second_moments(self, step: int, gradients: Tensor) -> float:
        beta2, ranks, made = self.rules.beta2, self.rules.ranks, step + 1
        self.squares.mul_(beta2).addcmul_(gradients, gradients, value=1 - beta2)
        is_time = made >= 4 and (made & (made - 1) == 0 if made < 512 else made % 512 == 0)
        if not is_time or self._rule is None:
            return 0.0
        self._rule.share(self.squares.mean(0) / (ranks * (1 - beta2**made)))
        return ring(2 * self.n, ranks)

    def _move(self, step: int, mean: Tensor) -> None:
        if self._muon is not None:
            self._muon.step(step, mean)
            for part in self._muon.matrices(mean):
                part.zero_()
            self._is_dense = False
        if self._rule is not None:
            self._rule.step(step, mean, self._is_dense)
            return
        self._optimiser.param_groups[0]["lr"] = self.rules.rate(step)
        self._optimiser.step()

    def finish(self) -> Bytes:
        if self._rule is not None:
            self._rule.catch_up()
        elif self._muon is None:
            self._optimiser.catch_up()
        return 0.0

    def _everything(self) -> tuple[Tensor, Bytes]:
        if self._low:
            return self._owners.sum_all_in_four_bits()
        if self._way != "owner":
            self.memory.zero_()  # votes are no values
        return self._owners.sum_all()

    def _chosen(self, density: float, step: int) -> tuple[Tensor, Bytes]:
        """Coordinates first, then the values of all ranks there."""
        if self._way == "sums":
            score = self.unsent.sum(0)[None]
        else:
            voted = largest(self.unsent, density * self._local, step, self._unit())
            if self._way == "votes":
                self.memory += voted.float().sum(0)
            else:
                self.memory += rounded(self.unsent * voted, "log4").sum(0)
            score = (self.memory + self._jitter * (self.memory > 0) if self._way == "votes" else self.memory)[None]
        unit = None if self._way == "votes" else self._unit()
        chosen = largest(score, density, step + 7, unit)[0]
        sent = rounded(self.unsent * chosen, self._coding)
        self.unsent -= sent
        self.memory.masked_fill_(chosen, 0)
        bits = 0 if self._way == "votes" else 4
        each = entry_bytes(density, bits) * self._local + entry_bytes(density, 0) + 2 * BITS[self._coding] / 8
        return rounded(sent.sum(0), self._coding), self._share() * chosen.sum() * each

    def _share(self) -> float:
        return (self.rules.ranks - 1) / self.rules.ranks

    def _second(self) -> Any:
        if self._rule is not None:
            return self._rule.v
        return self._optimiser.state.get(self._param, {}).get("exp_avg_sq")

    def _unit(self) -> Optional[Tensor]:
        second = self._second()
        if self._power and second is not None:
            return (second + 0.01 * second.mean() + 1e-30) ** (self._power / 2)
        if not self._scaled or second is None:
            return None
        root = second.sqrt()
        return root.add_(0.1 * root.mean())  # a coordinate that never arrived must not always come first

    def state_dict(self) -> Dict[str, Any]:
        rule = None if self._rule is None else self._rule.state_dict()
        own = {"optimiser": self._optimiser.state_dict(), "rule": rule, "next_levels": self._next_levels}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self._optimiser.load_state_dict(state.pop("optimiser"))
        rule, self._next_levels = state.pop("rule"), state.pop("next_levels")
        if self._rule is not None:
            self._rule.load_state_dict(rule)
        super().load_state_dict(state)
