# SPDX-License-Identifier: Apache-2.0
"""The flat gradients of the hook: one Reducer per DDP bucket (a channel), made when the bucket shows up and replaced
when DDP rebuilds its buckets; and their saved state.

Unsent mass belongs to parameters. When the layout changes, a new channel takes over what is unsent of its parameters,
and continues the warm-up and the adaptive density of the channels that it replaces. A saved state makes the channels
that were saved; a change of layout then works as always.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from oktopk import _core
from oktopk._core import UsageError
from oktopk.torch._levels import Levels, SecondMoments
from oktopk.torch._scaler import Applied
from oktopk.torch._sharded import Span, arrived_of, make_reducer
from oktopk.torch.checkpoint import unwrap
from oktopk.torch.coordinates import Arrived
from oktopk.torch.flat import load_states, state_to_bytes, state_to_tensor


class Slot(NamedTuple):
    """The place of a parameter in the flat gradient."""

    name: str
    begin: int
    end: int


class Settings(NamedTuple):
    """Equal for all channels."""

    options: Dict[str, Any]  # of their Reducers
    host_staging: bool
    device: Optional[torch.device] = None  # of the gradients
    step_values: int = 0  # of all channels


class Channel:
    """The parameters of one bucket and their Reducer. All ranks have the same channels in the same order."""

    def __init__(self, comm: _core.Communicator, names: Sequence[str], sizes: Sequence[int], settings: Settings):
        self.slots: List[Slot] = []
        self.n = 0
        for name, size in zip(names, sizes):
            self.slots.append(Slot(name, self.n, self.n + size))
            self.n += size
        self.reducer = make_reducer(comm, self.n, settings.options, settings.host_staging, settings.device)
        self.reducer.measure_for(settings.step_values)
        self.core: Any = self.reducer.core

    @property
    def names(self) -> List[str]:
        return [slot.name for slot in self.slots]

    @property
    def levels(self) -> Optional[Levels]:
        return self.reducer.saved_levels

    def step(self, buffer: torch.Tensor, scale: Union[float, torch.Tensor]) -> bool:
        """Collective: the buffer becomes the mean over the ranks. scale: of the loss; the Reducer sees the gradient
        without it. False: the step was skipped, and the contents of the buffer are undefined."""
        if isinstance(scale, torch.Tensor):
            return self._step_unscaled(buffer, scale)
        self.reducer.step(buffer, 1.0 / scale)
        if self.core.skipped:
            return False
        self.reducer.write(buffer, scale)
        return True

    def _step_unscaled(self, buffer: torch.Tensor, scale: torch.Tensor) -> bool:
        """The host does not know the scale. 16-bit gradients are widened, since they could vanish without it."""
        wide = buffer.float()  # the buffer itself where it has this type
        is_made = self.step(wide.mul_(scale.reciprocal()), 1.0)
        wide.mul_(scale)
        if wide is not buffer:
            buffer.copy_(wide)
        return is_made

    def undo(self, applied: Sequence[bool]) -> None:
        """After a step of which not all parameters were applied (_scaler.py)."""
        self.reducer.undo([(slot.begin, slot.end) for slot in self.slots], applied)

    def residual_norm(self) -> float:
        return self.reducer.unsent_norm()

    def unsent(self) -> Dict[str, torch.Tensor]:
        """A copy of this rank's residual and owner memory, by parameter."""
        return self._by_name(self.reducer.unsent())

    def take_unsent(self) -> Dict[str, torch.Tensor]:
        """The same, and nothing is unsent here afterwards."""
        flat = torch.empty(self.n, dtype=torch.float32)
        self.reducer.take_unsent(flat)
        return self._by_name(flat)

    def _by_name(self, flat: torch.Tensor) -> Dict[str, torch.Tensor]:
        return {slot.name: flat[slot.begin : slot.end] for slot in self.slots}

    def give_unsent(self, unsent: Dict[str, torch.Tensor]) -> None:
        """Removes the entries of this channel's parameters from `unsent` and makes them unsent here."""
        mine = [slot for slot in self.slots if slot.name in unsent]
        if not mine:
            return
        flat = torch.zeros(self.n, dtype=torch.float32)
        for slot in mine:
            flat[slot.begin : slot.end] = unsent.pop(slot.name)
        self.reducer.give_unsent(flat)


# Steps of an adaptive density, its present density, entries per value that it spent so far.
Pace = Tuple[int, float, float]


