# SPDX-License-Identifier: Apache-2.0
"""Two pictures side by side: held-out loss over bytes sent (logarithmic: that is where the
difference is), and over steps."""

from pathlib import Path

from common.report import STAND_IN
from common.train import Run, Task


def draw(path: Path, task: Task, runs: list[Run], subtitle: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    figure, (over_bytes, over_steps) = pyplot.subplots(
        1, 2, figsize=(11, 4.6), sharey=True, layout="constrained"
    )
    for run in runs:
        points = run.curve[1:]
        losses = [point["loss"] for point in points]
        style = {"color": "black", "linestyle": "--"} if run.label == "dense" else {}
        for axes, xs in [
            (over_bytes, [point["wire_bytes"] / 2**20 for point in points]),
            (over_steps, [point["step"] for point in points]),
        ]:
            axes.plot(xs, losses, label=run.label, marker=".", linewidth=1.5, **style)
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
