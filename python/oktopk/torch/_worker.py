# SPDX-License-Identifier: Apache-2.0
"""One thread that runs jobs in the order in which they come: buckets are exchanged while backward
goes on, in the same order on all ranks."""

from __future__ import annotations

import queue
import threading
from typing import Callable, Optional

import torch

Job = Callable[[], torch.Tensor]


class OrderedWorker:
    """The thread starts with the first job and ends with the process."""

    def __init__(self, name: str):
        self._name = name
        self._jobs: "queue.SimpleQueue[Callable[[], None]]" = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None

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
                result = job()
            except BaseException as error:  # whatever it is, backward waits for the future
                future.set_exception(error)  # type: ignore[arg-type]
            else:
                future.set_result(result)

        self._jobs.put(work)
        return future

    def _run(self) -> None:
        while True:
            self._jobs.get()()