class Channels:
    """All channels of one rank. names: of all parameters, by id(); None: parameters get numbers as they come."""

    def __init__(self, comm: _core.Communicator, settings: Settings, names: Optional[Dict[int, str]]):
        self._comm = comm
        self._settings = settings
        self._names = names if names is not None else {}
        self._are_all_known = names is not None
        self._channels: Dict[Tuple[int, ...], Channel] = {}  # by the ids of their parameters
        self._home: Dict[int, Tuple[int, ...]] = {}  # by the id of a parameter: the key of its channel
        # By name, while buckets are rebuilt: what is unsent, and the pace of the channel it was in.
        self._unsent: Dict[str, torch.Tensor] = {}
        self._paces: Dict[str, Pace] = {}
        self._iteration = -1
        self._steps = 0  # sparse steps made before this iteration
        # By id: the channel and place of the last step; None: the step was dense.
        self._last: Dict[int, Optional[Tuple[Channel, int]]] = {}

    def begin_step(self, iteration: int) -> None:
        """Call it before each sparse bucket. The first call of an iteration counts the steps made so far; channels that
        are made in this iteration continue from there, even if other channels already made their step."""
        if iteration == self._iteration:
            return
        self._iteration = iteration
        steps = [channel.core.steps for channel in self._channels.values()]
        self._steps = max([self._steps, *steps])

    def of_bucket(self, parameters: Sequence[torch.Tensor], moments: Optional[SecondMoments] = None) -> Channel:
        """The channel of these parameters in this order, before a step. Local, the same on all ranks; collective with
        group_size. moments: for a levelled selection."""
        key = tuple(id(p) for p in parameters)
        channel = self._channels.get(key)
        if channel is None:
            self._dissolve(key)
            names = [self._name(i) for i in key]
            channel = self._new_channel(names, [p.numel() for p in parameters], self._unsent)
            self._keep(key, channel)
        if moments is not None and moments.in_use:
            channel.reducer.level_by(moments, parameters)
        for place, p in enumerate(parameters):
            self._last[id(p)] = (channel, place)
        return channel

    def may_have_unsent(self, parameters: Sequence[torch.Tensor]) -> bool:
        """False: take_unsent() would give nothing. The same on all ranks, from any thread."""
        return any(id(p) in self._home or self._name(id(p)) in self._unsent for p in parameters)

    def take_unsent(self, parameters: Sequence[torch.Tensor]) -> Dict[str, torch.Tensor]:
        """Gives what is unsent of these by name, in their order, and forgets it. Empty where nothing is unsent."""
        key = tuple(id(p) for p in parameters)
        self._dissolve(key)
        names = [self._name(i) for i in key]
        if not any(name in self._unsent for name in names):
            return {}
        return {name: self._unsent.pop(name, torch.zeros(p.numel())) for name, p in zip(names, parameters)}

    def give_unsent(self, unsent: Dict[str, torch.Tensor]) -> None:
        """Takes back what take_unsent() gave."""
        self._unsent.update(unsent)

    def note_dense(self, parameters: Sequence[torch.Tensor]) -> None:
        """The caller synchronised these densely."""
        for p in parameters:
            self._last[id(p)] = None

    def arrived_of(self, parameters: Sequence[torch.Tensor]) -> List[Arrived]:
        """Where in each of the parameters the last mean arrived; None: everywhere."""
        spans: List[Optional[Span]] = []
        for parameter in parameters:
            if id(parameter) not in self._last:
                raise UsageError(
                    f"oktopk: a parameter of shape {tuple(parameter.shape)} has not been synchronised: is it part of "
                    "the DDP model that this state is registered on?"
                )
            last = self._last[id(parameter)]
            if last is None:
                spans.append(None)
            else:
                channel, place = last
                spans.append(Span(channel.reducer, channel.slots[place].begin, channel.slots[place].end))
        return arrived_of(spans, parameters)

    def unsent(self) -> Dict[str, torch.Tensor]:
        """A copy, by name, flat."""
        found = dict(self._unsent)
        for channel in self._channels.values():
            found.update(channel.unsent())
        return found

    def to_save(self) -> List[Channel]:
        """All channels. Values that are between two layouts get a channel of their own."""
        channels = list(self._channels.values())
        if self._unsent:
            sizes = [len(values) for values in self._unsent.values()]
            channels.append(self._new_channel(list(self._unsent), sizes, dict(self._unsent)))
        return channels

    def restore(self, saved: Saved) -> None:
        """Collective: makes the channels that were saved, all or none."""
        if not self._are_all_known:
            raise UsageError(
                "oktopk: a state cannot be loaded without the names of the parameters, and no DDP model has those of "
                "this hook's buckets"
            )
        ids = {name: key for key, name in self._names.items()}
        restored: Dict[Tuple[int, ...], Channel] = {}
        for part in saved.parts:
            unknown = [name for name in part.names if name not in ids]
            if unknown:
                raise UsageError(
                    f"oktopk: the saved state has a parameter '{unknown[0]}', which the model has not: was it saved "
                    "from another model?"
                )
            channel = Channel(self._comm, part.names, part.sizes, self._settings)
            load_states(channel.core, part.states)
            channel.reducer.load_levels(part.levels)
            restored[tuple(ids[name] for name in part.names)] = channel
        for key, channel in restored.items():
            self._keep(key, channel)
        if any(channel.core.is_warm for channel in restored.values()):  # nor does that of channels to come begin again
            self._settings = self._settings._replace(options={**self._settings.options, "warmup": None})

    @property
    def profile(self) -> Optional[_core.Profile]:
        """The profile of the network that one of the channels measured; None: none did."""
        profiles = (channel.core.profile for channel in self._channels.values())
        return next((profile for profile in profiles if profile is not None), None)

    def _keep(self, key: Tuple[int, ...], channel: Channel) -> None:
        self._channels[key] = channel
        self._home.update((parameter, key) for parameter in key)

    def _new_channel(self, names: List[str], sizes: List[int], unsent: Dict[str, torch.Tensor]) -> Channel:
        """A channel that takes over what belongs to its parameters."""
        channel = Channel(self._comm, names, sizes, self._settings)
        channel.give_unsent(unsent)
        known = [(self._paces[name], size) for name, size in zip(names, sizes) if name in self._paces]
        mean = mean_pace([pace for pace, _ in known], [size for _, size in known])
        channel.core.begin_at(self._steps, *mean)
        return channel

    def _dissolve(self, key: Tuple[int, ...]) -> None:
        """Channels of an older layout that have some of these parameters give up all of theirs."""
        for other in {self._home[p]: None for p in key if p in self._home}:
            channel = self._channels.pop(other)
            self._unsent.update(channel.take_unsent())
            _, *pace = channel.core.pace
            self._paces.update(dict.fromkeys(channel.names, tuple(pace)))
            for parameter in other:
                del self._home[parameter]

    def _name(self, key: int) -> str:
        if self._are_all_known and key not in self._names:
            raise UsageError(
                "oktopk: a gradient of a parameter that is not of the DDP model which this OkTopkState is registered "
                "on: make one state per model"
            )
        return self._names.setdefault(key, f"parameter {len(self._names)}")

    def clear(self) -> None:
        """Before a state is loaded: drops what is unsent."""
        self._channels.clear()
        self._home.clear()
        self._unsent.clear()
        self._paces.clear()
        self._iteration, self._steps = -1, 0


