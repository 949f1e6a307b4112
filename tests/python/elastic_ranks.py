# SPDX-License-Identifier: Apache-2.0
"""Members of an elastic world as threads of this process, over real sockets, for tests."""

from __future__ import annotations

import threading
from typing import Any, Callable, List, Optional

import oktopk
from oktopk.torch import ElasticWorld

SECRET = "a secret of the tests"
SECONDS = 60.0  # a bound against hangs


class Job:
    """A rendezvous and the members that were started so far."""

    def __init__(self, least: int, grace: float = 20.0):
        self.least = least
        self.server = oktopk.RendezvousServer(secret=SECRET, grace=grace)
        self.results: List[Any] = []
        self._threads: List[threading.Thread] = []

    def world(self, on_change: Optional[Callable[..., None]] = None) -> ElasticWorld:
        return ElasticWorld(
            self.server.address, SECRET, least=self.least, timeout=SECONDS / 2, silence=SECONDS / 3, on_change=on_change
        )

    def start(self, body: Callable[..., Any], *args: Any) -> int:
        """body(job, *args) in a thread; returns the place of its result, which is an exception where it raised one."""
        place = len(self.results)
        self.results.append(None)

        def run() -> None:
            try:
                self.results[place] = body(self, *args)
            except BaseException as error:
                self.results[place] = error

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()
        return place

    def wait(self, raises: bool = True) -> List[Any]:
        """The results of all; the threads that are started meanwhile, too. The first exception is raised, or a
        result."""
        for thread in self._threads:
            thread.join(SECONDS)
            assert not thread.is_alive(), "a member does not end"
        self.server.close()
        for result in self.results:
            if raises and isinstance(result, BaseException):
                raise result
        return self.results


class Run:
    """How far one member goes: until it leaves without a word after so many steps, or until some steps after one has
    joined. ends_with: after any change. reached: is set when a newcomer may come."""

    def __init__(self, leaves: Optional[int] = None, reached: Any = None, ends_with: str = "joined"):
        self.leaves, self.reached, self.ends_with = leaves, reached, ends_with
        self.changes: List[Any] = []
        self.end: Optional[int] = None

    def note(self, change: Any) -> None:
        self.changes.append(change)
        if change.joined or self.ends_with == "change":
            self.end = change.step + 4

    def goes_on(self, world: ElasticWorld) -> bool:
        if self.reached is not None and world.committed >= 4:
            self.reached.set()
        assert world.committed < 100_000
        return world.committed not in (self.end, self.leaves)


def run_members(P: int, body: Callable[..., Any], *args: Any) -> List[Any]:
    """body(job, place, *args) by the P members of the first epoch. The first exception is raised."""
    job = Job(P)
    for place in range(P):
        job.start(body, place, *args)
    return job.wait()
