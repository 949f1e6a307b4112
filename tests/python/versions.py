# SPDX-License-Identifier: Apache-2.0
"""Which torch this is: tests of what it lacks are skipped, with the version that has it."""

from __future__ import annotations

import pytest
import torch

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def reason(version: tuple[int, int], what: str) -> str:
    return f"{what}: torch {version[0]}.{version[1]} or newer, this is {torch.__version__}"


def needs_torch(version: tuple[int, int], what: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(TORCH < version, reason=reason(version, what))


needs_gloo_bf16 = needs_torch((2, 2), "bfloat16 in Gloo")
needs_cpu_scaler = needs_torch((2, 3), "a GradScaler for the CPU")
