# SPDX-License-Identifier: Apache-2.0
"""AdamW and SGD for gradients that arrive sparsely: put them where torch's stood.

    optimiser = SparseAdamW(model.parameters(), source=state, lr=1e-3)    # state: the DDP hook's

A coordinate that arrives after tau silent steps brings S, the sum of what it gathered. In mode
interval_aware (ours) it counts as tau steps; published (Li & Hoefler, PPoPP'22) takes silence for
gradients of zero, as torch's own optimisers would. The reference is oktopk/optim/adam.h and sgd.h;
docs/optimisers.md has the formulas' reasons and what is different here. All are torch's AdamW and
SGD while every coordinate arrives in every step.
COST: O(k) per sparse step (published O(n)). Memory per coordinate: SparseAdamW 16 B (published and
before the first sparse step 8), SparseSGD with momentum 8 B (4).
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Tuple

import torch
from torch import Tensor

from oktopk.torch.coordinates import (
    Arrivers,
    mean_gradient,
    state_dtype,
    widened,
    write_back,
)
from oktopk.torch.flat import local
from oktopk.torch.interval_clock import one_minus_power
from oktopk.torch.lazy_optimiser import Arrivals, LazyOptimiser

__all__ = ["Arrivals", "SparseAdamW", "SparseSGD"]

# An S of more than so many standard deviations says that v is wrong, not that S is rare.
_SURPRISE = 5.0


class SparseAdamW(LazyOptimiser):
    """AdamW over a sparse mean.

    source: who knows where the mean arrived, the hook's state; None: everywhere, plain AdamW.
    mode: interval_aware (ours: what arrives after tau steps counts as tau steps, and is moved on
    through another such silence), interval_steps (its simpler form: moments age by steps, a move is
    all at once), published (silence is a gradient of zero).
    """

    modes = ("interval_aware", "interval_steps", "published")
    decoupled_decay = True

    def __init__(
        self,
        params: Any,
        source: Optional[Arrivals] = None,
        lr: float = 1e-3,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        mode: str = "interval_aware",
    ):
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, mode=mode)
        super().__init__(params, source, defaults)

    def _check_own(self, group: Dict[str, Any], require: Callable[[bool, str, str], None]) -> None:
        betas = group["betas"]
        require(len(betas) == 2 and all(0 <= b < 1 for b in betas), "betas", "two, each in [0, 1)")
        require(0 < group["eps"] < float("inf"), "eps", "finite and positive")
        fits = float(group["lr"]) * group["weight_decay"] < 1
        require(fits, "weight_decay", f"less than 1 / lr, and lr = {group['lr']}")

    def _begin(self, group: Dict[str, Any], param: Tensor) -> Dict[str, Any]:
        dtype = state_dtype(param)
        return {
            "step": torch.tensor(0.0, dtype=torch.float32),
            "exp_avg": torch.zeros_like(param, dtype=dtype),
            "exp_avg_sq": torch.zeros_like(param, dtype=dtype),
        }

    def _begin_intervals(self, group: Dict[str, Any], param: Tensor) -> Dict[str, Any]:
        if group["mode"] != "interval_aware":
            return {}
        before = int(self.state[param]["step"]) - 1
        return {"arrivals": torch.full_like(param, before, dtype=torch.int32)}

    def _dense(self, group: Dict[str, Any], param: Tensor, state: Dict[str, Any]) -> None:
        # The operations of torch.optim.AdamW(foreach=False), in its order.
        beta1, beta2 = group["betas"]
        lr, step = float(group["lr"]), int(state["step"])
        grad, weight = mean_gradient(param), widened(param)
        m, v = local(state["exp_avg"]), local(state["exp_avg_sq"])
        if group["weight_decay"] != 0:
            weight.mul_(1 - lr * group["weight_decay"])
        m.lerp_(grad, 1 - beta1)
        v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        scale = (1 - beta2**step) ** 0.5
        weight.addcdiv_(m, (v.sqrt() / scale).add_(group["eps"]), value=-lr / (1 - beta1**step))
        write_back(param, weight)

    def _arrive(self, here: Arrivers) -> None:
        """S after tau steps: its mean per step is S / tau, and where noise dominates, S^2 / tau
        estimates the mean of the squares."""
        beta1 = here.group["betas"][0]
        old, tau = here["exp_avg"], here.tau
        dtype = old.dtype
        total = here["grad"].to(dtype)
        mean = total / tau
        fresh = one_minus_power(beta1, tau, here.clock.now)
        m = torch.lerp(old, mean, fresh.to(dtype))
        if here.group["mode"] == "interval_steps":
            drift, scale = m, _age_by_steps(here, total * mean)
        else:
            # The mean of m over the tau steps, had S / tau come in each of them; and what m would
            # move in the silence that is to come.
            gone = one_minus_power(beta1, here.silence, here.clock.now)
            share = (1 - beta1 * fresh / ((1 - beta1) * tau)).to(dtype)
            ahead = (beta1 * gone / ((1 - beta1) * tau)).to(dtype)
            drift = torch.where(tau == 1, m, torch.lerp(old, mean, share) + ahead * m)
            m = (1 - gone).to(dtype) * m
            scale = _age_by_arrivals(here, total, mean)
        bias = 1 - beta1 ** int(here.state["step"])
        rate = (here.clock.rate_since(here.last) / bias).to(dtype)
        weight = here["param"].to(dtype)
        if not here.clock.never_decayed():
            begin = here.last.clamp(min=here.state["caught_up"])
            weight = weight * here.clock.kept_since(begin).to(dtype)
        here["param"] = weight - rate * drift / scale.add_(here.group["eps"])
        here["exp_avg"] = m


def _age_by_steps(here: Arrivers, square: Tensor) -> Tensor:
    """Takes S^2 / tau into the second moment as that of tau steps. Gives sqrt(vhat)."""
    beta2 = here.group["betas"][1]
    fresh = one_minus_power(beta2, here.tau, here.clock.now)
    v = (1 - fresh).to(square.dtype) * here["exp_avg_sq"] + fresh.to(square.dtype) * square
    here["exp_avg_sq"] = v
    return v.sqrt() / (1 - beta2 ** int(here.state["step"])) ** 0.5


def _age_by_arrivals(here: Arrivers, total: Tensor, mean: Tensor) -> Tensor:
    """Takes S^2 / tau into the second moment as one observation. Gives sqrt(vhat)."""
    beta2 = here.group["betas"][1]
    arrivals = here["arrivals"] + 1
    bias = one_minus_power(beta2, arrivals, int(here.state["step"]))
    v = here["exp_avg_sq"].mul(beta2).addcmul_(total, mean, value=1 - beta2)
    surprise = (bias / _SURPRISE**2).to(v.dtype) * (total * mean)
    v = torch.where(here.tau > 1, torch.maximum(v, surprise), v)
    here["exp_avg_sq"], here["arrivals"] = v, arrivals
    return v.sqrt() / bias.sqrt().to(v.dtype)


class SparseSGD(LazyOptimiser):
    """SGD with momentum over a sparse mean.

    source: who knows where the mean arrived, the hook's state; None: everywhere, plain SGD.
    mode: interval_aware (ours: what arrives after tau steps is moved at once to where momentum
    would bring it by the end of another such silence), published (silence is a gradient of zero).
    weight_decay is coupled, as in torch.
    """

    modes = ("interval_aware", "published")

    def __init__(
        self,
        params: Any,
        source: Optional[Arrivals] = None,
        lr: float = 1e-3,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        mode: str = "interval_aware",
    ):
        defaults = dict(
            lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay, mode=mode
        )
        super().__init__(params, source, defaults)

    def _check_own(self, group: Dict[str, Any], require: Callable[[bool, str, str], None]) -> None:
        require(0 <= group["momentum"] < 1, "momentum", "in [0, 1)")
        fits = not group["nesterov"] or group["momentum"] > 0
        require(fits, "nesterov", "False without momentum")

    def _begin(self, group: Dict[str, Any], param: Tensor) -> Dict[str, Any]:
        if group["momentum"] == 0:
            return {}
        return {"momentum_buffer": torch.zeros_like(param, dtype=state_dtype(param))}

    def _dense(self, group: Dict[str, Any], param: Tensor, state: Dict[str, Any]) -> None:
        # The operations of torch.optim.SGD(foreach=False), in its order.
        grad, weight, mu = mean_gradient(param), widened(param), group["momentum"]
        if group["weight_decay"] != 0:
            grad = grad.add(weight, alpha=group["weight_decay"])
        if mu != 0:
            velocity = local(state["momentum_buffer"]).mul_(mu).add_(grad)
            grad = grad.add(velocity, alpha=mu) if group["nesterov"] else velocity
        weight.add_(grad, alpha=-float(group["lr"]))
        write_back(param, weight)

    def _arrive(self, here: Arrivers) -> None:
        """Momentum over the tau steps, had S / tau come in each of them; at their mean rate."""
        group, tau, mu = here.group, here.tau, here.group["momentum"]
        weight = here["param"].to(state_dtype(here["param"]))
        total = here["grad"].to(weight.dtype)
        if group["weight_decay"] != 0:  # the weight rested: each silent step pulled alike
            total = total + group["weight_decay"] * tau * weight
        move = total if mu == 0 else _move_with_momentum(here, total)
        if group["nesterov"]:
            move = total + mu * move
        rate = (here.clock.rate_since(here.last) / tau).to(weight.dtype)
        here["param"] = weight - rate * move


def _move_with_momentum(here: Arrivers, total: Tensor) -> Tensor:
    """The sum of the tau velocities v_j = mu v_(j-1) + S / tau, and of those in the silence that is
    to come. Leaves the last one."""
    mu, tau, old = here.group["momentum"], here.tau, here["momentum_buffer"]
    fresh = one_minus_power(mu, tau, here.clock.now)
    carried = mu * fresh / (1 - mu)  # mu + mu^2 + ... + mu^tau: what of v is still to be moved
    settled = total / tau / (1 - mu)  # what v tends to
    velocity = (1 - fresh).to(old.dtype) * old + fresh.to(old.dtype) * settled
    gone = one_minus_power(mu, here.silence, here.clock.now)
    ahead = mu * gone / (1 - mu)  # mu + mu^2 + ..., as many as silent steps are to come
    move = carried.to(old.dtype) * old + (tau - carried).to(old.dtype) * settled
    move += ahead.to(old.dtype) * velocity
    once = mu * old + total
    here["momentum_buffer"] = torch.where(tau == 1, once, (1 - gone).to(old.dtype) * velocity)
    return torch.where(tau == 1, once, move)
