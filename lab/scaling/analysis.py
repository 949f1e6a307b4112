# SPDX-License-Identifier: Apache-2.0
"""Conclusions from simulated rows: arithmetic only. A row is one of `oktopk-lab simulate -J`, with its platform."""

import math
import statistics

from .plan import AUTO, FLAT

MODEL_PRESETS = ("dense", "topka", "circulant")  # held to the model on flat platforms
MODEL_RANKS = (16, 64)
MODEL_TOLERANCE = 0.05
AUTO_TOLERANCE = 0.10  # of the best fixed preset
DENSE_TOLERANCE = 0.05  # slower than dense


class Rows:
    def __init__(self, rows):
        self.all = [{**row, "n": int(row["n"]), "ranks": int(row["ranks"])} for row in rows]
        self.by_key = {(r["platform"], r["n"], r["ranks"], r["preset"]): r for r in self.all}

    def get(self, platform, n, ranks, preset):
        return self.by_key.get((platform, n, ranks, preset))

    def values(self, name, **fixed):
        """The different values of a column, in increasing order or, names, in the order of the rows."""
        found = dict.fromkeys(r[name] for r in self.all if all(r[key] == value for key, value in fixed.items()))
        return list(found) if name in ("platform", "preset") else sorted(found)

    def curve(self, platform, n, preset, column):
        """[(P, value)]"""
        rows = (self.get(platform, n, ranks, preset) for ranks in self.values("ranks", platform=platform, n=n))
        return [(r["ranks"], r[column]) for r in rows if r]

    def cells(self):
        return list(dict.fromkeys((r["platform"], r["n"], r["ranks"]) for r in self.all))


def crossings(points):
    """Where a positive ratio, known at increasing x, passes 1: [(x, rises)]. Between points: a straight line in
    log-log."""
    found = []
    for (x0, r0), (x1, r1) in zip(points, points[1:]):
        if (r0 < 1) != (r1 < 1):
            share = -math.log(r0) / (math.log(r1) - math.log(r0))
            found.append((math.exp(math.log(x0) + share * math.log(x1 / x0)), r1 >= 1))
    return found


def over_dense(rows, platform, preset, n=None, ranks=None):
    """[(x, time / dense's time)] over P for one n, or over n for one P."""
    fixed = {"platform": platform, **({"n": n} if n else {"ranks": ranks})}
    column = "ranks" if n else "n"
    points = []
    for x in rows.values(column, **fixed):
        place = (platform, n or x, ranks or x)
        mine, dense = rows.get(*place, preset), rows.get(*place, "dense")
        if mine and dense:
            points.append((x, mine["mean"] / dense["mean"]))
    return points


def dense_wins_over_ranks(rows, platform, n, preset):
    """{kind: never | always | from | until, P, last: (P, how many times faster than dense there)}, or None without
    rows. With several crossings the last one counts: it says who wins at scale."""
    points = over_dense(rows, platform, preset, n=n)
    if not points:
        return None
    last = (points[-1][0], 1 / points[-1][1])
    found = crossings(points)
    if not found:
        return {"kind": "never" if points[0][1] < 1 else "always", "P": None, "last": last}
    place, rises = found[-1]
    return {"kind": "from" if rises else "until", "P": place, "last": last}


def size_crossings(rows):
    """[(platform, P, preset, n, rises)] between the simulated sizes."""
    return [(platform, ranks, preset, n, rises)
            for platform in rows.values("platform") for ranks in rows.values("ranks", platform=platform)
            for preset in rows.values("preset", platform=platform, ranks=ranks) if preset not in ("dense", AUTO)
            for n, rises in crossings(over_dense(rows, platform, preset, ranks=ranks))]


def model_ratio(row):
    return row["steady"] / row["predicted"] if row.get("predicted") else None


def model_check(rows):
    """How far the flat platforms are from the model where it must hold: {checked, within, worst: row, deviation}."""
    found = [(abs(model_ratio(r) - 1), r) for r in rows.all
             if r["platform"] in FLAT and r["preset"] in MODEL_PRESETS and r["ranks"] in MODEL_RANKS and model_ratio(r)]
    if not found:
        return None
    deviation, worst = max(found, key=lambda pair: pair[0])
    return {"checked": len(found), "within": sum(d <= MODEL_TOLERANCE for d, _ in found), "worst": worst,
            "deviation": deviation}


