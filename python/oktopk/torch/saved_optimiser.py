# SPDX-License-Identifier: Apache-2.0
"""Saving and loading of the optimisers, by themselves and by torch.distributed.checkpoint; takes over states of torch's
Adam, AdamW and SGD. A saved group holds one thing more than torch's: the clock, as plain numbers (interval_clock.py).
The clock itself is made when it is first needed.
"""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from oktopk._core import UsageError
from oktopk.torch.coordinates import NUMBERS, Layout, state_dtype
from oktopk.torch.cuda_step import Plan
from oktopk.torch.interval_clock import RUNS, IntervalClock, checked_runs

# Options of torch's optimisers that would change what a step does, and those that say how torch makes it. Here they
# must be as if they were not given: None, False or 0.
_MEANINGS = ("amsgrad", "maximize", "dampening")
_WAYS = ("foreach", "fused", "differentiable")
FOREIGN = _MEANINGS + _WAYS
_OWN = ("mode", "capturable")  # options that a state of torch's may lack


class SavedOptimiser(Optimizer):
    """The part of a lazy optimiser that is saved and loaded."""

    decoupled_decay = False  # weight decay is owed by who is silent
    counts_steps = False  # "step" is in the state
    moments: Tuple[str, ...] = ()  # names in the state
    is_copy = False  # made by pickle or deepcopy, which leave the source behind
    source: Any = None

    def _forget_views(self) -> None:
        self._clocks: Dict[int, IntervalClock] = {}  # by the id of a group
        self._layouts: Dict[Tensor, Layout] = {}
        self._plans: Dict[int, Plan] = {}  # by the id of a group
        self._is_caught_up = False

    def _clock(self, group: Dict[str, Any]) -> IntervalClock:
        clock = self._clocks.get(id(group))
        if clock is None:  # it holds the group, so that nobody else gets this id
            clock = self._clocks[id(group)] = IntervalClock(group, self.decoupled_decay)
        return clock

    def _refuse_while_caught_up(self, what: str) -> None:
        if self._is_caught_up:
            raise UsageError(
                f"oktopk: {what} inside of `with optimiser.caught_up()`, where weights are not those "
                "of training: call it after that block"
            )

    def _check(self, group: Dict[str, Any]) -> None:
        """UsageError where an option is unfit."""
        raise NotImplementedError

    def state_dict(self) -> Dict[str, Any]:
        """As in torch; its clocks stay as they are when the optimiser goes on."""
        self._refuse_while_caught_up("state_dict()")
        self._note_clocks()
        return super().state_dict()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """As in torch; takes a state of torch's AdamW, or of its SGD, too. Types are kept, where torch would cast
        clocks to floats and moments to the precision of the weights. UsageError, with nothing changed, where the state
        is of an optimiser of another kind."""
        self._refuse_while_caught_up("load_state_dict()")
        groups = [self._read_group(group) for group in state_dict["param_groups"]]
        for state in state_dict["state"].values():
            self._check_moments(state)
        super().load_state_dict({**state_dict, "param_groups": groups})
        saved: List[Any] = [i for group in groups for i in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for key, param in zip(saved, params):
            for name, value in state_dict["state"].get(key, {}).items():
                if name in NUMBERS:
                    self.state[param][name] = torch.tensor(float(value), dtype=NUMBERS[name])
                elif value is None:  # torch's SGD without momentum
                    del self.state[param][name]
                elif isinstance(value, Tensor) and value.shape == param.shape:
                    dtype = state_dtype(param) if value.is_floating_point() else torch.int32
                    self.state[param][name] = torch.zeros_like(param, dtype=dtype).copy_(value)

    def _read_group(self, saved: Dict[str, Any]) -> Dict[str, Any]:
        who = type(self).__name__
        for name in self.defaults:
            if name not in saved and name not in _OWN + FOREIGN:
                raise UsageError(
                    f"oktopk: the state to load lacks the option {name} of {who}: it is of another kind of optimiser"
                )
        for name in _MEANINGS:
            if saved.get(name):
                raise UsageError(
                    f"oktopk: the state to load was made with {name} = {saved[name]!r}, which {who} does not have"
                )
        is_coupled = self.decoupled_decay and saved.get("decoupled_weight_decay") is False
        if is_coupled and float(saved["weight_decay"]) != 0:
            raise UsageError(
                f"oktopk: the state to load was made with weight_decay = {saved['weight_decay']} in the gradient, as "
                f"Adam has it, which {who} does not have: it decays as AdamW does"
            )
        group = {**saved, RUNS: checked_runs(saved)}
        for name in (*_WAYS, "clock", "clock_rate", "clock_kept", "clock_totals"):  # of version 0.1
            group.pop(name, None)
        self._check({**self.defaults, **group})
        return group

    def _check_moments(self, state: Dict[str, Any]) -> None:
        """The state of a parameter. SGD has no momentum_buffer before momentum."""
        lacking = [name for name in self.moments if state and self.counts_steps and name not in state]
        if lacking:
            raise UsageError(
                f"oktopk: the state to load lacks '{lacking[0]}' of {type(self).__name__} and has {sorted(state)}: "
                "it is of another kind of optimiser"
            )

    def _note_clocks(self) -> None:
        for clock in self._clocks.values():
            states = [self.state.get(param, {}) for param in clock.group["params"]]
            clock.note([state for state in states if "last" in state and not state["whole"]])

    def __getstate__(self) -> Dict[str, Any]:
        self._note_clocks()
        kept: Dict[str, Any] = super().__getstate__()
        return {**kept, "source": None} if self.source is None else kept

    def __setstate__(self, state: Dict[str, Any]) -> None:
        """torch's load_state_dict() and copies call this."""
        self.is_copy = self.is_copy or ("defaults" in state and "source" not in state)
        super().__setstate__(state)
        self._forget_views()
        for group in self.param_groups:
            for name, value in self.defaults.items():
                if name != "differentiable":  # torch adds it to the defaults of copies
                    group.setdefault(name, value)
            group.setdefault(RUNS, [])
