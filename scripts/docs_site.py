#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the documentation as a site, in build-docs/site, and checks it.

    scripts/docs_site.py              build; needs the extra `docs` of pyproject.toml, doxygen, and the package
                                      installed (its stub describes the native module)
    scripts/docs_site.py --check      the same, and every link, anchor and code block (make check-docs)

The build is strict: a link to nothing, or a page without a place in docs/README.md, is an error.
"""

import argparse
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from docsite import blocks, cpp_api, links, navigation, python_api
from docsite.pages import ROOT, Pages

WORK = ROOT / "build-docs"
SETTINGS = ROOT / "scripts/docsite"


def build() -> Path:
    """Returns the folder of the site."""
    pages = Pages(WORK / "pages")
    pages.copy()
    shutil.copy(SETTINGS / "conf.py", pages.folder)
    (pages.folder / "_static").mkdir()
    shutil.copy(SETTINGS / "site.css", pages.folder / "_static")
    found = navigation.sections(pages.pages)
    found.append(("Python reference", python_api.write_pages(pages.folder, installed())))
    found.append(("C++ reference", cpp_api.write_pages(pages.folder, WORK / "doxygen")))
    with (pages.folder / "index.md").open("a") as front:
        front.write("\n" + navigation.toctrees(found))
    site = WORK / "site"
    shutil.rmtree(site, ignore_errors=True)
    command = [sys.executable, "-m", "sphinx", "-q", "-E", "-W", "--keep-going", "-b", "html", str(pages.folder), str(site)]
    subprocess.run(command, check=True, timeout=900)
    shutil.rmtree(site / ".doctrees", ignore_errors=True)
    return site


def installed() -> Path:
    """The folder of packages that holds oktopk with the stub of its native module."""
    folder = Path(sysconfig.get_paths()["purelib"])
    if not (folder / "oktopk/_core.pyi").exists():
        raise RuntimeError(f"the Python reference needs the package: {sys.executable} -m pip install .")
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="also check links, anchors and code blocks")
    check = parser.parse_args().check
    try:
        site = build()
    except (navigation.Unlisted, RuntimeError, subprocess.SubprocessError) as error:
        print(f"docs_site: {error}", file=sys.stderr)
        return 1
    if not check:
        print(f"docs_site: {site}/index.html")
        return 0
    problems = [*links.problems(site), *blocks.problems()]
    for problem in problems:
        print(problem)
    print(f"check_docs: {len(list(site.rglob('*.html')))} pages, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
