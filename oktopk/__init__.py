# SPDX-License-Identifier: Apache-2.0
"""This folder holds the C++ library. The Python package oktopk is python/oktopk.

Python started in the root of a clone finds this folder first, and would take it for an empty package.
This file hands over to the installed package, or says how to install it.
"""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

_root = Path(__file__).resolve().parent.parent
_elsewhere = [entry for entry in sys.path if Path(entry or ".").resolve() != _root]
_spec = importlib.machinery.PathFinder.find_spec("oktopk", _elsewhere)
if _spec is None or _spec.loader is None or _spec.origin is None:
    raise ImportError(
        f"oktopk is not installed for {sys.executable}, and {_root} is a clone of it. "
        f"Install it: cd {_root} && {sys.executable} -m pip install -v .",
        name="oktopk",
    )
sys.modules["oktopk"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules["oktopk"])
