#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The time of each stage of `make test` and `make test-deep`, as rows of a Markdown table.

    scripts/stage_times.py [STAGE...]

Runs the stages one after the other in a fresh clone of the last commit, with an empty cache of ccache, as on a user's
machine. CPU time is user + system of all processes of a stage, orphans too; it says more than wall time on a machine
that others use. The clone is removed unless a stage fails.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHECKS = ["check-format", "check-layers", "check-mirror", "check-prose"]
STAGES = [*CHECKS, "test-release", "test-python", "check-docs", "test-asan", "check-tidy", "test-tsan"]
PR_SET_CHILD_SUBREAPER = 36


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def reap_orphans() -> None:
    """Waits for all that a stage left behind, so that its time is counted."""
    try:
        while True:
            os.wait()
    except ChildProcessError:
        pass


def main() -> int:
    if sys.platform == "linux":  # orphans become our children, and their time ours
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    folder = Path(tempfile.mkdtemp(prefix="oktopk-stages-"))
    clone = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    environment = {**os.environ, "CCACHE_DIR": str(folder / "ccache")}
    print("| stage | CPU s | wall s |\n| --- | --- | --- |", flush=True)
    for stage in sys.argv[1:] or STAGES:
        cpu, start = cpu_seconds(), time.monotonic()
        with open(folder / f"{stage}.log", "w") as log:
            status = subprocess.run(["make", stage], cwd=clone, env=environment, stdout=log, stderr=log).returncode
        reap_orphans()
        print(f"| `{stage}` | {cpu_seconds() - cpu:.0f} | {time.monotonic() - start:.0f} |", flush=True)
        if status != 0:
            print(f"stage_times: {stage} failed, see {folder / f'{stage}.log'}", file=sys.stderr)
            return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
