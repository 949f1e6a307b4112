# SPDX-License-Identifier: Apache-2.0
"""Commands that start ranks themselves, in the environment of a user's shell."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Sequence

from exits import ended

import oktopk


def printed_by(command: Sequence[str], folder: Path, **variables: str) -> str:
    """Its standard output."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(Path(oktopk.__file__).parents[1]),  # this one, in any folder
        **variables,
    }
    done = ended(
        lambda: subprocess.run(
            command, capture_output=True, text=True, timeout=180, cwd=folder, env=environment, check=False
        )
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
