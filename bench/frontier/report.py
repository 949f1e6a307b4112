# SPDX-License-Identifier: Apache-2.0
"""The results of a folder as a table, a plot of loss over bytes, and one JSON file. Each method appears with the best
of its learning rates, judged by the mean over the seeds."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Tuple

OURS = ("circulant", "slots", "owner", "local", "real-slots", "real-circulant")
# Colours of Okabe and Ito, which people with any kind of colour vision can tell apart.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999", "#F0E442"]
MARKERS = ["s", "^", "D"]  # of rivals; a colour comes back with another one


class Row(NamedTuple):
    method: str
    lr: float
    seeds: int
    loss: float
    spread: float  # standard deviation over the seeds; 0 for one
    bytes_per_step: float
    less: float  # than dense fp32, over the whole run
    behind: float  # dense, relative


Group = Tuple[str, int, int, str]  # model, ranks, steps, data


def read(folder: Path) -> Dict[Group, List[Dict[str, Any]]]:
    groups: Dict[Group, List[Dict[str, Any]]] = defaultdict(list)
    for path in sorted(folder.glob("*.json")):
        run = json.loads(path.read_text())
        if "held_out_loss" in run:
            groups[(run["model"], run["rules"]["ranks"], run["rules"]["steps"], run["data"])].append(run)
    return dict(groups)


def rows_of(runs: List[Dict[str, Any]]) -> List[Row]:
    by_rate: Dict[Tuple[str, float], List[Dict[str, Any]]] = defaultdict(list)
    for run in runs:
        by_rate[(run["method"], run["rules"]["lr"])].append(run)
    best: Dict[str, List[Dict[str, Any]]] = {}
    for (method, _), same in by_rate.items():
        if method not in best or _loss(same) < _loss(best[method]):
            best[method] = same
    dense = best.get("dense")
    return sorted((_row(method, same, dense) for method, same in best.items()), key=lambda row: -row.bytes_per_step)


def _loss(runs: List[Dict[str, Any]]) -> float:
    return statistics.fmean(run["held_out_loss"] for run in runs)


def _row(method: str, runs: List[Dict[str, Any]], dense: Any) -> Row:
    losses = [run["held_out_loss"] for run in runs]
    each = statistics.fmean(run["bytes"] / run["steps"] for run in runs)
    all_values = 2 * (runs[0]["rules"]["ranks"] - 1) / runs[0]["rules"]["ranks"] * 4 * runs[0]["parameters"]
    return Row(
        method,
        runs[0]["rules"]["lr"],
        len(runs),
        statistics.fmean(losses),
        statistics.stdev(losses) if len(losses) > 1 else 0.0,
        each,
        all_values / each if each else float("inf"),
        _loss(runs) / _loss(dense) - 1 if dense else float("nan"),
    )


def table(group: Group, rows: List[Row]) -> str:
    model, ranks, steps, data = group
    lines = [
        f"{model}, P = {ranks}, {steps} steps, {data}",
        "",
        "| method | rate | seeds | held-out loss | beside dense | bytes per rank and step | less than dense |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        loss = f"{row.loss:.4f}" + (f" ± {row.spread:.4f}" if row.seeds > 1 else "")
        lines.append(
            f"| {row.method} | {row.lr:g} | {row.seeds} | {loss} | {100 * row.behind:+.2f}% | "
            f"{row.bytes_per_step:,.0f} | {row.less:.1f}x |"
        )
    return "\n".join(lines)


def plot(group: Group, rows: List[Row], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5))
    families: Dict[str, List[Row]] = defaultdict(list)
    for row in rows:
        families[row.method.split(":")[0]].append(row)
    for i, (family, members) in enumerate(sorted(families.items(), key=lambda item: item[0] not in OURS)):
        members.sort(key=lambda row: row.bytes_per_step)
        ours = {"marker": "o", "linewidth": 2}
        style = ours if family in OURS else {"marker": MARKERS[i // len(COLOURS)], "linestyle": ":"}
        axes.errorbar(
            [row.bytes_per_step for row in members],
            [row.loss for row in members],
            [row.spread for row in members],
            color=COLOURS[i % len(COLOURS)],
            label=family,
            capsize=3,
            **style,
        )
    dense = [row.loss for row in rows if row.method == "dense"]
    if dense:
        axes.axhline(dense[0], color="#666666", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("bytes that a rank sends per step, mean over the whole run")
    axes.set_ylabel("held-out loss")
    model, ranks, steps, data = group
    axes.set_title(f"{model}, P = {ranks}, {steps} steps, {data}")
    axes.legend(ncol=2, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def write(folder: Path, plots: bool) -> str:
    """Tables of all groups; frontier.json in the folder, and a PNG per group."""
    groups = read(folder)
    if not groups:
        raise SystemExit(f"frontier: {folder} has no results: start `run` first")
    tables = {group: rows_of(runs) for group, runs in groups.items()}
    for group, rows in tables.items():
        if plots:
            plot(group, rows, folder / f"frontier_{group[0]}_P{group[1]}_T{group[2]}.png")
    everything = [{"group": group, "rows": [row._asdict() for row in rows]} for group, rows in tables.items()]
    (folder / "frontier.json").write_text(json.dumps(everything, indent=1))
    return "\n\n".join(table(group, rows) for group, rows in tables.items())
