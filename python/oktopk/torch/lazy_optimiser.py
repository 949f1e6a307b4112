# SPDX-License-Identifier: Apache-2.0
"""The base of SparseAdamW and SparseSGD: which coordinates arrived, the state of a parameter, the clock of silent
coordinates. Below it: owed_decay.py, saved_optimiser.py. A group whose parameters are all on one NVIDIA GPU makes its
steps by kernels (cuda_step.py), others by native_step.py and torch_step.py.

While a parameter's gradient always arrived as a whole (warm-up, no source), a step is the plain dense optimiser's. From
its first sparse step on, a step touches only the coordinates that arrived. The names in a parameter's state are the
same from its first step on, and no shape depends on the number of steps. Beyond torch's it holds, by coordinate, the
step in which it last arrived (`last`) and how often it did (`arrivals`), and three numbers: the clock of the group less
the parameter's own steps (`skew`), the step up to which all its decay is paid (`caught_up`), and whether all of it
arrived in all of its steps (`whole`). Numbers are tensors without dimensions, which every way to save and shard states
understands. COST: O(k) per sparse step; 4 B per coordinate for the clock.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Optional, Protocol, Tuple, Union

import torch
from torch import Tensor

from oktopk._core import UsageError
from oktopk.torch import cuda_step, native_step, torch_step
from oktopk.torch.coordinates import WHERE_NONZERO, Arrived, Job, checked_indices, checked_parameter, clock_of
from oktopk.torch.coordinates import checked_answers, nonzero_of, state_dtype
from oktopk.torch.cuda_clock import CudaClock
from oktopk.torch.cuda_step import Plan, Request
from oktopk.torch.flat import local, place_gradient
from oktopk.torch.grad_scaling import Scaling
from oktopk.torch.interval_clock import RUNS, IntervalClock
from oktopk.torch.owed_decay import OwedDecay
from oktopk.torch.saved_optimiser import FOREIGN


class Arrivals(Protocol):
    """Knows where the synchronised mean arrived: the DDP hook's state, a Reducer, ..."""

    def arrived(self, param: Tensor) -> Arrived:
        """Increasing int64 indices into the parameter, flat and in the order of its memory, where the mean arrived in
        the last step; WHERE_NONZERO: where the gradient is not zero; None: everywhere, a dense step. KeyError where the
        parameter is not known. A source that also has arrived_of(params), the same for a list of parameters in a list,
        is asked once per step."""


