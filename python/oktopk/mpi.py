# SPDX-License-Identifier: Apache-2.0
"""MPI from Python, by mpi4py: works with whichever MPI mpi4py was given.

    from mpi4py import MPI
    comm = oktopk.mpi.communicator(MPI.COMM_WORLD)
    reducer = oktopk.Reducer(comm, n, density=0.01)
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from oktopk._core import PythonCommunicator
from oktopk.transport import Message


def communicator(comm: Optional[Any] = None, timeout: float = 60.0) -> PythonCommunicator:
    """The ranks of an mpi4py communicator (default: COMM_WORLD), which is duplicated. Collective."""
    if comm is None:
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
    return PythonCommunicator(MpiTransport(comm.Dup()), timeout)


class MpiTransport:
    """Isend and Irecv with one tag, so that MPI's own ordering rule is ours. Waits poll."""

    name = "mpi4py"

    def __init__(self, comm: Any):
        """Takes the communicator over."""
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self._open: Dict[int, Tuple[List[Any], int]] = {}

    def begin(self, ticket: int, sends: Sequence[Message], recvs: Sequence[Message]) -> None:
        byte = self._mpi.BYTE
        requests = [self._comm.Irecv([into, byte], source=peer) for peer, into in recvs]
        requests += [self._comm.Isend([what, byte], dest=peer) for peer, what in sends]
        self._open[ticket] = (requests, len(recvs))

    def finish(self, ticket: int, timeout: float) -> List[int]:
        requests, receives = self._open[ticket]
        statuses = [self._mpi.Status() for _ in requests]
        deadline = time.monotonic() + timeout
        waits = 0
        try:
            while not self._mpi.Request.Testall(requests, statuses):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no answer within {timeout} s")
                waits += 1
                time.sleep(0 if waits < 1000 else 5e-5)
        except BaseException:
            self.abandon(ticket)
            raise
        del self._open[ticket]
        return [statuses[i].Get_count(self._mpi.BYTE) for i in range(receives)]

    def abandon(self, ticket: int) -> None:
        requests, receives = self._open.pop(ticket, ([], 0))
        for request in requests[:receives]:
            if request:
                request.Cancel()
        # Sends cannot be cancelled everywhere; those under way are given a second to leave.
        deadline = time.monotonic() + 1.0
        while requests and not self._mpi.Request.Testall(requests):
            if time.monotonic() > deadline:
                break
            time.sleep(1e-3)

    def split(self, color: int, key: int) -> "MpiTransport":
        return MpiTransport(self._comm.Split(color, key))

    def host(self) -> int:
        """The lowest rank of those that share memory with this one."""
        near = self._comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        try:
            return int(near.allreduce(self.rank, op=self._mpi.MIN))
        finally:
            near.Free()
