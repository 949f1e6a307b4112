# SPDX-License-Identifier: Apache-2.0
"""The reference of the C++ interface: a page per group of headers of oktopk/oktopk.h, in the order in which it lists
them. Doxygen parses the headers, with our comments made readable for it (cpp_comments.py); its XML becomes Markdown
here. Needs doxygen."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

from docsite.cpp_comments import filtered
from docsite.pages import ROOT, SPANS, outside

ALL = "oktopk/oktopk.h"
SETTINGS = """
INPUT = oktopk
RECURSIVE = YES
OUTPUT_DIRECTORY = out
GENERATE_XML = YES
GENERATE_HTML = NO
GENERATE_LATEX = NO
XML_PROGRAMLISTING = NO
EXTRACT_ALL = YES
SORT_MEMBER_DOCS = NO
MARKDOWN_SUPPORT = NO
AUTOLINK_SUPPORT = NO
QUIET = YES
WARN_AS_ERROR = NO
"""
NAME = re.compile(r"~?[A-Za-z_]\w*(?:(?:::|->|[./])\w+)*(?:\(\w*\))?")
FIELDS = ("variable",)
SKIPPED = ("friend",)


def groups() -> list[tuple[str, list[tuple[str, str]]]]:
    """(title, [(header, its line)]) as oktopk.h has them, and the MPI header that programs include themselves."""
    found: list = []
    for line in (ROOT / ALL).read_text().splitlines():
        include = re.match(r'#include "(oktopk/.*?)"\s*// (.*)', line)
        if include:
            found[-1][1].append(include.groups())
        elif re.match(r"// [A-Z][^.]*$", line) and "Start here" not in line:
            found.append((line[3:], []))
    found = [group for group in found if group[1]]
    ranks = next(headers for title, headers in found if title == "Ranks")
    ranks.append(("oktopk/comm/mpi_comm.h", "an MPI_Comm of the caller's; not in oktopk.h: it includes <mpi.h>"))
    return found


def write_pages(folder: Path, work: Path) -> list[tuple[str, str]]:
    """Writes the pages into folder/docs/api/cpp and returns (title, page) of each."""
    members = parse(work, [header for _, headers in groups() for header, _ in headers])
    entries = []
    (folder / "docs/api/cpp").mkdir(parents=True, exist_ok=True)
    for title, headers in groups():
        name = re.sub(r"[^a-z]+", "_", title.lower()).strip("_")
        about = 'All names are in namespace `oktopk`; `#include "oktopk/oktopk.h"` has them all.'
        parts = ["---\ntocdepth: 3\n---", f"# {title}", about]
        for header, line in headers:
            parts.append(f"## {header}\n\n{line[0].upper()}{line[1:]}.")
            parts += members.get(header, [])
        page = f"docs/api/cpp/{name}.md"
        (folder / page).write_text("\n\n".join(parts) + "\n")
        entries.append((title, page))
    return entries


def parse(work: Path, headers: list[str]) -> dict[str, list[str]]:
    """Markdown of what each header declares, in the order of its lines."""
    if shutil.which("doxygen") is None:
        raise RuntimeError("the C++ reference needs doxygen: apt install doxygen")
    shutil.rmtree(work, ignore_errors=True)
    for header in headers:
        target = work / header
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join(filtered((ROOT / header).read_text().splitlines())) + "\n")
    (work / "Doxyfile").write_text(SETTINGS)
    subprocess.run(["doxygen"], cwd=work, check=True, timeout=300, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    found: dict[str, list[tuple[int, str]]] = {}
    for file in sorted((work / "out/xml").glob("*.xml")):
        for compound in ET.parse(file).getroot().iter("compounddef"):
            for header, line, text in markdown_of(compound):
                found.setdefault(header, []).append((line, text))
    return {header: [text for _, text in sorted(parts)] for header, parts in found.items()}


def markdown_of(compound: ET.Element):
    """(header, line, Markdown) of a class, or of every free declaration of a namespace."""
    kind = compound.get("kind")
    if compound.get("prot") == "private":
        return
    if kind in ("class", "struct") and "::anonymous" not in name_of(compound, "compoundname"):
        yield (*place(compound), class_text(compound))
    elif kind == "file":
        text = description(compound)
        if text:
            yield compound.find("location").get("file"), 0, text
    elif kind == "namespace" and name_of(compound, "compoundname").startswith("oktopk"):
        for member in compound.iter("memberdef"):
            if member.get("kind") not in SKIPPED:
                yield (*place(member), member_text(member, 3))


def class_text(compound: ET.Element) -> str:
    name = name_of(compound, "compoundname").removeprefix("oktopk::")
    bases = ", ".join(f"{b.get('prot')} {tidy(b.text or '')}" for b in compound.findall("basecompoundref"))
    head = f"{compound.get('kind')} {name}" + (f" : {bases}" if bases else "")
    members = sorted(
        (m for m in compound.iter("memberdef") if m.get("prot") != "private" and m.get("kind") not in SKIPPED),
        key=lambda m: place(m)[1],
    )
    fields = [m for m in members if m.get("kind") in FIELDS]
    parts = [f"### {name}", f"```cpp\n{head}\n```", description(compound)]
    if fields:
        parts.append(table("field", [(field(m), description(m)) for m in fields]))
    parts += [member_text(m, 4) for m in members if m not in fields]
    return "\n\n".join(part for part in parts if part)


def field(member: ET.Element) -> str:
    return f"{type_of(member)} {name_of(member)} {flat(member.find('initializer'))}".strip()


def table(what: str, rows: list[tuple[str, str]]) -> str:
    """The second column is left out where no row has a text."""
    names = [f"| `{name}` |".replace("||", "\\|\\|") for name, _ in rows]
    texts = [" ".join(text.split()) for _, text in rows]
    if not any(texts):
        return f"| {what} |\n| --- |\n" + "\n".join(names)
    return f"| {what} | meaning |\n| --- | --- |\n" + "\n".join(f"{n} {t} |" for n, t in zip(names, texts))


def member_text(member: ET.Element, level: int) -> str:
    mark = "#" * level
    name, kind = name_of(member), member.get("kind")
    if kind == "enum":
        rows = [(name_of(value), description(value)) for value in member.findall("enumvalue")]
        return f"{mark} {name}\n\n```cpp\nenum class {name}\n```\n\n{description(member)}\n\n{table('value', rows)}"
    if kind == "function":
        return f"{mark} {name}\n\n```cpp\n{signature(member)}\n```\n\n{description(member)}".rstrip()
    text = field(member)
    if kind == "typedef":
        text = f"using {name} = {type_of(member)}"
    return f"{mark} {name}\n\n```cpp\n{text}\n```\n\n{description(member)}".rstrip()


def signature(member: ET.Element) -> str:
    given = member.findall("templateparamlist/param")
    parameters = ", ".join(f"{flat(p.find('type'))} {p.findtext('declname') or ''}".strip() for p in given)
    head = f"template <{parameters}>\n" if parameters else ""
    words = [word for flag, word in (("static", "static"), ("explicit", "explicit")) if member.get(flag) == "yes"]
    text = " ".join([*words, f"{type_of(member)} {name_of(member)}{tidy(member.findtext('argsstring') or '')}".strip()])
    return head + re.sub(r"\s*=\s*0$", "", text)


def name_of(element: ET.Element, tag: str = "name") -> str:
    return element.findtext(tag) or ""


def type_of(member: ET.Element) -> str:
    return flat(member.find("type"))


def flat(element) -> str:
    return tidy("".join(element.itertext())) if element is not None else ""


def tidy(text: str) -> str:
    """Doxygen writes std::span< const float > &x=1; we write std::span<const float>& x = 1."""
    text = re.sub(r"(?<=\w)<\s+", "<", " ".join(text.split()))
    text = re.sub(r"\s+>", ">", text)
    text = re.sub(r"\s*([&*]+)\s*(?=\w)", r"\1 ", text)
    text = re.sub(r"\s+([&*]+)(?=[,)>]|$)", r"\1", text)
    return re.sub(r"(?<=[\w&*>])=(?=[\w{\"-])", " = ", text).replace("oktopk::", "")


def place(element: ET.Element) -> tuple[str, int]:
    location = element.find("location")
    return location.get("file"), int(location.get("line"))


def description(element: ET.Element) -> str:
    """Paragraphs of the comment. Names in it become code: those with an underscore, a scope or parentheses."""
    found = []
    for tag in ("briefdescription", "detaileddescription"):
        for paragraph in element.findall(f"{tag}/para"):
            text = " ".join("".join(paragraph.itertext()).split())
            if text:
                found.append(outside(SPANS, text, with_names))
    return "\n\n".join(found)


def with_names(text: str) -> str:
    def change(match: re.Match) -> str:
        name = match.group(0)
        return f"`{name}`" if re.search(r"_|::|->|\)$", name) else name

    named = NAME.sub(change, text)
    return outside(SPANS, named, lambda part: re.sub(r"([*_<|])", r"\\\1", part))
