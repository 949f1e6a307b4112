# SPDX-License-Identifier: Apache-2.0
"""The results of a race as tables, plots of loss over bytes, and one JSON file. A method appears with the best of its
learning rates, judged by the mean over the seeds.

Results are a folder with a file per run, or one file that `collect` has made of folders (docs/data/frontier.json).
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Tuple

from . import clock
from .colours import look_of

OURS = ("circulant", "slots", "owner", "local", "meet", "real-slots", "real-circulant", "real-local")
OPTIMISERS = {"adam": "AdamW", "momentum": "momentum"}
BEGIN, END = "<!-- results -->", "<!-- end of results -->"

Result = Dict[str, Any]


class Row(NamedTuple):
    method: str
    lr: float
    seeds: int
    loss: float
    spread: float  # standard deviation over the seeds; 0 for one
    bytes_per_step: float
    less: float  # than dense fp32, over the whole run
    behind: float  # dense, relative: the mean over the seeds that both have
    score: str  # what else says how good the weights are


class Group(NamedTuple):
    model: str
    ranks: int
    steps: int
    data: str
    optimiser: str

    def title(self) -> str:
        is_gpt = not self.model.startswith(("VGG", "LSTM"))
        name = f"GPT of {self.model} parameters" if is_gpt else f"{self.model} with {OPTIMISERS[self.optimiser]}"
        return f"{name}, P = {self.ranks}, {self.steps:,} steps, {self.data}"

    def figure(self, kind: str = "frontier") -> str:
        data = self.data.split(".")[0]
        return f"{kind}_{self.model}_{self.optimiser}_P{self.ranks}_T{self.steps}_{data}.png"


def results_of(source: Path) -> List[Result]:
    if source.is_file():
        collected: List[Result] = json.loads(source.read_text())
        return collected
    runs = [json.loads(path.read_text()) for path in sorted(source.glob("*.json"))]
    return [run for run in runs if isinstance(run, dict) and "held_out_loss" in run]


def collect(sources: List[Path], into: Path) -> None:
    """All results in one file. The course of the loss is kept where it was timed. A later source wins."""
    found: Dict[Tuple[Any, ...], Result] = {}
    for source in sources:
        for run in results_of(source):
            rules = run["rules"]
            key = (*_group_of(run), rules["lr"], run["method"], run["seed"])
            is_kept = clock.is_timed(run)
            found[key] = {name: value for name, value in run.items() if name != "train_loss" or is_kept}
    into.write_text("[\n" + ",\n".join(json.dumps(found[key]) for key in sorted(found)) + "\n]\n")


def _group_of(run: Result) -> Group:
    rules = run["rules"]
    return Group(run["model"], rules["ranks"], rules["steps"], run["data"], rules["optimiser"])


def groups_of(results: List[Result]) -> Dict[Group, List[Result]]:
    groups: Dict[Group, List[Result]] = defaultdict(list)
    for run in results:
        groups[_group_of(run)].append(run)
    return dict(sorted(groups.items()))


def rows_of(runs: List[Result], everything: List[Result]) -> List[Row]:
    """everything: among them a dense run of the same batches may be found, whatever its number of ranks."""
    by_rate: Dict[Tuple[str, float], List[Result]] = defaultdict(list)
    for run in runs:
        by_rate[(run["method"], run["rules"]["lr"])].append(run)
    best: Dict[str, List[Result]] = {}
    for (method, _), same in by_rate.items():
        if method not in best or _is_better(same, best[method]):
            best[method] = same
    dense = best.get("dense") or _dense_of(runs[0], everything)
    rows = [_row(method, same, dense) for method, same in best.items()]
    return sorted(rows, key=lambda row: -row.bytes_per_step)


def _is_better(runs: List[Result], others: List[Result]) -> bool:
    """Judged by the seeds that both rates have; where there is none, by all."""
    shared = {run["seed"] for run in runs} & {run["seed"] for run in others}
    if not shared:
        return _loss(runs) < _loss(others)
    mine, theirs = ([run for run in side if run["seed"] in shared] for side in (runs, others))
    return _loss(mine) < _loss(theirs)


def _batch_of(run: Result) -> Tuple[Any, ...]:
    rules = run["rules"]
    return run["model"], run["data"], rules["steps"], rules["optimiser"], rules["ranks"] * rules["rows"]


def _dense_of(run: Result, everything: List[Result]) -> List[Result]:
    """The same sums of the same batches: only the bytes depend on the number of ranks."""
    runs = [other for other in everything if other["method"] == "dense" and _batch_of(other) == _batch_of(run)]
    rates = {other["rules"]["lr"] for other in runs}
    by_rate = [[other for other in runs if other["rules"]["lr"] == rate] for rate in rates]
    return min(by_rate, key=_loss, default=[])


def _loss(runs: List[Result]) -> float:
    return statistics.fmean(run["held_out_loss"] for run in runs)


def _row(method: str, runs: List[Result], dense: List[Result]) -> Row:
    losses = [run["held_out_loss"] for run in runs]
    each = statistics.fmean(run["bytes"] / run["rules"]["steps"] for run in runs)
    all_values = 2 * (runs[0]["rules"]["ranks"] - 1) / runs[0]["rules"]["ranks"] * 4 * runs[0]["parameters"]
    of_dense = {run["seed"]: run["held_out_loss"] for run in dense}
    ratios = [run["held_out_loss"] / of_dense[run["seed"]] - 1 for run in runs if run["seed"] in of_dense]
    return Row(
        method,
        runs[0]["rules"]["lr"],
        len(runs),
        statistics.fmean(losses),
        statistics.stdev(losses) if len(losses) > 1 else 0.0,
        each,
        all_values / each if each else float("inf"),
        statistics.fmean(ratios) if ratios else float("nan"),
        _score(runs),
    )


def _score(runs: List[Result]) -> str:
    for name, word in (("accuracy", "right"), ("error_rate", "letters wrong")):
        if name in runs[0]:
            return f"{100 * statistics.fmean(run[name] for run in runs):.2f}% {word}"
    return ""


def table(rows: List[Row]) -> str:
    lines = [
        "| method | rate | seeds | held-out loss | beside dense | bytes per rank and step | less than dense |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        loss = f"{row.loss:.4f}" + (f" ± {row.spread:.4f}" if row.seeds > 1 else "")
        loss += f", {row.score}" if row.score else ""
        lines.append(
            f"| {row.method} | {row.lr:g} | {row.seeds} | {loss} | {100 * row.behind:+.2f}% | "
            f"{row.bytes_per_step:,.0f} | {row.less:.1f}x |"
        )
    return "\n".join(lines)


def front(rows: List[Row]) -> List[Row]:
    """Those that no other one beats in both loss and bytes, the one with most bytes first."""
    return [
        row
        for row in sorted(rows, key=lambda row: row.less)
        if not any(other.less >= row.less and other.loss < row.loss for other in rows)
    ]


def plot(group: Group, rows: List[Row], path: Path) -> None:
    """A family's front has names and a line; its other rows are small. Rows that ended more than a half above dense
    would hide the others: they are left to the table."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5))
    names: List[Row] = []
    families: Dict[str, List[Row]] = defaultdict(list)
    for row in rows:
        if not row.behind > 0.5:
            families[row.method.split(":")[0]].append(row)
    for i, (family, members) in enumerate(sorted(families.items(), key=lambda item: item[0] not in OURS)):
        is_ours = family in OURS
        best = front(members)
        colour, mark = look_of(i)
        look = {"color": colour, "marker": "o" if is_ours else mark}
        axes.errorbar(
            [row.less for row in best],
            [row.loss for row in best],
            [row.spread for row in best],
            label=family + (" (ours)" if is_ours else ""),
            capsize=3,
            linestyle="-",
            linewidth=1,
            markersize=9 if is_ours else 6,
            **look,
        )
        others = [row for row in members if row not in best]
        axes.scatter([row.less for row in others], [row.loss for row in others], s=12, alpha=0.4, **look)
        names += best
    name_rows(axes, names)
    dense = [row.loss for row in rows if row.method == "dense"]
    if dense:
        axes.axhline(dense[0], color="#666666", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlim(0.7, 6 * max(row.less for row in rows))  # room for the words
    axes.set_xlabel("times fewer bytes than dense fp32, over the whole run")
    axes.set_ylabel("held-out loss")
    axes.set_title(group.title())
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def name_rows(axes: Any, rows: List[Row]) -> None:
    """Writes the arguments of a method beside its mark, unless the words would cover those of another one."""
    height = max(row.loss for row in rows) - min(row.loss for row in rows)
    named: List[Row] = []
    for row in rows:
        is_free = all(
            abs(row.loss - other.loss) > 0.02 * height or not 0.3 < row.less / other.less < 3 for other in named
        )
        words = ":".join(row.method.split(":")[1:])
        if is_free and words:
            axes.annotate(words, (row.less, row.loss), xytext=(7, 4), textcoords="offset points", fontsize=6)
            named.append(row)


def write(folder: Path, plots: bool) -> str:
    """Tables of all groups; frontier.json in the folder, and a PNG per group."""
    results = results_of(folder)
    untimed = [run for run in results if not clock.is_timed(run)]
    tables = {group: rows_of(runs, results) for group, runs in groups_of(untimed).items()}
    if not tables:
        raise SystemExit(f"frontier: {folder} has no results: start `run` first")
    for group, rows in tables.items():
        if plots:
            plot(group, rows, folder / group.figure())
    everything = [{"group": group, "rows": [row._asdict() for row in rows]} for group, rows in tables.items()]
    (folder / "frontier.json").write_text(json.dumps(everything, indent=1))
    return "\n\n".join(f"{group.title()}\n\n{table(rows)}" for group, rows in tables.items())


def write_page(collected: Path, page: Path, figures: Path) -> None:
    """Replaces what stands between the two marks of the page by tables and plots of the collected results."""
    parts = [BEGIN]
    results = results_of(collected)
    for group, runs in groups_of([run for run in results if not clock.is_timed(run)]).items():
        rows = rows_of(runs, results)
        plot(group, rows, figures / group.figure())
        link = f"![Loss over bytes]({figures.name}/{group.figure()})"
        parts += [f"### {group.title()}", table(rows), link]
    for network in sorted({run["network"] for run in results if clock.is_timed(run)}):
        for group, runs in groups_of([run for run in results if run.get("network") == network]).items():
            title = f"{group.title()}, links of {network}"
            figure = group.figure("clock")
            clock.plot(title, runs, figures / figure)
            parts += [f"### {title}", clock.table(runs), f"![Loss over time]({figures.name}/{figure})"]
    head, _, rest = page.read_text().partition(BEGIN)
    _, mark, tail = rest.partition(END)
    if not mark:
        raise SystemExit(f"frontier: {page} lacks {BEGIN} and {END}")
    page.write_text(head + "\n\n".join([*parts, END]) + tail)
