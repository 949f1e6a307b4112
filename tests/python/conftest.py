# SPDX-License-Identifier: Apache-2.0
"""Lets tests import ranks.py. Tests run side by side, so torch has one thread in each process, unless a test or the
environment asks for more: threads that wait for each other would spin on the cores of other tests."""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))
