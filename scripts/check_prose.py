#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the prose of comments and docs, as far as a machine can: the rules are in CONTRIBUTING.md.

    no line is wider than 120 columns (rows of Markdown tables, code blocks and addresses excepted)
    no sentence of a comment or of a docs page starts with What, Of, Who, Whose, Those or Through, unless it is a
    question

Prints each violation and exits 1 if any.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDEST = 120
COMMENT = {".h": "//", ".cc": "//", ".cu": "//", ".cuh": "//", ".py": "#", ".cmake": "#"}
HEADLESS = re.compile(r"(?:^|[.:;!?]\s+)((?:What|Of|Who|Whose|Those|Through) [a-z][^.?!]*[.?!]?)")


def wide_lines(path, lines):
    is_page = path.suffix == ".md"
    in_code = False
    for number, line in enumerate(lines, 1):
        if is_page and line.startswith("```"):
            in_code = not in_code
        is_exempt = is_page and (in_code or line.startswith(("|", "    ")))
        if len(line) > WIDEST and not is_exempt and "http" not in line:
            yield number, f"{len(line)} columns, more than {WIDEST}"


def comment_paragraphs(path, lines):
    """(line number, text) of each run of comment lines."""
    mark = COMMENT[path.suffix]
    start, words = 0, []
    for number, line in enumerate([*lines, ""], 1):
        text = line.strip()
        if text.startswith(mark) and text[len(mark):].strip() and "SPDX-License-Identifier" not in text:
            if not words:
                start = number
            words.append(text[len(mark):].strip())
        elif words:
            yield start, " ".join(words)
            words = []


def page_paragraphs(lines):
    start, words, in_code = 0, [], False
    for number, line in enumerate([*lines, ""], 1):
        if line.startswith("```"):
            in_code = not in_code
        if in_code or not line.strip() or line.startswith(("#", "|", "    ", "```", ">")):
            if words:
                yield start, " ".join(words)
            words = []
            continue
        text = re.sub(r"^\s*(?:[*-]|\d+\.)\s+", "", line)
        if text != line and words:
            yield start, " ".join(words)
            words = []
        if not words:
            start = number
        words.append(text.strip())


def headless_sentences(path, lines):
    paragraphs = page_paragraphs(lines) if path.suffix == ".md" else comment_paragraphs(path, lines)
    for number, text in paragraphs:
        for sentence in HEADLESS.findall(text.replace("*", "")):
            if not sentence.endswith("?"):
                yield number, f"a sentence starts without its subject: {sentence[:60]}"


def main():
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    kinds = {".md", *COMMENT}
    files = [ROOT / n for n in names if Path(n).suffix in kinds and (ROOT / n).is_file()]
    problems = []
    for path in files:
        lines = path.read_text().splitlines()
        for number, what in [*wide_lines(path, lines), *headless_sentences(path, lines)]:
            problems.append(f"{path.relative_to(ROOT)}:{number}: {what}")
    for problem in problems:
        print(problem)
    print(f"check_prose: {len(files)} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
