# SPDX-License-Identifier: Apache-2.0
"""Labelled images in memory, and a generated stand-in for them."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass
class Images:
    """images: uint8 [count, channels, height, width]; labels: int64 [count]."""

    images: torch.Tensor
    labels: torch.Tensor

    def to(self, device: torch.device) -> "Images":
        return Images(self.images.to(device), self.labels.to(device))


@dataclass
class ImageData:
    """name: for titles. stand_in: generated, because no data was named."""

    name: str
    train: Images
    test: Images
    stand_in: bool = False


def stand_in(name: str, shape: tuple[int, int, int], counts: tuple[int, int]) -> ImageData:
    """Ten classes; a class is four smooth patterns, an image one of them, moved, dimmed and with
    much noise.

    Learnable, not trivial, and the same on every machine; it says nothing about real images.
    """
    rng = torch.Generator().manual_seed(10)
    coarse = torch.rand(40, shape[0], 5, 5, generator=rng)
    patterns = F.interpolate(coarse, size=shape[1:], mode="bicubic", align_corners=False)
    train, test = (_draw(patterns, count, rng) for count in counts)
    return ImageData(f"stand-in for {name} (generated)", train, test, stand_in=True)


def _draw(patterns: torch.Tensor, count: int, rng: torch.Generator) -> Images:
    which = torch.randint(40, (count,), generator=rng)
    images = patterns[which]
    for axis in (2, 3):
        moves = torch.randint(-3, 4, (count,), generator=rng)
        at = (torch.arange(images.shape[axis])[None] + moves[:, None]) % images.shape[axis]
        at = at[:, None, :, None] if axis == 2 else at[:, None, None, :]
        images = images.gather(axis, at.expand_as(images))
    light = 0.5 + 0.5 * torch.rand(count, 1, 1, 1, generator=rng)
    noise = 0.35 * torch.randn(images.shape, generator=rng)
    return Images(((images * light + noise).clamp(0, 1) * 255).to(torch.uint8), which % 10)