def mean_pace(paces: Sequence[Pace], sizes: Sequence[int]) -> Pace:
    """The pace for parameters from channels with different adaptive densities. It keeps, summed over all parameters,
    the entries that are sent and those that were spent."""
    if not paces:
        return 0, 0.0, 0.0
    total = max(sum(sizes), 1)
    density = sum(size * pace[1] for size, pace in zip(sizes, paces)) / total
    spent = sum(size * pace[2] for size, pace in zip(sizes, paces)) / total
    steps = max(pace[0] for pace in paces)
    return steps, min(density, 1.0), min(spent, float(steps))  # rounding stays within the rules


VERSIONS = (1, 2)  # 2: with levels


class Part(NamedTuple):
    names: List[str]
    sizes: List[int]
    states: List[bytes]  # this rank's, or those of all ranks of an earlier run
    levels: Optional[Levels] = None  # equal on all ranks


class Saved(NamedTuple):
    world: int
    rank: int
    parts: List[Part]
    choice: Optional[str] = None  # of preset auto on GPUs

    @staticmethod
    def of(channels: Iterable[Channel], comm: Optional[_core.Communicator], choice: Optional[str]) -> "Saved":
        parts = [
            Part(c.names, [slot.end - slot.begin for slot in c.slots], [c.core.save()], c.levels) for c in channels
        ]
        return Saved(comm.size if comm else 0, comm.rank if comm else 0, parts, choice)

    def as_dict(self, iteration: int) -> Dict[str, Any]:
        if any(len(part.states) != 1 for part in self.parts):
            raise UsageError(
                "oktopk: states of several ranks were loaded and no step was made since: there is nothing new to save"
            )
        buckets = [
            {"names": p.names, "sizes": p.sizes, "reducer": state_to_tensor(p.states[0]), **Levels.write(p.levels)}
            for p in self.parts
        ]
        version = 2 if any(part.levels is not None for part in self.parts) else 1
        saved = {"oktopk": version, "world": self.world, "rank": self.rank, "iteration": iteration, "buckets": buckets}
        return saved if self.choice is None else {**saved, "choice": self.choice}

    @staticmethod
    def read(wrapped: Sequence[Mapping[str, Any]]) -> Tuple["Saved", int]:
        if not wrapped:
            raise UsageError("oktopk: no states to load")
        states = [unwrap(state) for state in wrapped]
        for state in states:
            if not isinstance(state, Mapping) or state.get("oktopk") not in VERSIONS:
                raise UsageError(
                    "oktopk: not a state_dict of an OkTopkState, or one of another version "
                    f"(this one reads versions {VERSIONS[0]} to {VERSIONS[-1]})"
                )
        first = states[0]
        if len(states) > 1:
            _check_all(states)
        parts = [
            Part(b["names"], b["sizes"], [state_to_bytes(s["buckets"][i]["reducer"]) for s in states], Levels.read(b))
            for i, b in enumerate(first["buckets"])
        ]
        return Saved(first["world"], first["rank"], parts, first.get("choice")), first["iteration"]


