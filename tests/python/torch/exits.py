# SPDX-License-Identifier: Apache-2.0
"""torch 2.13 now and then aborts a process that has done its work, also with plain DDP. A test that meets this is made
once more, in a fresh folder."""

import functools

TORCH_ABORTS_AT_EXIT = "terminate called without an active exception"
TRIES = 3


def again_if_torch_aborts(test):
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
