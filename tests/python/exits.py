# SPDX-License-Identifier: Apache-2.0
"""torch 2.13 now and then aborts a process that has done its work, also with plain DDP (docs/pytorch.md says why). A
test or a command that meets this is made once more."""

import functools
import subprocess
from typing import Any, Callable

TORCH_ABORTS_AT_EXIT = "terminate called without an active exception"
TRIES = 3


def again_if_torch_aborts(test: Callable[..., Any]) -> Callable[..., Any]:
    """A test of a folder, once more in a fresh one."""

    @functools.wraps(test)
    def tries(tmp_path):
        for number in range(TRIES):
            folder = tmp_path / str(number)
            folder.mkdir()
            try:
                return test(folder)
            except AssertionError as error:
                if TORCH_ABORTS_AT_EXIT not in str(error) or number == TRIES - 1:
                    raise

    return tries


def ended(run: Callable[[], "subprocess.CompletedProcess[str]"]) -> "subprocess.CompletedProcess[str]":
    """The result of a command, from its last try."""
    for _ in range(TRIES):
        done = run()
        if done.returncode == 0 or TORCH_ABORTS_AT_EXIT not in done.stderr:
            break
    return done
