# SPDX-License-Identifier: Apache-2.0
"""Ways to end a process, once; `make ends` makes all of them many times (tests/python/ends.py)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import ends
import pytest

JOBS = 4  # most of a job is ranks that wait for each other


# Others of the table come out of the same code.
ALIKE = ("end, groups destroyed", "error after backward", "sys.exit(3) between steps", "SIGTERM", "SIGKILL")
EVERYWHERE = ("end", "SIGTERM with a handler that exits")


def once() -> list[tuple[str, str]]:
    """Each way with its first front, and some with every front."""
    pairs = ends.table([*ends.ALL, "dense hook"], [way for way in ends.WAYS if way not in ALIKE])
    return [(front, way) for front, way in pairs if way in EVERYWHERE or front == ends.WAYS[way].fronts[0]]


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
