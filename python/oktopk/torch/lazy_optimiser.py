# SPDX-License-Identifier: Apache-2.0
"""The base of SparseAdamW and SparseSGD: which coordinates arrived, the state of a parameter, the clock of silent
coordinates. Below it: owed_decay.py, saved_optimiser.py.

While a parameter's gradient always arrived as a whole (warm-up, no source), a step is the plain dense optimiser's. From
its first sparse step on, a step touches only the coordinates that arrived. The names in a parameter's state are the
same from its first step on, and no shape depends on the number of steps. Beyond torch's it holds, by coordinate, the
step in which it last arrived (`last`) and how often it did (`arrivals`), and three numbers: the clock of the group less
the parameter's own steps (`skew`), the step up to which all its decay is paid (`caught_up`), and whether all of it
arrived in all of its steps (`whole`). Numbers are tensors without dimensions, which every way to save and shard states
understands. COST: O(k) per sparse step; 4 B per coordinate for the clock.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Optional, Protocol, Tuple

import torch
from torch import Tensor

from oktopk._core import UsageError
from oktopk.torch import native_step, torch_step
from oktopk.torch.coordinates import Job, checked_indices, checked_parameter, clock_of, state_dtype
from oktopk.torch.flat import local
from oktopk.torch.interval_clock import RUNS, IntervalClock
from oktopk.torch.owed_decay import OwedDecay


class Arrivals(Protocol):
    """Knows where the synchronised mean arrived: the DDP hook's state, a Reducer, ..."""

    def arrived(self, param: Tensor) -> Optional[Tensor]:
        """Increasing int64 indices into the parameter, flat and in the order of its memory, where the mean arrived in
        the last step; None: everywhere, a dense step. KeyError where the parameter is not known. A source that also has
        arrived_of(params), the same for a list of parameters in a list, is asked once per step."""


