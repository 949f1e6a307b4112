#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a command that writes a trace, and checks the file as a viewer would read it.

    check_trace.py RANKS FILE SPANS COMMAND...

It must be JSON with a name for each of the ranks, on each of them the SPANS (commas; category/name)
must occur, as often on all of them (but for messages), and the spans of a row must nest. Exits 1 with a word if not.
"""

import collections
import json
import subprocess
import sys
from pathlib import Path


def nests(spans):
    """Whether each span lies inside the one before it that is still open. In nanoseconds."""
    ends = []
    for span in spans:
        begin = round(span["ts"] * 1000)
        end = begin + round(span["dur"] * 1000)
        while ends and ends[-1] <= begin:
            ends.pop()
        if ends and end > ends[-1]:
            return f"{span} ends after what it began in"
        ends.append(end)
    return ""


def problems(trace, ranks, wanted):
    events = trace["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    if names != {r: f"rank {r}" for r in range(ranks)}:
        yield f"processes {names}"
    rows = collections.defaultdict(list)
    counts = collections.Counter()
    for event in events:
        if event["ph"] == "X":
            rows[event["pid"], event["tid"]].append(event)
            counts[event["pid"], f"{event['cat']}/{event['name']}"] += 1
    for name in wanted:
        seen = [counts[r, name] for r in range(ranks)]
        uneven = len(set(seen)) != 1 and not name.startswith("message/")
        if 0 in seen or uneven:
            yield f"{name}: {seen} spans, by rank"
    for spans in rows.values():
        if trouble := nests(spans):
            yield trouble


def main():
    ranks, file, wanted, *command = sys.argv[1:]
    Path(file).unlink(missing_ok=True)
    subprocess.run(command, check=True, timeout=100)
    trace = json.loads(Path(file).read_text())
    found = list(problems(trace, int(ranks), wanted.split(",")))
    print(*found, f"{len(trace['traceEvents'])} events, {len(found)} problems", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
