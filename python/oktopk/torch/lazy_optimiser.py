# SPDX-License-Identifier: Apache-2.0
"""The base of SparseAdamW and SparseSGD: which coordinates arrived, the state of a parameter, the clock of silent
coordinates, the weight decay that they owe, saving and loading. A group whose parameters are all on one NVIDIA GPU
makes its steps by kernels (cuda_step.py), others by host_step.py.

While a parameter's gradient always arrived as a whole (warm-up, no source), a step is the plain dense optimiser's. From
its first sparse step on, a step touches only the coordinates that arrived. The names in a parameter's state are the
same from its first step on, and no shape depends on the number of steps. Beyond torch's it holds, by coordinate, the
step in which it last arrived (`last`) and how often it did (`arrivals`), and three numbers: the clock of the group less
the parameter's own steps (`skew`), the step up to which all its decay is paid (`caught_up`), and whether all of it
arrived in all of its steps (`whole`). Numbers are tensors without dimensions, which every way to save and shard states
understands. A saved group holds one thing more than torch's: the clock, as plain numbers (interval_clock.py).
COST: O(k) per sparse step; 4 B per coordinate for the clock.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Protocol, Tuple, Union

import torch
from torch import Tensor
from torch.optim import Optimizer

from oktopk._core import UsageError
from oktopk.torch import cuda_step, host_step
from oktopk.torch._scaler import Scaling
from oktopk.torch.coordinates import NUMBERS, WHERE_NONZERO, Arrived, Job, Layout, checked_indices
from oktopk.torch.coordinates import checked_parameter, clock_of, layout_of, nonzero_of, state_dtype
from oktopk.torch.cuda_step import Plan, Request
from oktopk.torch.flat import inner, local, place_gradient
from oktopk.torch.interval_clock import RUNS, CudaClock, IntervalClock, checked_runs

# Options of torch's optimisers that would change what a step does, and those that say how torch makes it. Here they
# must be as if they were not given: None, False or 0.
_MEANINGS = ("amsgrad", "maximize", "dampening")
_WAYS = ("foreach", "fused", "differentiable")
FOREIGN = _MEANINGS + _WAYS
_OWN = ("mode", "capturable")  # options that a state of torch's may lack


class Arrivals(Protocol):
    """Knows where the synchronised mean arrived: the DDP hook's state, a Reducer, ..."""

    def arrived(self, param: Tensor) -> Arrived:
        """Increasing int64 indices into the parameter, flat and in the order of its memory, where the mean arrived in
        the last step; WHERE_NONZERO: where the gradient is not zero; None: everywhere, a dense step. KeyError where the
        parameter is not known. A source that also has arrived_of(params), the same for a list of parameters in a list,
        is asked once per step."""


