# SPDX-License-Identifier: Apache-2.0
"""Colours of Okabe and Ito, which people with any kind of colour vision can tell apart, and marks."""

from __future__ import annotations

from typing import Tuple

COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999", "#F0E442"]
MARKERS = ["s", "^", "D"]  # a colour comes back with another one
OURS = 2  # the first colours, which do not come back


def look_of(place: int) -> Tuple[str, str]:
    """Colour and mark of the family at this place."""
    if place < len(COLOURS):
        return COLOURS[place], MARKERS[0]
    again, others = place - len(COLOURS), len(COLOURS) - OURS
    return COLOURS[OURS + again % others], MARKERS[1 + again // others]
