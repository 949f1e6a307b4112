# SPDX-License-Identifier: Apache-2.0
"""Errors of a hook reach the caller of backward() as they are: type, text and traceback.

DDP makes a RuntimeError of whatever a hook's future holds, and an exception out of the hook itself leaves DDP unable to
go on. So the hook always gives DDP a tensor, and backward()'s last callback, which runs after DDP has waited for all
buckets, raises the error.
"""

from __future__ import annotations

import threading
import traceback
from typing import Optional

import torch


class Failure:
    """The first error of a step, from whichever thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._error: Optional[BaseException] = None

    def note(self, error: BaseException) -> None:
        # Frames hold the native objects, and whoever keeps the error would keep those.
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
        """In the hook of a step's last bucket. DDP queues its own last callback after the hook has returned, so ours is
        queued by one that comes before it."""
        queue = torch.autograd.Variable._execution_engine.queue_callback
        queue(lambda: queue(self._raise))

    def _raise(self) -> None:
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback has this frame
