# SPDX-License-Identifier: Apache-2.0
"""All channels of a model: one per bucket, made as buckets show up, replaced when DDP rebuilds them.

What is unsent belongs to parameters. A new layout takes it from the channels that it replaces; a
saved state makes the channels that were saved, and the same rule takes it from there.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence, Tuple

import torch

from oktopk import _core
from oktopk._core import UsageError
from oktopk.torch._channel import Channel
from oktopk.torch._saved import Saved


class Channels:
    """Of one rank. `names`: of parameters, by id(); those that are missing get a number."""

    def __init__(self, comm: _core.Communicator, options: Dict[str, Any], names: Dict[int, str]):
        self._comm = comm
        self._options = options
        self._names = names
        self._channels: Dict[Tuple[int, ...], Channel] = {}  # by the ids of their parameters
        self._unsent: Dict[str, torch.Tensor] = {}  # by name, while buckets are rebuilt
        # By id: the channel and place of the last step; None: it was dense.
        self._last: Dict[int, Optional[Tuple[Channel, int]]] = {}

    def of_bucket(self, parameters: Sequence[torch.Tensor]) -> Channel:
        """The channel of these parameters in this order. Local, the same on all ranks."""
        key = tuple(id(p) for p in parameters)
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = self._rebuild(key, parameters)
        for place, p in enumerate(parameters):
            self._last[id(p)] = (channel, place)
        return channel

    def note_dense(self, parameters: Sequence[torch.Tensor]) -> None:
        """These were synchronised densely, by someone else."""
        for p in parameters:
            self._last[id(p)] = None

    def arrived(self, parameter: torch.Tensor) -> Optional[torch.Tensor]:
        """Where in the parameter the last mean arrived; None: everywhere."""
        if id(parameter) not in self._last:
            raise UsageError(
                f"oktopk: a parameter of shape {tuple(parameter.shape)} has not been synchronised: "
                "is it part of the DDP model that this state is registered on?"
            )
        last = self._last[id(parameter)]
        if last is None:
            return None
        channel, place = last
        return channel.arrived(channel.slots[place])

    def unsent(self) -> Dict[str, torch.Tensor]:
        """A copy, by name, flat."""
        found = dict(self._unsent)
        for channel in self._channels.values():
            found.update(channel.unsent())
        return found

    def save(self) -> Saved:
        return Saved.of(self._channels.values(), self._comm)

    def restore(self, saved: Saved) -> None:
        """Collective: makes the channels that were saved, all or none."""
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
        self._channels.update(restored)

    def _rebuild(self, key: Tuple[int, ...], parameters: Sequence[torch.Tensor]) -> Channel:
        mine = set(key)
        for other in [k for k in self._channels if mine & set(k)]:
            self._unsent.update(self._channels.pop(other).take_unsent())
        names = [self._names.setdefault(i, f"parameter {len(self._names)}") for i in key]
        channel = Channel(self._comm, names, [p.numel() for p in parameters], self._options)
        channel.give_unsent(self._unsent)
        return channel

    def clear(self) -> None:
        """Before a state is loaded: what is unsent is dropped."""
        self._channels.clear()
        self._unsent.clear()
