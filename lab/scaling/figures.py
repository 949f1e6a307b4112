# SPDX-License-Identifier: Apache-2.0
"""The figures of docs/scaling.md (PNG). One colour and one mark per preset everywhere. Colours are those of the page
(document.py), except auto's; lab/tests/test_colours.py holds them apart for every reader."""

import io

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator  # noqa: E402

from . import analysis, plan  # noqa: E402

# colour, mark, width
LOOKS = {
    "dense": ("#1b2330", "s", 2.0), "topka": ("#d55e00", "^", 1.4), "gaussiank": ("#e69f00", "v", 1.4),
    "topkdsa": ("#4b2fc0", "D", 1.4), "gtopk": ("#cc79a7", "P", 1.4), "topka2a": ("#8c4a2f", "X", 1.4),
    "oktopk": ("#009e73", "o", 1.8), "spardl": ("#56b4e9", "h", 1.8), "circulant": ("#0072b2", "o", 2.4),
    "auto": ("#77c15a", "*", 1.4),
}
INK, MUTED, GRID = "#1b2330", "#5c6675", "#e3e7ec"
plt.rcParams.update({
    "font.family": "sans-serif", "font.size": 9, "axes.edgecolor": "#8a94a3", "axes.labelcolor": MUTED,
    "text.color": INK, "xtick.color": MUTED, "ytick.color": MUTED,
    "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": GRID, "axes.axisbelow": True,
})


def look(preset):
    return LOOKS.get(preset, ("#5a6270", "o", 1.4))


def style_of(preset):
    colour, mark, width = look(preset)
    dashes = {"dense": (0, (5, 2)), "auto": (0, (1, 1.2))}.get(preset, "-")
    return {"color": colour, "marker": mark, "lw": width, "ls": dashes, "ms": 9 if mark == "*" else 5, "mec": "white",
            "mew": 0.6, "zorder": 4 if preset in ("circulant", "auto") else 3}


def number(value, _=None):
    if value <= 0:
        return "0"
    return f"{value:,.0f}" if value >= 1 else f"{value:.9f}".rstrip("0")


def log_ticks(side, limits):
    side.set_major_locator(LogLocator(subs=(1,) if limits[1] / limits[0] > 300 else (1, 2, 5)))
    side.set_minor_formatter(NullFormatter())
    side.set_major_formatter(FuncFormatter(number))


def log_axes(axis, all_ranks):
    axis.set_xscale("log", base=2)
    axis.set_xticks(all_ranks, [str(r) for r in all_ranks])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlim(all_ranks[0] / 1.25, all_ranks[-1] * 1.25)
    axis.set_xlabel("ranks P")
    axis.set_yscale("log")
    log_ticks(axis.yaxis, axis.get_ylim())


def draw_curves(axis, rows, platform, n, column, scale=1.0):
    for preset in rows.values("preset", platform=platform, n=n):
        curve = rows.curve(platform, n, preset, column)
        axis.plot([x for x, _ in curve], [y * scale for _, y in curve], label=preset, **style_of(preset))
    log_axes(axis, rows.values("ranks", platform=platform, n=n))


def draw_messages(axis, rows, platform, n):
    """Many presets send the same number of messages: one label for all whose curves coincide."""
    draw_curves(axis, rows, platform, n, "messages")
    groups = {}
    for preset in rows.values("preset", platform=platform, n=n):
        groups.setdefault(tuple(rows.curve(platform, n, preset, "messages")), []).append(preset)
    ends = sorted(curve[-1][1] for curve in groups)
    for curve, presets in groups.items():
        # Curves rise: above the last point there is room, unless another curve is near; then below the first one.
        near = any(1 < end / curve[-1][1] < 1.5 for end in ends)
        place, offset, sides = curve[-1], (4, 6), ("right", "bottom")
        if near:
            place, offset, sides = curve[0], (3, -4), ("left", "top")
        text = ",\n".join(", ".join(presets[i : i + 2]) for i in range(0, len(presets), 2))
        axis.annotate(text, place, offset, textcoords="offset points", ha=sides[0], va=sides[1], fontsize=7,
                      color=look(presets[-1])[0], zorder=5)
    low, high = axis.get_ylim()
    axis.set_ylim(low / 1.15, high * 1.3)


def legend_above(figure, presets, extra=()):
    keys = [Line2D([], [], label=p, **style_of(p)) for p in presets] + list(extra)
    figure.legend(handles=keys, loc="lower left", bbox_to_anchor=(0.01, 1.0),
                  ncols=min(len(keys), 6 if len(keys) > 7 else 7), frameon=False, fontsize=9, handlelength=2.6,
                  columnspacing=1.4)


