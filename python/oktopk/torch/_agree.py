# SPDX-License-Identifier: Apache-2.0
"""Before anything is exchanged: do all ranks have the same options, and can all of them go on?"""

from __future__ import annotations

from typing import Any, Dict, List

import torch.distributed as dist

from oktopk._core import CommError, PythonCommunicator, UsageError, calibrate


def require_equal(comm: PythonCommunicator, description: str, trouble: str = "") -> None:
    """Collective: UsageError on every rank, with what differs, unless all say the same. trouble: why this rank cannot
    go on; then no rank does."""
    transport: Any = comm.python_transport
    said: List[Any] = [None] * comm.size
    try:
        dist.all_gather_object(said, (description, trouble), group=transport.group)
    except RuntimeError as error:
        raise CommError(f"oktopk: the ranks could not compare their options: {error}") from error
    for rank, (_, other) in enumerate(said):
        if other:
            raise UsageError(f"oktopk: rank {rank}: {other}")
    for rank, (other, _) in enumerate(said):
        if other != said[0][0]:
            here, there = _difference(said[0][0], other)
            raise UsageError(
                f"oktopk: ranks have different options: rank 0 has '{here}', rank {rank} has "
                f"'{there}': give all ranks the same"
            )


def _difference(a: str, b: str) -> "tuple[str, str]":
    pairs = zip(a.split(", ") + [""], b.split(", ") + [""])
    return next(((x, y) for x, y in pairs if x != y), (a, b))


def options_of_nodes(comm: PythonCommunicator, options: Dict[str, Any]) -> Dict[str, Any]:
    """Collective, with group_size: all buckets share the communicators of their nodes, and one measured profile."""
    transport: Any = comm.python_transport
    transport.shares_parts = True
    if options["preset"] != "auto" or options.get("profile") is not None:
        return options
    size = options["group_size"]
    ranks = 1 if size == "host" else max(1, size)
    return {**options, "profile": calibrate(comm, ranks_per_host=ranks)}
