# SPDX-License-Identifier: Apache-2.0
"""Results of real ranks behind slow links, as a table and a plot of the training loss over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional

from .colours import look_of

Result = Dict[str, Any]


def is_timed(run: Result) -> bool:
    return "network" in run


def name_of(run: Result) -> str:
    return str(run["method"]).removeprefix("real-").partition("@")[0]


def common_loss(runs: List[Result]) -> float:
    """The least training loss that all runs reach."""
    return max(min(loss for _, loss in run["train_loss"]) for run in runs)


def minutes_to(run: Result, target: float) -> Optional[float]:
    reached = [seconds for (_, loss), seconds in zip(run["train_loss"], run["clock"]) if loss <= target]
    return reached[0] / 60 if reached else None


def table(runs: List[Result]) -> str:
    target = common_loss(runs)
    lines = [
        f"| method | minutes in all | ms per step | minutes to a training loss of {target:.2f} | held-out loss | "
        "bytes per rank and step |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for run in sorted(runs, key=lambda run: -run["seconds"]):
        minutes = minutes_to(run, target)
        lines.append(
            f"| {name_of(run)} | {run['seconds'] / 60:.1f} | {1000 * run['seconds'] / run['steps']:,.0f} | "
            f"{minutes:.1f} | {run['held_out_loss']:.4f} | {run['bytes'] / run['steps']:,.0f} |"
        )
    return "\n".join(lines)


def plot(title: str, runs: List[Result], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5))
    for i, run in enumerate(sorted(runs, key=lambda run: -run["seconds"])):
        axes.plot(
            [seconds / 60 for seconds in run["clock"]],
            [loss for _, loss in run["train_loss"]],
            color=look_of(i)[0],
            marker="os^Dv"[i % 5],
            markersize=4,
            label=name_of(run),
        )
    axes.set_xscale("log")
    axes.set_xlabel("minutes")
    axes.set_ylabel("training loss")
    axes.set_title(title)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
