# SPDX-License-Identifier: Apache-2.0
"""One thread that runs jobs in the order in which they come: buckets are exchanged while backward
goes on, in the same order on all ranks."""

from __future__ import annotations

import queue
import threading
from contextlib import nullcontext
from typing import Any, Callable, ContextManager, Optional

import torch

Job = Callable[[], torch.Tensor]


class OrderedWorker:
    """The thread starts with the first job and ends with the process."""

    def __init__(self, name: str):
        self._name = name
        self._jobs: "queue.SimpleQueue[Callable[[], None]]" = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._stream: Optional[torch.cuda.Stream] = None

    def submit(
        self, job: Job, device: torch.device
    ) -> "torch.futures.Future[torch.Tensor]":
        """The future holds what the job returns, or what it raised. device: of the result."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        future: "torch.futures.Future[torch.Tensor]" = torch.futures.Future(
            devices=None if device.type == "cpu" else [device]
        )

        def work() -> None:
            try:
                with self._on(device):
                    future.set_result(job())
            except BaseException as error:  # whatever it is, backward waits for the future
                known = error if isinstance(error, Exception) else RuntimeError(repr(error))
                future.set_exception(known)  # type: ignore[arg-type]

        self._jobs.put(work)
        return future

    def _on(self, device: torch.device) -> ContextManager[Any]:
        """A CUDA device's jobs run on a stream of their own, behind all that backward has queued
        there so far; the future passes on where it ends."""
        if device.type != "cuda":
            return nullcontext()
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
        return torch.cuda.stream(self._stream)

    def _run(self) -> None:
        while True:
            self._jobs.get()()
