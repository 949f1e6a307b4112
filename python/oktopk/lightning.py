# SPDX-License-Identifier: Apache-2.0
"""oktopk for Lightning: a callback, for the package lightning and for pytorch_lightning.

    callback = oktopk.lightning.OkTopkCallback(total_steps=20_000)
    trainer = lightning.Trainer(strategy="ddp", devices=4, callbacks=[callback])

configure_optimizers() returns SparseAdamW or SparseSGD without a source; the callback gives it the state of the hook.
Lightning's check-points carry the states of all ranks' hooks (docs/frontends.md). COST: rank 0 holds them all, about n
floats each, while a check-point is written.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Dict, List, Optional, Tuple

import torch.distributed as dist

from oktopk._core import UsageError
from oktopk.torch import OkTopkState
from oktopk.torch._frontend import catch_up, check_options, host_group, register, warn

__all__ = ["OkTopkCallback"]

_KEY = "oktopk"  # in the check-point: a list of states in rank order


def _callbacks() -> Tuple[Any, ...]:
    """The class Callback of each installed package: a Trainer takes its own package's alone."""
    packages = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}
    names = [module for package, module in packages.items() if find_spec(package) is not None]
    if not names:
        raise ImportError("oktopk.lightning needs Lightning: pip install lightning")
    return tuple(import_module(name).Callback for name in names)


class OkTopkCallback(*_callbacks()):  # type: ignore[misc]
    """Registers the hook on the model that DDPStrategy wraps, on processors too, and makes its state the source of
    SparseAdamW or SparseSGD; saves and loads it with Lightning's check-points.

    options: those of oktopk.torch.OkTopkState. The GradScaler is that of the precision plugin.
    """

    def __init__(self, **options: Any):
        super().__init__()
        check_options(options, "OkTopkCallback")
        self._options = options
        self._state: Optional[OkTopkState] = None

    @property
    def state(self) -> OkTopkState:
        """The hook's state, from the beginning of fit() on, configure_optimizers() included."""
        if self._state is None:
            raise UsageError("oktopk: OkTopkCallback.state exists from the beginning of fit() on")
        return self._state

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        _require_ddp(trainer.strategy)
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if self._state is None or self._state.grad_scaler is not scaler:
            self._state = OkTopkState(grad_scaler=scaler, **self._options)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        register(trainer.strategy.model, self.state, trainer.optimizers)

    # The weight decay that is still owed is applied before weights are used elsewhere.

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        catch_up(trainer.optimizers)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        catch_up(trainer.optimizers)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        catch_up(trainer.optimizers)

    # Check-points: Lightning calls these on all ranks, and rank 0 writes.

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Dict[str, Any]) -> None:
        if self._state is None:
            return
        if trainer.interrupted:  # perhaps on this rank alone
            warn("oktopk: a check-point after an exception has no state of the hook")
            return
        states = _gather(self._state.state_dict())
        if states:
            checkpoint[_KEY] = states

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Dict[str, Any]) -> None:
        if self._state is None:
            return
        states = checkpoint.get(_KEY)
        if not states:
            warn("oktopk: no state of the hook in the check-point: it begins anew, with start_iter dense steps")
        elif len(states) == trainer.world_size:
            self._state.load_state_dict(states[trainer.global_rank])
        else:
            self._state.load_state_dicts(states)


def _gather(own: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Collective: the states of all ranks on rank 0, nothing elsewhere."""
    is_first = dist.get_rank() == 0
    states: List[Any] = [None] * dist.get_world_size() if is_first else []
    with host_group() as group:
        dist.gather_object(own, states if is_first else None, dst=0, group=group)
    return states


def _require_ddp(strategy: Any) -> None:
    kind = type(strategy).__name__
    if kind.startswith("SingleDevice"):
        raise UsageError(
            f"oktopk: the Trainer has one device ({kind}), so there is nothing to synchronise: give "
            "it strategy='ddp' and devices=2 or more, or leave OkTopkCallback out"
        )
    if not any(base.__name__ == "DDPStrategy" for base in type(strategy).__mro__):
        raise UsageError(
            f"oktopk: the Trainer's strategy is {kind}, but the hook works with DDPStrategy alone: "
            "give the Trainer strategy='ddp', or leave OkTopkCallback out"
        )
    if getattr(strategy, "_ddp_comm_hook", None) is not None:
        raise UsageError(
            "oktopk: DDPStrategy has a ddp_comm_hook, which Lightning registers on CUDA devices and ignores "
            "elsewhere: leave ddp_comm_hook and ddp_comm_state out, OkTopkCallback registers the hook on every device"
        )
