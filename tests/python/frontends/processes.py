# SPDX-License-Identifier: Apache-2.0
"""Commands that start ranks themselves, in the environment of a user's shell. torch 2.13 now and then aborts a process
that has done its work, also with plain DDP (docs/pytorch.md says why): such a command is made once more."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Sequence

import oktopk

TORCH_ABORTS_AT_EXIT = "terminate called without an active exception"
TRIES = 3


def printed_by(command: Sequence[str], folder: Path, **variables: str) -> str:
    """Its standard output."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(Path(oktopk.__file__).parents[1]),  # this one, in any folder
        **variables,
    }
    for _ in range(TRIES):
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=180, cwd=folder, env=environment, check=False
        )
        if done.returncode == 0 or TORCH_ABORTS_AT_EXIT not in done.stderr:
            break
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
