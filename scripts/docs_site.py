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
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import docs_blocks

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "build-docs/site"

# The check leaves the Python reference out: autodoc2 reads all of torch for it, in 80 s.
QUICK = ["html_theme=basic", "extensions=myst_parser,sphinx_external_toc",
         "suppress_warnings=myst.header,misc.highlighting_failure,etoc.glob"]

# Attributes that load something when the page opens; links that a reader may follow are not among them.
LOADS = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?(https?:)?//[^\"'>\s]+[^>]*>")
HREF = re.compile(r"<(?:a|link|script|img)\b[^>]*?\b(?:href|src)=(?:\"([^\"]*)\"|'([^']*)'|([^\s>\"']+))")
ID = re.compile(r"\b(?:id|name)=(?:\"([^\"]*)\"|'([^']*)'|([^\s>\"']+))")


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


def link_problems(site: Path) -> list[str]:
    """Links of the site as it was built that lead to no file or anchor, and what is loaded from a network."""
    pages = {page: page.read_text() for page in sorted(site.rglob("*.html"))}
    anchors = {page: {unescape("".join(m)) for m in ID.findall(text)} for page, text in pages.items()}
    found = []
    for page, text in pages.items():
        name = page.relative_to(site)
        found += [f"{name}: loads from the network: {m.group(0)[:100]}" for m in LOADS.finditer(text)]
        for match in HREF.finditer(text):
            target = unescape(next(filter(None, match.groups()), ""))
            why = broken(page, target, anchors)
            if why:
                found.append(f"{name}: {why}")
    for sheet in site.rglob("*.css"):
        loads = re.findall(r"url\(['\"]?(https?://[^)'\"]+)", sheet.read_text())
        found += [f"{sheet.relative_to(site)}: loads {url}" for url in loads]
    return sorted(set(found))


def broken(page: Path, target: str, anchors: dict[Path, set[str]]) -> str:
    if not target or re.match(r"[a-z]+:", target) or target.startswith("//"):
        return ""
    path, _, anchor = target.partition("#")
    place = (page.parent / unquote(path.split("?")[0])).resolve() if path else page
    if place.is_dir():
        place = place / "index.html"
    if not place.exists():
        return f"a link to nothing: {target}"
    if anchor and place in anchors and unquote(anchor) not in anchors[place]:
        return f"a link to an anchor that does not exist: {target}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="without the theme, but with all code blocks")
    check = parser.parse_args().check
    try:
        build(QUICK if check else [])
        # Doxygen makes some anchors of private classes that it leaves out.
        dead = [p for p in link_problems(SITE) if not (p.startswith("cpp/") and "anchor" in p)]
        problems = [*dead, *(docs_blocks.problems() if check else [])]
    except (RuntimeError, subprocess.SubprocessError) as error:
        print(f"docs_site: {error}", file=sys.stderr)
        return 1
    for problem in problems:
        print(problem)
    print(f"docs_site: {SITE}/index.html: {len(list(SITE.rglob('*.html')))} pages, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
