# SPDX-License-Identifier: Apache-2.0
"""Short tests of the research tools, each of which runs at least once. The tools that train need torch: without it
their tests are skipped aloud, but not in CI, where that would hide a failure."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path += [str(ROOT / "lab"), str(ROOT / "tests/python")]  # the tools; launched.py, which starts programs

collect_ignore = []
if find_spec("torch") is None:
    if os.environ.get("CI"):
        raise RuntimeError("torch is not installed, but CI must run the tests that need it")
    print("NOT RUN: lab/tests/test_frontier.py and test_training.py need torch")
    collect_ignore = ["test_frontier.py", "test_training.py"]
else:
    import torch.distributed  # noqa: F401  once, here, and not in every process that a test forks
