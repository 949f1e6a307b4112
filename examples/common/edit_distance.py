# SPDX-License-Identifier: Apache-2.0
"""How many letters must be inserted, deleted or replaced to get from one word to another
(Levenshtein)."""

from collections.abc import Sequence


def edit_distance(a: Sequence[int], b: Sequence[int]) -> int:
    """COST: len(a) len(b)."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above_left, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            above_left, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above_left + (x != y))
    return row[-1]
