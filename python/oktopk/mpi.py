# SPDX-License-Identifier: Apache-2.0
"""MPI from Python through mpi4py, with the MPI that mpi4py was built for.

    from mpi4py import MPI
    comm = oktopk.mpi.communicator(MPI.COMM_WORLD)
    reducer = oktopk.Reducer(comm, n, density=0.01)
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

import numpy as np

from oktopk._core import PythonCommunicator
from oktopk.transport import Bytes, Message

_not_complete: List[Any] = []  # what MPI may still write to


def communicator(comm: Optional[Any] = None, timeout: float = 60.0) -> PythonCommunicator:
    """The ranks of an mpi4py communicator (default: COMM_WORLD), which is duplicated. Collective: waits for ranks that
    start late for the timeout or 60 s, whichever is longer."""
    if comm is None:
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
    copy, request = comm.Idup()
    patience = max(timeout, 60.0)
    if not _poll(request.Test, patience):
        _not_complete.append((copy, request))
        raise TimeoutError(f"mpi: not all ranks came to make a communicator within {patience} s")
    return PythonCommunicator(MpiTransport(copy, timeout), timeout)


def _poll(is_done: Callable[[], Any], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    polls = 0
    while not is_done():
        if time.monotonic() > deadline:
            return False
        polls += 1
        time.sleep(0 if polls < 1000 else 5e-5)
    return True


@dataclass
class _World:
    """A communicator and its tags, shared by a transport and its parts. A part is a list of ranks and a tag of its own,
    since MPI_Comm_split has no timeout."""

    comm: Any
    next_tag: int = 0


@dataclass(eq=False)
class _Exchange:
    """An exchange in flight. Its messages lie in memory from MPI, which stays as long as MPI has a request: a message
    that has begun cannot be taken back."""

    recvs: Sequence[Message]
    sizes: Dict[int, int] = field(default_factory=dict)  # by receive, of the messages that are here
    arrived: Dict[int, Bytes] = field(default_factory=dict)
    rooms: List[Any] = field(default_factory=list)
    requests: List[Any] = field(default_factory=list)


class MpiTransport:
    """Sends with one tag, so that MPI keeps the order of messages. Waits poll. A receive is posted when its message is
    there: Open MPI 4.1 writes a message that is too large beyond the end of the buffer."""

    name = "mpi4py"

    def __init__(self, comm: Any, timeout: float = 60.0):
        """Takes the communicator over. timeout: of split() and host(), in seconds."""
        from mpi4py import MPI

        self._mpi = MPI
        self._settle(_World(comm), list(range(comm.Get_size())), comm.Get_rank(), 0)
        self._timeout = timeout

    def _settle(self, world: _World, ranks: List[int], rank: int, tag: int) -> None:
        self._world, self._ranks, self._tag = world, ranks, tag
        self.rank, self.size = rank, len(ranks)
        world.next_tag = tag + 1
        self._open: Dict[int, _Exchange] = {}
        self._waiting: List[Deque[Tuple[_Exchange, int]]] = [deque() for _ in ranks]  # by peer

    def begin(self, ticket: int, sends: Sequence[Message], recvs: Sequence[Message]) -> None:
        exchange = self._open[ticket] = _Exchange(recvs)
        for peer, what in sends:
            ours = self._room(exchange, len(what))
            ours[:] = what
            send = self._world.comm.Isend([ours, self._mpi.BYTE], self._ranks[peer], self._tag)
            exchange.requests.append(send)
        for i, (peer, _) in enumerate(recvs):
            self._waiting[peer].append((exchange, i))
        self._collect()

    def _room(self, exchange: _Exchange, size: int) -> Bytes:
        exchange.rooms.append(self._mpi.Alloc_mem(max(size, 1)))
        return np.frombuffer(exchange.rooms[-1], np.uint8)[:size]

    def _collect(self) -> None:
        """Receives the messages that have arrived."""
        status = self._mpi.Status()
        for peer, waiting in enumerate(self._waiting):
            while waiting:
                message = self._world.comm.Improbe(self._ranks[peer], self._tag, status)
                if message is None:
                    break
                exchange, i = waiting.popleft()
                size, capacity = status.Get_count(self._mpi.BYTE), len(exchange.recvs[i][1])
                if size > capacity:
                    raise ValueError(f"a message of {size} bytes from rank {peer}, capacity {capacity}")
                ours = self._room(exchange, size)
                exchange.sizes[i], exchange.arrived[i] = size, ours
                exchange.requests.append(message.Irecv([ours, self._mpi.BYTE]))

    def _is_complete(self, exchange: _Exchange) -> bool:
        self._collect()
        return len(exchange.sizes) == len(exchange.recvs) and self._mpi.Request.Testall(exchange.requests)

    def finish(self, ticket: int, timeout: float) -> List[int]:
        exchange = self._open[ticket]
        try:
            if not _poll(lambda: self._is_complete(exchange), timeout):
                raise TimeoutError(f"no answer within {timeout} s")
        except BaseException:
            self.abandon(ticket)
            raise
        for i, (_, into) in enumerate(exchange.recvs):
            into[: exchange.sizes[i]] = exchange.arrived[i]
        self._release(ticket)
        return [exchange.sizes[i] for i in range(len(exchange.recvs))]

    def abandon(self, ticket: int) -> None:
        exchange = self._open.get(ticket)
        if exchange is None:
            return
        for waiting in self._waiting:
            waiting.clear()  # the order is broken: nothing is received any more
        if self._mpi.Request.Testall(exchange.requests):
            self._release(ticket)
        else:
            del self._open[ticket]  # and the memory stays

    def _release(self, ticket: int) -> None:
        exchange = self._open.pop(ticket)
        exchange.arrived.clear()
        for room in exchange.rooms:
            self._mpi.Free_mem(room)

    def _allgather(self, mine: Bytes) -> List[Bytes]:
        """Every rank's array, all of one length, within the timeout."""
        everyone = [mine.copy() for _ in range(self.size)]
        others = [rank for rank in range(self.size) if rank != self.rank]
        ticket = -1  # below those of PythonCommunicator
        self.begin(ticket, [(r, mine) for r in others], [(r, everyone[r]) for r in others])
        self.finish(ticket, self._timeout)
        return everyone

    def split(self, color: int, key: int) -> "MpiTransport":
        mine = np.array([color, key, self._world.next_tag], np.int64)
        wishes = [w.view(np.int64).tolist() for w in self._allgather(mine.view(np.uint8))]
        tag = max(next_tag for _, _, next_tag in wishes)
        last = self._world.comm.Get_attr(self._mpi.TAG_UB)
        if last is not None and tag > last:
            raise ValueError(f"part {tag} of one MPI communicator, and MPI has tags for {last}")
        members = [rank for rank in range(self.size) if wishes[rank][0] == color]
        members.sort(key=lambda rank: wishes[rank][1])
        part = MpiTransport.__new__(MpiTransport)
        part._mpi, part._timeout = self._mpi, self._timeout
        part._settle(self._world, [self._ranks[r] for r in members], members.index(self.rank), tag)
        return part

    def host(self) -> int:
        """The lowest rank of those that run on the host of this one, by its name."""
        mine = np.zeros(self._mpi.MAX_PROCESSOR_NAME, np.uint8)
        name = self._mpi.Get_processor_name().encode()
        mine[: len(name)] = np.frombuffer(name, np.uint8)
        return next(rank for rank, other in enumerate(self._allgather(mine)) if np.array_equal(other, mine))
