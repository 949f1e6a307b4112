# SPDX-License-Identifier: Apache-2.0
"""Checks, before anything else is imported, that the native module, numpy and torch are there and fit.

Otherwise the import ends with an ImportError that says in plain words what is missing and which command installs it.
Cost: three look-ups in the file system.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import re
import sys
from pathlib import Path
from typing import List, Optional

_PACKAGE = Path(__file__).resolve().parent
_SUFFIXES = importlib.machinery.EXTENSION_SUFFIXES
_PYTHON = f"Python {sys.version_info[0]}.{sys.version_info[1]}"


def clone() -> Optional[Path]:
    """The root of the clone that these sources lie in; None for an installed package."""
    root = _PACKAGE.parent.parent
    is_clone = _PACKAGE.parent.name == "python" and (root / "CMakeLists.txt").is_file()
    return root if is_clone else None


def how_to_install() -> str:
    root = clone()
    if root is None:
        return f"install it again, in a clone of oktopk: {sys.executable} -m pip install -v --force-reinstall ."
    return (
        f"install it from the clone: cd {root} && {sys.executable} -m pip install -v .\n"
        f"Then leave {_PACKAGE.parent} out of PYTHONPATH, and do not start Python in it: Python "
        "would find these sources before the installed package."
    )


def require_native() -> None:
    """_core was built, for this Python, from the version of these sources."""
    try:
        core = importlib.import_module("oktopk._core")
    except ModuleNotFoundError as error:
        if error.name != "oktopk._core":
            raise
        raise ImportError(_why_no_native(), name="oktopk._core") from None
    except ImportError as error:
        raise ImportError(
            f"oktopk: the native module cannot be loaded ({error}). It was probably built on another "
            f"machine; {how_to_install()}",
            name="oktopk._core",
        ) from error
    built, wanted = getattr(core, "version", "unknown"), _version_of_sources()
    if wanted is not None and built != wanted:
        raise ImportError(
            f"oktopk: the native module {core.__file__} is of version {built}, but the Python files in "
            f"{_PACKAGE} are of version {wanted}; {how_to_install()}",
            name="oktopk._core",
        )


def _why_no_native() -> str:
    others = sorted(p.name for p in _PACKAGE.glob("_core.*") if p.suffix in (".so", ".pyd"))
    if others:
        return (
            f"oktopk: the native module in {_PACKAGE} was built for another Python "
            f"({', '.join(others)}; {_PYTHON} looks for _core{_SUFFIXES[0]}); {how_to_install()}"
        )
    return f"oktopk: {_PACKAGE} has no native module _core, because it was not built; {how_to_install()}"


def _version_of_sources() -> Optional[str]:
    """The version in CMakeLists.txt of a clone. None: an installed package, whose files came together with _core."""
    root = clone()
    if root is None:
        return None
    found = re.search(r"project\(oktopk VERSION ([0-9.]+)", (root / "CMakeLists.txt").read_text())
    return found.group(1) if found else None


def require_module(name: str, purpose: str, least: str = "") -> None:
    """The module can be imported and is not older than `least`."""
    command = f"{sys.executable} -m pip install '{name}{'>=' + least if least else ''}'"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ModuleNotFoundError(
            f"oktopk: {purpose} needs {name}, and {_PYTHON} at {sys.executable} has none. Install it: {command}",
            name=name,
        ) from None
    version = getattr(module, "__version__", "")
    if least and version_numbers(version) < version_numbers(least):
        raise ImportError(
            f"oktopk: {purpose} needs {name} {least} or newer, this is {version}. Install it: {command}", name=name
        )


def version_numbers(version: str) -> List[int]:
    """'2.13.0+cpu' -> [2, 13]"""
    return [int(digits) for digits in re.findall(r"[0-9]+", version)[:2]]
