#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the documentation as a site, in build-docs/site, and checks it.

    scripts/docs_site.py              build; needs the extra `docs` of pyproject.toml, doxygen, and the package
                                      installed (its stub describes the native module)
    scripts/docs_site.py --check      in build-docs/check, and every code block (make check-docs). Half of the time of a
                                      build goes into the theme, so the check has Sphinx's plain one

The build is strict: a link to nothing, a dead anchor, a page without a place in docs/README.md, or something that would
be loaded from a network, is an error.
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


def build(theme: str, site: Path) -> None:
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
    shutil.rmtree(site, ignore_errors=True)
    options = ["-q", "-E", "-W", "--keep-going", "-b", "html", "-D", f"html_theme={theme}"]
    subprocess.run([sys.executable, "-m", "sphinx", *options, str(pages.folder), str(site)], check=True, timeout=900)
    shutil.rmtree(site / ".doctrees", ignore_errors=True)


def installed() -> Path:
    """The folder of packages that holds oktopk with the stub of its native module."""
    folder = Path(sysconfig.get_paths()["purelib"])
    if not (folder / "oktopk/_core.pyi").exists():
        raise RuntimeError(f"the Python reference needs the package: {sys.executable} -m pip install .")
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="without the theme, but with all code blocks")
    check = parser.parse_args().check
    site = WORK / ("check" if check else "site")
    try:
        build("basic" if check else "furo", site)
        problems = [*links.problems(site), *(blocks.problems() if check else [])]
    except (navigation.Unlisted, RuntimeError, subprocess.SubprocessError) as error:
        print(f"docs_site: {error}", file=sys.stderr)
        return 1
    for problem in problems:
        print(problem)
    print(f"docs_site: {site}/index.html: {len(list(site.rglob('*.html')))} pages, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
