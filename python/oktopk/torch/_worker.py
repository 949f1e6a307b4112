# SPDX-License-Identifier: Apache-2.0
"""The thread of the DDP hook. It runs jobs in the order of submit(), so buckets are exchanged while backward goes on,
in the same order on all ranks. docs/decisions/0016-python-without-libtorch.md says why it is not C++'s OrderedWorker.

Errors of the hook reach the caller of backward() as they are: type, text and traceback. DDP would make a RuntimeError
of an exception in the future of a hook, and cannot continue after one from the hook itself. So the hook always gives
DDP a tensor, and the last callback of backward(), which runs after DDP has waited for all buckets, raises the error.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
import traceback
import weakref
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional, Set

import torch

from oktopk import _ends

Job = Optional[Callable[[], None]]  # None: the end


class HookThread:
    """The thread starts with the first job and ends with this object or with the process (_ends.py). While it waits, it
    holds no reference to this object."""

    def __init__(self, name: str, on_error: Callable[[BaseException], None]):
        """on_error: a method that gets what a job raises, in the worker's thread. Its object is not kept alive."""
        self._name = name
        self._on_error = weakref.WeakMethod(on_error)
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        weakref.finalize(self, self._jobs.put, None)
        self._thread: Optional[threading.Thread] = None
        self._pid = 0  # of the thread
        self._numbers = itertools.count()
        self._open: Set[int] = set()  # jobs whose future is not set
        self._stream: Optional[torch.cuda.Stream] = None

    def submit(self, job: Callable[[], None], result: torch.Tensor) -> "torch.futures.Future[torch.Tensor]":
        """The future holds `result` when the job has ended, even if it raised: DDP waits for the future and cannot read
        an exception."""
        self._begin()
        device = result.device
        future, number = new_future(device), next(self._numbers)
        is_cuda = device.type == "cuda"
        is_ready = torch.cuda.current_stream(device).record_event() if is_cuda else None

        def work() -> None:
            try:
                with self._behind(is_ready, device):
                    self._attempt(job)
                    self._open.discard(number)
                    future.set_result(result)
            except BaseException as error:  # of the device
                self._tell(error)
                self._open.discard(number)
                future.set_result(result)

        self._open.add(number)
        self._jobs.put(work)
        return future

    def _begin(self) -> None:
        """Daemon: Python must not wait for this thread without a limit."""
        _ends.check()
        if self._thread is not None:
            _ends.require_here(self._pid, "state of the hook")
        else:
            self._pid = os.getpid()
            self._thread = threading.Thread(target=_run, args=(self._jobs,), name=self._name, daemon=True)
            self._thread.start()
            _ends.own_thread(self)

    # For _ends.py.

    @property
    def is_busy(self) -> bool:
        return bool(self._open)

    def stop(self) -> None:
        self._jobs.put(None)

    def join(self, seconds: float) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _attempt(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self._tell(error)

    def _tell(self, error: BaseException) -> None:
        """Drops the first frame of the traceback: it is one of this file and holds the job."""
        on_error, trace = self._on_error(), error.__traceback__
        if on_error is not None:
            on_error(error.with_traceback(trace.tb_next if trace is not None else None))

    def drain(self) -> None:
        """Waits until all jobs so far have ended."""
        if self._thread is not None:
            self._begin()
            done = threading.Event()
            self._jobs.put(done.set)
            done.wait()

    @contextmanager
    def _behind(self, is_ready: Optional[Any], device: torch.device) -> Iterator[None]:
        """Jobs for a CUDA device run on a stream of their own, after everything that backward has queued so far. The
        future tells its reader where that stream ends."""
        if is_ready is None:
            yield
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(is_ready)
            yield


class HookStream(HookThread):
    """The same for jobs that only queue work on a GPU: they run at once, in the thread of backward(), on a stream of
    their own. So their collectives keep DDP's order, and may use DDP's own process group."""

    def submit(self, job: Callable[[], None], result: torch.Tensor) -> "torch.futures.Future[torch.Tensor]":
        future = new_future(result.device)
        is_ready = torch.cuda.current_stream(result.device).record_event() if result.is_cuda else None
        with self._behind(is_ready, result.device):
            self._attempt(job)
            if self._stream is not None:
                result.record_stream(self._stream)
            future.set_result(result)
        return future


def _run(jobs: queue.SimpleQueue[Job]) -> None:
    while True:
        job = jobs.get()
        if job is None:
            return
        job()  # after the end of the worlds it fails at once
        del job  # before the next wait, because it keeps its closure alive


def new_future(device: torch.device) -> "torch.futures.Future[torch.Tensor]":
    """For a tensor on this device."""
    return torch.futures.Future(devices=None if device.type == "cpu" else [device])


class Failure:
    """The first error of a step, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._error: Optional[BaseException] = None

    def note(self, error: BaseException) -> None:
        # Frames keep native objects alive as long as the error lives.
        traceback.clear_frames(error.__traceback__)
        with self._lock:
            if self._error is None:
                self._error = error

    @property
    def error(self) -> Optional[BaseException]:
        return self._error

    def clear(self) -> None:
        self._error = None

    def raise_after_backward(self) -> None:
        """Call it in the hook of the last bucket. DDP queues its own last callback after the hook has returned, so a
        callback that comes before it queues ours."""
        queue = torch.autograd.Variable._execution_engine.queue_callback
        queue(lambda: queue(self._raise))

    def _raise(self) -> None:
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback has this frame
