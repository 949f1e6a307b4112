# SPDX-License-Identifier: Apache-2.0
"""Methods that send something of every parameter in every step: sums in fp32 and bf16, PowerSGD, 1-bit Adam."""

from __future__ import annotations

from typing import List

import torch
from torch import Tensor

from .method import VALUE, Adam, Method, dense_optimiser, ring
from .schedule import Rules
from .tasks import Task, parts_of


class Dense(Method):
    """The optimiser on the mean. bf16: each rank rounds its gradient, as torch's bf16_compress_hook does."""

    def __init__(self, task: Task, rules: Rules, bf16: bool = False):
        super().__init__(task, rules)
        self._bf16 = bf16
        self._optimiser = dense_optimiser(self.weights, rules)
        self.moments = self._optimiser.tensors()

    def step(self, step: int, gradients: Tensor) -> float:
        if self._bf16:
            gradients = gradients.bfloat16().float()
        self._optimiser.step(step, gradients.mean(0))
        return ring((2 if self._bf16 else VALUE) * self.n, self.rules.ranks)


class PowerSgd(Method):
    """Vogels et al. (NeurIPS'19, arXiv 1905.13727): every matrix M as P Q^T of a small rank, warm start, error
    feedback; vectors are summed as they are. `warm`: the share of dense steps before."""

    def __init__(self, task: Task, rules: Rules, rank: int, warm: float):
        super().__init__(task, rules)
        self._rank, self._dense_steps = rank, int(warm * rules.steps)
        self._optimiser = dense_optimiser(self.weights, rules)
        self.moments = self._optimiser.tensors()
        self.errors = self.new_rows()
        generator = torch.Generator().manual_seed(0)
        self.q: List[Tensor] = [
            torch.randn(shape[1:].numel(), thin_rank(shape, rank), generator=generator).to(self.weights.device)
            for shape in task.shapes
            if thin_rank(shape, rank)
        ]
        self._values = compressed_values(task.shapes, rank)

    def step(self, step: int, gradients: Tensor) -> float:
        if step < self._dense_steps:
            self._optimiser.step(step, gradients.mean(0))
            return ring(VALUE * self.n, self.rules.ranks)
        self.errors += gradients
        mean, number = self.errors.mean(0), 0
        for shape, part in zip(self.task.shapes, parts_of(mean, self.task.shapes)):
            if thin_rank(shape, self._rank):
                matrix = part.view(shape[0], -1)
                p = _orthonormal(matrix @ self.q[number])
                self.q[number].copy_(matrix.t() @ p)
                matrix.copy_(p @ self.q[number].t())
                number += 1
        self.errors -= mean
        self._optimiser.step(step, mean)
        return ring(VALUE * self._values, self.rules.ranks)


def thin_rank(shape: torch.Size, rank: int) -> int:
    """The rank of the two thin matrices for a parameter; 0: they would not be smaller than the parameter."""
    if len(shape) < 2:
        return 0
    rows, columns = shape[0], shape[1:].numel()
    rank = min(rank, rows, columns)
    return rank if rank * (rows + columns) < rows * columns else 0


def compressed_values(shapes: List[torch.Size], rank: int) -> int:
    """Those that PowerSGD sums in a step."""
    return sum(thin_rank(s, rank) * (s[0] + s[1:].numel()) if thin_rank(s, rank) else s.numel() for s in shapes)


def _orthonormal(columns: Tensor) -> Tensor:
    """By Cholesky in double precision: on a GPU much faster than a QR of a thin matrix."""
    exact = columns.double()
    gram = exact.t() @ exact
    gram.diagonal().add_(1e-12 * gram.trace() + 1e-300)
    lower = torch.linalg.cholesky_ex(gram).L
    return torch.linalg.solve_triangular(lower, exact.t(), upper=False).t().float()


class OneBitAdam(Method):
    """Tang et al. (ICML'21, arXiv 2102.02888): after a dense start the second moments are frozen, and the momentum
    travels as signs and one scale, with error feedback on the ranks and on the owners of its parts."""

    def __init__(self, task: Task, rules: Rules, warm: float):
        super().__init__(task, rules)
        self._dense_steps = max(1, int(warm * rules.steps))
        self._adam = Adam(self.weights, rules)
        self.moments = self._adam.tensors()
        self.errors = self.new_rows()
        self.owners_error = torch.zeros_like(self.weights)

    def step(self, step: int, gradients: Tensor) -> float:
        if step < self._dense_steps:
            self._adam.step(step, gradients.mean(0))
            return ring(VALUE * self.n, self.rules.ranks)
        m, v = self.moments
        self.errors += torch.lerp(m.expand_as(gradients), gradients, 1 - self.rules.beta1)
        signs = self.errors.sign() * self.errors.abs().mean(1, keepdim=True)
        self.errors -= signs
        self.owners_error += signs.mean(0)
        m.copy_(self.owners_error.sign() * self.owners_error.abs().mean())
        self.owners_error -= m
        self._adam.move(step, m * (v > 0), v)  # a weight whose gradient was never there has no scale
        return ring(self.n / 8, self.rules.ranks) + 2 * VALUE
