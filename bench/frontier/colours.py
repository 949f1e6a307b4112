# SPDX-License-Identifier: Apache-2.0
"""Colours of Okabe and Ito, which people with any kind of colour vision can tell apart, and marks."""

COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999", "#F0E442"]
MARKERS = ["s", "^", "D"]  # a colour comes back with another one
