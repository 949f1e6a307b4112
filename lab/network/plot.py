# SPDX-License-Identifier: Apache-2.0
"""A picture of the table: the time of a step for every method, per network, on a log axis."""

from __future__ import annotations

from network.table import duration, size


def draw(record: dict, file: str) -> None:
    """Bars are medians, whiskers from least to most; the bytes stand beside the time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    links = record["links"]
    figure, panels = pyplot.subplots(1, len(links), figsize=(6 * len(links), 3.6), squeeze=False)
    for panel, link in zip(panels[0], links):
        rows = [r for r in record["rows"] if r["network"] == link["network"] and "error" not in r][
            ::-1
        ]
        middle = [r["median"] for r in rows]
        spread = [[r["median"] - r["min"] for r in rows], [r["max"] - r["median"] for r in rows]]
        bars = panel.barh(
            [r["method"] for r in rows], middle, xerr=spread, color="#0072b2", ecolor="#888888"
        )
        panel.bar_label(
            bars,
            [f"{duration(r['median'])}, {size(r['wire'])}" for r in rows],
            padding=6,
            fontsize=8,
        )
        panel.set_xscale("log")
        panel.set_xlim(right=8 * max([r["max"] for r in rows], default=1.0))  # room for the words
        panel.set_title(f"{link['network']}: measured {link['rate'] / 1e6:.4g} Mbit/s", fontsize=10)
        panel.set_xlabel("seconds per step; bytes sent per rank")
    figure.tight_layout()
    figure.savefig(file, dpi=120)
