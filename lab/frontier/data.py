# SPDX-License-Identifier: Apache-2.0
"""Tokens of any text, or of all text files below a folder: bytes, or pieces of words. The last twentieth is held out.

Batches are a function of (seed, step): every method sees the same ones, ranks share them out, and a run that was
interrupted goes on with those that it would have seen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, List, Optional

import numpy as np
import torch
from torch import Tensor

from .models import Shape

MOST = 100_000_000  # bytes
ENDINGS = ("py", "txt", "md", "c", "h", "cc", "cpp", "rs", "go", "js", "java")


class Text:
    def __init__(self, path: Optional[Path], shape: Shape, device: torch.device, cache: Optional[Path] = None):
        """cache: a folder that keeps the pieces of words, whose making takes a minute."""
        documents = [_generated()] if path is None else _read(path)
        self.name = "generated text" if path is None else path.name
        tokens = _tokens(documents, shape.vocabulary, cache, self.name)
        self._length = shape.context + 1
        if len(tokens) < 40 * self._length:
            raise SystemExit(f"frontier: {path}: {len(tokens)} tokens are too few for a context of {shape.context}")
        on_device = torch.from_numpy(tokens).to(device)
        held_out = len(tokens) // 20
        self._train, self._test = on_device[:-held_out], on_device[-held_out:]
        self._places = torch.arange(self._length, device=device)

    def batch(self, seed: int, step: int, ranks: int, rows: int) -> List[Tensor]:
        """[ranks, rows, context + 1]"""
        generator = torch.Generator().manual_seed((seed * 1_000_003 + step) % 2**63)
        starts = torch.randint(len(self._train) - self._length, (ranks, rows), generator=generator)
        return [self._rows(self._train, starts)]

    def held_out(self, rows: int, batches: int) -> Iterator[Tensor]:
        """The same batches for everyone, spread evenly over what is held out: [1, rows, context + 1] each."""
        starts = torch.linspace(0, len(self._test) - self._length - 1, rows * batches).long()
        for part in starts.split(rows):
            yield self._rows(self._test, part[None])

    def _rows(self, tokens: Tensor, starts: Tensor) -> Tensor:
        return tokens[starts.to(tokens.device)[..., None] + self._places].long()


def _tokens(documents: List[bytes], vocabulary: int, cache: Optional[Path], name: str) -> np.ndarray:
    if vocabulary == 256:
        return np.frombuffer(b"".join(documents), dtype=np.uint8).copy()
    kept = None if cache is None else cache / f"{name}_{vocabulary}.npy"
    if kept is None or not kept.exists():
        tokens = _pieces_of_words(documents, vocabulary)
        if kept is None:
            return tokens
        np.save(kept, tokens)
    return np.load(kept)


def _pieces_of_words(documents: List[bytes], vocabulary: int) -> np.ndarray:
    """Byte-pair encoding with a vocabulary learnt from a part of the same documents; int32, which torch can index."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise SystemExit("frontier: a vocabulary of pieces of words needs: pip install tokenizers") from error
    texts = [document.decode(errors="replace") for document in documents]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts[:: max(1, sum(map(len, texts)) // 30_000_000)], trainer)
    parts = [np.array(found.ids, dtype=np.int32) for found in tokenizer.encode_batch(texts)]
    return np.concatenate(parts)


def _read(path: Path) -> List[bytes]:
    """A file, or the files below a folder, in an order of their own that mixes the folders."""
    if path.is_file():
        return [path.read_bytes()[:MOST]]
    files = sorted(file for ending in ENDINGS for file in path.rglob(f"*.{ending}") if file.is_file())
    parts, size = [], 0
    for i in np.random.default_rng(0).permutation(len(files)):
        parts.append(files[i].read_bytes()[: MOST - size])
        size += len(parts[-1])
        if size >= MOST:
            break
    return parts


def _generated() -> bytes:
    """Sentences of a small grammar, for tests: a model learns them in seconds."""
    rng = np.random.default_rng(7)
    words = ["".join(rng.choice(list("abdefgiklmnoprstu"), rng.integers(3, 8))) for _ in range(60)]
    lines = [
        f"the {words[a]} {words[20 + (a + b) % 20]}s a {words[40 + (a * 3 + b) % 20]}.\n"
        for a, b in rng.integers(0, 20, (20_000, 2))
    ]
    return "".join(lines).encode()
