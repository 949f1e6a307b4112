# SPDX-License-Identifier: Apache-2.0
"""The site's navigation, read from docs/README.md: its headings are the sections, its links the pages, in their order.
So the reading order has one home. It becomes the hidden toctrees of the front page."""

from __future__ import annotations

import os
import re
from pathlib import Path

from docsite.pages import FRONT, LINK, ROOT

INDEX = Path("docs/README.md")


class Unlisted(Exception):
    """A page that the reading order leaves out."""


def sections(pages: set[Path]) -> list[tuple[str, list[tuple[str, str]]]]:
    """(title, [(title of a page, the page)]). Throws Unlisted where docs/README.md has no link to a page."""
    seen = {FRONT, INDEX}
    found: list = [("", [("All pages", str(INDEX))])]
    for line in (ROOT / INDEX).read_text().splitlines():
        head = re.match(r"##+ (.*)", line)
        if head:
            found.append((head.group(1), []))
        elif len(found) > 1:
            for match in LINK.finditer(line):
                found[-1][1].extend(entries(match, seen))
    missing = sorted(str(p) for p in pages - seen)
    if missing:
        raise Unlisted(f"{INDEX} has no link to {', '.join(missing)}: the reading order holds every page")
    return found


def entries(match: re.Match, seen: set[Path]) -> list[tuple[str, str]]:
    path = match.group(2).partition("#")[0]
    place = Path(os.path.normpath(INDEX.parent / path))
    title = match.group(1).strip("[](").replace("`", "")
    if "algorithms" not in place.parts:  # their names are written in small letters
        title = title[0].upper() + title[1:]
    if "://" in path or place in seen:
        return []
    seen.add(place)
    if (ROOT / place).is_dir():
        seen.update(p.relative_to(ROOT) for p in (ROOT / place).glob("*.md"))
        return [(title, f"{place}/index.md")]
    return [(title, f"{place}.md" if place.suffix == ".ipynb" else str(place))]


def toctrees(found: list[tuple[str, list[tuple[str, str]]]]) -> str:
    """Directives of MyST for the front page."""
    trees = []
    for title, pages in found:
        caption = f":caption: {title}\n" if title else ""
        rows = "\n".join(f"{name} <{page.removesuffix('.md')}>" for name, page in pages)
        trees.append(f"```{{toctree}}\n:hidden:\n:titlesonly:\n{caption}\n{rows}\n```")
    return "\n\n".join(trees) + "\n"
