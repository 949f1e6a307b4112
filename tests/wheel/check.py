# SPDX-License-Identifier: Apache-2.0
"""What an installed wheel must do, on a machine with Python and nothing else: scripts/wheels runs it.

It runs outside of the clone, with an environment of which only PATH (the folder of this Python) is set.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np

import oktopk

PACKAGE = Path(oktopk.__file__).parent


def run(*command, timeout=300):
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, text=True)
    assert ended.returncode == 0, f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stdout}"
    return ended.stdout


def check_bareness():
    for program in ["c++", "g++", "cc", "cmake", "ninja", "mpirun", "nvcc"]:
        assert shutil.which(program) is None, f"{program} is on PATH: this is not a bare environment"
    assert "LD_LIBRARY_PATH" not in os.environ


def check_package(cuda):
    assert oktopk.__version__ == version("oktopk")
    assert (PACKAGE / "py.typed").exists() and (PACKAGE / "_core.pyi").exists()
    kernels = PACKAGE / "liboktopk_cuda.so"
    assert kernels.exists() == cuda, f"{kernels} exists: {kernels.exists()}, but nvcc was there: {cuda}"
    bundled = [p.name for p in PACKAGE.parent.glob("oktopk.libs/*")]
    assert not any("nccl" in name or "cudart" in name for name in bundled), bundled


def check_step():
    """One rank: the mean of a step is the gradient's largest entry."""
    gradient = np.zeros(1000, dtype=np.float32)
    gradient[17] = 3
    update = oktopk.Reducer(oktopk.thread_world(1)[0], 1000, density=0.001, preset="circulant").step(gradient)
    weights = np.zeros(1000, dtype=np.float32)
    update.subtract_from(weights)
    assert weights[17] == -3 and np.count_nonzero(weights) == 1, weights[17]


def check_command(folder):
    assert run("oktopk", "--version").strip() == oktopk.__version__
    assert "circulant" in run("oktopk", "list")
    assert "circulant" in run("oktopk", "explain", "--all", "--ranks", "8", "-b", "1M")
    assert "Usage: oktopk explain" in run("oktopk", "explain", "--help")
    steps = ["-w", "2", "--iters", "4", "-c"]
    bench = run("oktopk", "bench", "--preset", "circulant", "--ranks", "2", "-b", "64K", *steps)
    assert "circulant" in bench
    page = folder / "report.html"
    training = ["oktopk", "train", "--steps", "40", "--preset", "circulant"]
    run(*training, "--ranks", "2", "--html", str(page))
    assert "<html" in page.read_text()
    result = folder / "result.json"
    run("oktopk", "run", "-n", "2", "--", *training, "--transport", "tcp", "--json", str(result))
    assert json.loads(result.read_text())["ranks"] == 2
    without = subprocess.run(["oktopk", "train", "--transport", "mpi"], stderr=subprocess.PIPE, text=True, timeout=60)
    assert without.returncode == 2 and "MPI" in without.stderr, without.stderr
    assert "dump" in run("oktopk", "doctor", "--help")


def check_readme(readme, folder):
    """The three lines, as the README has them, on two ranks."""
    script = folder / "script.py"
    script.write_text(re.search(r"```python\n(import torch\n.*?)```", readme.read_text(), re.DOTALL)[1])
    shown = run("torchrun", "--nproc-per-node", "2", str(script))
    assert re.search(r"loss \d\.\d+, compressed \d", shown), shown


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--readme", type=Path, required=True)
    parser.add_argument("--torch", choices=["yes", "no"], required=True)
    parser.add_argument("--cuda", choices=["yes", "no"], required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        check_bareness()
        check_package(options.cuda == "yes")
        check_step()
        check_command(Path(folder))
        if options.torch == "yes":
            check_readme(options.readme, Path(folder))
    python = ".".join(map(str, sys.version_info[:3]))
    torch = f"torch {version('torch')}" if options.torch == "yes" else "torch NOT TESTED"
    print(f"wheel: passed on Python {python}, {torch}")


if __name__ == "__main__":
    main()
