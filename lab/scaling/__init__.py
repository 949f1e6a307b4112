# SPDX-License-Identifier: Apache-2.0
"""Weak scaling on simulated platforms. report.py is the program; its parts:

    plan      which (platform, n, P) are simulated, with which presets, by which command line
    runs      runs the commands, keeps their JSON, continues where it was interrupted
    analysis  what follows from the rows: crossovers, ratios, bounds; arithmetic only
    tables    the same as tables of text, for the page and for docs/scaling.md
    document  the report as a document, which `oktopk-lab report` shows as a page
    figures   the figures of docs/scaling.md (the only part that needs matplotlib)
    docs      writes tables and figures into docs/scaling.md
"""
