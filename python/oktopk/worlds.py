# SPDX-License-Identifier: Apache-2.0
"""Worlds that end with this process (_ends.py): the server of a rendezvous, which is none in a child of fork(), and
ranks that are threads of this process. Threads that still train at the end get a CommError.
"""

from __future__ import annotations

from typing import List
from weakref import WeakSet

from oktopk import _core, _ends


class RendezvousServer(_core.RendezvousServer):
    """The place where the members of a job over TCP meet, and the arbiter of those that change (docs/tcp.md). It serves
    from a thread of its own until close()."""

    def __init__(
        self,
        listen: str = "127.0.0.1:0",
        *,
        secret: str,
        job: str = "",
        encrypt: bool = False,
        grace: float = 30.0,
        state: str = "",
    ):
        """listen: host:port; port 0 is a free one. secret: at least 16 bytes, the same in all members. grace: seconds
        that members are waited for once one of them asks for the next epoch. state: a file with which a server that is
        started anew goes on exactly."""
        super().__init__(listen, secret=secret, job=job, encrypt=encrypt, grace=grace, state=state)
        _ends.own_world(self)

    # For _ends.py.

    def kill(self) -> None:
        pass

    def close_in_child(self) -> None:
        self.close()  # closes the descriptors there, and nothing else


class _Worlds:
    """All of them, for _ends.py."""

    def __init__(self) -> None:
        self.ranks: WeakSet[_core.Communicator] = WeakSet()

    def close(self) -> None:
        for rank in list(self.ranks):
            rank.kill()

    kill = close

    def close_in_child(self) -> None:
        self.ranks.clear()


_worlds = _Worlds()


def thread_world(size: int, timeout: float = 60.0) -> List[_core.Communicator]:
    """The communicators of `size` ranks inside this process, to be used from one thread each."""
    ranks = _core.thread_world(size, timeout)
    _ends.own_world(_worlds)
    _worlds.ranks.update(ranks)
    return ranks
