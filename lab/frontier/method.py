# SPDX-License-Identifier: Apache-2.0
"""The interface of a method in the race, and what several of them share.

A step gets the gradients of all P ranks, a row each, and returns the bytes that a rank sends on average, which are also
those that it receives on average. Messages are counted as their collective sends them: a ring for dense sums, every
block to every other rank for an all-gather.
"""

from __future__ import annotations

from typing import Any, Dict, List, Union

import torch
from torch import Tensor

from .schedule import Rules
from .tasks import Task

VALUE = 4  # bytes of a float
Bytes = Union[float, Tensor]  # a tensor where the GPU counts them


class Method:
    def __init__(self, task: Task, rules: Rules):
        self.task, self.rules = task, rules
        self.n = task.n
        self.weights = task.weights  # that all ranks share

    def at(self) -> Tensor:
        """The weights with which ranks compute gradients: [n], or [P, n]. The same memory in every step."""
        return self.weights

    def result(self) -> Tensor:
        """The weights to be judged: [n]."""
        return self.weights

    def step(self, step: int, gradients: Tensor) -> Bytes:
        raise NotImplementedError

    def finish(self) -> Bytes:
        """After the last step: whatever is still owed to the weights, and the bytes that it takes."""
        return 0.0

    def state_dict(self) -> Dict[str, Any]:
        """All that later steps depend on."""
        return {name: value for name, value in vars(self).items() if _is_state(value)}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        for name, value in state.items():
            own = getattr(self, name)
            if isinstance(own, Tensor):
                own.copy_(value)
            else:
                for a, b in zip(own, value):
                    a.copy_(b)

    def new_rows(self, width: int = 0) -> Tensor:
        """Zeros: a row of n values, or of `width`, for each rank."""
        return torch.zeros(self.rules.ranks, width or self.n, device=self.weights.device)


def _is_state(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, Tensor) for item in value)
    return isinstance(value, Tensor) and not value.requires_grad


def ring(bytes_in_all: float, ranks: int) -> float:
    """Bytes that a rank sends for a sum over the ranks, as reduce-scatter and all-gather."""
    return 2 * (ranks - 1) / ranks * bytes_in_all


def all_gather(bytes_each: float, ranks: int) -> float:
    return (ranks - 1) * bytes_each


class Adam:
    """AdamW on one vector, for methods that give it a dense direction in every step."""

    def __init__(self, weights: Tensor, rules: Rules):
        self._weights, self._rules = weights, rules
        self.m, self.v = torch.zeros_like(weights), torch.zeros_like(weights)

    def step(self, step: int, mean: Tensor) -> None:
        self.m.lerp_(mean, 1 - self._rules.beta1)
        self.v.mul_(self._rules.beta2).addcmul_(mean, mean, value=1 - self._rules.beta2)
        self.move(step, self.m, self.v)

    def move(self, step: int, m: Tensor, v: Tensor) -> None:
        rules, rate = self._rules, self._rules.rate(step)
        self._weights.mul_(1 - rate * rules.weight_decay)
        corrected = v.div(1 - rules.beta2 ** (step + 1)).sqrt_().add_(1e-8)
        self._weights.addcdiv_(m, corrected, value=-rate / (1 - rules.beta1 ** (step + 1)))

    def tensors(self) -> List[Tensor]:
        return [self.m, self.v]


class Momentum:
    """SGD with momentum and coupled weight decay, as torch's."""

    def __init__(self, weights: Tensor, rules: Rules):
        self._weights, self._rules = weights, rules
        self.velocity = torch.zeros_like(weights)

    def step(self, step: int, mean: Tensor) -> None:
        self.velocity.mul_(self._rules.beta1).add_(mean).add_(self._weights, alpha=self._rules.weight_decay)
        self._weights.sub_(self.velocity, alpha=self._rules.rate(step))

    def tensors(self) -> List[Tensor]:
        return [self.velocity]


def dense_optimiser(weights: Tensor, rules: Rules) -> Union[Adam, Momentum]:
    return Adam(weights, rules) if rules.optimiser == "adam" else Momentum(weights, rules)


def keep_top(x: Tensor, k: int) -> Tensor:
    """x where it is among the k largest magnitudes of its row, zero elsewhere."""
    places = x.abs().topk(k, dim=-1, sorted=False).indices
    return torch.zeros_like(x).scatter_(-1, places, x.gather(-1, places))
