#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the documentation as a site, in build-docs/site, and checks it: Sphinx with docs/conf.py, and Doxygen.

    scripts/docs_site.py              build; needs the extra `docs` of pyproject.toml, doxygen, and the package
    scripts/docs_site.py --check      without theme and Python reference; and every code block (make check-docs)

The build is strict: a link to nothing, a dead anchor, a page without a place in docs/_toc.yml, or something that would
be loaded from a network, is an error.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from docsite import blocks, links

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "build-docs/site"


# The check leaves the Python reference out: autodoc2 reads all of torch for it, in 80 s.
QUICK = ["html_theme=basic", "extensions=myst_parser,sphinx_external_toc",
         "suppress_warnings=myst.header,misc.highlighting_failure,etoc.glob"]


def build(settings: list[str]) -> None:
    shutil.rmtree(ROOT / "build-docs", ignore_errors=True)
    options = ["-q", "-E", "-W", "--keep-going", "-c", "docs", "-b", "html"]
    options += [part for setting in settings for part in ("-D", setting)]
    subprocess.run([sys.executable, "-m", "sphinx", *options, ".", str(SITE)], cwd=ROOT, check=True, timeout=900)
    headers = re.findall(r'^#include "(.*)"', (ROOT / "oktopk/oktopk.h").read_text(), re.M)
    settings = (ROOT / "docs/Doxyfile").read_text() + "INPUT = " + " ".join([*headers, "oktopk/comm/mpi_comm.h"])
    done = subprocess.run(["doxygen", "-"], input=settings, cwd=ROOT, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        raise RuntimeError(f"doxygen: {done.stderr}")
    shutil.move(ROOT / "build-docs/cpp", SITE / "cpp")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="without the theme, but with all code blocks")
    check = parser.parse_args().check
    try:
        build(QUICK if check else [])
        # Doxygen makes some anchors of private classes that it leaves out.
        dead = [p for p in links.problems(SITE) if not (p.startswith("cpp/") and "anchor" in p)]
        problems = [*dead, *(blocks.problems() if check else [])]
    except (RuntimeError, subprocess.SubprocessError) as error:
        print(f"docs_site: {error}", file=sys.stderr)
        return 1
    for problem in problems:
        print(problem)
    print(f"docs_site: {SITE}/index.html: {len(list(SITE.rglob('*.html')))} pages, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
