# SPDX-License-Identifier: Apache-2.0
"""Checks the code blocks of README and docs.

    python   parsed; tests/python/torch/test_docs_blocks.py runs every block that PYTHON_LISTED does not have
    cpp      compiled, all together, inside functions that have the names of docs_blocks.h
    sh, and indented lines that begin with a command of ours
             parsed by bash; options are those of the subcommand's --help, files exist, targets of make exist

A block below a line `<!-- FILE -->` is quoted from FILE: it must stand there, line by line.
"""

from __future__ import annotations

import ast
import re
import subprocess
import textwrap
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Python blocks that are not run as they stand -> the reason. The key is the page and the beginning of the block's
# first line.
PYTHON_LISTED = {
    ("README.md", "import torch"): "run on two nodes by tests/python/frontends/test_clusters.py",
    ("docs/pytorch.md", "import os"): "run, and started again on other ranks, by tests/python/torch/test_docs.py",
    ("docs/pytorch.md", "def save(folder):"): "run by tests/python/torch/test_docs.py",
    ("docs/elastic_pytorch.md", "world = oktopk.torch.ElasticWorld(on_change=print)"):
        "needs an arbiter; tests/python/torch/test_elastic_processes.py runs such a loop",
    ("docs/elastic_pytorch.md", "from oktopk.torch.torchft import ManagedWorld, ProcessGroup"):
        "needs a lighthouse; tests/python/torch/test_torchft.py runs such a loop",
    ("docs/frontends.md", "import lightning"): "tests/python/frontends/test_lightning.py trains with these calls",
    ("docs/frontends.md", "import oktopk.accelerate"):
        "tests/python/frontends/test_accelerate.py trains with these calls",
    ("docs/frontends.md", "import oktopk.transformers"):
        "tests/python/frontends/test_transformers.py trains with these calls",
    ("docs/gpu.md", 'dist.init_process_group("nccl")'):
        "needs a GPU; tests/python/torch/test_gpu_resident.py has these calls",
    ("docs/pytorch_fsdp.md", "mesh = init_device_mesh("):
        "needs several ranks; docs/tutorials/fsdp.md has a whole script, which a test runs",
}

FENCE = re.compile(r"(?:^<!-- (\S+) -->\n)?^```(\w*)\n(.*?)^```$", re.S | re.M)
COMMAND = re.compile(
    r"(?:host\d\$ |\$ )?(?:[A-Z_]+=\S+ )*(?:sudo )?(?:(?:\.\./)?\.venv/bin/)?"
    r"((?:mpirun|torchrun|python3?|oktopk(?:-lab)?|make|pip|sbatch|kubectl|bash|"
    r"(?:examples|scripts|lab|tests|build)/\S+) ?.*)"
)
SUBCOMMAND = re.compile(r"(?:^|(?<!install)\s)(?:build/)?(oktopk(?:-lab)?) ([a-z]+)((?: [^|;&>]*)?)")
PATH = re.compile(
    r"(?<![\w./~-])((?:examples|scripts|lab|tests|docs|python)/[\w./-]+\.(?:py|sbatch|sh|yaml|cc|h|md|ipynb))"
)


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    source: str = ""  # the file that it is quoted from

    def is_listed(self, table: dict) -> bool:
        return any(self.page == page and self.text.startswith(start) for page, start in table)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = (ROOT / page).read_text()
    found = []
    for match in FENCE.finditer(text):
        source, language, code = match.groups()
        found.append(Block(str(page), text.count("\n", 0, match.start(2)) + 1, language, code, source or ""))
    plain = FENCE.sub(lambda m: "\n" * m.group(0).count("\n"), text)
    for number, line in enumerate(plain.splitlines(), 1):
        command = COMMAND.match(line[4:]) if line.startswith("    ") else None
        if command:
            found.append(Block(str(page), number, "command", re.split(r"\s{2,}(?=\S)", command.group(1))[0]))
    return found


def page_files() -> list[Path]:
    """The pages, relative to the repository."""
    rest = (p for folder in ("docs", "examples", "lab") for p in sorted((ROOT / folder).rglob("*.md")))
    return [p.relative_to(ROOT) for p in [*sorted(ROOT.glob("*.md")), *rest]]


def all_blocks() -> list[Block]:
    return [block for page in page_files() for block in blocks_of(page)]


def python_to_run() -> list[Block]:
    own = [b for b in all_blocks() if b.language == "python" and not b.source]
    return [b for b in own if not b.is_listed(PYTHON_LISTED)]


