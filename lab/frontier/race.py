# SPDX-License-Identifier: Apache-2.0
"""One run of the race: a method, a seed, a learning rate. It saves itself, and goes on where it was interrupted."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Optional

import torch

from . import registry
from .method import Bytes, Method
from .schedule import Rules
from .tasks import Gradients, Task


@dataclass(frozen=True)
class Entry:
    """All that decides the result of a run."""

    method: str
    model: str
    data: str
    seed: int
    rules: Rules
    bf16: bool

    def file_name(self) -> str:
        method = self.method.replace(":", "_").replace("%", "pc").replace("+", "-")
        rules = self.rules
        return f"{self.model}_{rules.optimiser}_P{rules.ranks}_T{rules.steps}_lr{rules.lr:g}_{method}_s{self.seed}"


class Run:
    """make_task: makes the task with the weights of the entry's seed; not called where the result is there."""

    def __init__(self, entry: Entry, make_task: Callable[[int], Task], folder: Path):
        self._entry, self._make_task = entry, make_task
        self._result = folder / f"{entry.file_name()}.json"
        self._saved = folder / f"{entry.file_name()}.pt"
        self._done: Dict[str, Any] = {"steps": 0, "bytes": 0.0, "seconds": 0.0, "train_loss": []}

    def make(self, deadline: Optional[float], save_every: float = 300.0) -> bool:
        """Makes steps until the end or the deadline (of time.monotonic()). Returns whether the run is complete."""
        if self._result.exists():
            return True
        self._begin()
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

    def _begin(self) -> None:
        entry = self._entry
        self._task = self._make_task(entry.seed)
        self._method: Method = registry.make(entry.method, self._task, entry.rules)
        if self._saved.exists():
            self._load()
        self._gradients = Gradients(self._task, self._method.at(), entry.rules.ranks)

    def _step(self) -> None:
        entry, step = self._entry, self._done["steps"]
        batch = self._task.batch(entry.seed, step, entry.rules.ranks, entry.rules.rows)
        loss = self._gradients.compute(batch)
        with torch.no_grad():
            self._done["bytes"] += _as_double(self._method.step(step, self._gradients.rows))
        self._done["steps"] = step + 1
        if step % max(1, entry.rules.steps // 100) == 0:
            self._done["train_loss"].append((step, float(loss) / entry.rules.ranks))

    def _save(self, seconds: float) -> None:
        self._done["seconds"] += seconds
        self._done["bytes"] = float(self._done["bytes"])  # a GPU may have counted them
        state = {"done": self._done, "method": self._method.state_dict(), "task": self._task.state_dict()}
        _replace(self._saved, lambda file: torch.save(state, file))

    def _load(self) -> None:
        saved = torch.load(self._saved, map_location=self._task.weights.device, weights_only=False)  # our own file
        self._done = saved["done"]
        self._method.load_state_dict(saved["method"])
        self._task.load_state_dict(saved["task"])

    def _write(self) -> None:
        self._done["bytes"] = float(self._done["bytes"])
        result = {**asdict(self._entry), **self._done, "parameters": self._task.n, "task": self._task.name}
        result.update(self._task.judge(self._method.result()))
        result["device"] = torch.cuda.get_device_name() if self._task.weights.is_cuda else "cpu"
        _replace(self._result, lambda file: file.write_text(json.dumps(result, indent=1)))
        self._saved.unlink(missing_ok=True)


def _replace(path: Path, write: Any) -> None:
    """Never leaves half a file."""
    new = path.with_name(path.name + ".new")
    write(new)
    os.replace(new, path)


def _as_double(count: Bytes) -> Bytes:
    return count.double() if isinstance(count, torch.Tensor) else count
