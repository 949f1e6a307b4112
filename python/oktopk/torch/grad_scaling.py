# SPDX-License-Identifier: Apache-2.0
"""What a GradScaler tells an optimiser that takes care of scales itself, as torch's fused ones do: two tensors without
dimensions, which it sets as attributes for the length of a step. The kernels of cuda_step.py read them on the GPU; for
other parameters the host reads them here.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional

import torch
from torch import Tensor

from oktopk.torch.coordinates import Job
from oktopk.torch.flat import local


class Scaling(NamedTuple):
    found_inf: Optional[Tensor] = None  # not zero: the step is left out
    grad_scale: Optional[Tensor] = None  # gradients are to be divided by it

    @staticmethod
    def of(optimiser: Any) -> Scaling:
        """found_inf is the number 0 where no gradient was checked."""
        found = (getattr(optimiser, name, None) for name in Scaling._fields)
        return Scaling(*(value if isinstance(value, Tensor) else None for value in found))

    def on(self, device: torch.device) -> Scaling:
        numbers = (number if number is None else number.to(device, torch.float32, non_blocking=True) for number in self)
        return Scaling(*numbers)

    def skips(self) -> bool:
        """Whether the step is left out. Waits for a GPU."""
        return self.found_inf is not None and self.found_inf.item() != 0

    def unscale(self, jobs: List[Job]) -> None:
        """Divides the gradients by the scale, as GradScaler.unscale_() does."""
        if self.grad_scale is None:
            return
        inverse = self.grad_scale.double().reciprocal().float()
        for job in jobs:
            grad = job.param.grad
            assert grad is not None
            local(grad).mul_(inverse.to(grad.device))
