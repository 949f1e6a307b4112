# SPDX-License-Identifier: Apache-2.0
"""One run of the race: a method, a seed, a learning rate. It saves itself, and goes on where it was interrupted."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, Optional

import torch

from . import registry
from .data import Text
from .method import Method
from .models import SHAPES, FlatModel, Gpt
from .schedule import Rules


@dataclass(frozen=True)
class Entry:
    """All that decides the result of a run."""

    method: str
    size: str
    text: str
    seed: int
    rules: Rules
    bf16: bool

    def file_name(self) -> str:
        method = self.method.replace(":", "_").replace("%", "pc").replace("+", "-")
        rules = self.rules
        return f"{self.size}_P{rules.ranks}_T{rules.steps}_lr{rules.lr:g}_{method}_s{self.seed}"


class Run:
    def __init__(self, entry: Entry, text: Text, folder: Path, device: torch.device):
        self._entry, self._text, self._device = entry, text, device
        self._result = folder / f"{entry.file_name()}.json"
        self._saved = folder / f"{entry.file_name()}.pt"
        torch.manual_seed(entry.seed)
        self._model = FlatModel(Gpt(SHAPES[entry.size]), device)
        self._method: Method = registry.make(entry.method, self._model, entry.rules)
        self._gradients = torch.zeros(entry.rules.ranks, self._model.n, device=device)
        self._done: Dict[str, Any] = {"steps": 0, "bytes": 0.0, "seconds": 0.0, "train_loss": []}

    def make(self, deadline: Optional[float], save_every: float = 60.0) -> bool:
        """Makes steps until the end or the deadline (of time.monotonic()). Returns whether the run is complete."""
        if self._result.exists():
            return True
        if self._saved.exists():
            self._load()
        began = saved = time.monotonic()
        while self._done["steps"] < self._entry.rules.steps:
            self._step()
            now = time.monotonic()
            if deadline is not None and now > deadline:
                self._save(now - began)
                return False
            if now - saved > save_every:
                self._save(now - began)
                began = saved = time.monotonic()
        self._done["bytes"] += self._method.finish()
        self._done["seconds"] += time.monotonic() - began
        self._write()
        return True

    def _step(self) -> None:
        entry, step = self._entry, self._done["steps"]
        loss = torch.zeros((), device=self._device)
        for rank in range(entry.rules.ranks):
            self._model.use(self._method.weights_of(rank))
            batch = self._text.batch(entry.seed, step, rank, entry.rules.rows)
            loss += self._model.gradient_into(self._gradients[rank], batch, entry.bf16)
        with torch.no_grad():
            self._done["bytes"] += self._method.step(step, self._gradients)
        self._done["steps"] = step + 1
        if step % max(1, entry.rules.steps // 100) == 0:
            self._done["train_loss"].append((step, float(loss) / entry.rules.ranks))

    @torch.no_grad()
    def _held_out_loss(self) -> float:
        self._model.use(self._method.result())
        batches = list(self._text.held_out(16, 40))
        return sum(float(self._model.loss(batch, self._entry.bf16)) for batch in batches) / len(batches)

    def _save(self, seconds: float) -> None:
        self._done["seconds"] += seconds
        _replace(self._saved, lambda file: torch.save({"done": self._done, "method": self._method.state_dict()}, file))

    def _load(self) -> None:
        saved = torch.load(self._saved, map_location=self._device, weights_only=False)  # our own file
        self._done = saved["done"]
        self._method.load_state_dict(saved["method"])

    def _write(self) -> None:
        entry = asdict(self._entry)
        result = {**entry, **self._done, "parameters": self._model.n, "held_out_loss": self._held_out_loss()}
        result["device"] = torch.cuda.get_device_name() if self._device.type == "cuda" else "cpu"
        _replace(self._result, lambda file: file.write_text(json.dumps(result, indent=1)))
        self._saved.unlink(missing_ok=True)


def _replace(path: Path, write: Any) -> None:
    """Never leaves half a file."""
    new = path.with_name(path.name + ".new")
    write(new)
    os.replace(new, path)
