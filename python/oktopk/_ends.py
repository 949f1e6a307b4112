# SPDX-License-Identifier: Apache-2.0
"""The end of this process, in one place (docs/decisions/0030-the-end-of-a-process.md). When the interpreter ends,
worlds that are in use are killed, our threads end within a limit, the other worlds say goodbye, and no thread of ours
is in native code any more. In a child of fork() the worlds of the parent are inert, and their descriptors are closed.

This happens as a function of atexit: Python has then joined the threads of the user that it waits for, which may train
to their end, and threads that it does not wait for still run. Children of multiprocessing do not come to atexit; they
end their worlds with multiprocessing's own finalizers.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from contextlib import suppress
from multiprocessing import process, util
from typing import Any, Protocol
from weakref import WeakSet

from oktopk import _core
from oktopk._core import CommError, UsageError

LIMIT = 5.0  # seconds for the threads, and as many for those of the user in native code
PAUSE = 0.02  # threads of torch that wait for Python's lock get it here, and not when it is too late


class World(Protocol):
    """A native object with connections to others."""

    def kill(self) -> None: ...

    def close(self) -> None: ...

    def close_in_child(self) -> None: ...


class Thread(Protocol):
    """A thread of ours."""

    @property
    def is_busy(self) -> bool: ...

    def stop(self) -> None: ...

    def join(self, seconds: float) -> None: ...


class _Here:
    """The objects of this process; a child of fork() has none."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.worlds: WeakSet[Any] = WeakSet()
        self.threads: WeakSet[Any] = WeakSet()
        self.is_over = False
        self.has_finalizer = False


_here = _Here()


def own_world(world: World) -> None:
    """It ends with the process."""
    check()
    _here.worlds.add(world)
    if process.parent_process() is not None and not _here.has_finalizer:
        util.Finalize(None, _end_child_of_multiprocessing, exitpriority=100)
        _here.has_finalizer = True


def own_thread(thread: Thread) -> None:
    """It ends before its worlds."""
    check()
    _here.threads.add(thread)


def check() -> None:
    """CommError while the interpreter ends. For threads of ours, between two waits."""
    if _here.is_over:
        raise CommError("oktopk: the interpreter is ending")


def require_here(pid: int, what: str) -> None:
    """UsageError in another process than the one that made `what`."""
    if pid != os.getpid():
        raise UsageError(
            f"oktopk: this process was forked from process {pid}, whose {what} it cannot use: make it in the process "
            "that uses it"
        )


def end_worlds() -> None:
    """Ends the threads and the worlds of this process. Others see a rank that left in good order, unless a step was
    under way here."""
    _here.is_over = True
    threads, worlds = list(_here.threads), list(_here.worlds)
    if any(thread.is_busy for thread in threads):
        for world in worlds:
            _try(world.kill)
    for thread in threads:
        _try(thread.stop)
    deadline = time.monotonic() + LIMIT
    for thread in threads:
        _try(lambda: thread.join(max(0.0, deadline - time.monotonic())))
    for world in worlds:
        _try(world.close)


def _try(act: Any) -> None:
    with suppress(BaseException):  # nobody is left to tell, and the others must have their turn, also after a Ctrl-C
        act()


@atexit.register
def _end() -> None:
    try:
        if _here.worlds or _here.threads:
            end_worlds()
            time.sleep(PAUSE)
    finally:  # also after a second Ctrl-C
        _here.is_over = True
        _core.end_native(LIMIT)


def _end_child_of_multiprocessing() -> None:
    """After the threads of the user, which may still train. multiprocessing would wait for them later, in the same way:
    it tells those of a ThreadPoolExecutor that they are to end. A second call does nothing."""
    threading._shutdown()  # type: ignore[attr-defined]
    end_worlds()


def _forget() -> None:
    """In a child of fork(), whose only thread is this one."""
    global _here
    parent, _here = _here, _Here()
    _core.forget_threads()
    for inherited in parent.worlds:
        inherited.close_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
