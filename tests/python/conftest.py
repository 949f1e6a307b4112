# SPDX-License-Identifier: Apache-2.0
"""Lets tests import ranks.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
