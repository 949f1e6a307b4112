# SPDX-License-Identifier: Apache-2.0
"""Rivals that select entries, from their papers: DGC, EF21, DeMo. All of them gather the entries of all ranks. DGC and
EF21 get our best coding of entries, though not its rounding."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .coding import entry_bytes
from .method import Adam, Method, all_gather, keep_top
from .schedule import Rules
from .tasks import Task


class Dgc(Method):
    """Deep Gradient Compression (Lin et al., ICLR'18, arXiv 1712.01887): momentum before the selection, both cleared
    where an entry was sent; density 25%, 6.25%, ... over the first steps. SGD: it wants a rate of its own."""

    def __init__(self, task: Task, rules: Rules, density: float, warm: float):
        super().__init__(task, rules)
        self._density, self._ramp = density, max(1, int(warm * rules.steps))
        self.momenta = self.new_rows()
        self.unsent = torch.zeros_like(self.momenta)

    def _k(self, step: int) -> int:
        stages = max(1, math.ceil(math.log(self._density) / math.log(0.25)))
        stage = stages if step >= self._ramp else 1 + step * stages // self._ramp
        return max(1, int(self.n * max(self._density, 0.25**stage)))

    def step(self, step: int, gradients: Tensor) -> float:
        self.momenta.mul_(self.rules.beta1).add_(gradients)
        self.unsent += self.momenta
        k = self._k(step)
        sent = keep_top(self.unsent, k)
        is_sent = sent != 0
        self.unsent -= sent
        self.momenta.masked_fill_(is_sent, 0)
        rate = self.rules.rate(step)
        self.weights.mul_(1 - rate * self.rules.weight_decay).sub_(sent.mean(0), alpha=rate)
        return all_gather(k * entry_bytes(k / self.n, 16), self.rules.ranks)


class Ef21(Method):
    """EF21 (Richtárik et al., NeurIPS'21, arXiv 2106.05203): a rank sends the largest differences between its gradient
    and the estimate that all have of it; AdamW takes the mean of the estimates."""

    def __init__(self, task: Task, rules: Rules, density: float):
        super().__init__(task, rules)
        self._k = max(1, int(self.n * density))
        self.estimates = self.new_rows()
        self._adam = Adam(self.weights, rules)
        self.moments = self._adam.tensors()

    def step(self, step: int, gradients: Tensor) -> float:
        self.estimates += keep_top(gradients - self.estimates, self._k)
        self._adam.step(step, self.estimates.mean(0))
        return all_gather(self._k * entry_bytes(self._k / self.n, 16), self.rules.ranks)


class Demo(Method):
    """DeMo (Peng et al. 2024, arXiv 2411.19870): the fast part of a rank's momentum, the largest coefficients of a
    cosine transform in pieces of 64 values, is taken out and sent; all move by the sign of the mean of these parts."""

    PIECE = 64

    def __init__(self, task: Task, rules: Rules, keep: int, beta: float = 0.999):
        super().__init__(task, rules)
        self._keep, self._beta = keep, beta
        self._room = -(-self.n // self.PIECE) * self.PIECE
        self.momenta = self.new_rows(self._room)
        i, j = torch.meshgrid(torch.arange(self.PIECE), torch.arange(self.PIECE), indexing="ij")
        cosines = torch.cos(math.pi * (2 * j + 1) * i / (2 * self.PIECE)) * math.sqrt(2 / self.PIECE)
        cosines[0] /= math.sqrt(2)
        self._transform = cosines.to(self.weights.device)

    def step(self, step: int, gradients: Tensor) -> float:
        self.momenta.mul_(self._beta)
        self.momenta[:, : self.n] += gradients
        pieces = self.momenta.view(self.rules.ranks, -1, self.PIECE)
        sent = keep_top(pieces @ self._transform.t(), self._keep) @ self._transform
        pieces -= sent
        direction = sent.mean(0).flatten()[: self.n].sign()
        rate = self.rules.rate(step)
        self.weights.mul_(1 - rate * self.rules.weight_decay).sub_(direction, alpha=rate)
        entries = self._keep * self._room // self.PIECE
        return all_gather(entries * (1 + 2), self.rules.ranks)  # a place in the piece and a value in bf16
