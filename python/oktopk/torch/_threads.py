# SPDX-License-Identifier: Apache-2.0
"""How many threads share a rank's passes over its gradient, where the user does not say: the cores that this process
may use, divided among the ranks of the host. Results do not depend on it."""

from __future__ import annotations

import os
from typing import Any

MOST = 4  # memory bandwidth bounds the passes, and a few cores use all of it
VALUES_PER_THREAD = 1 << 18  # with fewer values a thread costs more time than it saves


def default_threads(transport: Any, n: int) -> int:
    """For n values. 1 where the ranks of the host are not known."""
    ranks = ranks_of_host(getattr(transport, "ranks_of_host", None))
    if ranks is None:
        return 1
    return max(1, min(MOST, cores() // ranks, n // VALUES_PER_THREAD))


def ranks_of_host(counted: Any) -> Any:
    """The number that torchrun gives, ranks of other groups included; without torchrun those of the group."""
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(said) if said.isdigit() and int(said) > 0 else counted


def cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1
