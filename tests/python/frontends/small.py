# SPDX-License-Identifier: Apache-2.0
"""A small model, its data, the hook's options, and notes of how a training ended on each rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import torch

# topka selects and sums alike in whatever order DDP has its buckets, which differ after a resume.
OPTIONS = dict(density=0.05, preset="topka", start_iter=2, min_numel=100, timeout=60.0)
BATCH, BATCHES = 4, 4  # per rank and epoch, on two ranks


class Net(torch.nn.Module):
    """Gives a loss, as Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
        )

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Dict[str, torch.Tensor]:
        return {"loss": torch.nn.functional.cross_entropy(self.layers(x), labels)}


class Samples(torch.utils.data.Dataset):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(2 * BATCH * BATCHES, 32, generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Dict[str, torch.Tensor]:
        return {"x": self.x[i], "labels": self.x[i, :10].argmax()}


def note(path: Path, rank: int, state: Any, model: torch.nn.Module) -> None:
    """Writes down what this rank has."""
    what = {
        "iteration": state.iteration,
        "unsent": state.unsent(),
        "weights": {name: p.detach() for name, p in model.named_parameters()},
        "ratio": state.compression_stats()[0],
    }
    torch.save(what, path / f"{rank}.pt")


def noted(path: Path, rank: int) -> Dict[str, Any]:
    return torch.load(path / f"{rank}.pt")


def assert_same(path: Path, other: Path, iteration: int) -> None:
    """Two ranks ended alike: sparse, at this iteration, with the same mass unsent."""
    for rank in range(2):
        a, b = noted(path, rank), noted(other, rank)
        assert a["iteration"] == b["iteration"] == iteration
        assert a["ratio"] > 1 and sum(float(x.abs().sum()) for x in a["unsent"].values()) > 0
        for part in ("unsent", "weights"):
            assert a[part].keys() == b[part].keys() != set()
            for name, value in a[part].items():
                torch.testing.assert_close(value, b[part][name], rtol=1e-5, atol=1e-6)
    for name, value in noted(path, 0)["weights"].items():
        assert torch.equal(value, noted(path, 1)["weights"][name])