def problems() -> list[str]:
    blocks = all_blocks()
    found = [*quotes(blocks), *unparsed(blocks), *unused_entries(blocks), *shell(blocks)]
    return found + compiled([b for b in blocks if b.language == "cpp" and not b.source])


def quotes(blocks: list[Block]):
    for block in blocks:
        if not block.source:
            continue
        path = ROOT / block.source
        if not path.is_file():
            yield f"{block}: quoted from {block.source}, which does not exist"
        elif flat(block.text) not in flat(path.read_text()):
            yield f"{block}: is not what {block.source} has"


def flat(text: str) -> str:
    """Lines without their indentation, so that a quoted function may move to the left."""
    return "\n".join(line.strip() for line in text.strip().splitlines())


def unparsed(blocks: list[Block]):
    for block in blocks:
        if block.language == "python":
            try:
                ast.parse(textwrap.dedent(block.text))
            except SyntaxError as error:
                yield f"{block}: line {error.lineno} of the block: {error.msg}"


def unused_entries(blocks: list[Block]):
    for key in PYTHON_LISTED:
        if not any(b.is_listed({key: ""}) for b in blocks):
            yield f"scripts/docs_blocks.py: no block of {key[0]} begins with {key[1]!r}"


# ---- Shell


def shell(blocks: list[Block]):
    for block in blocks:
        if block.language not in ("sh", "command"):
            continue
        if block.language == "sh":
            text = re.sub(r"^(?:host\d)?\$ ", "", block.text, flags=re.M)
            done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=30)
            if done.returncode:
                yield f"{block}: {done.stderr.strip()}"
        for line in block.text.replace("\\\n", " ").splitlines():
            yield from (f"{block}: {what}" for what in wrong_in(re.sub(r"\s#\s.*", "", line)))


def wrong_in(line: str):
    for path in PATH.findall(line):
        if not (ROOT / path).exists():
            yield f"no file {path}"
    for target in re.findall(r"(?:^|&& )make ([a-z][\w-]*)", line):
        if f"\n{target}:" not in (ROOT / "Makefile").read_text():
            yield f"make has no target {target}"
    for tool, name, rest in SUBCOMMAND.findall(line):
        known = options_of(tool, name)
        if known is None:
            yield f"{tool} has no subcommand {name}"
            continue
        own = rest.split(" -- ")[0]
        for option in re.findall(r"(?<=\s)(--?[a-zA-Z][\w-]*)", own):
            if known and option not in known:
                yield f"{tool} {name} has no option {option}"


@lru_cache(None)
def options_of(tool: str, subcommand: str):
    """The options in the --help of a subcommand; None: there is no such subcommand."""
    program = ROOT / "build" / tool
    if not program.exists():
        raise RuntimeError(f"the check of commands needs build/{tool}: make {tool if '-' in tool else 'build'}")
    if subcommand not in re.findall(r"^  ([a-z]+) ", help_of(program), re.M):
        return None
    return frozenset(re.findall(r"(?<![\w-])(--?[a-zA-Z][\w-]*)", help_of(program, subcommand)))


def help_of(*command) -> str:
    return subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout


# ---- C++


def compiled(blocks: list[Block]) -> list[str]:
    """One translation unit for all blocks: reading the headers takes longer than everything else. A block may use the
    names of earlier blocks of its page, and declare them anew."""
    parts = ['#include "scripts/docs_blocks.h"\n']
    pages: dict[str, list[Block]] = {}
    for block in blocks:
        pages.setdefault(block.page, []).append(block)
    for number, (page, own) in enumerate(pages.items()):
        code = "".join(f'{{\n#line {b.line + 1} "{page}"\n{compilable(b.text)}' for b in own) + "}" * len(own)
        parts.append(f"void page{number}(Names& names) {{ OKTOPK_NAMES {code} }}\n")
    compiler = ["c++", "-std=c++20", "-fsyntax-only", "-Wno-unused", f"-I{ROOT}", "-x", "c++", "-"]
    done = subprocess.run(compiler, input="".join(parts), capture_output=True, text=True, cwd=ROOT, timeout=600)
    return [line for line in done.stderr.splitlines() if "error:" in line]


def compilable(text: str) -> str:
    """Without the include of our header, and without "..." on a line of its own, which stands for the reader's code."""
    text = text.replace('#include "oktopk/oktopk.h"', "")
    return re.sub(r"^(\s*)\.\.\.", r"\1", text, flags=re.M)
