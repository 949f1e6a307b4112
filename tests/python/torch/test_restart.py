# SPDX-License-Identifier: Apache-2.0
"""A rank dies once, and torchrun starts all of them again: examples/restart.py goes on."""

from __future__ import annotations

import re

import pytest
from launched import EXAMPLES, run_torchrun
from versions import TORCH, reason

if TORCH < (2, 4):
    pytest.skip(reason((2, 4), "DCP for values of one rank"), allow_module_level=True)

EXAMPLE = EXAMPLES / "restart.py"


def run(folder, *options, ranks=2):
    # The variable: else Gloo finds the addresses of the dead ranks in torchrun's store (docs/pytorch.md).
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    words = [EXAMPLE, "--folder", folder, "--every", "10", *options]
    done = run_torchrun(ranks, *words, restarts=1, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loss_in(output, steps):
    """The hook counts the steps; a check-point has its count."""
    found = re.search(rf"loss (\d+\.\d+) after {steps} steps; replicas equal: True", output)
    assert found is not None, output
    return float(found.group(1))


def test_a_killed_run_goes_on_from_its_last_check_point(tmp_path):
    killed = run(tmp_path, "--steps", "60", "--die", "35")
    assert "goes on after step 30, iteration 30 of the hook" in killed
    assert loss_in(killed, 60) == pytest.approx(1.865, rel=0.05)  # of a run that nobody kills
    # A check-point that was interrupted does not count; and with another number of ranks.
    (tmp_path / "step_70").mkdir()
    alone = run(tmp_path, "--steps", "70", ranks=1)
    assert "goes on after step 60, iteration 60 of the hook" in alone
    assert loss_in(alone, 70) < loss_in(killed, 60)
