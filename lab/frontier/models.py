# SPDX-License-Identifier: Apache-2.0
"""The language model of the race: a GPT of several sizes, as a module and as one computation for all ranks.

`Gpt` is the module, which real ranks train (real.py, ../gpu/training.py). `RankGpt` computes the gradients of all P
ranks at once: every parameter has a first dimension for the ranks, which a product of batches of matrices keeps apart.
It gives the gradients that P modules give, up to rounding, in the time of one module with the batches of all ranks.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, layer_norm, linear, scaled_dot_product_attention


class Shape(NamedTuple):
    layers: int
    width: int
    heads: int
    context: int
    vocabulary: int = 256  # bytes; more: pieces of words (data.py)


SHAPES: Dict[str, Shape] = {
    "tiny": Shape(1, 32, 2, 32),  # 22 thousand parameters, for tests
    "100K": Shape(2, 64, 4, 64),
    "1M": Shape(4, 144, 4, 128),
    "10M": Shape(6, 384, 6, 128),
    "124M": Shape(12, 768, 12, 256, 50257),  # GPT-2 small with a shorter context
}


class Block(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.heads = shape.heads
        self.first, self.second = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.mix = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.up, self.down = nn.Linear(shape.width, 4 * shape.width), nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.mix(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(gelu(self.up(self.second(x))))


class Gpt(nn.Module):
    """Tokens in, the logits of the next token out. The first and the last layer share their weights."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.tokens, self.places = nn.Embedding(shape.vocabulary, shape.width), nn.Embedding(shape.context, shape.width)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.blocks(self.tokens(tokens) + self.places(places)))
        return linear(x, self.tokens.weight)


class RankGpt:
    """Losses of Gpt on all ranks. `bf16`: products of matrices in bfloat16, all else in float, as autocast does it."""

    def __init__(self, shape: Shape, bf16: bool):
        self._shape, self._type = shape, torch.bfloat16 if bf16 else torch.float32
        self.names: List[str] = []
        self.shapes: List[torch.Size] = []
        for name, parameter in Gpt(shape).named_parameters():
            self.names.append(name)
            self.shapes.append(parameter.shape)

    def type_of(self, place: int) -> torch.dtype:
        """In which a parameter is needed. The embedding is float: sums of many gradients go into one of its rows."""
        is_matrix = len(self.shapes[place]) > 1 and self.names[place].startswith("blocks")
        return self._type if is_matrix else torch.float32

    def loss(self, parameters: List[Tensor], tokens: Tensor) -> Tensor:
        """The sum over the ranks of each one's mean loss. parameters: [P, ...]; tokens: [P, rows, context + 1]."""
        at = dict(zip(self.names, parameters))
        rows, length = tokens.shape[1], tokens.shape[2] - 1
        x = self._embed(at, tokens[:, :, :-1])
        for layer in range(self._shape.layers):
            x = self._block(at, f"blocks.{layer}.", x, rows)
        x = _norm(at, "norm", x).to(self._type)
        logits = torch.bmm(x, at["tokens.weight"].to(self._type).transpose(1, 2))
        wanted = tokens[:, :, 1:].reshape(-1)
        return cross_entropy(logits.flatten(0, 1).float(), wanted, reduction="sum") / (rows * length)

    def _embed(self, at: Dict[str, Tensor], tokens: Tensor) -> Tensor:
        """[P, rows * length, width]"""
        ranks, rows, length = tokens.shape
        words, width = at["tokens.weight"].shape[1:]
        first = torch.arange(ranks, device=tokens.device)[:, None, None] * words
        table = at["tokens.weight"].reshape(ranks * words, width)
        x = table.index_select(0, (tokens + first).flatten()).view(ranks, rows, length, width)
        return (x + at["places.weight"][:, None, :length]).view(ranks, rows * length, width)

    def _block(self, at: Dict[str, Tensor], name: str, x: Tensor, rows: int) -> Tensor:
        ranks, positions, width = x.shape
        heads = self._shape.heads
        mixed = _linear(at, name + "mix", _norm(at, name + "first", x))
        parts = mixed.view(ranks * rows, positions // rows, 3, heads, width // heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + _linear(at, name + "out", seen.transpose(1, 2).reshape(ranks, positions, width))
        up = gelu(_linear(at, name + "up", _norm(at, name + "second", x)))
        return x + _linear(at, name + "down", up)


def _linear(at: Dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    weight, bias = at[name + ".weight"], at[name + ".bias"]
    return torch.baddbmm(bias[:, None].to(weight.dtype), x.to(weight.dtype), weight.transpose(1, 2))


def _norm(at: Dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:]) * at[name + ".weight"][:, None] + at[name + ".bias"][:, None]
