# SPDX-License-Identifier: Apache-2.0
"""What a sparse entry costs on the wire, and what rounding does to its value, for methods that are simulated."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BITS = {"fp32": 32, "bf16": 16, "log8": 8, "log4": 4}


def entry_bytes(density: float, value_bits: float) -> float:
    """An index by Elias-Fano, or a bit for every value where that is less, and the value."""
    return (min(2 + math.log2(1 / density), 1 / density) + value_bits) / 8


def rounded(x: Tensor, coding: str) -> Tensor:
    """x as it arrives; zeros stay zeros. The log codings have levels at equal distances of the logarithm between the
    smallest and the largest magnitude of a row."""
    if coding == "fp32":
        return x
    if coding == "bf16":
        return x.bfloat16().float()
    magnitude = x.abs()
    most = magnitude.amax(-1, keepdim=True).clamp(min=1e-30)
    least = torch.where(magnitude > 0, magnitude, most).amin(-1, keepdim=True)
    steps = 2 ** (BITS[coding] - 1) - 1
    width = ((most / least).log() / steps).clamp(min=1e-6)
    level = ((magnitude / least).clamp(min=1).log() / width).round_()
    return torch.where(magnitude > 0, x.sign() * least * (level * width).exp_(), 0)


def in_four_bits(rows: Tensor, block: int = 256) -> Tensor:
    """Every value as zero or a power of two below the largest of its block."""
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % block)).view(rows.shape[0], -1, block)
    most = padded.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    level = (padded.abs() / most).clamp(min=1e-9).log2().round_()
    values = torch.where(level >= -6, padded.sign() * most * level.exp2(), 0)
    return values.view(rows.shape[0], -1)[:, : rows.shape[1]]
