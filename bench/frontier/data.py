# SPDX-License-Identifier: Apache-2.0
"""Bytes of any text, or of all text files below a folder. The last twentieth is held out.

Batches are a function of (seed, step, rank): every method sees the same ones, and a run that was interrupted goes on
with those that it would have seen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, Optional

import numpy as np
import torch
from torch import Tensor

MOST = 200_000_000  # bytes


class Text:
    def __init__(self, path: Optional[Path], context: int, device: torch.device):
        raw = _generated() if path is None else _read(path)
        if len(raw) < 40 * (context + 1):
            raise SystemExit(f"frontier: {path}: {len(raw)} bytes are too few for a context of {context}")
        tokens = torch.from_numpy(np.frombuffer(raw, dtype=np.uint8).copy()).to(device)
        held_out = len(tokens) // 20
        self.name = "generated text" if path is None else path.name
        self._train, self._test = tokens[:-held_out], tokens[-held_out:]
        self._length = context + 1
        self._device = device

    def batch(self, seed: int, step: int, rank: int, rows: int) -> Tensor:
        generator = torch.Generator().manual_seed(((seed * 1_000_003 + step) * 4099 + rank) % 2**63)
        starts = torch.randint(len(self._train) - self._length, (rows,), generator=generator)
        return self._rows(self._train, starts)

    def held_out(self, rows: int, batches: int) -> Iterator[Tensor]:
        """The same batches for everyone, spread evenly over what is held out."""
        starts = torch.linspace(0, len(self._test) - self._length - 1, rows * batches).long()
        for part in starts.split(rows):
            yield self._rows(self._test, part)

    def _rows(self, tokens: Tensor, starts: Tensor) -> Tensor:
        places = starts.to(self._device)[:, None] + torch.arange(self._length, device=self._device)
        return tokens[places].long()


def _read(path: Path) -> bytes:
    """A file, or the files below a folder, in an order of their own that mixes the folders."""
    if path.is_file():
        return path.read_bytes()[:MOST]
    files = sorted(file for ending in ("py", "txt", "md", "c", "h", "cc", "cpp") for file in path.rglob(f"*.{ending}"))
    order = np.random.default_rng(0).permutation(len(files))
    parts, size = [], 0
    for i in order:
        parts.append(files[i].read_bytes())
        size += len(parts[-1])
        if size >= MOST:
            break
    return b"".join(parts)[:MOST]


def _generated() -> bytes:
    """Sentences of a small grammar, for tests: a model learns them in seconds."""
    rng = np.random.default_rng(7)
    words = ["".join(rng.choice(list("abdefgiklmnoprstu"), rng.integers(3, 8))) for _ in range(60)]
    lines = [
        f"the {words[a]} {words[20 + (a + b) % 20]}s a {words[40 + (a * 3 + b) % 20]}.\n"
        for a, b in rng.integers(0, 20, (20_000, 2))
    ]
    return "".join(lines).encode()
