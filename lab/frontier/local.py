# SPDX-License-Identifier: Apache-2.0
"""Ranks that train apart and meet every H steps: DiLoCo and SparseLoCo from their papers, and LocalSteps in a few
operations of a GPU (ours.py has the one that users run)."""

from __future__ import annotations

import torch
from torch import Tensor

from .method import VALUE, Adam, Bytes, Method, all_gather, keep_top, ring
from .owner import OwnerMemory
from .schedule import Rules, Stages, density_at, in_steps
from .tasks import Task


class DiLoCo(Method):
    """Douillard et al. (2023, arXiv 2311.08105): AdamW on each rank; every H steps the mean of what they moved is a
    gradient for SGD with Nesterov momentum."""

    def __init__(self, task: Task, rules: Rules, every: int, outer_lr: float = 0.7, momentum: float = 0.9):
        super().__init__(task, rules)
        self._every, self._outer_lr, self._momentum = every, outer_lr, momentum
        self.own = self.weights.repeat(rules.ranks, 1)
        self._adam = Adam(self.own, rules)  # every rank its own, in one call
        self.moments = self._adam.tensors()
        self.velocity = torch.zeros_like(self.weights)

    def at(self) -> Tensor:
        return self.own

    def step(self, step: int, gradients: Tensor) -> Bytes:
        self._adam.step(step, gradients)
        return self._meet(step) if (step + 1) % self._every == 0 else 0.0

    def finish(self) -> Bytes:
        return self._meet(self.rules.steps) if not torch.equal(self.own[0], self.weights) else 0.0

    def _meet(self, step: int) -> Bytes:
        mean, sent = self._mean(step, self.weights - self.own)
        self.velocity.mul_(self._momentum).add_(mean)
        self.weights.sub_(mean.add(self.velocity, alpha=self._momentum), alpha=self._outer_lr)
        self.own.copy_(self.weights)
        return sent

    def _mean(self, step: int, moved: Tensor) -> tuple[Tensor, Bytes]:
        return moved.mean(0), ring(VALUE * self.n, self.rules.ranks)


class SparseLoCo(DiLoCo):
    """In the manner of SparseLoCo (arXiv 2508.15706): the largest values of pieces of 4096, in 2 bits each, with error
    feedback that forgets a little; no outer momentum."""

    PIECE, DECAY = 4096, 0.95

    def __init__(self, task: Task, rules: Rules, every: int, density: float):
        super().__init__(task, rules, every, outer_lr=1.0, momentum=0.0)
        self._keep = max(1, int(self.PIECE * density))
        self.errors = self.new_rows(-(-self.n // self.PIECE) * self.PIECE)

    def _mean(self, step: int, moved: Tensor) -> tuple[Tensor, Bytes]:
        self.errors.mul_(self.DECAY)
        self.errors[:, : self.n] += moved
        pieces = self.errors.view(self.rules.ranks, -1, self.PIECE)
        sent = _in_two_bits(keep_top(pieces, self._keep), self._keep)
        pieces -= sent
        bits = (12 + 2) * self._keep + 2 * 32  # places, values, the two levels of a piece
        each = bits * pieces.shape[1] / 8
        return sent.mean(0).flatten()[: self.n], all_gather(each, self.rules.ranks)


class OwnerLocalSteps(DiLoCo):
    """LocalSteps: the mean by owner memory. momentum: of the outer steps, as DiLoCo's; 0: the mean is added. decay: of
    what is unsent, per meeting. local: the entries that a rank sends, in units of those that are applied.
    gather: without owners, as with preset topka."""

    def __init__(
        self,
        task: Task,
        rules: Rules,
        every: int,
        density: float,
        start: Stages,
        coding: str = "log4",
        momentum: float = 0.0,
        decay: float = 1.0,
        local: float = 1.0,
        gather: bool = False,
    ):
        super().__init__(task, rules, every, outer_lr=0.7 if momentum else 1.0, momentum=momentum)
        self._density, self._stages, self._decay = density, in_steps(start, rules.steps), decay
        self._owners = OwnerMemory(self.new_rows(), coding, local)
        self.unsent = self._owners.tensors()
        self._sum = self._owners.gather if gather else self._owners.sum

    def _mean(self, step: int, moved: Tensor) -> tuple[Tensor, Bytes]:
        for kept in self.unsent:
            kept *= self._decay
        self.unsent[0] += moved
        total, sent = self._sum(density_at(step, self._stages, self._density), step)
        return total / self.rules.ranks, sent


def _in_two_bits(x: Tensor, kept: int) -> Tensor:
    """A sign and one of two levels per value: the means of the smaller and of the larger half of a piece."""
    magnitude = x.abs()
    middle = magnitude.sum(-1, keepdim=True) / kept
    is_large, is_small = magnitude > middle, (magnitude > 0) & (magnitude <= middle)

    def level(which: Tensor) -> Tensor:
        return (magnitude * which).sum(-1, keepdim=True) / which.sum(-1, keepdim=True).clamp(min=1)

    return x.sign() * (is_large * level(is_large) + is_small * level(is_small))
