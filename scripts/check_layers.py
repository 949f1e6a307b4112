#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks who includes whom in oktopk/: strictly downwards, backends confined, no output, no #ifdef.

    base <- trace <- comm <- comm/*;  base <- cpu <- sparse <- device <- select
    gpu/kernels, device <- gpu;  sparse <- codec
    all of those and tune/cost.h <- allreduce <- tune <- reduce <- {elastic, optim} <- laws;  gpu <- reduce

Headers that oktopk/oktopk.h lists are installed; they include each other only, and are few.

Tools, tests and examples may include everything but lab/, which is research: nothing outside of lab/ includes or
imports from it. Prints each violation and exits 1 if any.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Folder -> the folders directly below it; what those may include, it may include too.
BELOW = {
    "base": [],
    "trace": ["base"],
    "cpu": ["base"],
    "sparse": ["cpu"],
    "device": ["sparse"],
    "gpu/kernels": ["sparse"],
    "gpu": ["device", "gpu/kernels"],
    "select": ["device"],
    "codec": ["sparse"],
    "comm": ["trace"],
    "comm/threads": ["comm"],
    "comm/mpi": ["comm"],
    "comm/tcp": ["comm"],
    "comm/rendezvous": ["comm/tcp"],
    "comm/nccl": ["comm"],
    "allreduce": ["select", "codec", "comm"],
    "tune": ["allreduce"],
    "reduce": ["tune", "gpu"],
    "elastic": ["reduce"],
    "optim": ["reduce"],
    "laws": ["elastic", "optim"],
}
TOP = "laws"  # what a header directly in oktopk/ counts as: it may include all folders

# Headers of another folder that one may include: the cost model and the update rules are plain arithmetic; the exchange
# of GPU memory asks the GPU whether its work is done, by the C interface.
ALSO = {
    "allreduce": ["oktopk/tune/cost.h"],
    "comm/nccl": ["oktopk/gpu/kernels/cuda_api.h", "oktopk/gpu/cuda_library.h"],
    "gpu/kernels": ["oktopk/optim/adam_rule.h", "oktopk/optim/interval_clock.h", "oktopk/optim/sgd_rule.h"],
}

# Header -> the only files of the library that may include it (regular expression; None: no file).
CONFINED = {
    r"mpi\.h": r"comm/(mpi/.*|mpi_comm\.h)",
    r"oktopk/comm/mpi/.*": r"comm/mpi/.*",  # private, not installed
    r"openssl/.*": r"comm/tcp/crypto\.cc",
    r"(cuda.*|cub/.*|thrust/.*|cooperative_groups.*)": r"gpu/kernels/.*\.(cu|cuh)",
    r"(iostream|cstdio|stdio\.h|print)": None,
}

# Headers that oktopk/oktopk.h lists and cmake/install.cmake installs: oktopk.h itself and comm/mpi_comm.h count.
MOST_INSTALLED = 24

# A use of lab/, in the folders that do without it.
WITHOUT_LAB = ["oktopk", "python", "tools", "tests", "examples", "fuzz"]
FROM_LAB = re.compile(r'\b(?:from|import) lab\b|#\s*include\s*[<"]lab/|["\'/]lab["\'/]')

FORBIDDEN = {
    r"\bgetenv\s*\(": "the library reads no environment variables",
    r"\b(printf|fprintf|puts|fputs|putchar)\s*\(": "the library prints nothing",
    r"\bstd::(cout|cerr|clog)\b": "the library prints nothing",
    r"^\s*#\s*(if|ifdef|ifndef|elif)\b.*\bOKTOPK_": "an absent backend is a stub file, not an #ifdef",
}


def room(path):
    """The folder of the layer table that `path`, below oktopk/, belongs to: comm/tcp for comm/tcp/link.h."""
    folders = [folder.as_posix() for folder in Path(path).parents]
    return next((folder for folder in folders if folder in BELOW), folders[0])


def reachable(folder):
    seen, todo = {folder}, [folder]
    while todo:
        for below in BELOW[todo.pop()]:
            if below not in seen:
                seen.add(below)
                todo.append(below)
    return seen


def check_include(folder, name, quote, header):
    """Yields what is wrong with `#include <header>` or "header" in oktopk/<name>."""
    if quote == '"':
        parts = header.split("/")
        if parts[0] != "oktopk" or len(parts) < 3:
            yield f'"{header}": own headers are included as "oktopk/<folder>/<file>.h"'
        elif room("/".join(parts[1:])) not in reachable(folder) and header not in ALSO.get(folder, []):
            yield f'"{header}": {folder} may include only {", ".join(sorted(reachable(folder)))}'
    elif header.startswith("oktopk/"):
        yield f'<{header}>: own headers are included with quotes'
    for pattern, homes in CONFINED.items():
        if re.fullmatch(pattern, header) and not (homes and re.fullmatch(homes, name)):
            yield f"<{header}>: only in {homes}" if homes else f"<{header}>: the library prints nothing"


def check_file(path):
    name = path.relative_to(ROOT / "oktopk").as_posix()
    folder = room(name) if "/" in name else TOP
    if folder not in BELOW:
        yield 0, f"folder {folder} is not in the layer table of scripts/check_layers.py"
        return
    for number, line in enumerate(path.read_text().splitlines(), 1):
        include = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if include:
            for problem in check_include(folder, name, *include.groups()):
                yield number, problem
        code = line.split("//")[0]
        for pattern, why in FORBIDDEN.items():
            if re.search(pattern, code):
                yield number, f"{why}: {line.strip()}"


def installed_headers():
    listed = re.findall(r'^#include "([^"]+)"', (ROOT / "oktopk/oktopk.h").read_text(), re.MULTILINE)
    also = ["oktopk/oktopk.h", "oktopk/comm/mpi_comm.h"]
    return listed + [name for name in also if (ROOT / name).exists()]


def check_installed():
    """Yields what is wrong with the list of installed headers in oktopk/oktopk.h."""
    installed = installed_headers()
    if len(installed) > MOST_INSTALLED:
        yield ROOT / "oktopk/oktopk.h", 0, f"{len(installed)} headers are installed, more than {MOST_INSTALLED}"
    for name in installed:
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
            include = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
            if include and include[1] not in installed:
                yield ROOT / name, number, f"{include[1]} is private: oktopk/oktopk.h does not list it"


def uses_of_lab():
    for folder in WITHOUT_LAB:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".h", ".cc", ".cu", ".cuh", ".py"}:
                for number, line in enumerate(path.read_text().splitlines(), 1):
                    if FROM_LAB.search(line):
                        yield path, number, f"lab/ is research, which nothing else may use: {line.strip()}"


def main():
    files = sorted(p for p in (ROOT / "oktopk").rglob("*") if p.suffix in {".h", ".cc", ".cu", ".cuh"})
    problems = [(p, number, what) for p in files for number, what in check_file(p)]
    problems += [*check_installed(), *uses_of_lab()]
    for path, number, what in problems:
        print(f"{path.relative_to(ROOT)}:{number}: {what}")
    print(f"check_layers: {len(files)} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
