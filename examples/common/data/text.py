# SPDX-License-Identifier: Apache-2.0
"""Any text file as tokens: a vocabulary of its most frequent words (each with the space before it),
and bytes for everything else.

Made from the text itself in one pass, without loss: decode(encode(text)) == text. Ids: [MASK], 256
bytes, then the words by frequency.
"""

import random
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from common.data import DataError

MASK = 0
FIRST_WORD = 1 + 256
PIECE = re.compile(r" ?\w+|\s|[^\w\s]")


class Vocabulary:
    """size: at most, with the mask and the bytes; a word must occur twice."""

    def __init__(self, text: str, size: int):
        if size < FIRST_WORD:
            raise DataError(
                f"a vocabulary of {size}: it holds the mask and 256 bytes, so at least {FIRST_WORD}"
            )
        counts = Counter(PIECE.findall(text))
        ranked = sorted(
            (-count, word) for word, count in counts.items() if count > 1 and len(word.encode()) > 1
        )
        self.words = [word for _, word in ranked[: size - FIRST_WORD]]
        self._ids = {word: FIRST_WORD + i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return FIRST_WORD + len(self.words)

    def encode(self, text: str) -> torch.Tensor:
        ids: list[int] = []
        for piece in PIECE.findall(text):
            word = self._ids.get(piece)
            ids.extend([word] if word is not None else [1 + byte for byte in piece.encode()])
        return torch.tensor(ids, dtype=torch.int64)

    def decode(self, ids: torch.Tensor) -> str:
        """[MASK] shows as �."""
        raw = (
            self.words[i - FIRST_WORD].encode()
            if i >= FIRST_WORD
            else bytes([i - 1])
            if i
            else "�".encode()
            for i in ids.tolist()
        )
        return b"".join(raw).decode(errors="replace")


@dataclass
class TextData:
    """train, test: int64 [count, length], the text cut into pieces of `length` tokens; the last
    twentieth is held out."""

    name: str
    vocabulary: Vocabulary
    train: torch.Tensor
    test: torch.Tensor
    stand_in: bool = False


def load(data: Path | None, length: int, vocabulary: int) -> TextData:
    """The text file `data` (or the only .txt in the folder `data`); without one, a stand-in."""
    name, text = ("stand-in text (generated)", stand_in()) if data is None else _read(data)
    words = Vocabulary(text, vocabulary)
    tokens = words.encode(text)
    rows = tokens[: len(tokens) // length * length].reshape(-1, length)
    held_out = max(1, len(rows) // 20)
    if len(rows) < 2:
        raise DataError(
            f"{name}: {len(tokens)} tokens are too few for pieces of {length}: "
            "one to learn from and one to hold out"
        )
    return TextData(name, words, rows[:-held_out], rows[-held_out:], stand_in=data is None)


def _read(data: Path) -> tuple[str, str]:
    files = sorted(data.glob("*.txt")) if data.is_dir() else [data]
    if len(files) != 1:
        raise DataError(f"{data}: {len(files)} .txt files in it; name one: --data FILE")
    try:
        return files[0].name, files[0].read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{files[0]}: not a text in UTF-8: {error}") from error


def stand_in(sentences: int = 12000) -> str:
    """Sentences of a small grammar in which subject, verb and object go together, so that a masked
    word can be guessed from the others."""
    rng = random.Random(7)
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(2, 3))) for _ in range(240)]
    groups = [words[i : i + 12] for i in range(0, 240, 12)]
    lines = []
    for _ in range(sentences):
        topic = rng.randrange(5)
        subject, verb, thing, adjective = (
            rng.choice(groups[topic * 4 + role][: rng.choice((3, 12))]) for role in range(4)
        )
        lines.append(
            rng.choice(
                [
                    f"The {adjective} {subject} {verb}s a {thing}.",
                    f"A {thing} is {verb}ed by the {subject}.",
                    f"Why does the {subject} {verb} the {adjective} {thing}?",
                ]
            )
        )
    return "\n".join(lines)
