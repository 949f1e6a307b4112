# SPDX-License-Identifier: Apache-2.0
"""The tasks of the race: their parameters as one flat vector, and the gradients of all ranks as rows of a matrix.

A method knows nothing of the model but this: `weights` (n values that it changes in place), `shapes`, and the gradients
that Gradients computes for it. On a GPU the computation is captured once in a CUDA graph and replayed, because a small
model spends more time on starting kernels than on running them.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Protocol

import torch
from torch import Tensor

from .data import Text
from .models import SHAPES, Gpt, RankGpt


class Task(Protocol):
    name: str
    shapes: List[torch.Size]
    n: int
    weights: Tensor
    is_capturable: bool  # the same kernels in every step, with shapes that depend on ranks and rows only

    def batch(self, seed: int, step: int, ranks: int, rows: int) -> List[Tensor]:
        """What all ranks compute with in a step."""
        ...

    def gradients(self, weights: Tensor, batch: List[Tensor], into: Tensor) -> Tensor:
        """weights: [n], or [P, n] where ranks have their own; into: [P, n]. The sum of the ranks' losses."""
        ...

    def judge(self, weights: Tensor) -> Dict[str, float]:
        """`held_out_loss`, and what else says how good the weights are."""
        ...

    def state_dict(self) -> Dict[str, Tensor]:
        """What batches change beside the weights."""
        ...

    def load_state_dict(self, state: Dict[str, Tensor]) -> None: ...


def parts_of(flat: Tensor, shapes: List[torch.Size]) -> List[Tensor]:
    """Views of the last dimension in the shapes of the parameters."""
    pieces = flat.split([shape.numel() for shape in shapes], dim=-1)
    return [piece.view(*flat.shape[:-1], *shape) for piece, shape in zip(pieces, shapes)]


class Language:
    """A GPT that continues text."""

    is_capturable = True

    def __init__(self, size: str, text: Text, seed: int, bf16: bool, device: torch.device):
        shape = SHAPES[size]
        self._text, self._model = text, RankGpt(shape, bf16)
        self._loss = self._model.loss
        self.name, self.shapes = f"GPT {size}, {text.name}", self._model.shapes
        self.n = sum(part.numel() for part in self.shapes)
        torch.manual_seed(seed)
        self.weights = torch.cat([part.detach().flatten() for part in Gpt(shape).parameters()]).to(device)

    def batch(self, seed: int, step: int, ranks: int, rows: int) -> List[Tensor]:
        return self._text.batch(seed, step, ranks, rows)

    def gradients(self, weights: Tensor, batch: List[Tensor], into: Tensor) -> Tensor:
        leaves = self._leaves(weights, into.shape[0])
        loss = self._loss(leaves, *batch)
        for part, gradient in zip(parts_of(into, self.shapes), torch.autograd.grad(loss, leaves)):
            part.copy_(gradient)
        return loss.detach()

    def _leaves(self, weights: Tensor, ranks: int) -> List[Tensor]:
        """A parameter that all ranks share is stored once, and its gradient is not."""
        leaves = []
        for place, part in enumerate(parts_of(weights.detach(), self.shapes)):
            part = part.to(self._model.type_of(place))
            leaves.append((part if weights.dim() == 2 else part.expand(ranks, *part.shape)).detach().requires_grad_())
        return leaves

    @torch.no_grad()
    def judge(self, weights: Tensor) -> Dict[str, float]:
        leaves = self._leaves(weights, 1)
        losses = [float(self._model.loss(leaves, batch)) for batch in self._text.held_out(64, 32)]
        return {"held_out_loss": sum(losses) / len(losses)}

    def state_dict(self) -> Dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Dict[str, Tensor]) -> None:
        pass


class Gradients:
    """The gradients of all ranks in each step."""

    def __init__(self, task: Task, weights: Tensor, ranks: int):
        self._task, self._weights = task, weights
        self.rows = torch.zeros(ranks, task.n, device=weights.device)
        self._replay: Callable[[], Any] = lambda: None
        self._batch: List[Tensor] = []
        self._loss = torch.zeros(())

    def compute(self, batch: List[Tensor]) -> Tensor:
        """The loss of all ranks together; self.rows has the gradients."""
        if self._weights.device.type != "cuda" or not self._task.is_capturable:
            return self._task.gradients(self._weights, batch, self.rows)
        if not self._batch:
            self._capture(batch)
        for own, given in zip(self._batch, batch):
            own.copy_(given)
        self._replay()
        return self._loss

    def _capture(self, batch: List[Tensor]) -> None:
        self._batch = [part.clone() for part in batch]
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # libraries choose their kernels before the capture
            for _ in range(2):
                self._task.gradients(self._weights, self._batch, self.rows)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._loss = self._task.gradients(self._weights, self._batch, self.rows)
        self._replay = graph.replay
