# SPDX-License-Identifier: Apache-2.0
"""Copies the Markdown pages of the repository to a folder from which Sphinx builds the site.

The pages are written for a code host: relative links, plain Markdown, no syntax of a site generator. They keep their
places, so links between pages stay as they are. A link to a source file becomes a link to a page that shows the file; a
link to a folder becomes a link to a list of the pages in it; a notebook becomes a page of its cells. README.md is the
front page, index.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = {
    ".h": "cpp", ".cc": "cpp", ".cu": "cpp", ".py": "python", ".sh": "sh", ".sbatch": "sh", ".yaml": "yaml",
    ".cmake": "cmake", ".json": "json", ".cff": "yaml",
}
FRONT = Path("README.md")
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^()\s]+)(\))")
BLOCKS = re.compile(r"^```.*?^```\n|^(?:    [^\n]*\n)+", re.S | re.M)
SPANS = re.compile(r"`[^`\n]+`")


def on_site(page: Path) -> Path:
    """Where the site has a page of the repository."""
    return Path("index.md") if page == FRONT else page


def page_files() -> list[Path]:
    """The pages, relative to the repository."""
    tops = sorted(p for p in ROOT.glob("*.md"))
    rest = sorted(p for folder in ("docs", "examples") for p in (ROOT / folder).rglob("*.md"))
    return [p.relative_to(ROOT) for p in tops + rest]


def heading(path: Path) -> str:
    for line in path.read_text().splitlines():
        if line.startswith("# "):
            return line[2:].strip()
    return path.stem


def outside(code: re.Pattern, text: str, change) -> str:
    """The text, with change() applied to everything that does not match `code`."""
    out, end = [], 0
    for match in code.finditer(text):
        out += [change(text[end : match.start()]), match.group(0)]
        end = match.end()
    return "".join([*out, change(text[end:])])


class Pages:
    """One copy of all pages under `folder`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.sources: set[Path] = set()  # files that a page links to, shown on pages of their own
        self.folders: set[Path] = set()

    def copy(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.pages = set(page_files())
        notebooks = sorted(p.relative_to(ROOT) for f in ("docs", "examples") for p in (ROOT / f).rglob("*.ipynb"))
        for page in sorted(self.pages):
            self.write(on_site(page), self.with_links(page, (ROOT / page).read_text()))
        for notebook in notebooks:
            self.write(notebook.with_suffix(".ipynb.md"), self.with_links(notebook, notebook_page(ROOT / notebook)))
        for figure in sorted((ROOT / "docs/figures").glob("*.png")):
            target = self.folder / figure.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(figure, target)
        for source in sorted(self.sources):
            self.write(Path(f"{source}.md"), source_page(source))
        for folder in sorted(self.folders):
            self.write(folder / "index.md", folder_page(folder))

    def write(self, page: Path, text: str) -> None:
        target = self.folder / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def with_links(self, page: Path, text: str) -> str:
        def change(part: str) -> str:
            return LINK.sub(lambda m: m.group(1) + self.target(page, m.group(2)) + m.group(3), part)

        return outside(BLOCKS, text, change)

    def target(self, page: Path, link: str) -> str:
        """The link as the site has it. A link to nothing stays as it is: the strict build names it."""
        if "://" in link or link.startswith(("#", "mailto:")):
            return link
        path, _, anchor = link.partition("#")
        place = Path(os.path.normpath(page.parent / path))
        if place == FRONT:
            return os.path.relpath("index.md", page.parent) + (f"#{anchor}" if anchor else "")
        if place in self.pages or place.suffix == ".png" or not (ROOT / place).exists():
            return link
        if (ROOT / place).is_dir():
            readme = place / "README.md"
            if readme in self.pages:
                return f"{path.rstrip('/')}/README.md"
            self.folders.add(place)
            return f"{path.rstrip('/')}/index.md"
        if place.suffix != ".ipynb":
            self.sources.add(place)
        return f"{path}.md" + (f"#{anchor}" if anchor else "")


def source_page(source: Path) -> str:
    language = LANGUAGES.get(source.suffix, "")
    text = (ROOT / source).read_text()
    return f"---\norphan: true\nnosearch: true\n---\n\n# {source}\n\n````{language}\n{text}````\n"


def folder_page(folder: Path) -> str:
    pages = sorted(p for p in (ROOT / folder).glob("*.md"))
    rows = "\n".join(p.stem for p in pages)
    return f"# {folder.name.capitalize()}\n\n```{{toctree}}\n:maxdepth: 1\n\n{rows}\n```\n"


def notebook_page(path: Path) -> str:
    """The cells of a notebook as Markdown, with the text of their outputs."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        shown = "".join("".join(o.get("text", [])) for o in cell.get("outputs", []))
        if shown:
            parts.append(f"```\n{shown.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"
