# SPDX-License-Identifier: Apache-2.0
"""Tests here need torch, and each a package of its own. Without that they are skipped aloud."""

from importlib.util import find_spec

NEEDS = {"lightning": "test_lightning*.py", "accelerate": "test_accelerate*.py",
         "transformers": "test_transformers*.py"}

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]
for package, tests in NEEDS.items():
    if find_spec(package) is None:
        print(f"NOT RUN: tests/python/frontends/{tests} needs {package}")
        collect_ignore_glob.append(tests)
