# SPDX-License-Identifier: Apache-2.0
"""The results of a comparison: a table (Markdown, so that it can be pasted) and a JSON file."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.options import Settings
from common.recipes import Recipe
from common.train import Run, Task

STAND_IN = "GENERATED STAND-IN DATA, not a result about the real data (name it with --data)"


def title(task: Task, settings: Settings, recipes: list[Recipe], size: int) -> str:
    """A line or two about the task that was trained."""
    densities = sorted({recipe.density for recipe in recipes if recipe.is_sparse})
    turnovers = ", ".join(f"{settings.steps * density:g} at {density:g}" for density in densities)
    text = (
        f"{task.title}, {size} ranks, batch {settings.batch} each, {settings.steps} steps, "
        f"{settings.optimiser}, lr {settings.lr:g}"
    )
    text += f"; steps x density: {turnovers}" if turnovers else ""
    return f"{text}\n{STAND_IN}" if task.stand_in else text


def gap(run: Run, runs: list[Run]) -> float | None:
    """How far the held-out loss is from dense's, as a fraction of it; None without a dense run."""
    dense = next((other for other in runs if other.label == "dense"), None)
    return run.loss / dense.loss - 1 if dense and dense is not run else None


def table(task: Task, runs: list[Run]) -> str:
    head = [
        "compress",
        "optimiser",
        "held-out loss",
        "vs dense",
        task.metric,
        "train loss",
        "sent per rank",
        "dense would send",
        "less",
        "ms/step",
    ]
    rows = [_row(run, runs) for run in runs]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [
        head,
        [("-" * (w - 1) + ":") if i > 1 else "-" * w for i, w in enumerate(widths)],
        *rows,
    ]
    text = "\n".join(
        "| "
        + " | ".join(
            cell.ljust(w) if i < 2 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        + " |"
        for line in lines
    )
    torn = [run.label for run in runs if not run.replicas_equal]
    return text + (
        f"\nWARNING: the ranks hold different weights after {', '.join(torn)}" if torn else ""
    )


def write_json(path: Path, task: Task, runs: list[Run], context: dict[str, Any]) -> None:
    """Everything measured; `context` has what was asked for."""
    results = [{"label": run.label, **asdict(run), "vs_dense": gap(run, runs)} for run in runs]
    document = {
        "title": task.title,
        "stand_in": task.stand_in,
        "metric": task.metric,
        **context,
        "runs": results,
    }
    path.write_text(json.dumps(document, indent=2, default=str) + "\n")


def _row(run: Run, runs: list[Run]) -> list[str]:
    distance = gap(run, runs)
    less = f"{run.dense_bytes / run.wire_bytes:.1f}x" if run.wire_bytes else ""
    return [
        run.label,
        run.optimiser,
        f"{run.loss:.4f}",
        "" if distance is None else f"{100 * distance:+.2f}%",
        f"{run.metric:.4f}",
        f"{run.train_loss:.4f}",
        human_bytes(run.wire_bytes),
        human_bytes(run.dense_bytes),
        less,
        f"{run.ms_per_step:.1f}",
    ]


def human_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}" if count < 1000 else f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"
