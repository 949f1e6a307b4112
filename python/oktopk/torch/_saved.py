# SPDX-License-Identifier: Apache-2.0
"""The saved state of a hook: for each bucket its parameters, by name, and its Reducer's state."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch

from oktopk import _core
from oktopk._core import UsageError
from oktopk.torch._channel import Channel
from oktopk.torch._levels import Levels
from oktopk.torch.checkpoint import unwrap
from oktopk.torch.flat import load_states, state_to_bytes, state_to_tensor

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
            Part(b["names"], b["sizes"], [_bytes_of(s, i) for s in states], Levels.read(b))
            for i, b in enumerate(first["buckets"])
        ]
        return Saved(first["world"], first["rank"], parts, first.get("choice")), first["iteration"]

    def load_into(self, channel: Channel, part: Part) -> None:
        """Collective: makes the channel continue from this state."""
        load_states(channel.core, part.states)


def _bytes_of(state: Mapping[str, Any], bucket: int) -> bytes:
    return state_to_bytes(state["buckets"][bucket]["reducer"])


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
