# SPDX-License-Identifier: Apache-2.0
"""Sources for the tests of the optimisers: what a hook would say about where the mean arrived."""

from __future__ import annotations

from typing import Callable, Dict, List, Optional

import torch
from torch import Tensor


class Told:
    """Says what it was told; None: everything arrived."""

    def __init__(self) -> None:
        self.indices: Dict[Tensor, Optional[Tensor]] = {}

    def tell(self, param: Tensor, indices: Optional[Tensor]) -> None:
        self.indices[param] = indices

    def arrived(self, param: Tensor) -> Optional[Tensor]:
        return self.indices[param]


class Everywhere:
    """All arrive: as a dense step, or as a list of all indices."""

    def __init__(self, listed: bool) -> None:
        self.listed = listed

    def arrived(self, param: Tensor) -> Optional[Tensor]:
        return torch.arange(param.numel()) if self.listed else None


class Feedback:
    """One rank's error feedback: in each step a random part of what was gathered arrives."""

    def __init__(self, param: Tensor, density: float, seed: int) -> None:
        self._residual = torch.zeros(param.numel())
        self._density = density
        self._random = torch.Generator().manual_seed(seed)
        self._indices: Optional[Tensor] = None

    def exchange(self, param: Tensor) -> None:
        self._residual += param.grad.view(-1)
        drawn = torch.rand(param.numel(), generator=self._random) < self._density
        self._indices = drawn.nonzero().view(-1)
        param.grad = torch.where(drawn, self._residual, torch.zeros(())).view_as(param)
        self._residual[drawn] = 0

    def arrived(self, param: Tensor) -> Optional[Tensor]:
        return self._indices


def sparse_steps(
    optimiser: torch.optim.Optimizer,
    source: Told,
    params: List[Tensor],
    steps: range,
    schedule: Optional[Callable[[int], float]] = None,
) -> None:
    """Steps with gradients that depend on the step alone: about a fifth arrive, all in step 3."""
    for step in steps:
        random = torch.Generator().manual_seed(1000 + step)
        for param in params:
            mean = torch.randn(param.shape, generator=random)
            drawn = torch.rand(param.shape, generator=random) < (1.1 if step == 3 else 0.2)
            param.grad = (mean * drawn).to(param.dtype)
            source.tell(param, None if step == 3 else drawn.view(-1).nonzero().view(-1))
        if schedule is not None:
            for group in optimiser.param_groups:
                group["lr"] = schedule(step)
        optimiser.step()


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
    """A parameter whose values depend on its shape alone."""
    random = torch.Generator().manual_seed(sum(shape))
    return torch.nn.Parameter(torch.randn(*shape, generator=random).to(dtype))


def indices(*which: int) -> Tensor:
    return torch.tensor(which, dtype=torch.int64)
