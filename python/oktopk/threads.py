# SPDX-License-Identifier: Apache-2.0
"""Worlds whose ranks are threads of this process. They end with it: threads that still train then get a CommError."""

from __future__ import annotations

from typing import List
from weakref import WeakSet

from oktopk import _core, _ends


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
