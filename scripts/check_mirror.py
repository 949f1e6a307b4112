#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the repository mirrors itself:

    oktopk/a/b.cc               has  a line in oktopk/CMakeLists.txt, and a test: tests/a/b_test.cc, or a file below
                                     tests/a that includes oktopk/a/b.h
    tools/**/*.cc, lab/**/*.cc  has  a line in tools/CMakeLists.txt, lab/CMakeLists.txt (lab/tests: none)
    a preset in presets.cc      has  docs/algorithms/<name>.md
    every *.h, *.cc, *.cu, *.py has  at most 600 lines, and a licence line on top

Exceptions stand below, each with its reason. Prints each violation and exits 1 if any.
"""

import re
import sys
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 600
CODE_FOLDERS = ["oktopk", "python", "tools", "tests", "lab", "examples", "scripts"]

# Source (a pattern) -> (where it is tested, why not in the mirrored place).
TESTED_ELSEWHERE = {
    "oktopk/base/simd_x86.cc": ("tests/base/simd_test.cc", "declared in simd.h"),
    "oktopk/*/no_simd.cc": (None, "a stub for processors other than x86-64"),
    "oktopk/cpu/*.cc": ("tests/cpu/kernels_test.cc", "variants of the same kernels, declared in kernels.h"),
    "oktopk/optim/tensor_kernels_*.cc": ("tests/optim/tensor_step_test.cc", "variants of the same kernels"),
    "oktopk/reduce/bucketed_reducer_tentative.cc": (
        "tests/reduce/synchroniser_conformance_test.cc", "one suite for all synchronisers"),
    "oktopk/reduce/node_reducer_tentative.cc": (
        "tests/reduce/synchroniser_conformance_test.cc", "one suite for all synchronisers"),
    "oktopk/comm/mpi/*.cc": ("tests/mpi", "needs real processes"),
    "oktopk/laws/*laws.cc": ("tests/allreduce/laws_test.cc", "the laws"),
    "oktopk/laws/subject.cc": ("tests/allreduce/laws_test.cc", "what the laws are tried on"),
    "oktopk/laws/witness.cc": ("tests/allreduce/laws_test.cc", "records the steps of a trial"),
    "oktopk/comm/tcp/world.cc": ("tests/comm/tcp/tcp_test.cc", "the engine of the transport"),
    "oktopk/comm/rendezvous/client.cc": ("tests/comm/rendezvous/store_test.cc", "the store of a server uses it"),
    "oktopk/comm/tcp/no_tcp.cc": (None, "a stub that throws; compiled only without OpenSSL"),
}

# Source -> why it is longer than MAX_LINES.
LONG_FILES = {}


def place_of_exception(name):
    return next((place for pattern, (place, _) in TESTED_ELSEWHERE.items() if fnmatch(name, pattern)), "")


def is_tested(name):
    """Whether the source has a test of its own, or its header is included by a test of its folder."""
    own = ROOT / f"tests/{name[len('oktopk/'):-len('.cc')]}_test.cc"
    if own.exists():
        return True
    include = f'#include "{name[:-len(".cc")]}.h"'
    folder = ROOT / "tests" / name.split("/")[1]
    return any(include in test.read_text() for test in folder.rglob("*") if test.suffix in {".h", ".cc"})


def missing_tests():
    for source in sorted((ROOT / "oktopk").rglob("*.cc")):
        name = source.relative_to(ROOT).as_posix()
        place = place_of_exception(name)
        if place == "":
            if not is_tested(name):
                own = f"tests/{name[len('oktopk/'):-len('.cc')]}_test.cc"
                yield f"{name}: no test at {own}, none that includes its header"
        elif place and not (ROOT / place).exists():
            yield f"{name}: no test at {place}"


def unlisted_sources():
    for folder in ["oktopk", "tools", "lab"]:
        listing = ROOT / folder / "CMakeLists.txt"
        listed = set(re.findall(r"[\w./-]+\.cc\b", listing.read_text() if listing.exists() else ""))
        present = {p.relative_to(ROOT / folder).as_posix() for p in (ROOT / folder).rglob("*.cc")}
        for name in sorted(name for name in present - listed if not name.startswith("tests/")):
            yield f"{folder}/{name}: not listed in {folder}/CMakeLists.txt"


def undocumented_presets():
    table = ROOT / "oktopk/allreduce/presets.cc"
    if not table.exists():
        return
    # A row of the table starts with its name: {"name", ...} or {.name = "name", ...}.
    names = re.findall(r'^\s*\{\s*(?:\.name\s*=\s*)?"([a-z0-9_]+)"', table.read_text(), re.MULTILINE)
    if not names:
        yield f"{table.relative_to(ROOT)}: no preset found in the table"
    for name in names:
        page = f"docs/algorithms/{name}.md"
        if not (ROOT / page).exists():
            yield f"preset {name}: no page {page}"


def bad_files():
    for folder in CODE_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in {".h", ".cc", ".cu", ".cuh", ".py"}:
                continue
            name = path.relative_to(ROOT).as_posix()
            lines = path.read_text().splitlines()
            if len(lines) > MAX_LINES and name not in LONG_FILES:
                yield f"{name}: {len(lines)} lines, more than {MAX_LINES}"
            if not lines or "SPDX-License-Identifier: Apache-2.0" not in "".join(lines[:2]):
                yield f"{name}: the first line (after #!) is not the SPDX licence line"


def stale_exceptions():
    for name in [*TESTED_ELSEWHERE, *LONG_FILES]:
        if not any(ROOT.glob(name)):
            yield f"{name}: listed as an exception in scripts/check_mirror.py, but does not exist"


def main():
    checks = [missing_tests, unlisted_sources, undocumented_presets, bad_files, stale_exceptions]
    problems = [problem for check in checks for problem in check()]
    for problem in problems:
        print(problem)
    print(f"check_mirror: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