def _check_all(states: Sequence[Mapping[str, Any]]) -> None:
    iterations = sorted({state["iteration"] for state in states})
    if len(iterations) > 1:
        raise UsageError(f"oktopk: states of different steps, of iterations {iterations}")
    if not any(state["buckets"] for state in states):
        return  # saved before the first step
    ranks = [state["rank"] for state in states]
    if ranks != list(range(states[0]["world"])):
        raise UsageError(
            f"oktopk: states of ranks {ranks}, but those of all {states[0]['world']} ranks are needed, in rank order"
        )
    layouts = [[(b["names"], b["sizes"]) for b in state["buckets"]] for state in states]
    if any(layout != layouts[0] for layout in layouts):
        raise UsageError("oktopk: the states are of different models or steps")
    for buckets in zip(*(state["buckets"] for state in states)):
        if any("levels" in b and not torch.equal(b["levels"], buckets[0]["levels"]) for b in buckets):
            raise UsageError("oktopk: the states have different levels of the selection: are they of one run?")


class HookScaler:
    """The hook with a GradScaler: the scale of an iteration, and steps that the GradScaler may still leave out
    (_scaler.py). They are settled when the next iteration begins, or when the state is saved."""

    def __init__(self, scaler: Any, is_on_gpu: bool):
        """is_on_gpu: nothing is to wait for the GPU."""
        self._scaler = scaler
        self._is_on_gpu = is_on_gpu
        self._applied = Applied()
        self.scale: Union[float, torch.Tensor] = 1.0  # a tensor: the host need not know it
        self.forget()

    def forget(self) -> None:
        """Steps so far stay as they are."""
        self._steps: List[Tuple[Channel, Sequence[torch.Tensor]]] = []
        # Unsent values of parameters whose bucket is dense now.
        self._gone: List[Tuple[Sequence[torch.Tensor], Dict[str, torch.Tensor]]] = []

    def begin(self, channels: Channels) -> None:
        """The first of an iteration."""
        self.settle(channels)
        on_gpu = getattr(self._scaler, "_get_scale_async", None) if self._is_on_gpu else None
        scale = on_gpu() if on_gpu is not None else None
        self.scale = float(self._scaler.get_scale()) if scale is None else scale

    def before_step(self, channel: Channel, parameters: Sequence[torch.Tensor], device: torch.device) -> None:
        channel.reducer.keep_for_undo(device)
        self._applied.watch(parameters)
        self._steps.append((channel, parameters))

    def after_dense(self, parameters: Sequence[torch.Tensor], unsent: Dict[str, torch.Tensor]) -> None:
        """A dense step took `unsent` along."""
        if unsent:
            self._applied.watch(parameters)
            self._gone.append((parameters, unsent))

    def settle(self, channels: Channels) -> None:
        """Undoes the step of each parameter that the GradScaler skipped."""
        steps, gone = self._steps, self._gone
        self.forget()
        for channel, parameters in steps:
            channel.undo([p in self._applied for p in parameters])
        for parameters, unsent in gone:
            pairs = zip(parameters, unsent.items())
            channels.give_unsent(dict(u for p, u in pairs if p not in self._applied))
