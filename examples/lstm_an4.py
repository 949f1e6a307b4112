#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A bidirectional LSTM with CTC that spells what is said, on AN4's MFCC frames.

    torchrun --nproc-per-node 4 examples/lstm_an4.py \\
        --data ~/an4 --compress dense,oktopk,circulant

Reports the CTC loss per character and the character error rate of greedy decoding.
"""

import argparse
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from common.data import an4
from common.data.an4 import Speech
from common.main import run_example
from common.options import make_parser
from common.train import Task
from common.world import World

EVAL_BATCH = 32


class BothWays(nn.Module):
    """One LSTM reads a sequence forwards, another backwards from its end; what they say of each
    time is put side by side. As nn.LSTM(bidirectional=True) does with packed sequences, but on a
    CPU several times faster."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.forwards = nn.LSTM(width, hidden, batch_first=True)
        self.backwards = nn.LSTM(width, hidden, batch_first=True)

    def forward(self, sequences: torch.Tensor, turned: torch.Tensor) -> torch.Tensor:
        """sequences: [batch, time, width]. turned: [batch, time, 1], at which time a sequence that
        is turned round has what it has here."""
        behind = self.backwards(take(sequences, turned))[0]
        return torch.cat([self.forwards(sequences)[0], take(behind, turned)], -1)


def take(sequences: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    return sequences.gather(1, times.expand(-1, -1, sequences.shape[2]))


class Speller(nn.Module):
    """`stack` frames become one, then LSTM layers in both directions, then a score for each
    letter."""

    def __init__(self, hidden: int, layers: int, stack: int, dropout: float):
        super().__init__()
        self.stack = stack
        self.enter = nn.Sequential(
            nn.Linear(stack * an4.COEFFICIENTS, hidden), nn.ReLU(), nn.Dropout(dropout)
        )
        widths = [hidden] + (layers - 1) * [2 * hidden]
        self.lstm = nn.ModuleList(BothWays(width, hidden) for width in widths)
        self.between = nn.Dropout(dropout)
        self.leave = nn.Linear(2 * hidden, len(an4.ALPHABET))

    def forward(
        self, frames: torch.Tensor, counts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities [batch, time, letter] and how many of the times count; counts are on
        the host."""
        longest = int(counts.max())
        frames = F.pad(frames[:, :longest], (0, 0, 0, -longest % self.stack))
        counts = (counts + self.stack - 1) // self.stack
        states = self.enter(frames.reshape(len(frames), -1, self.stack * frames.shape[2]))
        times = torch.arange(states.shape[1])
        turned = counts[:, None] - 1 - times
        turned = torch.where(turned >= 0, turned, times)[..., None].to(states.device)
        for depth, layer in enumerate(self.lstm):
            states = layer(states if depth == 0 else self.between(states), turned)
        return self.leave(states).log_softmax(-1), counts


def ctc(
    model: nn.Module, speech: Speech, indices: torch.Tensor, noise: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The sum of the CTC losses, and the log-probabilities with their counts."""
    at = indices.to(speech.frames.device)
    counts, label_counts = speech.frame_counts[indices], speech.label_counts[indices]
    frames = speech.frames[at, : int(counts.max())]
    scores, times = model(frames + noise * torch.randn_like(frames) if noise else frames, counts)
    loss = F.ctc_loss(
        scores.transpose(0, 1),
        speech.labels[at],
        times,
        label_counts,
        reduction="sum",
        zero_infinity=True,
    )
    return loss, scores, times


def edit_distance(a: Sequence[int], b: Sequence[int]) -> int:
    """How many letters must be inserted, deleted or replaced to get from one word to another
    (Levenshtein). COST: len(a) len(b)."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above_left, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            above_left, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above_left + (x != y))
    return row[-1]


def spell(scores: torch.Tensor, times: torch.Tensor) -> list[list[int]]:
    """Greedy decoding: the best letter of each time, repeats merged, blanks dropped."""
    best = scores.argmax(-1).cpu()
    merged = (
        torch.unique_consecutive(row[:count]).tolist()
        for row, count in zip(best, times.tolist(), strict=True)
    )
    return [[letter for letter in row if letter] for row in merged]


def make_task(args: argparse.Namespace, world: World) -> Task:
    data = world.once(lambda: an4.load(args.data))
    train, test = data.train.to(world.device), data.test.to(world.device)
    labels = test.labels.cpu()

    def loss(model: nn.Module, indices: torch.Tensor) -> torch.Tensor:
        return ctc(model, train, indices, args.noise)[0] / train.label_counts[indices].sum()

    def evaluate(model: nn.Module, indices: torch.Tensor) -> dict[str, tuple[float, float]]:
        total, wrong = 0.0, 0
        for part in indices.split(EVAL_BATCH):
            part_loss, scores, times = ctc(model, test, part)
            total += part_loss.item()
            wrong += sum(
                edit_distance(spelt, labels[i, : test.label_counts[i]].tolist())
                for i, spelt in zip(part.tolist(), spell(scores, times), strict=True)
            )
        letters = int(test.label_counts[indices].sum())
        return {"loss": (total, letters), "error rate": (wrong, letters)}

    def make_model() -> nn.Module:
        return Speller(args.hidden, args.layers, args.stack, args.dropout)

    title = f"{args.layers}-layer bidirectional LSTM ({args.hidden} wide) with CTC on {data.name}"
    return Task(
        title,
        data.stand_in,
        len(train.labels),
        len(test.labels),
        make_model,
        loss,
        evaluate,
        "error rate",
    )


if __name__ == "__main__":
    options = make_parser(
        __doc__, steps=800, batch=8, optimiser="adam", lr={"momentum": 0.1, "adam": 1e-2}
    )
    options.add_argument(
        "--hidden", type=int, default=96, help="width of each direction (default: %(default)s)"
    )
    options.add_argument("--layers", type=int, default=1, help="LSTM layers (default: %(default)s)")
    options.add_argument(
        "--stack", type=int, default=4, help="frames taken together as one (default: %(default)s)"
    )
    options.add_argument("--dropout", type=float, default=0.1, help="default: %(default)s")
    options.add_argument(
        "--noise",
        type=float,
        default=0.3,
        help="added to the frames when training (default: %(default)s)",
    )
    run_example(options, make_task)
