# SPDX-License-Identifier: Apache-2.0
"""The command `oktopk`: runs the program, where the package was built with it.

Wheels have it. A build from source leaves it out unless asked, because it takes twice as long to compile as the module.
"""

import os
import sys
from pathlib import Path

MISSING = """oktopk: this package was built from source without the command; `import oktopk` works without it.
The wheels have it. To build it, in a clone of oktopk:
  {python} -m pip install -v --force-reinstall --no-deps . -C cmake.define.OKTOPK_BUILD_TOOLS=ON
(it needs CLI11, fmt, Eigen and nlohmann-json; on Debian and Ubuntu: apt install libcli11-dev libfmt-dev
libeigen3-dev nlohmann-json3-dev), or `make build`, which leaves it at build/oktopk."""


def main() -> None:
    """Replaces this process by the program, so that signals and mpirun reach it."""
    program = Path(__file__).parent / "bin" / "oktopk"
    if not program.exists():
        sys.exit(MISSING.format(python=sys.executable))
    os.execv(program, ["oktopk", *sys.argv[1:]])  # help and reports show the name as it is typed
