# SPDX-License-Identifier: Apache-2.0
"""What tasks share whose model is a module of torch: ranks compute their gradients one after the other, with views of
the method's flat weights as parameters."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import torch
from torch import Tensor

from .tasks import parts_of


class ModuleTask:
    """A task without data: its classes have batch(), _loss() and judge(). All ranks share one set of buffers, such as
    running statistics, which every batch of every rank moves."""

    is_capturable = True

    def __init__(self, net: Any, name: str):
        self._net, self.name = net, name
        self.shapes: List[torch.Size] = [parameter.shape for parameter in net.parameters()]
        self.n = sum(shape.numel() for shape in self.shapes)
        self.weights = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])

    def _loss(self, batch: List[Tensor], rank: int) -> Tensor:
        raise NotImplementedError

    def gradients(self, weights: Tensor, batch: List[Tensor], into: Tensor) -> Tensor:
        losses = torch.zeros((), device=weights.device)
        into.zero_()
        for rank, gradient in enumerate(into):
            self._use(weights if weights.dim() == 1 else weights[rank], gradient)
            loss = self._loss(batch, rank)
            loss.backward()
            losses = losses + loss.detach()
        return losses

    def _use(self, weights: Tensor, gradient: Optional[Tensor] = None) -> None:
        gradients = [None] * len(self.shapes) if gradient is None else parts_of(gradient, self.shapes)
        for parameter, part, own in zip(self._net.parameters(), parts_of(weights.detach(), self.shapes), gradients):
            parameter.data, parameter.grad = part, own

    def state_dict(self) -> Dict[str, Tensor]:
        return dict(self._net.named_buffers())

    def load_state_dict(self, state: Dict[str, Tensor]) -> None:
        for name, buffer in self._net.named_buffers():
            buffer.copy_(state[name])