def flat_outliers(rows):
    """preset -> the ratio furthest from 1, of those beyond the tolerance on platforms without contention, at any P."""
    found = {}
    for r in rows.all:
        ratio = model_ratio(r)
        if r["platform"] in FLAT and r["preset"] != AUTO and ratio and abs(ratio - 1) > MODEL_TOLERANCE:
            found[r["preset"]] = max(found.get(r["preset"], 1), ratio, key=lambda x: abs(x - 1))
    return found


def contention(rows, platform):
    """(median, row of the least, row of the most) of simulated / predicted on a platform."""
    found = sorted((r for r in rows.all if r["platform"] == platform and r["preset"] != AUTO and model_ratio(r)),
                   key=model_ratio)
    return (statistics.median(map(model_ratio, found)), found[0], found[-1]) if found else None


def auto_rows(rows):
    """Each cell with auto: what it chose, beside the best of the fixed presets and dense."""
    found = []
    for platform, n, ranks in rows.cells():
        auto, dense = rows.get(platform, n, ranks, AUTO), rows.get(platform, n, ranks, "dense")
        fixed = [r for r in rows.all
                 if (r["platform"], r["n"], r["ranks"]) == (platform, n, ranks) and r["preset"] != AUTO]
        if auto and fixed:
            best = min(fixed, key=lambda r: r["mean"])
            found.append({"platform": platform, "n": n, "ranks": ranks, "method": auto.get("method") or "?",
                          "auto": auto["mean"], "best": best["mean"], "best_preset": best["preset"],
                          "over_best": auto["mean"] / best["mean"],
                          "over_dense": auto["mean"] / dense["mean"] if dense else None})
    return found


def auto_summary(found):
    """{rows, near_best, against_dense, slower_than_dense: rows that are, by more than DENSE_TOLERANCE}"""
    against = [r for r in found if r["over_dense"] is not None]
    return {"rows": len(found), "near_best": sum(r["over_best"] <= 1 + AUTO_TOLERANCE for r in found),
            "against_dense": len(against),
            "slower_than_dense": [r for r in against if r["over_dense"] > 1 + DENSE_TOLERANCE]}


def rounds_of(P):
    return math.ceil(math.log2(P))


# preset -> latency, bandwidth as text; messages(P), words per k (n/k, P) as (least, most). Words of 4 bytes without
# headers, an entry is two; ranges depend on how much the ranks' selections overlap.
FORMULAS = {
    "dense": ("2 log P", "2n(P-1)/P", lambda P: 2 * rounds_of(P), lambda d, P: (2 * d * (P - 1) / P,) * 2),
    "topka": ("log P", "2k(P-1)", rounds_of, lambda d, P: (2 * (P - 1),) * 2),
    "gaussiank": ("2 log P", "2k(P-1)", lambda P: 2 * rounds_of(P), lambda d, P: (2 * (P - 1),) * 2),
    "topkdsa": ("P-1 + 2 log P", "(P-1)/P times [4k, 2k+n]", lambda P: P - 1 + 2 * rounds_of(P),
                lambda d, P: (4 * (P - 1) / P, (2 + d) * (P - 1) / P)),
    "gtopk": ("2 log P", "4k log P", lambda P: 2 * rounds_of(P), lambda d, P: (4 * rounds_of(P),) * 2),
    "topka2a": ("P-1 + log P", "(2k+n)(P-1)/P", lambda P: P - 1 + rounds_of(P),
                lambda d, P: ((2 + d) * (P - 1) / P,) * 2),
    "oktopk": ("P-1 + 2 log P", "(P-1)/P times [2k, 6k]", lambda P: P - 1 + 2 * rounds_of(P),
               lambda d, P: (2 * (P - 1) / P, 6 * (P - 1) / P)),
    "spardl": ("2 log P", "4k(P-1)/P", lambda P: 2 * rounds_of(P), lambda d, P: (4 * (P - 1) / P,) * 2),
    "circulant": ("2 log P to P-1 + log P, by the skips", "[4k(P-1)/P, k(2+log P)]", lambda P: 2 * rounds_of(P),
                  lambda d, P: (4 * (P - 1) / P, 2 + rounds_of(P))),
}


def formula(preset, row):
    """(messages, least words per k, most words per k) by the formula, or None for what has none."""
    if preset not in FORMULAS:
        return None
    _, _, messages, words = FORMULAS[preset]
    return (messages(row["ranks"]), *words(row["n"] / row["k"], row["ranks"]))


def bound_words_per_k(P):
    """2k(P-1)/P words: every rank must learn k (index, value) pairs, of which it has its share."""
    return 2 * (P - 1) / P
