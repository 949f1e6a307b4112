# SPDX-License-Identifier: Apache-2.0
"""What a sparse entry costs on the wire, and what rounding does to its value, for methods that are simulated."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BITS = {"fp32": 32.0, "bf16": 16.0, "log8": 8.125, "log4": 4.125}
BLOCK = 256  # values that share a scale


def entry_bytes(density: float, value_bits: float) -> float:
    """An index by Elias-Fano, or a bit for every value where that is less, and the value."""
    return (min(2 + math.log2(1 / density), 1 / density) + value_bits) / 8


def rounded(x: Tensor, coding: str) -> Tensor:
    """x as it arrives; zeros stay zeros. The log codings have levels at equal distances of the logarithm, at most 1.5
    octaves apart, between the smallest and the largest magnitude of a block; smaller values become zero."""
    if coding == "fp32":
        return x
    if coding == "bf16":
        return x.bfloat16().float()
    steps = {"log8": 127, "log4": 7}[coding]
    blocks = _in_blocks(x, BLOCK)
    magnitude = blocks.abs()
    most = magnitude.amax(-1, keepdim=True).clamp(min=1e-30)
    least = torch.where(magnitude > 0, magnitude, most).amin(-1, keepdim=True)
    width = ((most / least).log2() / steps).clamp(min=1e-6, max=1.5)
    level = ((magnitude / most).log2() / width).round_()  # from 0 downwards
    values = torch.where(level >= -steps, blocks.sign() * most * (level * width).exp2(), 0)
    return values.view(*x.shape[:-1], -1)[..., : x.shape[-1]]


def _in_blocks(x: Tensor, size: int) -> Tensor:
    padded = torch.nn.functional.pad(x, (0, -x.shape[-1] % size))
    return padded.view(*x.shape[:-1], -1, size)


def in_four_bits(rows: Tensor) -> Tensor:
    """Every value as zero or a power of two below the largest of its block."""
    blocks = _in_blocks(rows, BLOCK)
    most = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    level = (blocks.abs() / most).clamp(min=1e-9).log2().round_()
    values = torch.where(level >= -6, blocks.sign() * most * level.exp2(), 0)
    return values.view(rows.shape[0], -1)[:, : rows.shape[1]]
