# SPDX-License-Identifier: Apache-2.0
"""The tables of the report as text, for document.py and docs.py."""

import math
from dataclasses import dataclass, field

from . import analysis, plan


# Besides the first one: flush left.
TEXT_COLUMNS = {"latency: messages", "bandwidth: words", "auto chose", "the tuner's choice", "best fixed", "preset"}


@dataclass
class Table:
    head: list
    rows: list
    strong: set = field(default_factory=set)  # (row, column) to be seen first

    def markdown(self):
        marks = [" --- |" if c == 0 or name in TEXT_COLUMNS else " ---: |" for c, name in enumerate(self.head)]
        lines = ["| " + " | ".join(self.head) + " |", "|" + "".join(marks)]
        for r, row in enumerate(self.rows):
            cells = [f"**{c}**" if (r, i) in self.strong and c else c for i, c in enumerate(row)]
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines)


def digits(value, significant=3):
    """Three digits, or all before the point: 0.0123, 1.23, 12.3, 1,234."""
    if value == 0:
        return "0"
    decimals = significant - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)  # 9.996 is 10.0, not 10.00
    decimals = significant - 1 - math.floor(math.log10(abs(rounded)))
    return f"{value:,.{max(0, decimals)}f}"


def milliseconds(seconds):
    return digits(seconds * 1e3)


def size(n):
    """2621440 -> 2.5M; two digits are enough for a crossover."""
    for unit, letter in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if n >= unit:
            return digits(n / unit, 2) + letter
    return digits(n, 2)


def times(rows, n):
    """Communication time per step, and the best of each cell."""
    presets = rows.values("preset", n=n)
    table = Table(["platform", "P", *presets], [])
    for platform, size_, ranks in rows.cells():
        if size_ != n:
            continue
        found = [rows.get(platform, n, ranks, preset) for preset in presets]
        best = min((r["mean"] for r in found if r), default=None)
        table.strong |= {(len(table.rows), 2 + i) for i, r in enumerate(found) if r and r["mean"] == best}
        table.rows.append([platform, str(ranks), *[milliseconds(r["mean"]) if r else "" for r in found]])
    return sorted_by_platform(table, rows)


def sorted_by_platform(table, rows):
    """Rows arrive in the order in which they were simulated: by platform, then by P."""
    order = {platform: i for i, platform in enumerate(rows.values("platform"))}
    places = sorted(range(len(table.rows)), key=lambda i: (order[table.rows[i][0]], int(table.rows[i][1])))
    table.strong = {(places.index(r), c) for r, c in table.strong}
    table.rows = [table.rows[i] for i in places]
    return table


def rank_crossovers(rows, n):
    presets = [p for p in rows.values("preset", n=n) if p not in ("dense", plan.AUTO)]
    table = Table(["platform", *presets], [])
    for platform in rows.values("platform", n=n):
        found = [analysis.dense_wins_over_ranks(rows, platform, n, p) for p in presets]
        table.rows.append([platform, *map(crossover_text, found)])
    return table


def crossover_text(found):
    if found is None:
        return ""
    if found["kind"] == "from":
        return f"P > {digits(found['P'], 2)}"
    if found["kind"] == "until":
        return f"P < {digits(found['P'], 2)}"
    return f"never, {digits(found['last'][1], 2)}x" if found["kind"] == "never" else "always"


def size_crossovers(rows):
    return Table(["platform", "P", "preset", "dense wins"],
                 [[platform, str(ranks), preset, f"n {'>' if rises else '<'} {size(n)}"]
                  for platform, ranks, preset, n, rises in analysis.size_crossings(rows)])


def explained(found):
    """Where the tuner's choice would be dense, on the nominal machines."""
    table = Table(["platform", "P", "n", "the tuner's choice", "x dense", "dense wins below n", "above n",
                   "below density", "above density"], [])
    order = list(plan.PLATFORMS)
    for e in sorted(found, key=lambda e: (order.index(e["platform"]), e["n"], e["ranks"])):
        c = e["crossovers"]
        table.rows.append([e["platform"], str(e["ranks"]), plan.count_text(e["n"]), e["method"],
                           digits(e["x_dense"], 2) if e.get("x_dense") else "",
                           *[size(c[key]) if c.get(key) else "-" for key in ("n_below", "n_above")],
                           *[percent(c[key]) if c.get(key) else "-" for key in ("density_below", "density_above")]])
    # Columns that say nothing are left out.
    for name in ("above density", "below density", "above n", "dense wins below n", "x dense"):
        place = table.head.index(name)
        if all(row[place] in ("-", "") for row in table.rows):
            for row in [table.head, *table.rows]:
                del row[place]
    return table


def percent(share):
    return digits(100 * share, 2) + "%"


def model_ratios(rows, n):
    presets = [p for p in rows.values("preset", n=n) if p != plan.AUTO]
    table = Table(["platform", "P", *presets], [])
    for platform, size_, ranks in rows.cells():
        if size_ == n:
            found = [rows.get(platform, n, ranks, preset) for preset in presets]
            ratios = [analysis.model_ratio(r) if r else None for r in found]
            table.strong |= {(len(table.rows), 2 + i) for i, x in enumerate(ratios) if x and abs(x - 1) > 0.05}
            table.rows.append([platform, str(ranks), *["" if x is None else f"{x:.3f}" for x in ratios]])
    return sorted_by_platform(table, rows)