class LazyOptimiser(OwedDecay):
    """A torch optimiser that moves a weight when something arrives for it."""

    modes: Tuple[str, ...] = ()
    _step_supports_amp_scaling = True  # a GradScaler sets found_inf and grad_scale, and leaves the rest to step()

    def __init__(self, params: Any, source: Optional[Arrivals], defaults: Dict[str, Any], foreign: Dict[str, Any]):
        """foreign: options of torch's optimisers; those are accepted that change nothing."""
        for name in foreign.keys() - set(FOREIGN):
            raise TypeError(f"{type(self).__name__}() got an unexpected keyword argument '{name}'")
        _leave_to_python()
        self._refuse_foreign(foreign)
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
        self._refuse_foreign(param_group)
        self._check({**self.defaults, **param_group})
        super().add_param_group(param_group)
        self.param_groups[-1].setdefault(RUNS, [])

    def _refuse_foreign(self, options: Dict[str, Any]) -> None:
        for name in FOREIGN:
            if options.get(name):
                who, standard = type(self).__name__, "0" if name == "dampening" else "None or False"
                raise UsageError(
                    f"oktopk: {who}: {name} = {options[name]!r}, but it must be {standard}: {who} makes its steps in "
                    "one way on each device, and has no other options of torch's"
                )

    def _check(self, group: Dict[str, Any]) -> None:
        def require(ok: bool, name: str, rule: str) -> None:
            if not ok:
                who = f"oktopk: {type(self).__name__}"
                raise UsageError(f"{who}: {name} = {group[name]!r}, but it must be {rule}")

        require(group["mode"] in self.modes, "mode", "one of " + ", ".join(self.modes))
        on_gpu = cuda_step.rate_on_gpu(group)
        if on_gpu is not None:
            fits = on_gpu.dtype == torch.float32 and on_gpu.numel() == 1
            require(fits, "lr", "a tensor of one float32 where it is on a GPU")
        require(0 <= cuda_step.rate_of(group) < float("inf"), "lr", "finite and not negative")
        require(0 <= float(group["weight_decay"]) < float("inf"), "weight_decay", "finite and not negative")
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
            work = [(group, self._work(group)) for group in self.param_groups]
        except UsageError:
            if not self._only_makes_state():
                raise
            for group in self.param_groups:
                self._complete(group, [p for p in group["params"] if p.grad is not None])
            return loss
        scaling = Scaling.of(self)
        jobs = [job for _, item in work if isinstance(item, list) for job in item]
        native_step.check_indices(jobs)
        if jobs and scaling.skips():
            return loss
        scaling.unscale(jobs)
        for group, item in work:
            if isinstance(item, Request):
                plan = self._plan(group, item)
                plan.run(item.answers, self._rule(group, plan.clock), scaling)
            else:
                self._leave_gpu(group)
                self._step_group(group, item)
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
        started = self.source is not None or self._clock(group).has_started
        return group["mode"] != "published" and started

    def _work(self, group: Dict[str, Any]) -> Union[Request, List[Job]]:
        """What the parameters of a group with a gradient have to do."""
        params = [param for param in group["params"] if param.grad is not None]
        for param in params:
            place_gradient(param)
        kernels = self._kernels(group, params)
        answers = None
        if self.source is not None and self._is_lazy(group):
            answers = checked_answers(list(self._ask(params)), params, self.source)
        if kernels is None:
            return self._jobs(group, params, answers)
        for i, answer in enumerate(answers or ()):
            if answer is not None and answer is not WHERE_NONZERO:
                indices = checked_indices(answer, params[i], self._layout(params[i]))
                answers[i] = indices.contiguous()  # type: ignore[index]
        return Request(kernels, params, answers)

    def _jobs(self, group: Dict[str, Any], params: List[Tensor], answers: Optional[List[Arrived]]) -> List[Job]:
        jobs = []
        for i, param in enumerate(params):
            answer, layout = None if answers is None else answers[i], self._layout(param)
            if answer is WHERE_NONZERO:
                answer = nonzero_of(param)
            if answer is not None:
                answer = checked_indices(answer, param, layout)
            jobs.append(Job(group, param, layout, answer))
        return jobs

    def _ask(self, params: List[Tensor]) -> Iterator[Arrived]:
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
        before = clock.now
        if lazy:
            clock.tick()
        self._complete(group, [job.param for job in jobs], before)
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

    def _complete(self, group: Dict[str, Any], params: List[Tensor], before: int = 0) -> None:
        """Completes the state of parameters, and stops the clock for parameters that had no gradient for some steps.
        before: the group's steps before this one."""
        lazy = self._is_lazy(group)
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

    # On a GPU

    def _kernels(self, group: Dict[str, Any], params: List[Tensor]) -> Optional[cuda_step.Kernels]:
        """The kernels for a group; None: another way makes its steps. UsageError where no way does."""
        plan = self._plans.get(id(group))
        if plan is not None and plan.fits(self._key(group), params, map(self.state.get, params)):
            cuda_step.check_capture(group, has_plan=True)
            return plan.kernels
        self._plans.pop(id(group), None)
        cuda_step.check_capture(group, has_plan=False)
        for param in params:
            checked_parameter(param)
        return cuda_step.kernels_for(group, params, self._layout)

    def _plan(self, group: Dict[str, Any], request: Request) -> Plan:
        """The plan of the last step, or a new one."""
        plan = self._plans.get(id(group))
        if plan is None:
            clock, key = self._clock(group), self._key(group)
            self._complete(group, request.params, clock.now if key.is_lazy else 0)
            states = [self.state[param] for param in request.params]
            on_gpu = clock.on_gpu(cuda_step.inner(request.params[0]).device, key.is_fixed)
            on_gpu.begin(key.is_lazy, max(int(state.get("step", 0)) for state in states))
            layouts = [self._layout(param) for param in request.params]
            plan = self._plans[id(group)] = Plan(key, request, states, layouts, on_gpu)
        return plan

    def _key(self, group: Dict[str, Any]) -> cuda_step.Key:
        lazy = self._is_lazy(group)
        return cuda_step.Key(lazy, group.get("capturable", False), tuple(self._names(group, lazy)))

    def _leave_gpu(self, group: Dict[str, Any]) -> None:
        self._plans.pop(id(group), None)
        self._clock(group).leave_gpu()

    def _rule(self, group: Dict[str, Any], clock: CudaClock) -> Dict[str, Any]:
        """The fields of OktopkCudaOptim (oktopk/gpu/kernels/cuda_api.h) that follow from the options of a group."""
        raise NotImplementedError

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


def _leave_to_python() -> None:
    """Under torch.compile() a step runs as without it: a graph would be made anew for other numbers of arrivals, and
    the native steps take no traced numbers. Not when this file is imported: it imports the compiler, as torch does when
    the first optimiser is made."""
    if hasattr(torch, "compiler") and not hasattr(LazyOptimiser.step, "_torchdynamo_orig_callable"):
        LazyOptimiser.step = torch.compiler.disable(LazyOptimiser.step)  # type: ignore[method-assign]