def finish(figure):
    """The PNG's bytes, with a palette of 256 colours: a third of the size, and nobody can tell."""
    from PIL import Image
    raw, small = io.BytesIO(), io.BytesIO()
    figure.savefig(raw, dpi=120, bbox_inches="tight", facecolor="white")
    plt.close(figure)
    Image.open(raw).convert("RGB").quantize(256).save(small, format="PNG", optimize=True)
    return small.getvalue()


BOUND_KEY = {"color": MUTED, "lw": 1.2, "ls": (0, (2, 2))}


def draw_words(axis, rows, platform, n):
    draw_curves(axis, rows, platform, n, "words_per_k")
    all_ranks = rows.values("ranks", platform=platform, n=n)
    axis.plot(all_ranks, [analysis.bound_words_per_k(P) for P in all_ranks], **BOUND_KEY)
    log_axes(axis, all_ranks)


def overview(rows, n):
    """Time over P, one panel per platform."""
    platforms = rows.values("platform", n=n)
    columns = min(3, len(platforms))
    lines = -(-len(platforms) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(3.5 * columns + 0.6, 2.9 * lines), squeeze=False,
                                layout="constrained")
    for axis, platform in zip(axes.flat, platforms):
        draw_curves(axis, rows, platform, n, "mean", 1e3)
        axis.set_title(platform)
    for axis in axes.flat[len(platforms):]:
        axis.remove()
    for axis in axes[:, 0]:
        axis.set_ylabel("ms per step")
    legend_above(figure, rows.values("preset", n=n))
    return finish(figure)


def traffic(rows, platform, n):
    """Words per k and messages over P."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
    draw_words(axes[0], rows, platform, n)
    axes[0].set_title(f"words per k on the busiest rank, n = {plan.count_text(n)}")
    draw_messages(axes[1], rows, platform, n)
    axes[1].set_title("messages per rank and step")
    legend_above(figure, rows.values("preset", platform=platform, n=n),
                 [Line2D([], [], label="lower bound", **BOUND_KEY)])
    return finish(figure)


def most_ranks_size(rows, platform):
    return max(rows.values("n", platform=platform), key=lambda n: len(rows.values("ranks", platform=platform, n=n)))


def predicted(rows):
    """Simulated over predicted steady steps, with the diagonal; platforms without contention left, the others right."""
    flat = [p for p in rows.values("platform") if p in plan.FLAT]
    shared = [p for p in rows.values("platform") if p not in plan.FLAT]
    groups = [(title, names) for title, names in (("no contention", flat), ("shared links", shared)) if names]
    figure, axes = plt.subplots(1, len(groups), figsize=(5.2 * len(groups), 4.4), squeeze=False, layout="constrained")
    for axis, (title, names) in zip(axes.flat, groups):
        found = [r for r in rows.all if r["platform"] in names and analysis.model_ratio(r)]
        for preset in rows.values("preset"):
            mine = [r for r in found if r["preset"] == preset]
            colour, mark, _ = look(preset)
            axis.scatter([1e3 * r["predicted"] for r in mine], [1e3 * r["steady"] for r in mine], color=colour,
                         marker=mark, s=34, lw=0.5, edgecolors="white", zorder=3)
        milliseconds = [1e3 * r[column] for r in found for column in ("predicted", "steady")]
        ends = [min(milliseconds) / 1.5, max(milliseconds) * 1.5]
        axis.plot(ends, ends, color=MUTED, lw=1, zorder=2)
        for factor in (0.5, 2):
            axis.plot(ends, [factor * e for e in ends], color="#c3cad4", lw=0.8, ls=(0, (4, 3)), zorder=1)
        axis.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="predicted, ms", ylabel="simulated, ms")
        axis.set_title(f"{title}: {', '.join(names)}")
        for side in (axis.xaxis, axis.yaxis):
            log_ticks(side, ends)
    marks = [Line2D([], [], label=p, color=look(p)[0], marker=look(p)[1], ls="", ms=6, mec="white")
             for p in rows.values("preset")]
    lines = [Line2D([], [], label="equal", color=MUTED, lw=1),
             Line2D([], [], label="factor 2", color="#c3cad4", ls=(0, (4, 3)))]
    figure.legend(handles=marks + lines, loc="lower left", bbox_to_anchor=(0.01, 1.0), ncols=6, frameon=False,
                  fontsize=9, columnspacing=1.4, handletextpad=0.5)
    return finish(figure)
