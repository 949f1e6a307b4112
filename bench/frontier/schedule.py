# SPDX-License-Identifier: Apache-2.0
"""The race's rules, the same for everyone: steps, batch, learning rate over the steps."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    steps: int
    ranks: int
    rows: int  # of a rank's batch
    lr: float
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    clip: float = 1.0  # the norm of the mean gradient, where a method has one

    def rate(self, step: int) -> float:
        """Rises over the first hundredth, then falls with a cosine to a tenth."""
        rise = max(1, self.steps // 100)
        if step < rise:
            return self.lr * (step + 1) / rise
        done = (step - rise) / max(1, self.steps - rise)
        return self.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))
