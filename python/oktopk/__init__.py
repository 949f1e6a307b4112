# SPDX-License-Identifier: Apache-2.0
"""oktopk: sparse allreduce for distributed deep learning.

    import oktopk.torch                    # the DDP hook, FSDP2 hook and optimisers
    import oktopk, oktopk.mpi              # numpy arrays over mpi4py

Every rank sends the largest 1% of its gradient, and all ranks apply the same sum; the rest is kept for later steps.
Needs numpy; torch and mpi4py only in the modules named after them. oktopk.__version__ is the version of the CMake
project, compiled into the native module.
"""

from oktopk import _requirements

_requirements.require_native()
_requirements.require_module("numpy", "the package")

from oktopk._core import (  # noqa: E402
    Candidate, CommError, Communicator, DeviceError, FlightRecorder, Machine, Profile, PythonCommunicator, Trace,
    UsageError, calibrate, check_equal, explain, gather_trace, presets, recipe,
)
from oktopk._core import version as __version__  # noqa: E402
from oktopk.flight import dump_flight, dump_flight_on_signal  # noqa: E402  # before _ends, which the others import
from oktopk.reducer import BucketedReducer, NodeReducer, Reducer, Update  # noqa: E402
from oktopk.transport import Transport  # noqa: E402
from oktopk.worlds import RendezvousServer, thread_world  # noqa: E402

for _error in (UsageError, CommError, DeviceError):
    _error.__module__ = "oktopk"  # as users write and see it

# The reference has this order.
__all__ = [
    "__version__", "Reducer", "NodeReducer", "BucketedReducer", "Update", "recipe", "presets", "thread_world",
    "Communicator", "PythonCommunicator", "Transport", "RendezvousServer", "check_equal", "explain", "calibrate",
    "Candidate", "Machine", "Profile", "Trace", "gather_trace", "FlightRecorder", "dump_flight",
    "dump_flight_on_signal", "UsageError", "CommError", "DeviceError",
]
