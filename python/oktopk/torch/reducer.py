# SPDX-License-Identifier: Apache-2.0
"""Explicit synchronisation for your own training loop, or any group of ranks: tensor- and pipeline-parallel jobs have
one Reducer per data-parallel group.

    reducer = oktopk.torch.Reducer(model.parameters(), group, total_steps=10_000)
    loss.backward()
    reducer.reduce_gradients()      # p.grad is now the mean, equal on all ranks of the group
    optimizer.step()

COST: n floats for what is unsent, n more for the flat gradient of a list of parameters, on the GPU of CUDA tensors.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch

from oktopk import _core
from oktopk._core import UsageError, check_options
from oktopk.flight import Recorded
from oktopk.options import MoreOptions, require_known, show_options, truth, with_recipe
from oktopk.reducer import ReducerBase
from oktopk.torch._choice import choice_of, with_choice
from oktopk.torch._flat_reducer import AnyWorld, changes
from oktopk.torch._group import Timeout, compare_options, refuse_beside_communicator, require_equal
from oktopk.torch._levels import Levels, SecondMoments
from oktopk.torch._sharded import Span, arrived_of, make_reducer
from oktopk.torch._sockets import File
from oktopk.torch.checkpoint import Place, unwrap, wrap
from oktopk.torch.coordinates import Arrived
from oktopk.torch.flat import Layout, Parameters, Start, check_tensor, load_states, local, place_gradient
from oktopk.torch.flat import state_to_bytes, state_to_tensor
from oktopk.torch.process_group import communicator as make_communicator

if TYPE_CHECKING:
    from typing_extensions import Unpack


@show_options
class Reducer(ReducerBase, Recorded):
    """Synchronises the gradients of a list of parameters, or flat tensors of n values, over the ranks of a process
    group (default: all of them; the constructor is collective over it).

    Each step adds the gradient to what is unsent on this rank, exchanges about `density * n` entries and gives the mean
    of the largest sums; what was not sent waits for a later step.

    After a step that nan_policy "skip" left out, the result is NaN on all ranks, as it would be after a dense mean, so
    that a GradScaler notices; without one, ask `skipped` before optimizer.step(). Arguments:

    parameters: the parameters, or pairs of name and parameter (model.named_parameters()) so that errors can name them;
        or n for flat tensors of n values.
    process_group: the ranks, as a process group or a DeviceMesh of one dimension (default: all ranks).
    total_steps: the steps of the whole run: whatever of density, codec and warmup is not given follows from the recipe
        (docs/learning.md).
    density: the share of the values that a step sends, above 0 and below 1 (default: the recipe's; without total_steps
        0.01; none where k is given).
    preset: "auto", or a name of oktopk.presets().
    host_staging: True copies tensors of an accelerator to the host and back in every step. CUDA tensors do not need it:
        without it their GPU selects, and keeps what is unsent.
    timeout: seconds, or a timedelta, after which a wait for another rank gives up (default: that of the process group).
    silence: seconds, or a timedelta, after which a rank without a sign of life is lost (default: 30 s); at least 0.1 s,
        the same on all ranks. A thread of its own shows them, also during long computations.
    secret_file, encrypt: as in oktopk.torch.communicator().
    communicator: used instead of one made of process_group. Reducers may share one as long as all ranks use them in the
        same order. A world whose members change has one Reducer (docs/elastic_pytorch.md).
    codec: the coding of entries on the wire; None: the preset's own.
    decay: multiplies the unsent values in each step; 1 (the default) forgets nothing.
    levelled: as in OkTopkState (default: with total_steps), for reduce_gradients(). No effect where members change.
    """

    def __init__(
        self,
        parameters: Union[int, Parameters],
        process_group: Optional[Any] = None,
        *,
        density: Optional[float] = None,
        preset: str = "auto",
        host_staging: bool = False,
        timeout: Optional[Timeout] = None,
        silence: Optional[Timeout] = None,
        secret_file: Optional[File] = None,
        encrypt: Optional[bool] = None,
        communicator: Optional[AnyWorld] = None,
        codec: Optional[str] = None,
        decay: Optional[float] = None,
        total_steps: Optional[int] = None,
        levelled: Optional[bool] = None,
        **options: Unpack[MoreOptions],
    ):
        require_known(Reducer.__init__, options)
        self._host_staging = host_staging
        self._layout: Optional[Layout] = None
        if isinstance(parameters, int):
            n = parameters
        else:
            self._layout = Layout(parameters, host_staging)
            n = self._layout.n
            if preset != "dense":
                self._layout.refuse_mixed()
        named = {"density": density, "preset": preset, "codec": codec, "decay": decay}
        dense_steps, given = with_recipe(named, options, None if total_steps is not None else 0, total_steps)
        if dense_steps > 0:
            given["warmup"] = [(dense_steps, 1.0)]
        if communicator is not None:
            refuse_beside_communicator(timeout=timeout, silence=silence, secret_file=secret_file, encrypt=encrypt)
        comm: Any = communicator or make_communicator(
            process_group, timeout, silence=silence, secret_file=secret_file, encrypt=encrypt
        )
        self._comm = comm
        self._levelled = total_steps is not None if levelled is None else truth("levelled", levelled)
        self._moments = SecondMoments()
        self._wanted: Dict[str, Any] = given
        home = None if self._layout is None else self._layout.home
        self._make(n, None if home is None else choice_of(comm, self._wanted, home, n))
        self._flat: Optional[torch.Tensor] = None  # of the parameters
        self._start = None if self._layout is None else Start(self._layout.given)  # None: nothing to compare
        self._is_compared = False
        if changes(comm) and self._start is not None:
            comm.check_start(self._start)

    def _make(self, n: int, choice: Optional[str]) -> None:
        """choice: of preset auto on GPUs (_choice.py)."""
        self._choice = choice
        home = None if self._layout is None else self._layout.home
        options = with_choice(self._wanted, choice)
        self._flat_reducer = make_reducer(self._comm, n, options, self._host_staging, home)
        core: Any = self._flat_reducer.core
        super().__init__(core)

    def _compare_start(self) -> None:
        """Collective, before the first exchange: options, parameters and weights must be the same on all ranks. With
        other presets they would not even make the same calls."""
        if self._is_compared:
            return
        if not changes(self._comm):
            words = f"density {self._wanted['density']}, levelled {self._levelled}, {check_options(self._wanted)}"
            compare_options(self._comm, words)
        if self._start is not None and changes(self._comm):
            self._comm.check_joined()
        elif self._start is not None:
            self._start.compare(partial(_core.require_equal, self._comm))
        self._is_compared = True

    def reduce_gradients(self, scale: float = 1.0) -> None:
        """Collective: replaces each p.grad by the mean over the ranks of scale * p.grad. The first call compares
        parameters and weights: a difference is a UsageError on all ranks.

        A gradient that is missing on this rank counts as zero, and is there afterwards: whatever arrives must be
        applied on all ranks. With a loss scale S, pass scale=1/S and do not unscale again: what is unsent must not
        change its meaning when S does.
        """
        layout = self._need_layout("reduce_gradients")
        layout.refuse_thawed()
        self._compare_start()
        if self._levelled and self._flat_reducer.may_level:
            self._level(layout)
        flat = self._vector(self._flat_reducer.makes_dense(layout.device))
        for parameter, part in zip(layout.parameters, layout.views(flat)):
            if parameter.grad is None:
                part.zero_()
                continue
            place_gradient(parameter)
            gradient = local(parameter.grad)
            check_tensor(gradient, "a gradient", self._host_staging)
            part.copy_(gradient)
        self._flat_reducer.step(flat, scale)
        self._write_gradients(flat)

    def use_second_moments(self, optimiser: torch.optim.Optimizer) -> None:
        """Called by SparseAdamW: with `levelled`, its `exp_avg_sq` takes part in the selection of reduce_gradients().
        It is equal on all ranks."""
        self._moments.add(optimiser)

    def _level(self, layout: Layout) -> None:
        """Collective the first time: either all ranks have the moments, or none uses them."""
        if not self._moments.is_decided:
            self._moments.use_for(layout.parameters)
            if getattr(self._comm, "python_transport", None) is not None:
                require_equal(self._comm, f"levelled by an optimiser {self._moments.in_use}")
        if self._moments.in_use:
            self._flat_reducer.level_by(self._moments, layout.parameters)

    def reduce(self, flat: torch.Tensor, scale: float = 1.0, factor: float = 1.0) -> torch.Tensor:
        """Collective: replaces a flat tensor by factor times the mean over the ranks of scale * flat. With a loss scale
        S, scale=1/S and factor=S keep what is unsent unscaled."""
        self._check_flat(flat)
        self._compare_start()
        self._flat_reducer.step(flat, scale)
        self._write(flat, factor)
        return flat

    def flush(self, out: Optional[torch.Tensor] = None) -> Optional[torch.Tensor]:
        """Collective: the mean of everything that is unsent, in one dense exchange; nothing is left. Into `out` where
        given, else into each p.grad; a reducer made with n returns it."""
        if out is not None:
            self._check_flat(out)
        self._compare_start()
        self._flat_reducer.flush()
        if out is None and self._layout is not None:
            self._write_gradients(self._vector(False))
            return None
        if out is None:
            out = torch.empty(self.n)
        self._write(out)
        return out

    def arrived(self, parameter: torch.Tensor) -> Arrived:
        """Where the last mean arrived: int64 indices into the parameter (the local shard of a DTensor), flat and in the
        order of its memory, increasing, on its device. None: everywhere, after a dense step. `oktopk.torch.SparseAdamW`
        asks its source for this."""
        return self.arrived_of([parameter])[0]

    def arrived_of(self, parameters: Sequence[torch.Tensor]) -> List[Arrived]:
        """The same for many parameters, in less time."""
        layout = self._need_layout("arrived")
        return arrived_of([self.span(*layout.span(p)) for p in parameters], parameters)

    def span(self, begin: int, end: int) -> Span:
        """begin..end-1 of the flat gradient."""
        return Span(self._flat_reducer, begin, end)

    @property
    def unsent_norm(self) -> float:
        """The norm of all that is unsent on this rank. COST: a pass over n values, with levels a few."""
        return self._flat_reducer.unsent_norm()

    @property
    def skipped(self) -> bool:
        """Whether the last step was left out: a gradient was not finite, nan_policy is "skip". After a step that stayed
        on the GPU it waits for the GPU."""
        return self._flat_reducer.skipped

    def look_after_each_step(self) -> None:
        """Steps that stay on the GPU: looks for trouble after each of them, and not after many."""
        self._flat_reducer.look_every = 1

    @property
    def profile(self) -> Optional[_core.Profile]:
        """Preset "auto", after the first step: the measured profile of the network."""
        return self._core.profile

    def use_profile(self, profile: _core.Profile) -> None:
        """Preset "auto", before it has measured: decides by this profile. All ranks together."""
        self._core.use_profile(profile)

    def measure_for(self, step_values: int) -> None:
        """Preset "auto": this Reducer has a part of a step of so many values, for which it measures."""
        self._flat_reducer.measure_for(step_values)

    def state_dict(self) -> Dict[str, Any]:
        """This rank's state: every rank saves its own."""
        levels = self._flat_reducer.saved_levels
        own = {
            "version": 1 if levels is None else 2,
            "rank": self._comm.rank,
            "ranks": self._comm.size,
            "n": self.n,
            "state": state_to_tensor(self._core.save()),
            **Levels.write(levels),
        }
        if self._layout is not None:
            own["parameters"] = self._layout.to_save()
        if self._choice is not None:
            own["choice"] = self._choice
        return wrap(self.place(), own)

    def place(self) -> Place:
        """The place of this rank in its group."""
        return Place.of_communicator(self._comm)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Collective: continues from what this rank saved, bitwise as if never stopped."""
        state = self._own_state(state)
        if (state["rank"], state["ranks"]) != (self._comm.rank, self._comm.size):
            raise UsageError(
                f"oktopk: the state of rank {state['rank']} of {state['ranks']}, but this is rank "
                f"{self._comm.rank} of {self._comm.size}: load_state_dicts() takes those of all"
            )
        self._take_choice(state)
        load_states(self._core, [state_to_bytes(state["state"])])
        self._flat_reducer.load_levels(Levels.read(state))

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Collective: continues from the states of all ranks of an earlier run, in any order, whatever their number
        was. All ranks give the same states."""
        own = [self._own_state(state) for state in states]
        ordered = sorted(own, key=lambda state: state["rank"])
        ranks = [state["rank"] for state in ordered]
        if ranks != list(range(ordered[0]["ranks"] if ordered else 1)):
            raise UsageError(f"oktopk: the states of ranks {ranks}, but all of the earlier run are needed")
        self._take_choice(ordered[0])
        self._core.load_all([state_to_bytes(state["state"]) for state in ordered])
        self._flat_reducer.load_levels(Levels.read(ordered[0]))

    def _own_state(self, wrapped: Mapping[str, Any]) -> Mapping[str, Any]:
        state = unwrap(wrapped)
        missing = {"version", "rank", "ranks", "n", "state"} - set(state)
        if missing or state["version"] not in (1, 2):
            raise UsageError(f"oktopk: not a Reducer's state of version 1 or 2 (lacks {sorted(missing)})")
        if state["n"] != self.n:
            raise UsageError(f"oktopk: a state of n = {state['n']} values, but here n = {self.n}")
        if self._layout is not None:
            self._layout.check_saved(state.get("parameters"))
        return state

    def _take_choice(self, state: Mapping[str, Any]) -> None:
        """Preset auto keeps the choice of the run that saved."""
        if state.get("choice") != self._choice and self._wanted["preset"] == "auto":
            self._make(self.n, state.get("choice"))

    def keep_snapshot(self) -> None:
        """Remembers all that a step changes, a copy of n floats, for go_back()."""
        self._flat_reducer.keep_snapshot()

    def go_back(self) -> None:
        """Undoes the steps since keep_snapshot(). All ranks must do it together."""
        self._flat_reducer.go_back()

    def keep_for_undo(self, device: torch.device) -> None:
        """Before a step with a tensor of this device, so that undo() can follow. COST: a copy of n floats."""
        self._flat_reducer.keep_for_undo(device)

    def undo(self, spans: Sequence[Tuple[int, int]], applied: Sequence[bool]) -> None:
        """Call it after keep_for_undo() and a step: undoes the step for parameters at these spans of the flat gradient
        that were not applied. All ranks must do it together."""
        self._flat_reducer.undo(spans, applied)

    def _vector(self, is_dense: bool) -> torch.Tensor:
        """For the flat gradient: a dense step leaves it on its device."""
        layout = self._need_layout("reduce_gradients")
        if is_dense and layout.device != layout.home:
            return torch.empty(self.n, dtype=torch.float32, device=layout.device)
        if self._flat is None:
            self._flat = layout.new_vector()
        return self._flat

    @torch.no_grad()
    def _write(self, flat: torch.Tensor, factor: float = 1.0) -> None:
        if self._core.skipped:
            flat.fill_(float("nan"))
        else:
            self._flat_reducer.write(flat, factor)

    @torch.no_grad()
    def _write_gradients(self, flat: torch.Tensor) -> None:
        layout = self._need_layout("flush")
        self._write(flat)
        for parameter, part in zip(layout.parameters, layout.views(flat)):
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            local(parameter.grad).copy_(part)

    def _check_flat(self, flat: torch.Tensor) -> None:
        check_tensor(flat, "the tensor", self._host_staging)
        if flat.dim() != 1 or not flat.is_contiguous() or flat.numel() != self.n:
            raise UsageError(
                f"oktopk: a tensor of shape {tuple(flat.shape)} and strides {flat.stride()}, but "
                f"it must be contiguous, of one dimension and of n = {self.n} values"
            )

    def _need_layout(self, what: str) -> Layout:
        if self._layout is None:
            raise UsageError(f"oktopk: {what}() needs a Reducer of parameters; this one has n only")
        return self._layout
