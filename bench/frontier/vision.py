# SPDX-License-Identifier: Apache-2.0
"""The vision model of the race: VGG-16 with batch norm on CIFAR-10, as examples/vgg_cifar.py has it. Ranks compute
their gradients one after the other. All share one set of running statistics, which every batch of every rank moves."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .tasks import parts_of

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from common.classify import shift_and_mirror  # noqa: E402
from common.data import cifar  # noqa: E402
from vgg_cifar import Vgg16  # noqa: E402

WIDTHS = {"VGG16": 1.0, "VGG16quarter": 0.25, "VGG16tiny": 0.03}  # the factor of all channel counts
MEAN, SPREAD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class Pictures:
    """CIFAR-10 on the device; without a path a generated stand-in."""

    def __init__(self, path: Optional[Path], device: torch.device):
        data = cifar.load(path)
        self.name = data.name
        self.train, self.test = data.train.to(device), data.test.to(device)
        self._mean, self._spread = (torch.tensor(x, device=device).view(1, 3, 1, 1) for x in (MEAN, SPREAD))

    def normalised(self, images: Tensor) -> Tensor:
        return (images.float() / 255 - self._mean) / self._spread


class Vision:
    def __init__(self, model: str, pictures: Pictures, seed: int, bf16: bool, device: torch.device):
        torch.manual_seed(seed)
        self._net: Any = Vgg16(WIDTHS[model]).to(device)
        self._pictures, self._bf16 = pictures, bf16
        self.name = f"VGG-16 (width {WIDTHS[model]:g}), {pictures.name}"
        self.shapes: List[torch.Size] = [parameter.shape for parameter in self._net.parameters()]
        self.n = sum(shape.numel() for shape in self.shapes)
        self.weights = torch.cat([parameter.detach().flatten() for parameter in self._net.parameters()])

    def batch(self, seed: int, step: int, ranks: int, rows: int) -> List[Tensor]:
        torch.manual_seed((seed * 1_000_003 + step) % 2**63)
        labels = self._pictures.train.labels
        which = torch.randint(len(labels), (ranks * rows,)).to(labels.device)
        images = self._pictures.normalised(shift_and_mirror(self._pictures.train.images[which]))
        return [images.view(ranks, rows, *images.shape[1:]), labels[which].view(ranks, rows)]

    def gradients(self, weights: Tensor, batch: List[Tensor], into: Tensor) -> Tensor:
        images, labels = batch
        losses = torch.zeros((), device=weights.device)
        into.zero_()
        for rank, gradient in enumerate(into):
            self._use(weights if weights.dim() == 1 else weights[rank], gradient)
            with torch.autocast(weights.device.type, torch.bfloat16, enabled=self._bf16):
                scores = self._net(images[rank])
            loss = cross_entropy(scores.float(), labels[rank])
            loss.backward()
            losses = losses + loss.detach()
        return losses

    def _use(self, weights: Tensor, gradient: Optional[Tensor] = None) -> None:
        gradients = [None] * len(self.shapes) if gradient is None else parts_of(gradient, self.shapes)
        for parameter, part, own in zip(self._net.parameters(), parts_of(weights.detach(), self.shapes), gradients):
            parameter.data, parameter.grad = part, own

    @torch.no_grad()
    def judge(self, weights: Tensor) -> Dict[str, float]:
        self._use(weights)
        self._net.eval()
        test, loss, right = self._pictures.test, 0.0, 0
        for images, labels in zip(test.images.split(500), test.labels.split(500)):
            scores = self._net(self._pictures.normalised(images))
            loss += float(cross_entropy(scores, labels, reduction="sum"))
            right += int((scores.argmax(1) == labels).sum())
        self._net.train()
        return {"held_out_loss": loss / len(test.labels), "accuracy": right / len(test.labels)}

    def state_dict(self) -> Dict[str, Tensor]:
        """Running statistics."""
        return dict(self._net.named_buffers())

    def load_state_dict(self, state: Dict[str, Tensor]) -> None:
        for name, buffer in self._net.named_buffers():
            buffer.copy_(state[name])
