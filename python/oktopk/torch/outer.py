# SPDX-License-Identifier: Apache-2.0
"""Local steps with a sparse outer optimiser: ranks train by themselves and meet every H steps.

In the manner of DiLoCo (Douillard et al. 2023, arXiv 2311.08105), with the error feedback and the sparse, coarse
pseudo-gradients of SparseLoCo (arXiv 2508.15706). Every H-th step:

    d      = global weights - this rank's weights          the pseudo-gradient of H local steps
    mean   = sparse mean of decay * unsent + d             what is not sent stays unsent
    v      = momentum * v + mean
    global = global - lr * (mean + momentum * v)           Nesterov; without: lr * v
    this rank's weights = global

COST: 2n floats (3n with momentum) and the Reducer's n, on the GPU of the parameters, or on the host with host_staging;
one exchange in H steps.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Sequence

import torch
import torch.distributed as dist

from oktopk import _core
from oktopk._core import UsageError
from oktopk.options import MoreOptions, require_known, show_options
from oktopk.torch._flat_reducer import AnyWorld, changes
from oktopk.torch._group import Timeout, as_group
from oktopk.torch._sockets import File
from oktopk.torch.checkpoint import Place, unwrap, wrap
from oktopk.torch.elastic import ElasticWorld, StateOf
from oktopk.torch.flat import Layout, Parameters, Start, local
from oktopk.torch.reducer import Reducer

if TYPE_CHECKING:
    from typing_extensions import Unpack


@show_options
class LocalSteps:
    """Outer optimiser: call step() after every step of the inner one.

        outer = oktopk.torch.LocalSteps(model.parameters(), every=30)
        for batch in data:
            ...; optimizer.step(); outer.step()

    After each outer step the weights are bitwise equal on all ranks. At the start those of the group's first rank are
    copied to the others. The inner optimiser's state stays local, and so do buffers (such as the statistics of batch
    normalisation). In an ElasticWorld the members begin with the same weights, and one that joins gets the global ones.

    parameters, process_group, preset, host_staging, timeout, silence, secret_file, encrypt, communicator: as in
        oktopk.torch.Reducer.
    every: local steps per outer step.
    density: the share of the pseudo-gradient's values that an outer step sends (default: 0.02 unless k is given).
    codec: the coding of the exchanged entries; "elias_fano+fp32" is exact.
    decay: multiplies the unsent values before each outer step; 1 forgets nothing.
    outer_lr, outer_momentum, nesterov: 1 and 0 add the mean to the weights, as SparseLoCo does; DiLoCo has a momentum.
    """

    def __init__(
        self,
        parameters: Parameters,
        process_group: Optional[Any] = None,
        *,
        every: int = 30,
        density: Optional[float] = None,
        preset: str = "circulant",
        codec: Optional[str] = "elias_fano+log4",
        decay: float = 0.95,
        outer_lr: float = 1.0,
        outer_momentum: float = 0.0,
        nesterov: bool = True,
        host_staging: bool = False,
        timeout: Optional[Timeout] = None,
        silence: Optional[Timeout] = None,
        secret_file: Optional[File] = None,
        encrypt: Optional[bool] = None,
        communicator: Optional[AnyWorld] = None,
        **options: Unpack[MoreOptions],
    ):
        require_known(LocalSteps.__init__, options)
        _check_hyperparameters(every, outer_lr, outer_momentum)
        self.every = every
        self.outer_lr = outer_lr  # may follow a schedule, the same on all ranks
        self.outer_momentum = outer_momentum
        self.nesterov = nesterov
        self._layout = Layout(parameters, host_staging)
        if preset != "dense":
            self._layout.refuse_mixed()
        self._reducer = Reducer(
            self._layout.n,
            process_group,
            density=0.02 if density is None and options.get("k") is None else density,
            preset=preset,
            codec=codec,
            decay=decay,
            host_staging=host_staging,
            timeout=timeout,
            silence=silence,
            secret_file=secret_file,
            encrypt=encrypt,
            communicator=communicator,
            **options,
        )
        self._reducer.look_after_each_step()  # they are rare
        own = weakref.proxy(self)  # a world that has the start must not keep this object alive
        self._start: Optional[Start] = Start(
            self._layout.given, lambda: own._layout.views(own._weights), settings=lambda: own._settings()
        )
        if communicator is None:
            self._compare_start(with_weights=False)
            _copy_from_first(self._layout.parameters, process_group)
        self._local_steps = 0
        self._delta = self._layout.new_vector()
        self._weights = self._layout.weights()
        self._velocity = torch.zeros_like(self._weights) if outer_momentum > 0 else None
        comm = self._reducer._comm
        if changes(comm):
            comm.check_start(self._start)
        if isinstance(communicator, ElasticWorld):
            self._join(communicator)

    def step(self) -> bool:
        """Counts a local step; each `every`-th is an outer step, which is collective. Returns whether it was one."""
        self._local_steps += 1
        if self._local_steps < self.every:
            return False
        self.synchronise()
        return True

    def synchronise(self) -> None:
        """Collective: makes an outer step now, for example before an evaluation or at the end."""
        self._layout.refuse_thawed()
        self._compare_start()
        self._compute_delta()
        self._reducer.reduce(self._delta)
        self._apply()

    def flush(self) -> None:
        """Collective: an outer step, and then a dense one with everything that is unsent."""
        self.synchronise()
        self._reducer.flush(self._delta)
        self._apply()

    @property
    def local_steps(self) -> int:
        """Local steps since the last outer step."""
        return self._local_steps

    @property
    def reducer(self) -> Reducer:
        """The Reducer of the pseudo-gradients, with stats, steps and unsent_norm."""
        return self._reducer

    def state_dict(self) -> Dict[str, Any]:
        """This rank's state: every rank saves its own, along with its model and inner optimiser."""
        own = {
            "version": 1,
            "local_steps": self._local_steps,
            "weights": self._weights.to("cpu", copy=True),
            "velocity": None if self._velocity is None else self._velocity.to("cpu", copy=True),
            "reducer": self._reducer.state_dict(),
            "parameters": self._layout.to_save(),
        }
        return wrap(self.place(), own)

    def place(self) -> Place:
        """The place of this rank in its group."""
        return self._reducer.place()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Collective: continues from what this rank saved; load its model and inner optimiser too."""
        state = self._own_state(state)
        self._reducer.load_state_dict(state["reducer"])
        self._restore(state)
        self._local_steps = int(state["local_steps"])

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Collective: continues from the states of all ranks of an earlier run, whatever their
        number was, at their last outer step: the weights are set to those of that moment."""
        own = [self._own_state(state) for state in states]
        self._reducer.load_state_dicts([state["reducer"] for state in own])
        self._restore(own[0])
        self._reset()

    def _join(self, world: ElasticWorld) -> None:
        """Global weights and velocity travel to a member that joins. It has nothing to add to the outer step of that
        moment: the others need not wait for its first local steps."""
        own = weakref.proxy(self)  # the world must not keep this object alive
        world.share(
            outer=StateOf(
                lambda: {"weights": own._weights, "velocity": own._velocity}, lambda state: own._load_shared(state)
            )
        )
        if world.has_joined:
            self.synchronise()

    def _compare_start(self, with_weights: bool = True) -> None:
        """Collective, before something is exchanged: parameters and global weights must be the same on all ranks."""
        if self._start is None:
            return
        comm = self._reducer._comm
        if changes(comm):
            comm.check_joined(shares_more=True)  # a member that joins makes its first step in the constructor
        else:
            self._start.compare(partial(_core.require_equal, comm), with_weights)
        if with_weights:
            self._start = None

    def _settings(self) -> str:
        words = f"every {self.every}, outer_lr {self.outer_lr}, outer_momentum {self.outer_momentum}"
        return f"{words}, nesterov {self.nesterov}"

    def _load_shared(self, state: Mapping[str, Any]) -> None:
        self._restore(state)
        self._reset()

    @torch.no_grad()
    def _compute_delta(self) -> None:
        """The difference to where the local steps started: the global weights in the type of the parameter."""
        views = self._layout.views
        pairs = zip(self._layout.parameters, views(self._weights), views(self._delta))
        for parameter, weights, delta in pairs:
            part = local(parameter)
            delta.copy_(weights if part.dtype == torch.float32 else weights.to(part.dtype))
            delta.sub_(part.to(delta))

    @torch.no_grad()
    def _apply(self) -> None:
        """One rounding per operation, so that ranks with other processors get the same bits."""
        move = self._delta
        if self._reducer.skipped:
            move.zero_()  # nan_policy "skip": these local steps are lost on all ranks
        elif self._velocity is not None:
            self._velocity.mul_(self.outer_momentum).add_(move)
            if self.nesterov:
                move.add_(self._velocity * self.outer_momentum)
            else:
                move.copy_(self._velocity)
        if self.outer_lr != 1:
            move.mul_(self.outer_lr)
        self._weights.sub_(move)
        self._reset()

    @torch.no_grad()
    def _reset(self) -> None:
        self._local_steps = 0
        for parameter, part in zip(self._layout.parameters, self._layout.views(self._weights)):
            local(parameter).copy_(part)

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._weights.copy_(state["weights"])
        if self._velocity is not None:
            self._velocity.copy_(state["velocity"])

    def _own_state(self, wrapped: Mapping[str, Any]) -> Mapping[str, Any]:
        state = unwrap(wrapped)
        missing = {"version", "local_steps", "weights", "velocity", "reducer"} - set(state)
        if missing or state["version"] != 1:
            raise UsageError(f"oktopk: not a LocalSteps state of version 1 (lacks {sorted(missing)})")
        if state["weights"].numel() != self._layout.n:
            raise UsageError(f"oktopk: a state of {state['weights'].numel()} weights, but here are {self._layout.n}")
        self._layout.check_saved(state.get("parameters"))
        if (state["velocity"] is None) != (self._velocity is None):
            raise UsageError(
                f"oktopk: a state {'without' if state['velocity'] is None else 'with'} outer "
                f"momentum, but here outer_momentum = {self.outer_momentum}"
            )
        return state


def _check_hyperparameters(every: int, outer_lr: float, outer_momentum: float) -> None:
    if every < 1:
        raise UsageError(f"oktopk: every = {every}, but it must be at least 1")
    if not outer_lr > 0:
        raise UsageError(f"oktopk: outer_lr = {outer_lr}, but it must be positive")
    if not 0 <= outer_momentum < 1:
        raise UsageError(f"oktopk: outer_momentum = {outer_momentum}, but it must be in [0, 1)")


def _copy_from_first(parameters: Sequence[torch.Tensor], process_group: Optional[Any]) -> None:
    group = as_group(process_group)
    first = dist.get_process_group_ranks(group)[0]
    for parameter in parameters:
        part = local(parameter)
        whole = part if part.is_contiguous() else part.contiguous()
        dist.broadcast(whole, first, group)
        if whole is not part:
            part.copy_(whole)
