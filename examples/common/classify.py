# SPDX-License-Identifier: Apache-2.0
"""Image classification as a Task: the images lie on the device, a batch is normalised and, if
wanted, moved and mirrored there."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from common.data.images import ImageData
from common.train import Task

EVAL_BATCH = 250


def classification_task(
    title: str,
    data: ImageData,
    make_model: Callable[[], nn.Module],
    device: torch.device,
    *,
    mean: list[float],
    std: list[float],
    augment: bool = False,
) -> Task:
    """mean, std: of each channel, for pixels between 0 and 1."""
    train, test = data.train.to(device), data.test.to(device)
    centre, spread = (
        torch.tensor(values, device=device).view(1, -1, 1, 1) for values in (mean, std)
    )

    def normalise(images: torch.Tensor) -> torch.Tensor:
        return (images.float() / 255 - centre) / spread

    def loss(model: nn.Module, indices: torch.Tensor) -> torch.Tensor:
        indices = indices.to(device)
        images = train.images[indices]
        return F.cross_entropy(
            model(normalise(shift_and_mirror(images) if augment else images)), train.labels[indices]
        )

    def evaluate(model: nn.Module, indices: torch.Tensor) -> dict[str, tuple[float, float]]:
        total, right = torch.zeros(2, dtype=torch.float64, device=device)
        for part in indices.to(device).split(EVAL_BATCH):
            scores = model(normalise(test.images[part]))
            total += F.cross_entropy(scores, test.labels[part], reduction="sum")
            right += (scores.argmax(1) == test.labels[part]).sum()
        return {"loss": (total.item(), len(indices)), "accuracy": (right.item(), len(indices))}

    return Task(
        title,
        data.stand_in,
        len(train.labels),
        len(test.labels),
        make_model,
        loss,
        evaluate,
        "accuracy",
    )


def shift_and_mirror(images: torch.Tensor, reach: int = 4) -> torch.Tensor:
    """Each image moved by up to `reach` pixels either way (zeros come in) and mirrored half of the
    time; PyTorch's default generator."""
    count, _, height, width = images.shape
    device = images.device
    padded = F.pad(images, (reach,) * 4)
    down, right = torch.randint(2 * reach + 1, (2, count, 1), device=device)
    mirror = torch.rand(count, 1, device=device) < 0.5
    across = torch.arange(width, device=device)
    rows = torch.arange(height, device=device) + down
    columns = torch.where(mirror, across.flip(0), across) + right
    which = torch.arange(count, device=device)
    return padded[which[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(
        0, 3, 1, 2
    )
