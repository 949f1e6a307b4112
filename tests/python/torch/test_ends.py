# SPDX-License-Identifier: Apache-2.0
"""Every way to end a process, once; `make ends` makes each many times (tests/python/ends.py)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import ends
import pytest

JOBS = 4  # most of a job is ranks that wait for each other


def once() -> list[tuple[str, str]]:
    """Each way with its first front, and each front with the ways that differ most."""
    differ = ("end", "error between steps", "SIGTERM with a handler that exits")
    pairs = ends.table([*ends.ALL, "dense hook"], list(ends.WAYS))
    return [(front, way) for front, way in pairs if way in differ or front == ends.WAYS[way].fronts[0]]


# One test: others would start further zygotes in other workers of pytest, and each imports torch.
def test_processes_end_as_their_users_expect() -> None:
    zygote = ends.Zygote()
    try:
        with ThreadPoolExecutor(JOBS) as pool:
            verdicts = list(pool.map(lambda pair: zygote.run(pair[0], ends.WAYS[pair[1]]), once()))
    finally:
        zygote.close()
    bad = [f"{pair}: {v.trouble}\n{v.text}" for pair, v in zip(once(), verdicts) if v.trouble]
    if bad:
        pytest.fail("\n\n".join(bad))
