#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""BERT's masked-language model on any text file, with a vocabulary made from the text.

    torchrun --nproc-per-node 4 examples/bert_mlm.py \\
        --data some.txt --size tiny --compress dense,oktopk,circulant

15% of the tokens of each piece are to be guessed; of these 80% are masked, 10% replaced by another
token, 10% left alone (Devlin et al., 2019).
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

from common.data import text
from common.main import run_example
from common.options import make_parser
from common.train import Task
from common.world import World

# Layers and width; a head is 64 wide.
SIZES = {"tiny": (2, 128), "mini": (4, 256), "small": (4, 512), "base": (12, 768)}
EVAL_BATCH = 64
GUESSED = 0.15


class Bert(nn.Module):
    """The encoder; only the tokens to be guessed get scores, by the embedding turned round."""

    def __init__(self, vocabulary: int, length: int, layers: int, width: int, dropout: float):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.enter = nn.Sequential(nn.LayerNorm(width), nn.Dropout(dropout))
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, dropout, "gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.leave = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Scores [batch, guessed, vocabulary] of the tokens at `places` [batch, guessed]."""
        states = self.encoder(self.enter(self.tokens(tokens) + self.places))
        chosen = states.gather(1, places[..., None].expand(-1, -1, states.shape[2]))
        return F.linear(self.leave(chosen), self.tokens.weight, self.bias)


def mask(
    tokens: torch.Tensor, vocabulary: int, rng: torch.Generator | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens as the model sees them, and the places [batch, guessed] it must guess; as many in
    each piece, so that shapes stay."""
    device = tokens.device
    places = (
        torch.rand(tokens.shape, generator=rng, device=device)
        .topk(max(1, round(GUESSED * tokens.shape[1])), dim=1)
        .indices
    )
    original = tokens.gather(1, places)
    fate = torch.rand(places.shape, generator=rng, device=device)
    others = torch.randint(1, vocabulary, places.shape, generator=rng, device=device)
    shown = torch.where(fate < 0.8, text.MASK, torch.where(fate < 0.9, others, original))
    return tokens.scatter(1, places, shown), places


def make_task(args: argparse.Namespace, world: World) -> Task:
    data = world.once(lambda: text.load(args.data, args.length, args.vocabulary))
    train, test = data.train.to(world.device), data.test.to(world.device)
    words = len(data.vocabulary)
    # The held-out pieces are masked once, so that every evaluation asks the same questions.
    seen, asked = (
        part.to(world.device) for part in mask(data.test, words, torch.Generator().manual_seed(2))
    )

    def scores_and_answers(
        model: nn.Module, shown: torch.Tensor, places: torch.Tensor, tokens: torch.Tensor
    ):
        return model(shown, places).flatten(0, 1), tokens.gather(1, places).flatten()

    def loss(model: nn.Module, indices: torch.Tensor) -> torch.Tensor:
        tokens = train[indices.to(world.device)]
        return F.cross_entropy(*scores_and_answers(model, *mask(tokens, words), tokens))

    def evaluate(model: nn.Module, indices: torch.Tensor) -> dict[str, tuple[float, float]]:
        total, right = torch.zeros(2, dtype=torch.float64, device=world.device)
        for part in indices.to(world.device).split(EVAL_BATCH):
            scores, answers = scores_and_answers(model, seen[part], asked[part], test[part])
            total += F.cross_entropy(scores, answers, reduction="sum")
            right += (scores.argmax(1) == answers).sum()
        count = len(indices) * asked.shape[1]
        return {"loss": (total.item(), count), "accuracy": (right.item(), count)}

    def make_model() -> nn.Module:
        return Bert(words, args.length, *SIZES[args.size], args.dropout)

    title = f"BERT {args.size} on {data.name} ({words} words and bytes, pieces of {args.length})"
    return Task(title, data.stand_in, len(train), len(test), make_model, loss, evaluate, "accuracy")


if __name__ == "__main__":
    options = make_parser(
        __doc__,
        steps=800,
        batch=16,
        optimiser="adam",
        weight_decay=0.01,
        lr={"momentum": 0.05, "adam": 1e-3},
    )
    options.add_argument(
        "--size",
        choices=SIZES,
        default="tiny",
        help="; ".join(
            f"{name}: {layers} layers, {width} wide" for name, (layers, width) in SIZES.items()
        ),
    )
    options.add_argument(
        "--length", type=int, default=64, help="tokens per piece (default: %(default)s)"
    )
    options.add_argument(
        "--vocabulary",
        type=int,
        default=2048,
        help="at most so many words and bytes (default: %(default)s)",
    )
    options.add_argument("--dropout", type=float, default=0.1, help="default: %(default)s")
    run_example(options, make_task)
