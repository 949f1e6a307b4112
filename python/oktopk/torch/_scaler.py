# SPDX-License-Identifier: Apache-2.0
"""A GradScaler and the two that have to follow it: an optimiser that takes care of scales itself, and a synchroniser
whose step the GradScaler may leave out (HookScaler in _channels.py, fsdp.py).

The optimiser gets two tensors without dimensions, as torch's fused ones do, which the GradScaler sets as attributes for
the length of a step. The kernels of cuda_step.py read them on the GPU; for other parameters the host reads them here.

A GradScaler may skip the step of each optimiser, so whether the mean of a parameter was applied depends on what the
optimiser did, never on the scale. A step of a torch.optim.Optimizer that has the parameter counts, unless the optimiser
was told to do nothing (`found_inf`). For parameters that no such optimiser has ever stepped, as with updates written by
hand, any change of the parameter in place counts.
COST: a few operations of Python per parameter and step, none on its values.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from oktopk.torch.coordinates import Job
from oktopk.torch.flat import inner, local


class Scaling(NamedTuple):
    """For one step of an optimiser."""

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


def after_each_step(act: Callable[[Any], None]) -> Callable[[], Any]:
    """Calls the method with every optimiser that has made a step, until the result is called or the method's object is
    gone, which this does not keep alive."""
    method = weakref.WeakMethod(act)  # type: ignore[arg-type]

    def after_step(optimiser: Any, args: Any, kwargs: Any) -> None:
        act = method()
        if act is not None:
            act(optimiser)

    handle = register_optimizer_step_post_hook(after_step)
    return weakref.finalize(act.__self__, handle.remove)  # type: ignore[attr-defined]


class Applied:
    """`parameter in applied`: whether it was applied since watch()."""

    def __init__(self) -> None:
        self._watched: Dict[int, Tuple[torch.Tensor, int]] = {}  # by id: parameter, its version
        self._steps: Dict[int, List[Optional[torch.Tensor]]] = {}  # by id: found_inf of each step
        self._has_optimiser: Set[int] = set()
        after_each_step(self._note)

    def watch(self, parameters: Sequence[torch.Tensor]) -> None:
        """Begins to watch these, and forgets earlier steps of them."""
        for p in parameters:
            self._watched[id(p)] = (p, _version(p))
            self._steps.pop(id(p), None)

    def __contains__(self, parameter: torch.Tensor) -> bool:
        """Whether it was applied. May read a value from the device of a fused optimiser."""
        key = id(parameter)
        if key in self._steps:
            return any(inf is None or float(inf) == 0 for inf in self._steps[key])
        if key in self._has_optimiser or key not in self._watched:
            return False
        return _version(parameter) != self._watched[key][1]

    def _note(self, optimiser: Any) -> None:
        found_inf = getattr(optimiser, "found_inf", None)
        for group in optimiser.param_groups:
            for p in group["params"]:
                if id(p) in self._watched:
                    self._has_optimiser.add(id(p))
                    self._steps.setdefault(id(p), []).append(found_inf)


def _version(parameter: torch.Tensor) -> int:
    """The count of changes in place."""
    return inner(parameter)._version
