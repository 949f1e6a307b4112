# SPDX-License-Identifier: Apache-2.0
"""The models of the race, as one flat vector of parameters: a byte-level GPT of several sizes."""

from __future__ import annotations

from typing import Dict, List, NamedTuple

import torch
from torch import Tensor, nn


class Shape(NamedTuple):
    layers: int
    width: int
    heads: int
    context: int


SHAPES: Dict[str, Shape] = {
    "tiny": Shape(1, 32, 2, 32),  # 22 thousand parameters, for tests
    "100K": Shape(2, 64, 4, 64),
    "1M": Shape(4, 144, 4, 128),
    "10M": Shape(6, 384, 6, 128),
    "124M": Shape(12, 928, 16, 256),
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
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Gpt(nn.Module):
    """Bytes in, the logits of the next byte out. The first and the last layer share their weights."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, shape.width), nn.Embedding(shape.context, shape.width)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.blocks(self.tokens(tokens) + self.places(places)))
        return nn.functional.linear(x, self.tokens.weight)


class FlatModel:
    """A model whose parameters are views of one vector, and whose gradients are views of another one."""

    def __init__(self, model: nn.Module, device: torch.device):
        self.model = model.to(device)
        self.shapes: List[torch.Size] = [parameter.shape for parameter in model.parameters()]
        self.n = sum(shape.numel() for shape in self.shapes)
        self.weights = torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])
        self.use(self.weights)

    def use(self, weights: Tensor) -> None:
        """Computes with these weights from now on; n values."""
        for parameter, part in zip(self.model.parameters(), self.parts(weights)):
            parameter.data = part

    def parts(self, flat: Tensor) -> List[Tensor]:
        """Views of a vector of n values, in the shapes of the parameters."""
        pieces = flat.split([shape.numel() for shape in self.shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes)]

    def gradient_into(self, flat: Tensor, tokens: Tensor, bf16: bool) -> Tensor:
        """The loss of a batch (rows of bytes, one more than the context); flat becomes its gradient."""
        flat.zero_()
        for parameter, part in zip(self.model.parameters(), self.parts(flat)):
            parameter.grad = part
        loss = self.loss(tokens, bf16)
        loss.backward()
        return loss.detach()

    def loss(self, tokens: Tensor, bf16: bool) -> Tensor:
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=bf16):
            logits = self.model(tokens[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
