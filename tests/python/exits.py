# SPDX-License-Identifier: Apache-2.0
"""torch 2.13 now and then aborts a process that has done its work, also with plain DDP (docs/pytorch.md says why). A
command that meets this is made once more."""

import subprocess
from typing import Callable

TORCH_ABORTS_AT_EXIT = "terminate called without an active exception"
TRIES = 3


def ended(run: Callable[[], "subprocess.CompletedProcess[str]"]) -> "subprocess.CompletedProcess[str]":
    """The result of a command, from its last try."""
    for _ in range(TRIES):
        done = run()
        if done.returncode == 0 or TORCH_ABORTS_AT_EXIT not in done.stderr:
            break
    return done
