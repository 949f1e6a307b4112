# SPDX-License-Identifier: Apache-2.0
"""Training whose members fail and join (docs/elastic_pytorch.md). An ElasticWorld takes the place of a process group:

    world = oktopk.torch.ElasticWorld()                 # under `oktopk run --keep-going`
    world.share(model=model, optimizer=optimizer)       # their states travel to a member that joins
    reducer = oktopk.torch.Reducer(model.parameters(), communicator=world, preset="circulant", density=0.01)
    while world.committed < steps:
        if world.committed == steps - 1:
            world.leave_after_next()
        ...; loss.backward(); reducer.reduce_gradients(); optimizer.step()

A step returns when all members have committed it; a failure of others is repaired inside (oktopk/reduce/
elastic_reducer.h). LocalSteps takes such a world in the same way. Steps are made in host memory.
COST: beyond a Reducer's, O(k) and ceil(log2 P) small messages per step; the shared states when somebody joins.
"""

from __future__ import annotations

import io
import logging
import os
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, NoReturn, Optional, Protocol

import torch

from oktopk import _core, _ends, flight
from oktopk._core import CommError, UsageError
from oktopk.torch._sockets import SECRET, SECRET_FILE, File, secret_of, wants_encryption
from oktopk.torch.flat import Start

_log = logging.getLogger("oktopk")
_START = "oktopk.start"  # of what a member sends to one that joins; share() takes no such name


class Change(NamedTuple):
    """One change of the members, as on_change gets it. Members are numbers that are never given twice.

    epoch: the number of the epoch that begins.
    members: its members, by rank.
    lost: members that died, or were given up.
    left: members that left in good order; others have what they had unsent.
    joined: new members, which begin with nothing unsent.
    step: steps that were committed before the change.
    losses: for each lost member, what is known of its unsent values.
    """

    epoch: int
    members: List[int]
    lost: List[int]
    left: List[int]
    joined: List[int]
    step: int
    losses: List[Dict[str, Any]]


class Shareable(Protocol):
    """A model, an optimiser, a scheduler, ..."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


class ElasticWorld:
    """A member of a job whose ranks change. The constructor joins: it returns when this member is in an epoch. One
    Reducer or LocalSteps takes the world as its `communicator`.

    rendezvous: host:port of the arbiter, an oktopk.RendezvousServer or `oktopk run` (default: OKTOPK_RENDEZVOUS).
    secret: at least 16 bytes, the same in all members (default: OKTOPK_SECRET).
    secret_file: instead, a file of this user alone whose first line is the secret (default: OKTOPK_SECRET_FILE).
    least: the first epoch begins when so many have joined (default: OKTOPK_SIZE, else 1).
    encrypt: whether messages are encrypted, the same in all members (default: OKTOPK_ENCRYPT = 1).
    interface: an address or network interface of this host (default: OKTOPK_INTERFACE, else by the rendezvous).
    timeout: seconds of each wait for others: longer than the longest time between two steps.
    join_timeout: seconds that this member waits to be let in: the others do so after their next step.
    silence: seconds after which a member that shows no sign of life is lost; a thread of its own shows them.
    on_change: called with a Change inside of the step after it, on every member.
    """

    def __init__(
        self,
        rendezvous: Optional[str] = None,
        secret: Optional[str] = None,
        *,
        least: Optional[int] = None,
        secret_file: Optional[File] = None,
        encrypt: Optional[bool] = None,
        interface: Optional[str] = None,
        timeout: float = 60.0,
        join_timeout: float = 60.0,
        silence: float = 10.0,
        on_change: Optional[Callable[[Change], None]] = None,
    ):
        self._native = _core.tcp_elastic_world(
            _given(rendezvous, "rendezvous", "OKTOPK_RENDEZVOUS"),
            _secret(secret, secret_file),
            least=_count(least),
            encrypt=wants_encryption(encrypt),
            interface=os.environ.get("OKTOPK_INTERFACE", "") if interface is None else interface,
            timeout=timeout,
            join_timeout=join_timeout,
            silence=silence,
        )
        self._shared = _Shared(self._native, on_change)
        self._core: Optional[_ElasticCore] = None
        flight.watch(self._native)  # type: ignore[arg-type]  # it has a flight, too
        _ends.own_world(self._native)

    @property
    def rank(self) -> int:
        """In this epoch; it changes with the members."""
        return self._native.rank

    @property
    def size(self) -> int:
        """The number of members in this epoch."""
        return self._native.size

    @property
    def members(self) -> List[int]:
        """Their numbers, by rank."""
        return list(self._native.members)

    @property
    def epoch(self) -> int:
        """Counts the changes of the members, from 1 on."""
        return int(self._native.epoch)

    @property
    def committed(self) -> int:
        """Steps of the job so far, also those before this member joined."""
        return 0 if self._core is None else int(self._core.committed)

    @property
    def has_joined(self) -> bool:
        """Whether this member came after the first epoch, and got the shared states from another one."""
        return self._core is not None and bool(self._core.has_joined)

    def share(self, **objects: Shareable) -> None:
        """These states are equal on all members between two steps, and travel to a member that joins. Before the first
        step, with the same names on all members; before or after the Reducer is made. torch.save() writes them, and
        torch.load(weights_only=True) reads them."""
        for name, shareable in objects.items():
            self._shared.add(name, shareable)

    def leave_after_next(self) -> None:
        """The next step is this member's last one. When it returns, all members know that it is committed, and one of
        those that stay has all that this member had unsent."""
        if self._core is None:
            raise UsageError("oktopk: leave_after_next() of a world that has no Reducer")
        self._core.leave_after_next()

    def close(self) -> None:
        """Says goodbye to the other members, which is no way to leave them: what is unsent here is lost, and they have
        to repair their step. leave_after_next() comes before. The end of the interpreter closes the world, too."""
        self._native.close()
        self._shared.clear()

    def __enter__(self) -> "ElasticWorld":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def make_core(self, n: int, options: Dict[str, Any]) -> Any:
        """The native Reducer. A member that joins waits here for the others' next step."""
        shared = self._shared
        self._core = _ElasticCore(self._native, n, options, shared.save, shared.load, shared.change)
        self._core.world = self._native
        return self._core

    def check_start(self, start: Start) -> None:
        """Collective, before the first step: UsageError on all members of the first epoch unless they have the same
        parameters and weights. A failure is repaired in the first step."""
        self._shared.start = start
        if self.has_joined or self.committed > 0:
            return
        try:
            start.compare(self._native.require_equal)
        except CommError:
            pass

    def check_joined(self, shares_more: bool = False) -> None:
        """Before this member's first step, where it joined: UsageError unless it shares what the others share, and its
        parameters and weights are those that the others had when they sent their states."""
        if not shares_more:
            self._shared.check_names()
        self._shared.check_start()


