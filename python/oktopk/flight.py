# SPDX-License-Identifier: Apache-2.0
"""Dumps of the flight recorders: the last operations of each rank of this process, for `oktopk doctor`.

    oktopk.dump_flight("dumps")     # on request: dumps/oktopk-flight-RANK.json

With the environment variable OKTOPK_FLIGHT=FOLDER, an error of a Reducer or of the DDP hook writes them there
(docs/observability.md).
"""

from __future__ import annotations

import json
import os
from collections import deque
from contextlib import contextmanager
from typing import Any, Deque, Dict, Iterator, List, Union

from oktopk import _core

_FOLDER = "OKTOPK_FLIGHT"
_recorders: Deque[_core.FlightRecorder] = deque(maxlen=64)  # the newest communicators, and no others


def watch(comm: _core.Communicator) -> _core.FlightRecorder:
    """Later dumps have this communicator."""
    recorder = comm.flight
    if not any(recorder is known for known in _recorders):
        _recorders.append(recorder)
    return recorder


def as_dict(recorder: _core.FlightRecorder) -> Dict[str, Any]:
    found: Dict[str, Any] = json.loads(recorder.to_json())
    return found


def dump_flight(folder: Union[str, "os.PathLike[str]"]) -> List[str]:
    """Writes oktopk-flight-RANK.json for each rank of this process into the folder, which is made where it is missing.
    Returns the files. Of several communicators of one rank the newest counts. From any thread."""
    os.makedirs(folder, exist_ok=True)
    files: Dict[str, None] = {}
    for recorder in list(_recorders):
        file = os.path.join(os.fspath(folder), f"oktopk-flight-{as_dict(recorder)['rank']}.json")
        recorder.write(file)
        files[file] = None
    return list(files)


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
