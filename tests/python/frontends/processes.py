# SPDX-License-Identifier: Apache-2.0
"""Commands that start ranks themselves, in the environment of a user's shell."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Sequence

import oktopk

# A thread of torch (Gloo) aborts, now and then, a process that has done its work and ends.
TORCH_ABORTS_AT_EXIT = "terminate called without an active exception"


def printed_by(command: Sequence[str], folder: Path, **variables: str) -> str:
    """Its standard output. Once more, twice at most, where it was torch that aborted at the end."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(Path(oktopk.__file__).parents[1]),  # this one, in any folder
        **variables,
    }
    for _ in range(3):
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=180,
            cwd=folder,
            env=environment,
            check=False,
        )
        if done.returncode == 0 or TORCH_ABORTS_AT_EXIT not in done.stderr:
            break
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
