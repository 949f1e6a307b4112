# SPDX-License-Identifier: Apache-2.0
"""torchrun with the hook; ranks are killed, stopped or paused at random moments: tests/kill has the harness."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HARNESS = Path(__file__).resolve().parents[2] / "kill" / "kill.py"


def test_ranks_of_torchrun():
    """One point of each kind."""
    command = [sys.executable, str(HARNESS), "--transport", "torchrun", "--points", "1", "--jobs", "1"]
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("| torchrun |") == 6
