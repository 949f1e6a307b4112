# SPDX-License-Identifier: Apache-2.0
"""Looks at the site as it was built: every link leads to a file and an anchor, and nothing is loaded from a network."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from urllib.parse import unquote

# Attributes that load something when the page opens; links that a reader may follow are not among them.
LOADS = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?(https?:)?//[^\"'>\s]+[^>]*>")
HREF = re.compile(r"<(?:a|link|script|img)\b[^>]*?\b(?:href|src)=(?:\"([^\"]*)\"|'([^']*)'|([^\s>\"']+))")
ID = re.compile(r"\b(?:id|name)=(?:\"([^\"]*)\"|'([^']*)'|([^\s>\"']+))")


def problems(site: Path) -> list[str]:
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
        found += [f"{sheet.relative_to(site)}: loads {u}" for u in re.findall(r"url\(['\"]?(https?://[^)'\"]+)", sheet.read_text())]
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
