# SPDX-License-Identifier: Apache-2.0
"""What SparseAdamW and SparseSGD share: who arrived in this step, flat views of a parameter and its
state, the clock of silent coordinates, saving and loading.

A parameter whose gradient always arrived as a whole (warm-up, no source) is treated by the plain
dense optimiser's own operations. From its first sparse step on it has a clock per coordinate, and a
step touches only the coordinates that arrived. COST: O(k) per sparse step; 4 B per coordinate for
the clock (`last`), from the first sparse step on.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Protocol, Tuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from oktopk._core import UsageError
from oktopk.torch.coordinates import Arrivers, blocks, checked, flat_views, state_dtype
from oktopk.torch.interval_clock import IntervalClock


class Arrivals(Protocol):
    """Knows where the synchronised mean arrived: the DDP hook's state, a Reducer, ..."""

    def arrived(self, param: Tensor) -> Optional[Tensor]:
        """Increasing int64 indices into the parameter, flat and in the order of its memory, where
        the mean arrived in the last step; None: everywhere, a dense step. KeyError where the
        parameter is not known."""


class _Job(NamedTuple):
    group: Dict[str, Any]
    param: Tensor
    indices: Optional[Tensor]


class LazyOptimiser(Optimizer):
    """A torch optimiser that moves a weight when something arrives for it."""

    modes: Tuple[str, ...] = ()
    decoupled_decay = False

    def __init__(self, params: Any, source: Optional[Arrivals], defaults: Dict[str, Any]):
        if source is not None and not callable(getattr(source, "arrived", None)):
            raise UsageError(
                f"oktopk: source is a {type(source).__name__}, but it must have arrived(param), as "
                "the DDP hook's state and oktopk.torch.Reducer have; or None: a dense optimiser"
            )
        self.source = source
        super().__init__(params, defaults)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """As in torch. UsageError where an option is unfit."""
        self._check({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def _check(self, group: Dict[str, Any]) -> None:
        def require(ok: bool, name: str, rule: str) -> None:
            if not ok:
                who = f"oktopk: {type(self).__name__}"
                raise UsageError(f"{who}: {name} = {group[name]!r}, but it must be {rule}")

        require(group["mode"] in self.modes, "mode", "one of " + ", ".join(self.modes))
        for name in ("lr", "weight_decay"):
            require(0 <= float(group[name]) < float("inf"), name, "finite and not negative")
        self._check_own(group, require)

    def _check_own(self, group: Dict[str, Any], require: Callable[[bool, str, str], None]) -> None:
        raise NotImplementedError

    # Steps

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """One step with param.grad, the synchronised mean. Parameters without one are skipped."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        jobs = [  # all checks come before the first change
            _Job(group, param, self._arrived(group, param))
            for group in self.param_groups
            for param in group["params"]
            if param.grad is not None
        ]
        lazy = [g for g in self.param_groups if g["params"] and self._is_lazy(g)]
        if self.decoupled_decay:
            for group in lazy:
                IntervalClock(group).check()
        for group in lazy:
            IntervalClock(group).tick(group["params"][0].device, self.decoupled_decay)
        for job in jobs:
            self._update(job)
        return loss

    def _is_lazy(self, group: Dict[str, Any]) -> bool:
        started = self.source is not None or group.get("clock", 0) > 0
        return group["mode"] != "published" and started

    def _arrived(self, group: Dict[str, Any], param: Tensor) -> Optional[Tensor]:
        shape = tuple(param.shape)
        if param.grad is not None and param.grad.layout != torch.strided:
            raise UsageError(
                f"oktopk: the gradient of a parameter of shape {shape} is a sparse tensor, but a "
                "dense one is needed: use Embedding(sparse=False)"
            )
        if not param.is_floating_point():
            raise UsageError(f"oktopk: a parameter of shape {shape} is {param.dtype}, not real")
        if self.source is None or not self._is_lazy(group):
            return None
        try:
            indices = self.source.arrived(param)
        except KeyError as error:
            raise UsageError(
                f"oktopk: the source ({type(self.source).__name__}) does not know a parameter of "
                f"shape {shape}: give the optimiser the parameters of the module that is "
                "synchronised, or those others to an optimiser without a source"
            ) from error
        return None if indices is None else checked(indices, param)

    def _update(self, job: _Job) -> None:
        group, param, indices = job
        state = self.state[param]
        if not state:
            state.update(self._begin(group, param))
        if "step" in state:
            state["step"] += 1
        if indices is None and "last" not in state:
            return self._dense(group, param, state)
        self._continue_intervals(group, param)
        flats, now = flat_views(param, state), group["clock"]
        for where in blocks(indices, flats["param"].numel()):
            self._arrive(Arrivers(group, state, flats, where, indices is not None))
            flats["last"][where] = now
        state["clock"] = now

    def _continue_intervals(self, group: Dict[str, Any], param: Tensor) -> None:
        """The clock stands still for a parameter that had no gradient for some steps."""
        state, before = self.state[param], group["clock"] - 1
        if "last" not in state:
            state["last"] = torch.full_like(param, before, dtype=torch.int32)
            state["caught_up"] = before
            state.update(self._begin_intervals(group, param))
        elif state["clock"] < before:
            state["last"] += before - state["clock"]
            state["caught_up"] += before - state["clock"]

    def _begin(self, group: Dict[str, Any], param: Tensor) -> Dict[str, Any]:
        """The state of a parameter before its first step."""
        raise NotImplementedError

    def _begin_intervals(self, group: Dict[str, Any], param: Tensor) -> Dict[str, Any]:
        """What is added to it before its first sparse step, beyond the clock."""
        return {}

    def _dense(self, group: Dict[str, Any], param: Tensor, state: Dict[str, Any]) -> None:
        """A step of a parameter of which all arrived in all steps so far."""
        raise NotImplementedError

    def _arrive(self, here: Arrivers) -> None:
        """A step of the coordinates that arrive, after their silence."""
        raise NotImplementedError

    @torch.no_grad()
    def catch_up(self) -> None:
        """Settles what is owed to coordinates that did not arrive: decoupled weight decay. Call it
        on all ranks before weights are used elsewhere (evaluation, export). O(n)."""
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state.get(param, {})
                if "last" in state and not IntervalClock(group).never_decayed():
                    self._pay_decay(IntervalClock(group), param, state)

    def _pay_decay(self, clock: IntervalClock, param: Tensor, state: Dict[str, Any]) -> None:
        flats, end = flat_views(param, state), state["clock"]
        for where in blocks(None, flats["param"].numel()):
            begin = flats["last"][where].clamp(min=state["caught_up"])
            kept = clock.kept_between(begin, end).to(state_dtype(param))
            weight = flats["param"][where]
            weight.copy_(weight.to(kept.dtype) * kept)
        state["caught_up"] = end

    # Saving and loading

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """As in torch; takes a state of torch's AdamW or SGD too. Types are kept, where torch would
        cast clocks to floats and moments to the precision of the weights."""
        super().load_state_dict(state_dict)
        saved: List[Any] = [i for group in state_dict["param_groups"] for i in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for key, param in zip(saved, params):
            for name, value in state_dict["state"].get(key, {}).items():
                if name == "step":
                    self.state[param][name] = torch.tensor(float(value), dtype=torch.float32)
                elif isinstance(value, Tensor) and value.shape == param.shape:
                    dtype = state_dtype(param) if value.is_floating_point() else torch.int32
                    self.state[param][name] = torch.zeros_like(param, dtype=dtype).copy_(value)

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
