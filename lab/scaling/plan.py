# SPDX-License-Identifier: Apache-2.0
"""What is simulated: the cells (platform, n, P), their presets and command lines. Nothing is run here."""

from dataclasses import dataclass

PRESETS = ["dense", "topka", "gaussiank", "topkdsa", "gtopk", "topka2a", "oktopk", "spardl", "circulant"]
AUTO = "auto"
# These send P - 1 messages per rank, P^2 in all, which take the simulator minutes. Where rounds are dear, the tuner
# chooses such a schedule for circulant, too. A slow preset is a simulation of its own, with fewer steps: those of
# topkdsa and topka2a are all alike, and oktopk's from the first one after the warm-up on. Every message needs a page of
# memory.
DIRECT_PRESETS = {"topkdsa", "topka2a", "oktopk"}
DIRECT_LIMIT, FAR_DIRECT_LIMIT = 256, {"wan": 64}  # above: slow
FEW_STEPS = ("--steps", "1", "--warmup", "1", "--memory", "8")
# Above so many ranks slow presets are left out. All messages of a step are in flight at once, except oktopk's: whenever
# one ends, the simulator shares the links anew among all of them. oktopk's wait for the link between two groups of
# dragonfly: 9 minutes of processor time were not enough.
AT_ONCE_LIMIT = 256
WAITING = {("dragonfly", "oktopk")}
# The memory and the copies of the simulator grow with n P. Vectors longer than LARGE_SIZE go up to LARGE_LIMIT ranks
# (P = 256 takes ten minutes and more), and further only on one platform without contention and one with.
LARGE_SIZE, LARGE_LIMIT = 4 << 20, 64
LARGE_PLATFORMS, LARGEST_LIMIT = ("flat-25g", "fat-tree"), 256
# The tuner decides how these run.
TUNED_PRESETS = {"circulant", AUTO}
DENSITY = 0.01
SUPPORT = "correlated"

# The nominal machine of each platform, as in lab/simulate/platforms.cc (a test compares them): wire latency,
# bytes per second of a link, overheads per message, ranks behind one link.
PLATFORMS = {
    "flat-100g": {"latency": 2e-6, "bandwidth": 12.5e9, "overhead": 1e-6, "sharers": 1},
    "flat-25g": {"latency": 16e-6, "bandwidth": 3.125e9, "overhead": 4e-6, "sharers": 1},
    "dragonfly": {"latency": 1.4e-6, "bandwidth": 10e9, "overhead": 1e-6, "sharers": 1},
    "fat-tree": {"latency": 2e-6, "bandwidth": 12.5e9, "overhead": 1e-6, "sharers": 1},
    "gpu-nodes": {"latency": 3e-6, "bandwidth": 12.5e9, "overhead": 1e-6, "sharers": 8},
    "wan": {"latency": 100e-3, "bandwidth": 12.5e6, "overhead": 4e-6, "sharers": 1},
}
# Per entry, more than coo32+fp32: what `oktopk explain` assumes without a profile.
CODING_SECONDS = {
    "index": {"coo32": 0.0, "u16_blocks": 3e-10, "bit_packed": 3e-10, "elias_fano": 1e-9, "bitmap": 1e-9, "all": 0.0},
    "value": {"fp32": 0.0, "bf16": 1e-10, "log8": 2e-9, "log4": 2e-9},
}
FLAT = ["flat-100g", "flat-25g", "wan"]  # no contention: the model should hold
SUMMARIES = {
    "flat-100g": "100 Gbit/s, 2 us on the wire and 1 us of overheads; no contention but at the ranks' own links",
    "flat-25g": "25 Gbit/s, 16 us on the wire and 4 us of overheads; no contention but at the ranks' own links",
    "dragonfly": "Aries-like groups of 384 ranks, 80 Gbit/s, at most 1.4 us; minimal routes, one link between two "
                 "groups",
    "fat-tree": "100 Gbit/s, at most 2 us, 16 ranks per switch, two levels; fixed routes, so that messages can collide",
    "gpu-nodes": "nodes of 8 ranks, 200 GB/s inside; the 8 share one link of 100 Gbit/s and 3 us to other nodes",
    "wan": "100 Mbit/s and 100 ms between any two ranks",
}


