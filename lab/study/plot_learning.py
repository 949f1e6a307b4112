#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/figures/learning.png from the JSON of `oktopk-lab study learning -J FILE` (one or several files).

    python3 lab/study/plot_learning.py study.json docs/figures/learning.png        needs matplotlib
"""

import json
import statistics
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

CLIP = 4.5  # percent; longer bars are cut and say how long they are


def main():
    *files, out = sys.argv[1:]
    rows = [row for name in files for row in json.load(open(name))["rows"]]
    optimisers = [o for o in ("sgd", "momentum", "adam") if any(r["recipe"]["optimiser"] == o for r in rows)]
    groups = [[r for r in rows if r["recipe"]["optimiser"] == o and r["preset"] != "dense"] for o in optimisers]
    figure, axes = plt.subplots(
        len(groups), 1, figsize=(8.5, 0.27 * sum(map(len, groups)) + 1.6), sharex=True,
        gridspec_kw={"height_ratios": [len(g) for g in groups]}, squeeze=False)
    for axis, name, group in zip(axes[:, 0], optimisers, groups):
        gaps = [100 * statistics.mean(r["gaps"]) for r in group]
        spread = [100 * statistics.stdev(r["gaps"]) if len(r["gaps"]) > 1 else 0 for r in group]
        best = [r["name"].endswith("owner memory, dense 2%") for r in group]
        places = range(len(group))
        axis.barh(places, [min(g, CLIP) for g in gaps], color=["#0072b2" if b else "#999999" for b in best],
                  xerr=[0 if g > CLIP else s for g, s in zip(gaps, spread)], error_kw={"lw": 1, "ecolor": "#000000"})
        for place, gap, sd in zip(places, gaps, spread):
            if gap > CLIP:
                axis.text(CLIP + 0.05, place, f"{gap:.1f} ± {sd:.1f}", va="center", fontsize=7)
        axis.set_yticks(list(places), [r["name"] for r in group], fontsize=7.5)
        axis.invert_yaxis()
        axis.set_xlim(-2.2, CLIP + 0.6)
        axis.axvline(0, color="#333", lw=1)
        axis.set_title(name, loc="left", fontsize=9.5, fontweight="bold")
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="x", color="#ddd", lw=0.6)
        axis.set_axisbelow(True)
    axes[-1, 0].set_xlabel("test loss, percent above dense (same steps; mean and standard deviation over seeds)",
                           fontsize=8.5)
    figure.tight_layout()
    figure.savefig(out, dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    main()
