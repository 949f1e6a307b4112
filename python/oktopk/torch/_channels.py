# SPDX-License-Identifier: Apache-2.0
"""One Reducer per DDP bucket (a channel), made when the bucket shows up and replaced when DDP rebuilds its buckets.

Unsent mass belongs to parameters. When the layout changes, a new channel takes over what is unsent of its parameters,
and continues the warm-up and the adaptive density of the channels that it replaces. A saved state makes the channels
that were saved; a change of layout then works as always.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple

import torch

from oktopk import _core
from oktopk._core import UsageError
from oktopk.torch._channel import Channel, Settings
from oktopk.torch._levels import SecondMoments
from oktopk.torch._spans import Span, arrived_of
from oktopk.torch.coordinates import Arrived

if TYPE_CHECKING:
    from oktopk.torch._saved import Saved

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
            channel.level_by(moments, parameters)
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
        return arrived_of([self._span(parameter) for parameter in parameters], parameters)

    def _span(self, parameter: torch.Tensor) -> Optional[Span]:
        if id(parameter) not in self._last:
            raise UsageError(
                f"oktopk: a parameter of shape {tuple(parameter.shape)} has not been synchronised: is it part of the "
                "DDP model that this state is registered on?"
            )
        last = self._last[id(parameter)]
        if last is None:
            return None
        channel, place = last
        return channel.span(place)

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
            saved.load_into(channel, part)
            channel.load_levels(part.levels)
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
