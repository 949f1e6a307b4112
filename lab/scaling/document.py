# SPDX-License-Identifier: Apache-2.0
"""The report as a document, which `oktopk-lab report` makes a page of (document.h says what a document is)."""

from . import analysis, plan, tables
from .words import CAPTIONS, method_paragraphs

# Places in the palette of the page, the same in all plots and in the figures of docs/scaling.md. There are nine: auto
# has the one of circulant, on which it mostly lies, with dashes.
COLOURS = {preset: i for i, preset in enumerate(
    ["circulant", "topka", "oktopk", "gtopk", "gaussiank", "spardl", "dense", "topkdsa", "topka2a"])} | {plan.AUTO: 0}


def heading(text):
    return {"heading": text}


def text_part(text):
    return {"text": text}


def table_part(table, caption):
    return {"table": {"head": table.head, "rows": table.rows, "caption": caption,
                      "strong": sorted(map(list, table.strong))}}


def curves(rows, platform, n, column, scale=1.0):
    """One line per preset over P."""
    series = []
    for preset in rows.values("preset", platform=platform, n=n):
        points = rows.curve(platform, n, preset, column)
        series.append({"name": preset, "x": [x for x, _ in points], "y": [y * scale for _, y in points],
                       "colour": COLOURS[preset], "dashed": preset == plan.AUTO})
    return series


def plot_over_ranks(title, y_label, series, note=""):
    return {"title": title, "x_label": "ranks P", "y_label": y_label, "log_x": True, "log_y": True, "series": series,
            "note": note}


def platform_plots(rows, platform):
    """Time over P for each n, words per k, messages."""
    plots = [plot_over_ranks(f"{platform}: time per step, n = {plan.count_text(n)}", "ms",
                             curves(rows, platform, n, "mean", 1e3)) for n in rows.values("n", platform=platform)]
    n = max(rows.values("n", platform=platform), key=lambda n: len(rows.values("ranks", platform=platform, n=n)))
    all_ranks = rows.values("ranks", platform=platform, n=n)
    bound = {"name": "lower bound", "x": all_ranks, "y": [analysis.bound_words_per_k(P) for P in all_ranks],
             "colour": 6, "dashed": True}
    at = f"n = {plan.count_text(n)}"
    plots.append(plot_over_ranks(f"{platform}: words per k on the busiest rank, {at}", "words",
                                 [*curves(rows, platform, n, "words_per_k"), bound]))
    plots.append(plot_over_ranks(f"{platform}: messages per rank and step, {at}", "messages",
                                 curves(rows, platform, n, "messages")))
    return plots


def predicted_plots(rows):
    """Simulated over predicted steady steps, with the diagonal; platforms without contention apart."""
    plots = []
    for title, names in (("No contention", plan.FLAT),
                         ("Shared links", [p for p in plan.PLATFORMS if p not in plan.FLAT])):
        found = [r for r in rows.all if r["platform"] in names and analysis.model_ratio(r)]
        if not found:
            continue
        series = []
        for preset in rows.values("preset"):
            mine = [r for r in found if r["preset"] == preset]
            series.append({"name": preset, "x": [1e3 * r["predicted"] for r in mine],
                           "y": [1e3 * r["steady"] for r in mine], "colour": COLOURS[preset], "dots": True})
        ends = [f(1e3 * r["predicted"] for r in found) for f in (min, max)]
        series.append({"name": "equal", "x": ends, "y": ends, "colour": 6, "dashed": True})
        plots.append({"title": f"{title}: {', '.join(p for p in rows.values('platform') if p in names)}",
                      "x_label": "predicted, ms", "y_label": "simulated, ms", "log_x": True, "log_y": True,
                      "series": series})
    return plots


