# SPDX-License-Identifier: Apache-2.0
"""The vision model of the race: VGG-16 with batch norm on CIFAR-10, as examples/vgg_cifar.py has it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Dict, List, Optional

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .modules import ModuleTask

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


class Vision(ModuleTask):
    def __init__(self, model: str, pictures: Pictures, seed: int, bf16: bool, device: torch.device):
        torch.manual_seed(seed)
        net = Vgg16(WIDTHS[model]).to(device)
        super().__init__(net, f"VGG-16 (width {WIDTHS[model]:g}), {pictures.name}")
        self._pictures, self._bf16 = pictures, bf16

    def batch(self, seed: int, step: int, ranks: int, rows: int) -> List[Tensor]:
        torch.manual_seed((seed * 1_000_003 + step) % 2**63)
        labels = self._pictures.train.labels
        which = torch.randint(len(labels), (ranks * rows,)).to(labels.device)
        images = self._pictures.normalised(shift_and_mirror(self._pictures.train.images[which]))
        return [images.view(ranks, rows, *images.shape[1:]), labels[which].view(ranks, rows)]

    def _loss(self, batch: List[Tensor], rank: int) -> Tensor:
        images, labels = batch
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self._bf16):
            scores = self._net(images[rank])
        return cross_entropy(scores.float(), labels[rank])

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
