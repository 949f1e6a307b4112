# SPDX-License-Identifier: Apache-2.0
"""The optimiser of a run: PyTorch's, or oktopk's that know how long each coordinate has waited."""

import math
from collections.abc import Iterable

import torch

from common.exchange import Exchange
from common.options import Settings
from common.recipes import Recipe

BETAS = (0.9, 0.99)
MOMENTUM = 0.9


def make_optimiser(
    settings: Settings, recipe: Recipe, exchange: Exchange, parameters: Iterable[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    lr, decay = settings.lr, settings.weight_decay
    if recipe.is_sparse and not recipe.plain_optimiser:
        import oktopk.torch as sparse

        if settings.optimiser == "adam":
            return sparse.SparseAdamW(
                parameters, exchange.state, lr=lr, betas=BETAS, weight_decay=decay
            )
        momentum = MOMENTUM if settings.optimiser == "momentum" else 0.0
        return sparse.SparseSGD(
            parameters, exchange.state, lr=lr, momentum=momentum, weight_decay=decay
        )
    if settings.optimiser == "adam":
        return torch.optim.AdamW(parameters, lr=lr, betas=BETAS, weight_decay=decay)
    momentum = MOMENTUM if settings.optimiser == "momentum" else 0.0
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=decay)


def set_learning_rate(optimiser: torch.optim.Optimizer, settings: Settings, step: int) -> None:
    """Rises over the first twentieth of the steps, then falls along a cosine to a hundredth; or
    stays."""
    rate = settings.lr
    if settings.schedule == "cosine":
        rise = max(1, settings.steps // 20)
        fall = 0.01 + 0.99 * (1 + math.cos(math.pi * step / settings.steps)) / 2
        rate *= min(1.0, (step + 1) / rise) * fall
    for group in optimiser.param_groups:
        group["lr"] = rate
