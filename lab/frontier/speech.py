# SPDX-License-Identifier: Apache-2.0
"""The speech model of the race: a bidirectional LSTM with CTC on AN4, as examples/lstm_an4.py has it, but wider."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Dict, List, Optional

import torch
from torch import Tensor

from .modules import ModuleTask

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from common.data import an4  # noqa: E402
from lstm_an4 import Speller, ctc, edit_distance, spell  # noqa: E402

SIZES = {"LSTM": (512, 2), "LSTMtiny": (16, 1)}  # width of a direction, layers
NOISE, DROPOUT, STACK = 0.3, 0.1, 4


class Utterances:
    """AN4 on the device; without a path a generated stand-in."""

    def __init__(self, path: Optional[Path], device: torch.device):
        data = an4.load(path)
        self.name = data.name
        self.train, self.test = data.train.to(device), data.test.to(device)


class Speech(ModuleTask):
    """Lengths are read on the host in every step, so no graph can be captured."""

    is_capturable = False

    def __init__(self, model: str, utterances: Utterances, seed: int, device: torch.device):
        torch.manual_seed(seed)
        width, layers = SIZES[model]
        # cuDNN wants the weights of an LSTM side by side; it copies them where they are not.
        warnings.filterwarnings("ignore", message="RNN module weights")
        super().__init__(
            Speller(width, layers, STACK, DROPOUT).to(device), f"LSTM ({layers} x {width}), {utterances.name}"
        )
        self._data, self._device = utterances, device

    def batch(self, seed: int, step: int, ranks: int, rows: int) -> List[Tensor]:
        """Which utterances; noise and dropout follow from the same seed."""
        torch.manual_seed((seed * 1_000_003 + step) % 2**63)
        return [torch.randint(len(self._data.train.labels), (ranks, rows))]

    def _loss(self, batch: List[Tensor], rank: int) -> Tensor:
        which, train = batch[0][rank], self._data.train
        return ctc(self._net, train, which, NOISE)[0] / train.label_counts[which].sum().to(self._device)

    @torch.no_grad()
    def judge(self, weights: Tensor) -> Dict[str, float]:
        self._use(weights)
        self._net.eval()
        test, loss, wrong = self._data.test, 0.0, 0
        labels = test.labels.cpu()
        for part in torch.arange(len(labels)).split(32):
            part_loss, scores, times = ctc(self._net, test, part)
            loss += float(part_loss)
            for i, spelt in zip(part.tolist(), spell(scores, times)):
                wrong += edit_distance(spelt, labels[i, : test.label_counts[i]].tolist())
        self._net.train()
        letters = int(test.label_counts.sum())
        return {"held_out_loss": loss / letters, "error_rate": wrong / letters}