class LazyOptimiser(Optimizer):
    """A torch optimiser that moves a weight when something arrives for it."""

    modes: Tuple[str, ...] = ()
    moments: Tuple[str, ...] = ()  # names in the state
    decoupled_decay = False  # weight decay is owed by who is silent
    counts_steps = False  # "step" is in the state
    is_copy = False  # made by pickle or deepcopy, which leave the source behind
    source: Any = None
    # The rule, by host_step.py: a step by torch of a parameter that arrived as a whole in all steps so far, one of the
    # coordinates that arrive after some silent steps, and native steps of all parameters in host memory.
    _dense: Callable[[Job, Dict[str, Any]], None]
    _arrive: Callable[[host_step.Arrivers], None]
    _native: Callable[[host_step.Rows, IntervalClock], None]
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

    def _layout(self, param: Tensor) -> Layout:
        known = self._layouts.get(param)
        if known is not None and not known.is_sharded:
            same = param.stride() == known.stride and param.dtype == known.dtype
            if same and param.is_cpu == known.is_native:
                return known
        self._layouts[param] = found = layout_of(param)
        return found

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
        host_step.check_indices(jobs)
        if jobs and scaling.skips():
            return loss
        scaling.unscale(jobs)
        for group, item in work:
            if isinstance(item, Request):
                plan = self._plan(group, item)
                plan.run(item.answers, self._rule(group, plan.clock), scaling)
            else:
                self._plans.pop(id(group), None)
                self._clock(group).leave_gpu()
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
            answers = list(self._ask(params))
            if len(answers) != len(params):
                raise UsageError(
                    f"oktopk: arrived_of() of the source ({type(self.source).__name__}) gave {len(answers)} answers "
                    f"for {len(params)} parameters: it must give one for each"
                )
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
        rows = host_step.Rows(self.moments)
        for job, state in zip(jobs, states):
            dense = not lazy or self._stays_dense(job, state, clock.now)
            if host_step.fits(job):
                rows.add(job, state, dense)
            elif dense:
                self._dense(job, state)
            else:
                for here in host_step.arrivers(job, state, clock):
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
            on_gpu = clock.on_gpu(inner(request.params[0]).device, key.is_fixed)
            on_gpu.begin(key.is_lazy, max(int(state.get("step", 0)) for state in states))
            layouts = [self._layout(param) for param in request.params]
            plan = self._plans[id(group)] = Plan(key, request, states, layouts, on_gpu)
        return plan

    def _key(self, group: Dict[str, Any]) -> cuda_step.Key:
        lazy = self._is_lazy(group)
        return cuda_step.Key(lazy, group.get("capturable", False), tuple(self._names(group, lazy)))

    def _rule(self, group: Dict[str, Any], clock: CudaClock) -> Dict[str, Any]:
        """The fields of OktopkCudaOptim (oktopk/gpu/kernels/cuda_api.h) that follow from the options of a group."""
        raise NotImplementedError

    def _names(self, group: Dict[str, Any], lazy: bool) -> List[str]:
        """The names of state tensors with one element per coordinate."""
        return [*self.moments, "last"] if lazy else list(self.moments)

    # Owed weight decay

    @torch.no_grad()
    def catch_up(self) -> None:
        """Applies the decoupled weight decay that is owed to coordinates that did not arrive. Changes
        the weights, so all ranks must call it together: at the end of training, before an export. To evaluate on one
        rank in the middle of it, use `with optimiser.caught_up():`. O(n)."""
        self._refuse_while_caught_up("catch_up()")
        for clock, params in self._owing():
            self._pay(clock, params)
            for param in params:
                self.state[param]["caught_up"].fill_(clock_of(self.state[param]))
        for plan in self._plans.values():
            plan.tell_caught_up()

    @contextmanager
    def caught_up(self) -> Iterator[None]:
        """Inside, the weights are as after catch_up(); afterwards they are bit by bit what they were, so that a rank
        may do it alone. Other changes of weights inside the block are undone, too.
        COST: O(n), and a copy of the weights that owe something."""
        self._refuse_while_caught_up("caught_up()")
        owing = self._owing()
        with torch.no_grad():
            copies = [(param, local(param).clone()) for _, params in owing for param in params]
            for clock, params in owing:
                self._pay(clock, params)
        self._is_caught_up = True
        try:
            yield
        finally:
            self._is_caught_up = False
            with torch.no_grad():
                for param, copy in copies:
                    local(param).copy_(copy)

    def _owing(self) -> List[Tuple[IntervalClock, List[Tensor]]]:
        found = []
        for group in self.param_groups:
            clock = self._clock(group)
            states = [(param, self.state.get(param, {})) for param in group["params"]]
            params = [param for param, state in states if "last" in state and not state["whole"]]
            if self.decoupled_decay and clock.native.has_decayed and params:
                found.append((clock, params))
        return found

    def _pay(self, clock: IntervalClock, params: List[Tensor]) -> None:
        rows = host_step.Rows(())
        for param in params:
            layout = self._layout(param)
            if layout.is_native:
                rows.owing(self.state[param], param, layout)
            else:
                host_step.pay_by_torch(param, self.state[param], clock)
        host_step.pay_decay(rows, clock)

    # Saving and loading, by themselves and by torch.distributed.checkpoint; states of torch's Adam, AdamW and SGD, too

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


def _leave_to_python() -> None:
    """Under torch.compile() a step runs as without it: a graph would be made anew for other numbers of arrivals, and
    the native steps take no traced numbers. Not when this file is imported: it imports the compiler, as torch does when
    the first optimiser is made."""
    if hasattr(torch, "compiler") and not hasattr(LazyOptimiser.step, "_torchdynamo_orig_callable"):
        LazyOptimiser.step = torch.compiler.disable(LazyOptimiser.step)  # type: ignore[method-assign]
