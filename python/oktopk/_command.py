# SPDX-License-Identifier: Apache-2.0
"""The command `oktopk`: runs the program that was built with the package."""

import os
import sys
from pathlib import Path


def main() -> None:
    """Replaces this process by the program, so that signals and mpirun reach it."""
    program = Path(__file__).parent / "bin" / "oktopk"
    if not program.exists():
        sys.exit(
            "oktopk: the package was built without the command, because libraries it needs were "
            "missing.\nOn Debian and Ubuntu: apt install libcli11-dev libfmt-dev libeigen3-dev "
            "zlib1g-dev nlohmann-json3-dev, and pip install oktopk again (or `make build` in a "
            "clone)."
        )
    os.execv(program, [str(program), *sys.argv[1:]])
