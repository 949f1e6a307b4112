# SPDX-License-Identifier: Apache-2.0
"""Dumps of the flight recorders: the last operations of each rank of this process, for `oktopk doctor`.

    oktopk.dump_flight("dumps")               # on request: dumps/oktopk-flight-RANK.json
    oktopk.dump_flight_on_signal("dumps")     # from now on at each SIGUSR1

With the environment variable OKTOPK_FLIGHT=FOLDER, an error of a Reducer or of the DDP hook writes them there
(docs/observability.md).
"""

from __future__ import annotations

import atexit
import json
import os
import signal
from collections import deque
from contextlib import contextmanager
from typing import Any, Deque, Dict, Iterator, List, Optional, Union

from oktopk import _core

__all__ = ["dump_flight", "dump_flight_on_signal"]

_FOLDER = "OKTOPK_FLIGHT"
_recorders: Deque[_core.FlightRecorder] = deque(maxlen=64)  # the newest communicators, and no others
_on_signal: Optional[_core.SignalDumps] = None

Folder = Union[str, "os.PathLike[str]"]


def watch(comm: _core.Communicator) -> _core.FlightRecorder:
    """Later dumps have this communicator."""
    recorder = comm.flight
    if not any(recorder is known for known in list(_recorders)):  # other threads may append
        _recorders.append(recorder)
        if _on_signal is not None:
            _on_signal.watch(recorder)
    return recorder


def as_dict(recorder: _core.FlightRecorder) -> Dict[str, Any]:
    found: Dict[str, Any] = json.loads(recorder.to_json())
    return found


class Recorded:
    """Questions to the flight recorder of an object that has a communicator."""

    _comm: Any

    def flight(self) -> Dict[str, Any]:
        """The last operations of this rank, as in a dump (docs/observability.md)."""
        return as_dict(self._flight_recorder())

    def dump_flight(self, folder: Folder) -> str:
        """Writes them to oktopk-flight-RANK.json in the folder, for `oktopk doctor`. Returns the file. From any
        thread."""
        return _write(self._flight_recorder(), folder)

    def _flight_recorder(self) -> _core.FlightRecorder:
        if self._comm is None:
            raise _core.UsageError("oktopk: there is no record before the first step, which makes the communicator")
        recorder: _core.FlightRecorder = self._comm.flight
        return recorder


def _write(recorder: _core.FlightRecorder, folder: Folder) -> str:
    os.makedirs(folder, exist_ok=True)
    file = os.path.join(os.fspath(folder), f"oktopk-flight-{as_dict(recorder)['rank']}.json")
    recorder.write(file)
    return file


def dump_flight(folder: Folder) -> List[str]:
    """Writes oktopk-flight-RANK.json for each rank of this process into the folder, which is made where it is missing.
    Returns the files. Of several communicators of one rank the newest counts. From any thread."""
    os.makedirs(folder, exist_ok=True)
    return list(dict.fromkeys(_write(recorder, folder) for recorder in list(_recorders)))


def dump_flight_on_signal(folder: Optional[Folder], signum: int = signal.SIGUSR1) -> None:
    """From now on the signal writes the dumps of this process into the folder, which is made where it is missing. A
    thread without Python writes them, also while all threads of Python wait or hang. None: the signal means again what
    it meant before. A second call replaces the first. Call it in every process: those of fork() do not have it."""
    global _on_signal
    if folder is not None:
        os.makedirs(folder, exist_ok=True)
    if _on_signal is not None:
        _on_signal.close()
        _on_signal = None
    if folder is None:
        return
    _on_signal = _core.SignalDumps(os.path.abspath(folder), int(signum))
    for recorder in list(_recorders):
        _on_signal.watch(recorder)


@atexit.register  # before _ends.py does: the end of the worlds may take a while, and a signal dumps them meanwhile
def _end() -> None:
    if _on_signal is not None:
        _on_signal.close()


def dump_on_error(error: BaseException) -> None:
    """Writes dumps where OKTOPK_FLIGHT names a folder. The error itself goes on: nothing is raised here."""
    folder = os.environ.get(_FOLDER)
    if not folder or not isinstance(error, (_core.CommError, _core.UsageError, _core.DeviceError)):
        return
    try:
        dump_flight(folder)
    except (OSError, _core.UsageError):
        pass  # a folder that cannot be written must not hide the error


@contextmanager
def dumps_errors(recorder: _core.FlightRecorder) -> Iterator[None]:
    """Notes and dumps an error that comes out of the block."""
    try:
        yield
    except Exception as error:
        recorder.note_error(str(error))
        dump_on_error(error)
        raise
