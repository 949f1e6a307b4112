# SPDX-License-Identifier: Apache-2.0
"""oktopk: sparse allreduce for distributed deep learning.

    import oktopk.torch                    # the DDP hook, FSDP2 hook and optimisers
    import oktopk, oktopk.mpi              # numpy arrays over mpi4py

Every rank sends the largest 1% of its gradient and all ranks apply the same sum; what was not sent
is kept for later steps. Needs numpy; torch and mpi4py only in the modules named after them.
"""

from oktopk._core import (
    Candidate,
    CommError,
    Communicator,
    DeviceError,
    Machine,
    Profile,
    PythonCommunicator,
    Trace,
    UsageError,
    calibrate,
    explain,
    gather_trace,
    presets,
    thread_world,
)
from oktopk.reducer import Reducer, Update
from oktopk.transport import Transport

__all__ = [
    "Candidate",
    "CommError",
    "Communicator",
    "DeviceError",
    "Machine",
    "Profile",
    "PythonCommunicator",
    "Reducer",
    "Trace",
    "Transport",
    "Update",
    "UsageError",
    "calibrate",
    "explain",
    "gather_trace",
    "presets",
    "thread_world",
]
