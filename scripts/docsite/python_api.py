# SPDX-License-Identifier: Apache-2.0
"""The reference of the Python package: a page per public module. griffe reads signatures, docstrings and the stub of
the native module; nothing is imported. Docstrings are Markdown: indented parts are code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

# Modules in reading order, with the title of their page.
MODULES = {
    "oktopk.torch": "oktopk.torch: PyTorch",
    "oktopk.torch.checkpoint": "oktopk.torch.checkpoint",
    "oktopk.lightning": "oktopk.lightning",
    "oktopk.accelerate": "oktopk.accelerate",
    "oktopk.transformers": "oktopk.transformers",
    "oktopk.torch.torchft": "oktopk.torch.torchft",
    "oktopk.metrics": "oktopk.metrics: writers",
    "oktopk": "oktopk: arrays",
    "oktopk.mpi": "oktopk.mpi: mpi4py",
}

NAMED = re.compile(r"(\**[a-z_]\w*(?:, \**[a-z_]\w*)*): ")


def write_pages(folder: Path, packages: Path) -> list[tuple[str, str]]:
    """Writes the pages into folder/docs/api/python and returns (title, page) of each."""
    import griffe

    # The repository's own folder oktopk, of C++, is no package: no relative paths.
    options = {"allow_inspection": False, "resolve_aliases": True, "try_relative_path": False}
    package = griffe.load("oktopk", search_paths=[str(packages)], **options)
    pages = []
    (folder / "docs/api/python").mkdir(parents=True, exist_ok=True)
    for name, title in MODULES.items():
        module = package if name == "oktopk" else package[name.removeprefix("oktopk.")]
        members = [module.members[n] for n in public_names(module)]
        parts = ["---\ntocdepth: 2\n---", f"# {title}", text_of(module), *(member_text(name, m) for m in members)]
        page = f"docs/api/python/{name}.md"
        (folder / page).write_text("\n\n".join(parts) + "\n")
        pages.append((title, page))
    return pages


def public_names(module) -> list[str]:
    """__all__ of a module, or the names without an underscore that it defines itself."""
    if module.exports:
        return [str(n) for n in module.exports if not str(n).startswith("__")]
    return [n for n, m in module.members.items() if not n.startswith("_") and not m.is_alias and not m.is_attribute]


def text_of(thing) -> str:
    """The docstring. Lines of the form "name: meaning" become a list; their continuations are indented."""
    if not thing.docstring:
        return ""
    paragraphs = inspect.cleandoc(thing.docstring.value).split("\n\n")
    return "\n\n".join(listed(part) if NAMED.match(part) else part for part in paragraphs)


def listed(paragraph: str) -> str:
    lines = paragraph.splitlines()
    return "\n".join(NAMED.sub(r"* `\1`: ", line, count=1) if NAMED.match(line) else line for line in lines)


def member_text(module: str, member) -> str:
    target = member.final_target if member.is_alias else member
    parts = [f"## {module}.{member.name}", *declaration(target), text_of(target)]
    if target.is_class:
        init = target.all_members.get("__init__")
        if init is not None and init.docstring and not init.is_alias:
            parts.append(text_of(init))
        for inner in methods(target):
            parts += [f"### {member.name}.{inner.name}", *declaration(inner), text_of(inner)]
    return "\n\n".join(part for part in parts if part)


def methods(target) -> list:
    """Public methods and properties, the inherited ones of our own classes included."""
    found = []
    for name, inner in target.all_members.items():
        inner = inner.final_target if inner.is_alias else inner
        is_ours = inner.path.startswith("oktopk.")
        is_told = inner.docstring is not None or inner.path.startswith("oktopk._core.")
        if is_ours and is_told and not name.startswith("_") and (inner.is_function or "property" in inner.labels):
            found.append(inner)
    return found


def declaration(thing) -> list[str]:
    """The signature, one parameter per line where it is long."""
    if thing.is_class:
        init = thing.all_members.get("__init__")
        init = init.final_target if init is not None and init.is_alias else init
        if init is None or not init.is_function:
            return []
        return [code(f"class {thing.name}", parameters(init)[1:], "")]
    if thing.is_function:
        own = parameters(thing)
        is_method = thing.parent is not None and thing.parent.is_class and "staticmethod" not in thing.labels
        answer = f" -> {thing.returns}" if thing.returns is not None else ""
        versions = [code(thing.name, own[1:] if is_method else own, answer)]
        return versions
    kind = f": {thing.annotation}" if thing.annotation is not None else ""
    return [f"```python\n{thing.name}{kind}\n```"]


def parameters(function) -> list[str]:
    out, is_keyword = [], False
    for p in function.parameters:
        kind = str(p.kind.value if p.kind else "")
        if kind == "keyword-only" and not is_keyword:
            is_keyword = True
            out.append("*")
        is_keyword = is_keyword or kind == "variadic positional"
        mark = {"variadic positional": "*", "variadic keyword": "**"}.get(kind, "")
        annotation = f": {p.annotation}" if p.annotation is not None else ""
        has_default = p.default is not None and not mark
        equals = (" = " if annotation else "=") + str(p.default) if has_default else ""
        out.append(f"{mark}{p.name}{annotation}{equals}")
    return out


def code(name: str, given: list[str], answer: str) -> str:
    line = f"{name}({', '.join(given)}){answer}"
    if len(line) > 90:
        line = f"{name}(\n    " + ",\n    ".join(given) + f",\n){answer}"
    return f"```python\n{line}\n```"
