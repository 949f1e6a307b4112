# SPDX-License-Identifier: Apache-2.0
"""An import that cannot work says why, and which command helps, as the user sees it on the terminal.

Each test starts Python on a copy of the sources in which something is missing or does not fit.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import oktopk
import oktopk._core

ROOT = Path(__file__).resolve().parent.parent.parent
NATIVE = Path(oktopk._core.__file__)
VERSION = re.search(r"project\(oktopk VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)


@pytest.fixture
def clone(tmp_path):
    """A clone: what Python can see of it, and without the native module."""
    root = tmp_path / "clone"
    shutil.copytree(
        ROOT / "python/oktopk",
        root / "python/oktopk",
        ignore=shutil.ignore_patterns("_core*", "__pycache__", "bin"),
    )
    (root / "oktopk").mkdir()
    shutil.copy(ROOT / "oktopk/__init__.py", root / "oktopk")
    shutil.copy(ROOT / "CMakeLists.txt", root)
    return root


def run(code, *options, path="", cwd="/"):
    """Python on that code: exit code, output, and the last error as the user reads it."""
    ended = subprocess.run(
        [sys.executable, *options, "-c", code],
        env={**os.environ, "PYTHONPATH": str(path)},
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        timeout=60,
    )
    error = re.sub(r"(?s)^Traceback.*\n(?=\w+(\.\w+)*: )", "", ended.stderr).strip()
    return SimpleNamespace(code=ended.returncode, out=ended.stdout.strip(), error=error)


def pip_in(root):
    return f"cd {root} && {sys.executable} -m pip install -v ."


def test_the_version_is_the_one_of_the_cmake_project():
    assert oktopk.__version__ == VERSION
    try:
        installed = importlib.metadata.version("oktopk")
    except importlib.metadata.PackageNotFoundError:
        return
    assert installed == VERSION


def test_sources_without_the_native_module_say_pip_install(clone):
    ended = run("import oktopk", path=clone / "python")
    assert ended.error == (
        f"ImportError: oktopk: {clone}/python/oktopk has no native module _core, because it was not built; "
        f"install it from the clone: {pip_in(clone)}\n"
        f"Then leave {clone}/python out of PYTHONPATH, and do not start Python in it: Python would find these "
        "sources before the installed package."
    )


def test_the_root_of_a_clone_is_no_empty_package(clone):
    ended = run("import oktopk", "-S", cwd=clone)
    assert ended.error == (
        f"ImportError: oktopk is not installed for {sys.executable}, and {clone} is a clone of it. "
        f"Install it: {pip_in(clone)}"
    )


def test_python_in_the_root_of_a_clone_finds_the_installed_package(clone):
    installed = NATIVE.parent.parent
    ended = run("import oktopk.metrics as m, oktopk; print(m.__file__, oktopk.__file__)", path=installed, cwd=clone)
    assert ended.error == ""
    assert ended.out == f"{installed}/oktopk/metrics.py {installed}/oktopk/__init__.py"


def test_a_native_module_of_another_python_is_named(clone):
    shutil.copy(NATIVE, clone / "python/oktopk/_core.cpython-37m-x86_64-linux-gnu.so")
    error = run("import oktopk", path=clone / "python").error
    assert error.startswith("ImportError: oktopk: the native module in ")
    assert "was built for another Python (_core.cpython-37m-x86_64-linux-gnu.so; Python 3." in error
    assert pip_in(clone) in error


def test_a_native_module_that_cannot_be_loaded_says_why(clone):
    (clone / "python/oktopk" / NATIVE.name).write_text("no library")
    error = run("import oktopk", path=clone / "python").error
    assert error.startswith("ImportError: oktopk: the native module cannot be loaded (")
    assert NATIVE.name in error and pip_in(clone) in error


def test_a_native_module_of_another_version_is_refused(clone):
    shutil.copy(NATIVE, clone / "python/oktopk")
    build_file = clone / "CMakeLists.txt"
    build_file.write_text(build_file.read_text().replace(f"VERSION {VERSION}", "VERSION 9.8.7"))
    error = run("import oktopk", path=clone / "python").error
    assert error.startswith(
        f"ImportError: oktopk: the native module {clone}/python/oktopk/{NATIVE.name} is of version {VERSION}, "
        f"but the Python files in {clone}/python/oktopk are of version 9.8.7; install it from the clone: "
    )


MISSING = "import sys; sys.modules['{0}'] = None; import {1}"


@pytest.mark.parametrize(
    ("module", "wants", "purpose", "package"),
    [("numpy", "oktopk", "the package", "numpy"), ("torch", "oktopk.torch", "oktopk.torch", "torch>=2.0")],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(module, wants, purpose, package):
    ended = run(MISSING.format(module, wants), path=NATIVE.parent.parent)
    assert ended.error == (
        f"ModuleNotFoundError: oktopk: {purpose} needs {module}, and Python {sys.version_info[0]}."
        f"{sys.version_info[1]} at {sys.executable} has none. Install it: {sys.executable} -m pip install '{package}'"
    )


def test_an_old_torch_is_refused():
    code = "import sys, types; t = sys.modules['torch'] = types.ModuleType('torch'); t.__version__ = '1.13.1+cpu'; "
    error = run(code + "import oktopk.torch", path=NATIVE.parent.parent).error
    assert error.startswith("ImportError: oktopk: oktopk.torch needs torch 2.0 or newer, this is 1.13.1+cpu. Install")


def test_the_command_that_was_not_built_says_how_to_get_it(clone):
    shutil.copy(NATIVE, clone / "python/oktopk")
    ended = run("from oktopk._command import main; main()", path=clone / "python")
    assert ended.code == 1
    assert ended.error.startswith("oktopk: this package was built from source without the command;")
    assert "-C cmake.define.OKTOPK_BUILD_TOOLS=ON" in ended.error
    assert "Traceback" not in ended.error