def auto_plots(rows):
    """auto over the best fixed preset, over P."""
    found = analysis.auto_rows(rows)
    plots = []
    for n in sorted({r["n"] for r in found}):
        series = []
        for platform in dict.fromkeys(r["platform"] for r in found):
            points = sorted((r["ranks"], r["over_best"]) for r in found if r["platform"] == platform and r["n"] == n)
            series.append({"name": platform, "x": [x for x, _ in points], "y": [y for _, y in points]})
        plots.append({"title": f"auto / best fixed preset, n = {plan.count_text(n)}", "x_label": "ranks P",
                      "y_label": "times", "log_x": True, "series": series})
    return plots


def headline(rows, n):
    """The numbers on top, at the most ranks that were simulated."""
    ranks = max(rows.values("ranks", n=n))
    found = []
    for platform in rows.values("platform", n=n):
        mine, dense = rows.get(platform, n, ranks, "circulant"), rows.get(platform, n, ranks, "dense")
        if mine and dense:
            found.append([tables.digits(dense["mean"] / mine["mean"], 2) + "x",
                          f"{platform}: circulant faster than dense, P = {ranks}"])
    return found


def for_sizes(rows, make_table, name):
    """A table for each n."""
    return [table_part(make_table(rows, n), CAPTIONS[name].format(n=plan.count_text(n))) for n in rows.values("n")]


def build(rows, report):
    """`report`: what else the page tells, see report.py: commands, failures, explained, again, version."""
    sizes, platforms = rows.values("n"), rows.values("platform")
    base = max(sizes, key=lambda n: len([c for c in rows.cells() if c[1] == n]))
    reference = "flat-25g" if "flat-25g" in platforms else platforms[0]
    place = {"platform": reference, "n": plan.count_text(base)}
    auto = tables.auto_line(rows)
    overview = [plot_over_ranks(f"{platform}, n = {plan.count_text(n)}", "ms per step",
                                curves(rows, platform, n, "mean", 1e3))
                for n in sizes for platform in rows.values("platform", n=n)]
    parts = [{"numbers": headline(rows, base)}, heading("What was simulated"),
             *map(text_part, method_paragraphs(rows, report)),
             {"code": "\n".join([*report["again"], *report["commands"]])}]
    if report["failures"]:
        parts.append(text_part("Not simulated, because the command failed: " + "; ".join(report["failures"])))
    parts += [heading("Weak scaling"), text_part(CAPTIONS["overview"]), {"plots": overview},
              *for_sizes(rows, tables.times, "times"),
              heading("Where dense wins"), *for_sizes(rows, tables.rank_crossovers, "ranks"),
              table_part(tables.size_crossovers(rows), CAPTIONS["sizes"]),
              table_part(tables.explained(report["explained"]), CAPTIONS["explained"]) if report["explained"] else
              text_part("No table of the tuner's crossovers: `oktopk explain` failed."),
              heading("auto"), text_part(auto or "Preset auto was not simulated."),
              text_part(CAPTIONS["auto_figure"]), {"plots": auto_plots(rows)},
              table_part(tables.auto(rows), CAPTIONS["auto"]),
              heading("Predicted and simulated"), text_part(tables.model_line(rows)),
              text_part(tables.contention_line(rows)),
              text_part(CAPTIONS["predicted"]), {"plots": predicted_plots(rows)},
              *for_sizes(rows, tables.model_ratios, "ratios"),
              heading("Latency and bandwidth"),
              table_part(tables.complexity(rows, reference, base), CAPTIONS["complexity"].format(**place)),
              table_part(tables.bounds(rows, reference, base), CAPTIONS["bounds"].format(**place))]
    for platform in platforms:
        parts += [heading(platform), text_part(plan.SUMMARIES.get(platform, "")),
                  text_part(CAPTIONS["platform"].format(platform=platform)), {"plots": platform_plots(rows, platform)}]
    ranks = ", ".join(map(str, rows.values("ranks")))
    return {"title": "oktopk: scaling",
            "lead": f"Weak scaling of sparse allreduces, simulated: P = {ranks}, "
                    f"n = {' and '.join(map(plan.count_text, sizes))}, density {plan.DENSITY:g}",
            "parts": parts}
