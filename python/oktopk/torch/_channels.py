# SPDX-License-Identifier: Apache-2.0
"""All channels of a model: one per bucket, made as buckets show up, replaced when DDP rebuilds them.

Unsent mass belongs to parameters. A new layout takes it from the channels that it replaces, and
goes on in the warm-up and with the adaptive density where they were; a saved state makes the
channels that were saved, and the same rule takes it from there.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from oktopk import _core
from oktopk._core import UsageError
from oktopk.torch._channel import Channel
from oktopk.torch._flat_reducer import Span, arrived_of
from oktopk.torch._saved import Saved

# Steps of an adaptive density, its density now, entries per value that it spent so far.
Pace = Tuple[int, float, float]


class Channels:
    """Of one rank. `names`: of all parameters, by id(); None: they get numbers as they come."""

    def __init__(
        self, comm: _core.Communicator, options: Dict[str, Any], names: Optional[Dict[int, str]]
    ):
        self._comm = comm
        self._options = options
        self._names = names if names is not None else {}
        self._are_all_known = names is not None
        self._channels: Dict[Tuple[int, ...], Channel] = {}  # by the ids of their parameters
        self._home: Dict[int, Tuple[int, ...]] = {}  # by the id of a parameter: its channel's key
        # By name, while buckets are rebuilt: what is unsent, and the pace of the channel it was in.
        self._unsent: Dict[str, torch.Tensor] = {}
        self._paces: Dict[str, Pace] = {}
        self._iteration = -1
        self._steps = 0  # sparse ones, made before this iteration
        # By id: the channel and place of the last step; None: it was dense.
        self._last: Dict[int, Optional[Tuple[Channel, int]]] = {}

    def begin_step(self, iteration: int) -> None:
        """Before each sparse bucket. At the first of an iteration no channel is at work: those that
        are made in this iteration go on from here, whichever of the others has already made it."""
        if iteration == self._iteration:
            return
        self._iteration = iteration
        steps = [channel.core.steps for channel in self._channels.values()]
        self._steps = max([self._steps, *steps])

    def of_bucket(self, parameters: Sequence[torch.Tensor]) -> Channel:
        """The channel of these parameters in this order. Local, the same on all ranks."""
        key = tuple(id(p) for p in parameters)
        channel = self._channels.get(key)
        if channel is None:
            channel = self._rebuild(key, parameters)
            self._keep(key, channel)
        for place, p in enumerate(parameters):
            self._last[id(p)] = (channel, place)
        return channel

    def may_have_unsent(self, parameters: Sequence[torch.Tensor]) -> bool:
        """False: take_unsent() would give nothing. The same on all ranks, from any thread."""
        return any(id(p) in self._home or self._name(id(p)) in self._unsent for p in parameters)

    def take_unsent(self, parameters: Sequence[torch.Tensor]) -> Dict[str, torch.Tensor]:
        """What is unsent of these, by name, in their order; empty where nothing is. It is forgotten
        here."""
        key = tuple(id(p) for p in parameters)
        self._dissolve(key)
        names = [self._name(i) for i in key]
        if not any(name in self._unsent for name in names):
            return {}
        return {
            name: self._unsent.pop(name, torch.zeros(p.numel()))
            for name, p in zip(names, parameters)
        }

    def give_unsent(self, unsent: Dict[str, torch.Tensor]) -> None:
        """Takes back what take_unsent() gave."""
        self._unsent.update(unsent)

    def note_dense(self, parameters: Sequence[torch.Tensor]) -> None:
        """These were synchronised densely, by someone else."""
        for p in parameters:
            self._last[id(p)] = None

    def arrived_of(self, parameters: Sequence[torch.Tensor]) -> List[Optional[torch.Tensor]]:
        """Where in each of the parameters the last mean arrived; None: everywhere."""
        return arrived_of([self._span(parameter) for parameter in parameters], parameters)

    def _span(self, parameter: torch.Tensor) -> Optional[Span]:
        if id(parameter) not in self._last:
            raise UsageError(
                f"oktopk: a parameter of shape {tuple(parameter.shape)} has not been synchronised: "
                "is it part of the DDP model that this state is registered on?"
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

    def save(self) -> Saved:
        """What is between two layouts is saved as a bucket of its own."""
        channels = list(self._channels.values())
        if self._unsent:
            sizes = [len(values) for values in self._unsent.values()]
            rest = Channel(self._comm, list(self._unsent), sizes, self._options)
            self._pass_on(rest, dict(self._unsent))
            channels.append(rest)
        return Saved.of(channels, self._comm)

    def restore(self, saved: Saved) -> None:
        """Collective: makes the channels that were saved, all or none."""
        if not self._are_all_known:
            raise UsageError(
                "oktopk: a state cannot be loaded without the names of the parameters, and no DDP "
                "model has those of this hook's buckets"
            )
        ids = {name: key for key, name in self._names.items()}
        restored: Dict[Tuple[int, ...], Channel] = {}
        for part in saved.parts:
            unknown = [name for name in part.names if name not in ids]
            if unknown:
                raise UsageError(
                    f"oktopk: the saved state has a parameter '{unknown[0]}', which the model has "
                    "not: was it saved from another model?"
                )
            channel = Channel(self._comm, part.names, part.sizes, self._options)
            saved.load_into(channel, part)
            restored[tuple(ids[name] for name in part.names)] = channel
        for key, channel in restored.items():
            self._keep(key, channel)

    @property
    def profile(self) -> Optional[_core.Profile]:
        """Of the network, as one of the channels has measured it; None: none has."""
        profiles = (channel.core.profile for channel in self._channels.values())
        return next((profile for profile in profiles if profile is not None), None)

    def _rebuild(self, key: Tuple[int, ...], parameters: Sequence[torch.Tensor]) -> Channel:
        self._dissolve(key)
        names = [self._name(i) for i in key]
        channel = Channel(self._comm, names, [p.numel() for p in parameters], self._options)
        self._pass_on(channel, self._unsent)
        return channel

    def _keep(self, key: Tuple[int, ...], channel: Channel) -> None:
        self._channels[key] = channel
        self._home.update((parameter, key) for parameter in key)

    def _pass_on(self, channel: Channel, unsent: Dict[str, torch.Tensor]) -> None:
        """To a new channel, what belongs to its parameters."""
        channel.give_unsent(unsent)
        slots = [slot for slot in channel.slots if slot.name in self._paces]
        sizes = [slot.end - slot.begin for slot in slots]
        mean = mean_pace([self._paces[slot.name] for slot in slots], sizes)
        channel.core.begin_at(self._steps, *mean)

    def _dissolve(self, key: Tuple[int, ...]) -> None:
        """The channels of an older layout that have some of these parameters give up all theirs."""
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
                "oktopk: a gradient of a parameter that is not of the DDP model which this "
                "OkTopkState is registered on: make one state per model"
            )
        return self._names.setdefault(key, f"parameter {len(self._names)}")

    def clear(self) -> None:
        """Before a state is loaded: what is unsent is dropped."""
        self._channels.clear()
        self._home.clear()
        self._unsent.clear()
        self._paces.clear()
        self._iteration, self._steps = -1, 0


def mean_pace(paces: Sequence[Pace], sizes: Sequence[int]) -> Pace:
    """Of parameters that come from channels of different adaptive densities. The sum over all
    parameters of what is sent and of what was spent stays."""
    if not paces:
        return 0, 0.0, 0.0
    total = max(sum(sizes), 1)
    density = sum(size * pace[1] for size, pace in zip(sizes, paces)) / total
    spent = sum(size * pace[2] for size, pace in zip(sizes, paces)) / total
    steps = max(pace[0] for pace in paces)
    return steps, min(density, 1.0), min(spent, float(steps))  # rounding stays within the rules
