# SPDX-License-Identifier: Apache-2.0
"""Before anything is exchanged: do all ranks have the same options?"""

from __future__ import annotations

from typing import Any, List

import torch.distributed as dist

from oktopk._core import PythonCommunicator, UsageError


def require_equal(comm: PythonCommunicator, description: str) -> None:
    """Collective: UsageError on every rank, with what differs, unless all say the same."""
    transport: Any = comm.python_transport
    said: List[Any] = [None] * comm.size
    dist.all_gather_object(said, description, group=transport.group)
    for rank, other in enumerate(said):
        if other != said[0]:
            here, there = _difference(said[0], other)
            raise UsageError(
                f"oktopk: ranks have different options: rank 0 has '{here}', rank {rank} has "
                f"'{there}': give all ranks the same"
            )


def _difference(a: str, b: str) -> "tuple[str, str]":
    pairs = zip(a.split(", ") + [""], b.split(", ") + [""])
    return next(((x, y) for x, y in pairs if x != y), (a, b))
