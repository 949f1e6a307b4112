# SPDX-License-Identifier: Apache-2.0
"""The states of OkTopkState, FsdpState, Reducer and LocalSteps in torch.distributed.checkpoint.

    dcp.save({"model": ..., "hook": state}, checkpoint_id=path)
    dcp.load({"model": ..., "hook": state}, checkpoint_id=path)                  # the same ranks
    dcp.load({"model": ..., "hook": Elastic(state, path)}, checkpoint_id=path)   # any number of ranks

DCP writes values of equal names once for all ranks, and loads tensors into those that are there, of the same sizes. But
what is unsent differs from rank to rank and changes its size. So state_dict() is one value under a name with the rank
in it, and the value is a tuple, which DCP takes whole.
COST: this rank's state once more in memory while it is saved; Elastic with another number of ranks reads those of all
ranks, on every rank.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping, NamedTuple, NoReturn, Optional, Union

import torch
import torch.distributed as dist

from oktopk._core import UsageError
from oktopk._requirements import version_numbers

_NAME = re.compile(r"(?:^|\.)oktopk_group_(\d+)_rank_(\d+)_of_(\d+)$")


class Place(NamedTuple):
    """The owner of a state. `first`: the lowest rank of the job in the group: groups that differ (of the shards of
    FSDP, of the stages of a pipeline) may be saved side by side."""

    first: int
    rank: int
    ranks: int

    @property
    def name(self) -> str:
        return f"oktopk_group_{self.first}_rank_{self.rank}_of_{self.ranks}"

    @staticmethod
    def of_group(group: Optional[Any]) -> "Place":
        """The place in a process group; None: among all ranks, or alone where no group exists yet."""
        if not dist.is_initialized():
            return Place(0, 0, 1)
        members = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
        return Place(min(members), members.index(dist.get_rank()), len(members))

    @staticmethod
    def of_communicator(comm: Any) -> "Place":
        group = getattr(getattr(comm, "python_transport", None), "group", None)
        first = Place.of_group(group).first if group is not None else 0
        return Place(first, comm.rank, comm.size)


def wrap(place: Place, state: Dict[str, Any]) -> Dict[str, Any]:
    """One rank's state, as state_dict() gives it."""
    return {place.name: (state,)}


def unwrap(wrapped: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state in a wrapped one; anything else unchanged, for the reader to refuse."""
    if not isinstance(wrapped, Mapping) or len(wrapped) != 1:
        return wrapped
    name, value = next(iter(wrapped.items()))
    is_one = _NAME.match(str(name)) is not None and isinstance(value, tuple) and len(value) == 1
    return value[0] if is_one else wrapped


class Elastic:
    """For dcp.load(): goes on from the states of all ranks of the saved run, whatever their number was; on the same
    number of ranks each reads its own alone, and goes on bitwise.

    state: an OkTopkState, FsdpState (the number of shards must stay), Reducer or LocalSteps.
    saved_in: the check-point: its path, or the StorageReader that dcp.load() gets.
    """

    def __init__(self, state: Any, saved_in: Union[str, "os.PathLike[str]", Any]):
        if version_numbers(torch.__version__) < [2, 4]:
            raise RuntimeError(
                "oktopk: torch.distributed.checkpoint saves the states of all ranks from torch 2.4 "
                f"on: this is torch {torch.__version__}: use torch.save(), one file per rank"
            )
        self._state = state
        self._saved_in = saved_in

    def state_dict(self) -> Dict[str, Any]:
        """The names of the states to read: dcp.load() puts the states in their places."""
        return {place.name: _Awaited() for place in self._saved_places()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Collective: continues from what dcp.load() has read."""
        names = sorted(state_dict, key=lambda name: _place_in(name).rank)
        states = [{name: state_dict[name]} for name in names]
        if names == [self._state.place().name]:
            self._state.load_state_dict(states[0])
        else:
            self._state.load_state_dicts(states)

    def _saved_places(self) -> List[Place]:
        """This rank's own where the number of ranks is the same, else those of all."""
        here = self._state.place()
        saved = {_place_in(name) for name in self._saved_names()}
        if here in saved:
            return [here]
        counts = sorted({place.ranks for place in saved if place.first == here.first})
        if len(counts) != 1:
            raise UsageError(
                f"oktopk: {self._saved_in}: states of a group of ranks that begins with rank {here.first} are needed, "
                f"from one run, but there are states of {sorted(place.name for place in saved) or 'nobody'}"
            )
        return [Place(here.first, rank, counts[0]) for rank in range(counts[0])]

    def _saved_names(self) -> List[str]:
        reader = self._saved_in
        if not hasattr(reader, "read_metadata"):
            from torch.distributed.checkpoint import FileSystemReader

            reader = FileSystemReader(reader)
        return [name for name in reader.read_metadata().state_dict_metadata if _NAME.search(name)]


class _Awaited:
    """Stands for a state that is still to be read."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise UsageError("oktopk: Elastic(state, ...) is for dcp.load(): give dcp.save() the state itself")


def _place_in(name: str) -> Place:
    found = _NAME.search(name)
    if found is None:
        raise UsageError(f"oktopk: '{name}' is not the name of a state")
    first, rank, ranks = (int(number) for number in found.groups())
    return Place(first, rank, ranks)
