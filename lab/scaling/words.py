# SPDX-License-Identifier: Apache-2.0
"""The words around the numbers of the page: how they were made, and how to read each figure and table."""

from . import plan

CAPTIONS = {
    "overview": "Time of a step over P, both axes logarithmic. To see: dense is flat or nearly so, topka and "
                "gaussiank grow with P and pass it, oktopk pays P messages, spardl and circulant stay below dense. On "
                "dragonfly a group has 384 ranks: on more, all that two groups exchange shares one link.",
    "times": "Time of a step in ms, n = {n}, on average with refreshes. Shaded: the fastest of the row. "
             "Empty: not simulated.",
    "ranks": "From which P on dense is faster, n = {n}: interpolated between the simulated P, a straight line in "
             "log-log. 'never': faster than dense at all P simulated, and how many times so at the last. 'P <': "
             "dense wins below.",
    "sizes": "Where the simulated sizes lie on both sides of a crossover: below or above which n dense is faster, "
             "interpolated in log-log. Other rows do not cross between these sizes.",
    "explained": "Beyond what was simulated: `oktopk explain` on the nominal machine of each platform, all else as "
                 "in the row. It compares dense with the tuner's choice, which may use index coding and other skip "
                 "lists than the presets here. '-': dense does not win there; a column of nothing else is left out. "
                 "Its times include a pass over the gradient, alike for dense and sparse.",
    "auto_figure": "auto over the fastest of the fixed presets. To see: points up to 1.1 are within 10% of the best; "
                   "below 1, auto found something better, such as coded indices or another skip list.",
    "auto": "auto against the best fixed preset and against dense, by the time of a step. Shaded: more than 10% "
            "slower than the best, or more than 5% slower than dense.",
    "predicted": "A steady step, predicted by the cost model and simulated, all rows. To see: without contention the "
                 "points lie on the diagonal; with shared links, points above the diagonal wait for links that "
                 "others use, which the model does not know; points below it talk inside its node or switch, on "
                 "shorter routes than the nominal one.",
    "ratios": "Simulated over predicted steady step, n = {n}. Shaded: more than 5% apart.",
    "complexity": "In the manner of Ok-Topk's Table 1, counted beside the formula, on {platform} at n = {n}: "
                  "messages that the busiest rank sends in a steady step, and 4-byte words, headers included, per "
                  "selected entry k. log is base 2, rounded up. Where k/P is small, the headers of the frames weigh.",
    "bounds": "Words on the wire over the lower bound of 2k(P-1)/P words for uncompressed (index, value) pairs: each "
              "rank must learn k pairs of which it has its share. On {platform} at n = {n}; the last row is the "
              "bound itself.",
    "platform": "{platform}. Time of a step over P; words per selected entry on the busiest rank, the dashed line is "
                "the lower bound, and gaussiank lies on topka; messages per rank. To see: words decide at large n, "
                "messages at small n and high latency.",
}


def slow_paragraphs(platforms, most_ranks):
    """Which presets make fewer steps on many ranks, and which are left out."""
    far = [p for p in plan.FAR_DIRECT_LIMIT if p in platforms]
    limits = [f"above P = {plan.DIRECT_LIMIT}"] * (most_ranks > plan.DIRECT_LIMIT)
    limits += [f"above P = {plan.FAR_DIRECT_LIMIT[p]} on {p}" for p in far if most_ranks > plan.FAR_DIRECT_LIMIT[p]]
    if not limits:
        return []
    texts = [f"Presets that send P - 1 messages per rank, P^2 in all, take the simulator minutes: "
             f"{' and '.join(limits)} they make one steady step instead of two ({' '.join(plan.FEW_STEPS)})."]
    left_out = {}
    for platform in platforms:
        names = ", ".join(p for p in [*plan.PRESETS, plan.AUTO] if plan.is_left_out(platform, most_ranks, p))
        left_out.setdefault(names, []).append(platform)
    places = "; ".join(f"on {', '.join(where)} {names}" for names, where in left_out.items() if names)
    if places:
        texts.append(f"Left out above P = {plan.AT_ONCE_LIMIT}: {places}. Many of their messages are in flight "
                     f"at once, and the simulator shares the links anew among all of them whenever some end.")
    return texts


def method_paragraphs(rows, report):
    presets = ", ".join(rows.values("preset"))
    texts = [
        f"The library's own algorithms over its own MPI transport on simulated ranks, under SimGrid (oktopk "
        f"{report['version']}). Every exchange is real in order, peers and sizes; links, latencies and processor "
        f"times are those of the simulated platform. Weak scaling: n and k = {100 * plan.DENSITY:g}% of it stay, the "
        f"ranks grow. Selections are generated ('{plan.SUPPORT}': ranks agree on many entries), so there are no "
        f"gradients and no selection time here: the times are of communication and of reducing what arrives. They "
        f"are times of a simulator, of platforms in round numbers, not of machines.",
        f"Presets: {presets}. The published ones with coo32+fp32, circulant with the tuner's skips and coding, auto "
        f"with its choice. The time of a step is an average: refreshes count where the simulated steps had one. "
        f"Steps of the others are all alike.",
    ]
    ranks = rows.values("ranks")
    texts += slow_paragraphs(rows.values("platform"), ranks[-1])
    large = [plan.count_text(n) for n in rows.values("n") if n > plan.LARGE_SIZE]
    if large and ranks[-1] > plan.LARGE_LIMIT:
        texts.append(f"n = {', '.join(large)} is simulated up to P = {plan.LARGE_LIMIT}, on "
                     f"{' and '.join(plan.LARGE_PLATFORMS)} up to P = {plan.LARGEST_LIMIT}: what the simulator holds "
                     f"and copies grows with n P.")
    texts.append("The same command gives the same numbers, byte for byte. Again:")
    return texts
