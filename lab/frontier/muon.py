# SPDX-License-Identifier: Apache-2.0
"""Muon (Jordan et al. 2024; Liu et al. 2025, arXiv 2502.16982): matrices move by their momentum with all singular
values set to about one, scaled so that AdamW's learning rate and weight decay fit. For the matrices inside blocks; all
other parameters are left to another optimiser."""

from __future__ import annotations

from typing import List

import torch
from torch import Tensor

from .schedule import Rules
from .tasks import Task, parts_of

MOMENTUM = 0.95


class Muon:
    def __init__(self, task: Task, weights: Tensor, rules: Rules):
        self._rules = rules
        self.velocity = torch.zeros_like(weights)
        self._is_ours = [len(shape) == 2 and min(shape) * 50 > max(shape) for shape in task.shapes]
        self._shapes = task.shapes
        self._weights = weights

    def matrices(self, flat: Tensor) -> List[Tensor]:
        return [part for part, ours in zip(parts_of(flat, self._shapes), self._is_ours) if ours]

    def step(self, step: int, mean: Tensor) -> None:
        rate = self._rules.rate(step)
        self.velocity.mul_(MOMENTUM).add_(mean)
        ahead = mean.add(self.velocity, alpha=MOMENTUM)
        for weight, direction in zip(self.matrices(self._weights), self.matrices(ahead)):
            weight.mul_(1 - rate * self._rules.weight_decay)
            weight.sub_(orthogonal(direction), alpha=rate * 0.2 * max(weight.shape) ** 0.5)


def orthogonal(matrix: Tensor) -> Tensor:
    """The nearest matrix with orthonormal rows or columns, roughly: five steps of a quintic Newton-Schulz iteration."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.t() if is_tall else matrix).to(torch.bfloat16 if matrix.is_cuda else torch.float32)
    x = x / (x.norm() + 1e-12)
    for _ in range(5):
        square = x @ x.t()
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return (x.t() if is_tall else x).float()
