#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares two results of the same benchmark and says what got slower.

    lab/bench/compare.py before.json after.json [--threshold 0.05] [--sigmas 4] [--absolute]

Reads the JSON files of `oktopk-lab kernels -J` and `oktopk bench -J`. A row is slower when its median grew by more than
the threshold and by more than the noise: `sigmas` robust standard deviations (1.48 times the median absolute
deviation) of both runs together. A row has the time of its limit, measured in turns with it (for bench: an in-place
axpy). Rows are compared by their ratio to the limit, so that another day's clock does not count; --absolute compares
times.

Exit code: 0 nothing got slower, 1 something did, 2 bad input.
"""

import argparse
import json
import sys

TO_ROBUST_DEVIATION = 1.4826  # of normal noise: standard deviation / median absolute deviation
# The tool that wrote a file -> the key of the limit's time. `oktopk kernels` wrote the files of version 1.0.
LIMITS = {"oktopk-lab kernels": "limit_time", "oktopk kernels": "limit_time", "oktopk bench": "axpy_time"}


class BadInput(Exception):
    pass


def name_of(row):
    if "kernel" in row:
        return f'{row["kernel"]}/{row["simd"]}/{row["data"]}/n={row["n"]:.0f}/k={row["k"]:.0f}'
    return f'{row["preset"]}/n={row["n"]:.0f}/k={row["k"]:.0f}/P={row["ranks"]}'


def read(file, absolute):
    """Name -> (median, median absolute deviation), in seconds or relative to the limit."""
    try:
        with open(file) as stream:
            result = json.load(stream)
        tool = result.get("tool")
        if tool not in LIMITS:
            raise BadInput(f"{file}: was not written by {' or '.join(LIMITS)}")
        rows = {}
        for row in result["rows"]:
            limit = 0.0 if absolute else row.get(LIMITS[tool], 0.0)
            unit = limit if limit > 0 else 1.0
            rows[name_of(row)] = (row["time"] / unit, row.get("time_mad", 0.0) / unit)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{file}: {type(error).__name__}: {error}") from error
    if not rows:
        raise BadInput(f"{file}: it has no rows")
    return rows


def judge(before, after, threshold, sigmas):
    """'slower', 'faster' or 'same', for two (median, deviation)."""
    noise = sigmas * TO_ROBUST_DEVIATION * (before[1] ** 2 + after[1] ** 2) ** 0.5
    change = after[0] - before[0]
    if abs(change) <= max(noise, threshold * before[0]):
        return "same"
    return "slower" if change > 0 else "faster"


def compare(before, after, threshold, sigmas):
    """Rows (name, before, after, verdict), those that changed most first; and names that only one has."""
    both = [name for name in before if name in after]
    rows = [(name, before[name], after[name], judge(before[name], after[name], threshold, sigmas)) for name in both]
    rows.sort(key=lambda row: -row[2][0] / row[1][0] if row[1][0] > 0 else 0)
    return rows, sorted(set(before) ^ set(after))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--threshold", type=float, default=0.05, help="growth that counts (default 0.05: 5%%)")
    parser.add_argument("--sigmas", type=float, default=4.0, help="noise that does not (default 4 deviations)")
    parser.add_argument("--absolute", action="store_true", help="times, not ratios to the limits beside them")
    parser.add_argument("--all", action="store_true", help="also print the rows that stayed the same")
    options = parser.parse_args(arguments)
    try:
        before, after = read(options.before, options.absolute), read(options.after, options.absolute)
    except BadInput as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    rows, alone = compare(before, after, options.threshold, options.sigmas)
    if not rows:
        print("compare: the two results have no row in common", file=sys.stderr)
        return 2
    counts = {"slower": 0, "faster": 0, "same": 0}
    for name, old, new, verdict in rows:
        counts[verdict] += 1
        if verdict != "same" or options.all:
            print(f"{verdict:<7} {new[0] / old[0] if old[0] > 0 else 0:7.3f}x  {old[0]:.4g} -> {new[0]:.4g}  {name}")
    if alone:
        print(f"# only in one of the two: {len(alone)} rows, for instance {alone[0]}")
    print(f"# {counts['slower']} slower, {counts['faster']} faster, {counts['same']} the same within "
          f"{100 * options.threshold:g}% and noise")
    return 1 if counts["slower"] else 0


if __name__ == "__main__":
    sys.exit(main())