def bounds(rows, platform, n):
    all_ranks = rows.values("ranks", platform=platform, n=n)
    table = Table(["preset", *[f"P = {ranks}" for ranks in all_ranks]], [])
    for preset in rows.values("preset", platform=platform, n=n):
        found = [rows.get(platform, n, ranks, preset) for ranks in all_ranks]
        table.rows.append([preset, *[digits(r["wire_over_bound"]) if r else "" for r in found]])
    table.rows.append(["the bound, words per k", *[digits(analysis.bound_words_per_k(ranks)) for ranks in all_ranks]])
    return table


def complexity(rows, platform, n):
    """As Ok-Topk's Table 1: latency and bandwidth of each, by formula and counted."""
    all_ranks = rows.values("ranks", platform=platform, n=n)
    head = ["algorithm", "latency: messages", *[f"P = {r}" for r in all_ranks], "bandwidth: words",
            *[f"words/k, P = {r}" for r in all_ranks], *[f"formula, {r}" for r in all_ranks]]
    table = Table(head, [])
    for preset in plan.PRESETS:
        found = [rows.get(platform, n, ranks, preset) for ranks in all_ranks]
        if not any(found):
            continue
        latency, bandwidth, _, _ = analysis.FORMULAS[preset]
        formulas = [analysis.formula(preset, r) if r else None for r in found]
        table.rows.append([preset, latency, *[f'{r["messages"]:.4g}' if r else "" for r in found], bandwidth,
                           *[digits(r["words_per_k"]) if r else "" for r in found],
                           *[words_range(f) for f in formulas]])
    return table


def words_range(formula):
    if formula is None:
        return ""
    _, least, most = formula
    return digits(least) if least == most else f"{digits(least)} to {digits(most)}"


def auto(rows):
    table = Table(["platform", "P", "n", "auto chose", "auto, ms", "best fixed", "ms", "auto / best",
                   "auto / dense"], [])
    order = {platform: i for i, platform in enumerate(rows.values("platform"))}
    for r in sorted(analysis.auto_rows(rows), key=lambda r: (order[r["platform"]], r["n"], r["ranks"])):
        if r["over_best"] > 1 + analysis.AUTO_TOLERANCE:
            table.strong.add((len(table.rows), 7))
        if (r["over_dense"] or 0) > 1 + analysis.DENSE_TOLERANCE:
            table.strong.add((len(table.rows), 8))
        table.rows.append([r["platform"], str(r["ranks"]), plan.count_text(r["n"]), r["method"],
                           milliseconds(r["auto"]), r["best_preset"], milliseconds(r["best"]), f"{r['over_best']:.3f}",
                           f"{r['over_dense']:.3f}" if r["over_dense"] is not None else ""])
    return table


def auto_line(rows):
    found = analysis.auto_rows(rows)
    if not found:
        return ""
    s = analysis.auto_summary(found)
    text = (f"auto is within {100 * analysis.AUTO_TOLERANCE:.0f}% of the best fixed preset in {s['near_best']} of "
            f"{s['rows']} rows, and ")
    limit = f"{100 * analysis.DENSE_TOLERANCE:.0f}%"
    slower = s["slower_than_dense"]
    if not slower:
        return text + f"never slower than dense by more than {limit}."
    worst = max(slower, key=lambda r: r["over_dense"])
    return text + (f"slower than dense by more than {limit} in {len(slower)} of {s['against_dense']} (the worst, "
                   f"{worst['over_dense']:.2f}x: {worst['platform']}, P = {worst['ranks']}, "
                   f"n = {plan.count_text(worst['n'])}).")


def model_line(rows):
    check = analysis.model_check(rows)
    if not check:
        return ""
    worst = check["worst"]
    names = ", ".join(analysis.MODEL_PRESETS)
    beyond = ", ".join(f"{preset} (up to {ratio:.2f}x)" for preset, ratio in analysis.flat_outliers(rows).items())
    return (f"On the platforms without contention, {names} at P = {' and '.join(map(str, analysis.MODEL_RANKS))}: "
            f"{check['within']} of {check['checked']} rows are within {100 * analysis.MODEL_TOLERANCE:.0f}% of the "
            f"model; the furthest is {worst['preset']} on {worst['platform']}, P = {worst['ranks']}, "
            f"n = {plan.count_text(worst['n'])}: {100 * check['deviation']:.2f}%. "
            f"Beyond that, of all presets at any P: {beyond or 'none'}.")


def contention_line(rows):
    def name(row):
        return f"{row['preset']}, P = {row['ranks']}, n = {plan.count_text(row['n'])}"
    parts = []
    for platform in rows.values("platform"):
        found = analysis.contention(rows, platform) if platform not in plan.FLAT else None
        if found:
            median, least, most = found
            parts.append(f"{platform} {median:.2f}x, from {analysis.model_ratio(least):.2f}x ({name(least)}) to "
                         f"{analysis.model_ratio(most):.2f}x ({name(most)})")
    if not parts:
        return ""
    return "Simulated over predicted where routes share links, median and range: " + "; ".join(parts) + "."
