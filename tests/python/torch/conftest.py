# SPDX-License-Identifier: Apache-2.0
"""Tests here need torch. Without it they are skipped aloud, but not in CI, where that would hide a failure."""

import os
from importlib.util import find_spec

collect_ignore_glob = []
if find_spec("torch") is None:
    if os.environ.get("CI"):
        raise RuntimeError("torch is not installed, but CI must run the tests that need it")
    print("NOT RUN: tests/python/torch needs torch")
    collect_ignore_glob = ["test_*.py"]
else:
    import torch.distributed  # noqa: F401  once, here, and not in every process that a test forks
