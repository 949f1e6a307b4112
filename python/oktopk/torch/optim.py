# SPDX-License-Identifier: Apache-2.0
"""AdamW and SGD for gradients that arrive sparsely; they replace those of torch.

    optimiser = SparseAdamW(model.parameters(), source=state, lr=1e-3)    # state: the DDP hook's

A coordinate that arrives after tau silent steps brings S, the sum of what it gathered. In mode interval_aware (ours) it
counts as tau steps; published (Li & Hoefler, PPoPP'22) takes silence for gradients of zero, as torch's own optimisers
would. The rules are oktopk/optim/adam_rule.h and sgd_rule.h; docs/optimisers.md has the formulas' reasons. All are
torch's AdamW and SGD while every coordinate arrives in every step.
COST: O(k) per sparse step (published O(n)). Memory per coordinate: SparseAdamW 16 B (without a source, and published,
8), SparseSGD with momentum 8 B (4).
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

from oktopk.torch import cuda_step, host_step
from oktopk.torch.coordinates import WHERE_NONZERO
from oktopk.torch.interval_clock import CudaClock
from oktopk.torch.lazy_optimiser import Arrivals, LazyOptimiser

__all__ = ["WHERE_NONZERO", "Arrivals", "SparseAdamW", "SparseSGD"]


class SparseAdamW(LazyOptimiser):
    """AdamW over a sparse mean.

    source: who knows where the mean arrived, the hook's state; None: everywhere, plain AdamW.
    mode: interval_aware (ours: what arrives after tau steps counts as tau steps, and is moved on through another such
    silence), published (silence is a gradient of zero).
    capturable: a CUDA graph may hold the step; the rate may then be a tensor on the GPU.
    torch_options: foreach, fused, maximize and others of torch's: accepted where they change nothing (None, False, 0).
    """

    modes = ("interval_aware", "published")
    moments = ("exp_avg", "exp_avg_sq")
    decoupled_decay = True
    counts_steps = True
    _dense, _arrive = staticmethod(host_step.adam_dense), staticmethod(host_step.adam_arrive)
    _native = staticmethod(host_step.adam)

    def __init__(
        self,
        params: Any,
        source: Optional[Arrivals] = None,
        lr: float = 1e-3,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        mode: str = "interval_aware",
        capturable: bool = False,
        **torch_options: Any,
    ):
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, mode=mode, capturable=capturable)
        super().__init__(params, source, defaults, torch_options)
        use = getattr(source, "use_second_moments", None)
        if use is not None and mode == "interval_aware":
            use(self)

    def _check_own(self, group: Dict[str, Any], require: Callable[[bool, str, str], None]) -> None:
        betas = group["betas"]
        require(len(betas) == 2 and all(0 <= b < 1 for b in betas), "betas", "two, each in [0, 1)")
        require(0 < group["eps"] < float("inf"), "eps", "finite and positive")
        fits = cuda_step.rate_of(group) * group["weight_decay"] < 1
        lr = group["lr"] if isinstance(group["lr"], float) else "a tensor"  # its value would be a wait for the GPU
        require(fits, "weight_decay", f"less than 1 / lr, and lr = {lr}")

    def _names(self, group: Dict[str, Any], lazy: bool) -> List[str]:
        return super()._names(group, lazy) + (["arrivals"] if lazy else [])

    def _rule(self, group: Dict[str, Any], clock: CudaClock) -> Dict[str, Any]:
        return {
            **cuda_step.NO_RULE,
            **cuda_step.rate_fields(group),
            **cuda_step.powers("first", group["betas"][0], clock),
            **cuda_step.powers("second", group["betas"][1], clock),
            "epsilon": group["eps"],
            "decoupled_decay": group["weight_decay"],
        }


class SparseSGD(LazyOptimiser):
    """SGD with momentum over a sparse mean.

    source: who knows where the mean arrived, the hook's state; None: everywhere, plain SGD.
    mode: interval_aware (ours: what arrives after tau steps is moved at once to where momentum would bring it by the
    end of another such silence), published (silence is a gradient of zero). weight_decay is coupled, as in torch.
    capturable: a CUDA graph may hold the step; the rate may then be a tensor on the GPU.
    torch_options: foreach, fused, maximize and others of torch's: accepted where they change nothing (None, False, 0).
    """

    modes = ("interval_aware", "published")
    moments = ("momentum_buffer",)
    _dense, _arrive = staticmethod(host_step.sgd_dense), staticmethod(host_step.sgd_arrive)
    _native = staticmethod(host_step.sgd)

    def __init__(
        self,
        params: Any,
        source: Optional[Arrivals] = None,
        lr: float = 1e-3,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        mode: str = "interval_aware",
        capturable: bool = False,
        **torch_options: Any,
    ):
        defaults = dict(
            lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay, mode=mode, capturable=capturable
        )
        super().__init__(params, source, defaults, torch_options)

    def _check_own(self, group: Dict[str, Any], require: Callable[[bool, str, str], None]) -> None:
        require(0 <= group["momentum"] < 1, "momentum", "in [0, 1)")
        fits = not group["nesterov"] or group["momentum"] > 0
        require(fits, "nesterov", "False without momentum")

    def _names(self, group: Dict[str, Any], lazy: bool) -> List[str]:
        names = super()._names(group, lazy)
        return names if group["momentum"] != 0 else names[1:]

    def _rule(self, group: Dict[str, Any], clock: CudaClock) -> Dict[str, Any]:
        return {
            **cuda_step.NO_RULE,
            **cuda_step.rate_fields(group),
            **cuda_step.powers("first", group["momentum"], clock),
            "is_sgd": True,
            "nesterov": group["nesterov"],
            "coupled_decay": group["weight_decay"],
        }
