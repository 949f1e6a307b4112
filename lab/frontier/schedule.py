# SPDX-License-Identifier: Apache-2.0
"""The race's rules, the same for everyone: steps, batch, optimiser, learning rate over the steps; and how dense the
first steps of a sparse method are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Dict, List, Tuple


@dataclass(frozen=True)
class Rules:
    steps: int
    ranks: int
    rows: int  # of a rank's batch
    lr: float
    optimiser: str = "adam"  # AdamW; or momentum: SGD, whose weight decay is coupled
    weight_decay: float = 0.1
    beta1: float = 0.9  # momentum's too
    beta2: float = 0.99

    def rate(self, step: int) -> float:
        """Rises over the first hundredth, then falls with a cosine to a tenth; momentum: to a hundredth."""
        rise = max(1, self.steps // 100)
        if step < rise:
            return self.lr * (step + 1) / rise
        least = 0.1 if self.optimiser == "adam" else 0.01
        done = (step - rise) / max(1, self.steps - rise)
        return self.lr * (least + (1 - least) / 2 * (1 + math.cos(math.pi * done)))


# Stages (share of the steps, density) before all other steps.
Stages = List[Tuple[float, float]]
STARTS: Dict[str, Stages] = {
    "none": [],
    "dense2": [(0.02, 1.0)],
    "dense5": [(0.05, 1.0)],
    "dense10": [(0.1, 1.0)],
    "ramp": [(0.02, 0.25), (0.08, 0.05)],
    "quarter10": [(0.1, 0.25)],
    "half10": [(0.1, 0.5)],
    "whole10": [(0.1, 0.99)],
    "nine10": [(0.1, 0.9)],  # the recipe of the library
    "long": [(0.1, 0.5), (0.2, 0.05)],
    "short": [(0.01, 0.25), (0.04, 0.05)],
}


def in_steps(stages: Stages, steps: int) -> List[Tuple[int, float]]:
    return [(max(1, round(share * steps)), density) for share, density in stages]


def density_at(step: int, stages: List[Tuple[int, float]], after: float) -> float:
    """Of a step; no stage is sparser than the steps after it."""
    for count, density in stages:
        if step < count:
            return max(density, after)
        step -= count
    return after