class StateOf(NamedTuple):
    """Two functions as something to share."""

    state_dict: Callable[[], Any]
    load_state_dict: Callable[[Any], Any]


class _Shared:
    """The objects whose states travel, and the hooks of the native Reducer. It does not know the Reducer: nothing would
    free a circle of both."""

    def __init__(self, native: _core.ElasticWorld, on_change: Optional[Callable[[Change], None]]):
        self._native = native
        self._on_change = on_change
        self._objects: Dict[str, Shareable] = {}
        self._arrived: Optional[Mapping[str, Any]] = None  # this member has joined
        self.start: Optional[Start] = None

    def add(self, name: str, shareable: Shareable) -> None:
        if name in self._objects:
            raise UsageError(f"oktopk: '{name}' is shared already")
        for method in ("state_dict", "load_state_dict"):
            if not callable(getattr(shareable, method, None)):
                raise UsageError(f"oktopk: '{name}' is a {type(shareable).__name__}, which has no {method}()")
        self._objects[name] = shareable
        if self._arrived is not None:
            self._load_one(name)

    def clear(self) -> None:
        self._objects.clear()
        self._on_change = self.start = None

    def save(self) -> bytes:
        out = io.BytesIO()
        states = {name: shareable.state_dict() for name, shareable in self._objects.items()}
        if self.start is not None:
            states[_START] = self.start.words()
        torch.save(states, out)
        return out.getvalue()

    def load(self, state: bytes) -> None:
        self._arrived = torch.load(io.BytesIO(state), map_location="cpu", weights_only=True)
        for name in self._objects:
            self._load_one(name)

    def check_names(self) -> None:
        lacking = sorted(set(self._arrived or ()) - {_START} - set(self._objects))
        if lacking:
            raise UsageError(
                f"oktopk: the other members share {', '.join(map(repr, lacking))}, but this member does not: "
                "call share() with the same names on all members, before the first step"
            )

    def check_start(self) -> None:
        theirs = None if self._arrived is None else self._arrived.get(_START)
        if self.start is not None and theirs is not None:
            self.start.require(theirs)

    def change(self, epoch: int, *report: Any) -> None:
        flight.watch(self._native)  # type: ignore[arg-type]  # of the new epoch
        if self._on_change is not None:
            self._on_change(Change(epoch, list(self._native.members), *report))

    def _load_one(self, name: str) -> None:
        assert self._arrived is not None
        if name not in self._arrived:
            there = ", ".join(sorted(set(self._arrived) - {_START})) or "nothing"
            raise UsageError(f"oktopk: this member shares '{name}', but the others share {there}")
        self._objects[name].load_state_dict(self._arrived[name])


def _refuse(name: str) -> property:
    def refuse(_: Any) -> NoReturn:
        raise UsageError(f"oktopk: {name} is not possible in an elastic world: its members change")

    return property(refuse)


class _ElasticCore(_core.ElasticReducer):
    """In the place of a native Reducer (_flat_reducer.py)."""

    world: _core.ElasticWorld

    def step(self, *args: Any) -> None:
        try:
            super().step(*args)
        finally:
            for note in self.world.take_notes():
                _log.warning("oktopk: member of epoch %d: %s", self.world.epoch, note)

    keep_snapshot = _refuse("keep_snapshot()")
    go_back = _refuse("go_back()")
    take_unsent = _refuse("take_unsent()")
    give_unsent = _refuse("give_unsent()")
    residual = _refuse("residual")
    memory = _refuse("memory")
    profile = _refuse("profile")
    use_profile = _refuse("use_profile()")


def _given(value: Optional[str], name: str, variable: str) -> str:
    found = os.environ.get(variable, "") if value is None else value
    if not found:
        raise UsageError(f"oktopk: ElasticWorld needs {name}, or the environment variable {variable} (`oktopk run`)")
    return found


def _secret(given: Optional[str], file: Optional[File]) -> str:
    if given is not None and file is not None:
        raise UsageError("oktopk: ElasticWorld got both secret and secret_file: give one of them")
    found = secret_of(file) if given is None else given
    if not found:
        raise UsageError(
            f"oktopk: ElasticWorld needs secret, or the environment variable {SECRET} (`oktopk run`) or {SECRET_FILE}"
        )
    return found


def _count(least: Optional[int]) -> int:
    if least is not None:
        return least
    said = os.environ.get("OKTOPK_SIZE", "1")
    if not said.isdigit():
        raise UsageError(f"oktopk: OKTOPK_SIZE = {said!r}, but it must be a number of members")
    return int(said)
