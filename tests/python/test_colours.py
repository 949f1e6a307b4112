# SPDX-License-Identifier: Apache-2.0
"""The palettes of all our charts, as a colour-blind reader sees them (Machado, Oliveira and Fernandes 2009)."""

import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SIGHT = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}
LEAST = 12  # in CIELAB: a just noticeable difference is about 2.3


def palette(path, pattern):
    found = re.findall(pattern, (ROOT / path).read_text())
    return [colour for colour in found if not isinstance(colour, tuple)]


def report_palette(number):
    """Of the light theme, or of the dark one."""
    return palette("tools/page.cc", r"--p\d: (#[0-9a-f]{6})")[9 * number : 9 * number + 9]


PALETTES = {
    "examples/common/plot.py": palette("examples/common/plot.py", r'"(#[0-9a-f]{6})"'),
    "scripts/scaling/figures.py": palette("scripts/scaling/figures.py", r'\("(#[0-9a-f]{6})", "\S", [\d.]+\), ?"?'),
    "tools/page.cc, light": report_palette(0),
    "tools/page.cc, dark": report_palette(1),
}


def lab(colour, matrix):
    linear = [((v + 0.055) / 1.055) ** 2.4 if v > 0.04045 else v / 12.92 for v in
              (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))]
    r, g, b = (min(1, max(0, sum(m * v for m, v in zip(row, linear)))) for row in matrix)
    xyz = ((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047, 0.2126 * r + 0.7152 * g + 0.0722 * b,
           (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883)
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(a, b, matrix):
    return sum((u - v) ** 2 for u, v in zip(lab(a, matrix), lab(b, matrix))) ** 0.5


@pytest.mark.parametrize("name", PALETTES)
def test_colours_stay_apart_for_every_reader(name):
    colours = PALETTES[name]
    assert len(set(colours)) == len(colours) >= 6
    for sight, matrix in SIGHT.items():
        for a, b in itertools.combinations(colours, 2):
            assert distance(a, b, matrix) >= LEAST, f"{a} and {b} look alike: {sight}"


def test_the_measure_finds_red_and_green_alike():
    assert distance("#d62728", "#2ca02c", SIGHT["normal"]) > 80
    assert distance("#d62728", "#2ca02c", SIGHT["deuteranopia"]) < LEAST