@dataclass(frozen=True)
class Cell:
    """One simulation: presets of one kind, tuned or not, on one platform."""
    platform: str
    n: int
    ranks: int
    presets: tuple

    def arguments(self):
        """Of `oktopk-lab`, without -J."""
        few = FEW_STEPS if is_slow(self.platform, self.ranks, self.presets[0]) else ()
        return ["simulate", "--platform", self.platform, "--ranks", str(self.ranks), "-b", count_text(self.n),
                "--density", str(DENSITY), "--support", SUPPORT, "--codec", "auto",
                "--preset", ",".join(self.presets), *few]


def count_text(n):
    """1048576 -> 1M, as the command reads it; exact."""
    for unit, letter in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if n >= unit and n % unit == 0:
            return f"{n // unit}{letter}"
    return str(n)


def parse_count(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    digits, unit = (text[:-1], units[text[-1]]) if text and text[-1] in units else (text, 1)
    if not digits.isdecimal() or int(digits) == 0:
        raise ValueError(f"'{text}' is not a count: it must be a positive number, perhaps with K, M or G")
    return int(digits) * unit


def is_slow(platform, ranks, preset):
    if platform in FAR_DIRECT_LIMIT:
        return ranks > FAR_DIRECT_LIMIT[platform] and preset in DIRECT_PRESETS | TUNED_PRESETS
    return ranks > DIRECT_LIMIT and preset in DIRECT_PRESETS


def is_left_out(platform, ranks, preset):
    at_once = preset != "oktopk" or (platform, preset) in WAITING
    return ranks > AT_ONCE_LIMIT and at_once and is_slow(platform, ranks, preset)


def presets_at(platform, ranks, presets):
    """In groups: the published ones, those that the tuner decides about, and each slow one of the published."""
    usable = [p for p in presets if not is_left_out(platform, ranks, p)]
    alone = [p for p in usable if is_slow(platform, ranks, p) and p not in TUNED_PRESETS]
    groups = [tuple(p for p in usable if p not in alone and (p in TUNED_PRESETS) == tuned) for tuned in (False, True)]
    return [group for group in groups if group] + [(p,) for p in alone]


def fits(platform, n, ranks):
    return n <= LARGE_SIZE or ranks <= (LARGEST_LIMIT if platform in LARGE_PLATFORMS else LARGE_LIMIT)


def make_cells(platforms, sizes, all_ranks, presets):
    """Small ones first, so that an interrupted report has something of everything."""
    cells = [Cell(platform, n, ranks, group) for n in sizes for ranks in all_ranks for platform in platforms
             if fits(platform, n, ranks) for group in presets_at(platform, ranks, presets)]
    return sorted(cells, key=lambda cell: cell.ranks * max(1, cell.n >> 22))


def profile(platform, gamma=3e-9, delta=2.5e-10):
    """The platform as `oktopk explain --profile` reads it. sigma = delta: the pass over the gradient, which is not
    simulated, costs a sparse method and dense the same."""
    p = PLATFORMS[platform]
    machine = {"alpha": p["latency"], "beta": p["sharers"] / p["bandwidth"], "gamma": gamma, "overhead": p["overhead"],
               "contention": 1.0, "delta": delta, "sigma": delta}
    return {"name": f"nominal: {platform}", "machine": machine, "ranks_per_host": 1,
            "index_seconds": CODING_SECONDS["index"], "value_seconds": CODING_SECONDS["value"]}


def explain_arguments(cell):
    return ["explain", "-b", count_text(cell.n), "--density", str(DENSITY), "--ranks", str(cell.ranks),
            "--coarsest", "fp32"]
