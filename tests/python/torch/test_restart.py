# SPDX-License-Identifier: Apache-2.0
"""A rank dies once, and torchrun starts all of them again: examples/restart.py goes on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from exits import again_if_torch_aborts
from versions import TORCH, reason

if TORCH < (2, 4):
    pytest.skip(reason((2, 4), "DCP for values of one rank"), allow_module_level=True)

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "restart.py"
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    # Else Gloo finds the addresses of the dead ranks in torchrun's store (docs/pytorch.md).
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}


def run(folder, *options, ranks=2):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), "--max-restarts", "1", "--monitor-interval", "0.1"]
    command += [str(EXAMPLE), "--folder", str(folder), "--every", "10", *options]
    environment = {**os.environ, **ENVIRONMENT}
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loss_in(output, steps):
    """The hook counts the steps; a check-point has its count."""
    found = re.search(rf"loss (\d+\.\d+) after {steps} steps; replicas equal: True", output)
    assert found is not None, output
    return float(found.group(1))


@again_if_torch_aborts
def test_a_killed_run_goes_on_from_its_last_check_point(tmp_path):
    killed = run(tmp_path, "--steps", "60", "--die", "35")
    assert "goes on after step 30, iteration 30 of the hook" in killed
    assert loss_in(killed, 60) == pytest.approx(1.865, rel=0.05)  # of a run that nobody kills
    # A check-point that was interrupted does not count; and with another number of ranks.
    (tmp_path / "step_70").mkdir()
    alone = run(tmp_path, "--steps", "70", ranks=1)
    assert "goes on after step 60, iteration 60 of the hook" in alone
    assert loss_in(alone, 70) < loss_in(killed, 60)