class LazyOptimiser(OwedDecay):
    """A torch optimiser that moves a weight when something arrives for it."""

    modes: Tuple[str, ...] = ()
    moments: Tuple[str, ...] = ()  # names in the state

    def __init__(self, params: Any, source: Optional[Arrivals], defaults: Dict[str, Any]):
        if source is not None and not callable(getattr(source, "arrived", None)):
            raise UsageError(
                f"oktopk: source is a {type(source).__name__}, but it must have arrived(param), as "
                "the DDP hook's state and oktopk.torch.Reducer have; or None: a dense optimiser"
            )
        self.source = source
        self._forget_views()
        super().__init__(params, defaults)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """As in torch. UsageError where an option is unfit."""
        self._check({**self.defaults, **param_group})
        super().add_param_group(param_group)
        self.param_groups[-1].setdefault(RUNS, [])

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
        self._check_steps()
        try:  # all checks come before the first change
            work = [(group, self._jobs(group)) for group in self.param_groups]
        except UsageError:
            if not self._only_makes_state():
                raise
            for group in self.param_groups:
                self._complete(group, [p for p in group["params"] if p.grad is not None])
            return loss
        native_step.check_indices([job for _, jobs in work for job in jobs])
        for group, jobs in work:
            self._step_group(group, jobs)
        return loss

    def _check_steps(self) -> None:
        if self.is_copy:
            raise UsageError(
                f"oktopk: this {type(self).__name__} is a copy, by pickle or deepcopy, and copies "
                "have no source: make a new one with a source, and load_state_dict() the state"
            )
        self._refuse_while_caught_up("step()")
        for group in self.param_groups:
            self._check(group)

    def _only_makes_state(self) -> bool:
        """torch.distributed.checkpoint makes a step of an optimiser without state, with rates and gradients of zero,
        before any backward pass, so that there is something to load into. No source knows anything by then."""
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        return (
            not any(self.state.values())
            and all(float(group["lr"]) == 0 for group in self.param_groups)
            and not any(bool(local(p.grad).any()) for p in params)  # type: ignore[arg-type]
        )

    def _is_lazy(self, group: Dict[str, Any]) -> bool:
        started = self.source is not None or self._clock(group).now > 0
        return group["mode"] != "published" and started

    def _jobs(self, group: Dict[str, Any]) -> List[Job]:
        params = [param for param in group["params"] if param.grad is not None]
        for param in params:
            checked_parameter(param)
        if self.source is None or not self._is_lazy(group):
            return [Job(group, param, self._layout(param), None) for param in params]
        jobs = []
        for param, indices in zip(params, self._ask(params)):
            layout = self._layout(param)
            if indices is not None:
                indices = checked_indices(indices, param, layout)
            jobs.append(Job(group, param, layout, indices))
        return jobs

    def _ask(self, params: List[Tensor]) -> Iterator[Optional[Tensor]]:
        param = params[0] if params else None
        try:
            if hasattr(self.source, "arrived_of"):
                yield from self.source.arrived_of(params)
                return
            for param in params:
                yield self.source.arrived(param)  # type: ignore[union-attr]
        except KeyError as error:
            assert param is not None
            raise UsageError(
                f"oktopk: the source ({type(self.source).__name__}) does not know a parameter of "
                f"shape {tuple(param.shape)}: give the optimiser the parameters of the module that "
                "is synchronised, or those others to an optimiser without a source"
            ) from error

    def _step_group(self, group: Dict[str, Any], jobs: List[Job]) -> None:
        clock, lazy = self._clock(group), self._is_lazy(group)
        if lazy:
            clock.tick()
        self._complete(group, [job.param for job in jobs])
        states = [self.state[job.param] for job in jobs]
        counters = [state["step"] for state in states if "step" in state]
        if counters:
            torch._foreach_add_(counters, 1)
        rows = native_step.Rows(self.moments)
        for job, state in zip(jobs, states):
            dense = not lazy or self._stays_dense(job, state, clock.now)
            if native_step.fits(job):
                rows.add(job, state, dense)
            elif dense:
                self._dense(job, state)
            else:
                for here in torch_step.arrivers(job, state, clock):
                    self._arrive(here)
        self._native(rows, clock)

    def _stays_dense(self, job: Job, state: Dict[str, Any], now: int) -> bool:
        """Whether the whole parameter arrived, in this step and in all before. Its clocks are not used until that ends;
        then they are set."""
        if not state["whole"].item():
            return False
        if job.indices is None:
            return True
        state["whole"].zero_()
        local(state["last"]).fill_(now - 1)
        if "arrivals" in state:
            local(state["arrivals"]).fill_(int(state["step"].item()) - 1)
        return False

    def _complete(self, group: Dict[str, Any], params: List[Tensor]) -> None:
        """Completes the state of parameters, and stops the clock for parameters that had no gradient for some steps."""
        lazy = self._is_lazy(group)
        before = max(self._clock(group).now - 1, 0)
        names = self._names(group, lazy)
        for param in params:
            state = self.state[param]
            if "step" not in state and (lazy or self.counts_steps):
                state["step"] = torch.tensor(0.0, dtype=torch.float32)
            had_clock = "last" in state  # saved by a version that made it at the first sparse step
            for name in names:
                if name not in state:
                    dtype = torch.int32 if name in ("last", "arrivals") else state_dtype(param)
                    state[name] = torch.zeros_like(param, dtype=dtype)
            if not lazy:
                continue
            if "skew" not in state:
                state["skew"] = torch.tensor(int(state.pop("clock", before)) - int(state["step"]))
                state["whole"] = torch.tensor(0 if had_clock else 1)
                if self.decoupled_decay:
                    state.setdefault("caught_up", torch.tensor(before))
            missed = before - clock_of(state)
            if missed > 0:
                state["last"] += missed
                for name in ("skew", "caught_up") if self.decoupled_decay else ("skew",):
                    state[name] += missed

    def _names(self, group: Dict[str, Any], lazy: bool) -> List[str]:
        """The names of state tensors with one element per coordinate."""
        return [*self.moments, "last"] if lazy else list(self.moments)

    def _dense(self, job: Job, state: Dict[str, Any]) -> None:
        """A step by torch of a parameter that arrived as a whole in all steps so far."""
        raise NotImplementedError

    def _arrive(self, here: torch_step.Arrivers) -> None:
        """A step by torch of the coordinates that arrive after some silent steps."""
        raise NotImplementedError

    def _native(self, rows: native_step.Rows, clock: IntervalClock) -> None:
        """The steps of all parameters in host memory."""
        raise NotImplementedError
