# SPDX-License-Identifier: Apache-2.0
"""Two pictures side by side: held-out loss over bytes sent (logarithmic: that is where the
difference is), and over steps. Colours are Okabe and Ito's, which colour-blind readers tell apart; each run also has
a mark of its own."""

from pathlib import Path

from common.report import STAND_IN
from common.train import Run, Task

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKS = "os^vDP"


def style_of(number: int) -> dict[str, str]:
    """Of the run with this number, dense not counted."""
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKS[number % len(MARKS)]}


def draw(path: Path, task: Task, runs: list[Run], subtitle: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    figure, (over_bytes, over_steps) = pyplot.subplots(
        1, 2, figsize=(11, 4.6), sharey=True, layout="constrained"
    )
    compressed = [run.label for run in runs if run.label != "dense"]
    for run in runs:
        points = run.curve[1:]
        losses = [point["loss"] for point in points]
        style = {"color": "black", "linestyle": "--", "marker": "."}
        if run.label != "dense":
            style = style_of(compressed.index(run.label))
        for axes, xs in [
            (over_bytes, [point["wire_bytes"] / 2**20 for point in points]),
            (over_steps, [point["step"] for point in points]),
        ]:
            axes.plot(xs, losses, label=run.label, markersize=4, linewidth=1.5, **style)
    if any(run.wire_bytes for run in runs):
        over_bytes.set_xscale("log")
        over_bytes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        over_bytes.xaxis.set_major_formatter("{x:g}")
        over_bytes.xaxis.set_minor_formatter(ticker.NullFormatter())
    over_bytes.set_xlabel("MiB sent per rank")
    over_bytes.set_ylabel("held-out loss")
    over_steps.set_xlabel("steps")
    over_steps.legend()
    for axes in (over_bytes, over_steps):
        axes.grid(alpha=0.3)
    figure.suptitle(
        "\n".join(filter(None, [task.title, subtitle, STAND_IN if task.stand_in else ""])),
        fontsize=10,
    )
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
