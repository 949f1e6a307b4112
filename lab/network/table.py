# SPDX-License-Identifier: Apache-2.0
"""From what the ranks measured to numbers, and from numbers to the table.

A step is over when the last rank has ended it; its time is that from one such moment to the next.
Bytes are those of the rank that sent most. Both are compared with ddp at the same rate.
"""

from __future__ import annotations

import statistics
from pathlib import Path

HEAD = [
    "network",
    "method",
    "step, median",
    "min..max",
    "steps",
    "sent per rank and step",
    "bytes, less than ddp",
    "time, faster than ddp",
]
START, END = "<!-- table slow_network -->", "<!-- end -->"
PAYLOAD = 1448 / 1514  # of a full frame with TCP's time stamps
LINK_TOLERANCE = 0.1


def summary(network: str, method: str, ranks: list[dict]) -> dict:
    """One row: the ranks' results together."""
    steps = len(ranks[0]["ends"])
    moments = [max(r["start"] for r in ranks)] + [
        max(r["ends"][i] for r in ranks) for i in range(steps)
    ]
    times = [after - before for before, after in zip(moments[:-1], moments[1:])]
    row = {
        "network": network,
        "method": method,
        "steps": steps,
        "times": times,
        "median": statistics.median(times),
        "min": min(times),
        "max": max(times),
        "wire": max(r["sent"]["wire"] for r in ranks) / steps,
        "counted": max(r["sent"]["counted"] for r in ranks) / steps,
        "loss": statistics.mean(r["loss"] for r in ranks),
        "parameters": ranks[0]["parameters"],
        "ranks": [r["sent"] for r in ranks],
    }
    if not all(r["same_weights"] for r in ranks):
        row["error"] = "the ranks hold different weights"
    return row


def link_row(network: str, asked: float | None, ranks: list[dict]) -> dict:
    """The slowest rank's rate, and whether it is what was asked, headers taken off."""
    rate = min(r["rate"] for r in ranks)
    as_asked = asked is None or abs(rate / (asked * PAYLOAD) - 1) <= LINK_TOLERANCE
    return {
        "network": network,
        "rate": rate,
        "round_trip": ranks[0]["round_trip"],
        "asked": asked,
        "as_asked": as_asked,
    }


def link_text(link: dict) -> str:
    rate, trip = link["rate"] / 1e6, link["round_trip"] * 1e3
    text = f"link: measured {rate:.4g} Mbit/s, round trip {trip:.2f} ms"
    return (
        text
        if link["as_asked"]
        else f"{text}: NOT {link['network']}, this machine does not keep up or is busy"
    )


def duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def size(count: float) -> str:
    for unit, one in (("MiB", 2**20), ("KiB", 2**10)):
        if count >= one:
            return f"{count / one:.2f} {unit}" if unit == "MiB" else f"{count / one:.1f} {unit}"
    return f"{count:.0f} B"


def times_less(base: dict | None, row: dict, field: str) -> str:
    if base is None or row["method"] == "none":
        return ""
    return f"{base[field] / row[field]:.1f}x"


def why(error: str) -> str:
    """Of a failure's words the first line and the last, fit for a cell."""
    lines = [line.strip() for line in error.splitlines()]
    text = lines[0] if len(lines) == 1 else f"{lines[0]}: {lines[-1]}"
    return text.replace("|", "/")[:160]


def cells(row: dict, base: dict | None) -> list[str]:
    if "error" in row:
        return [
            row["network"],
            f"{row['method']}: FAILED, {why(row['error'])}",
            *[""] * 6,
        ]
    return [
        row["network"],
        row["method"],
        duration(row["median"]),
        f"{duration(row['min'])}..{duration(row['max'])}",
        str(row["steps"]),
        size(row["wire"]),
        times_less(base, row, "wire"),
        times_less(base, row, "median"),
    ]


def rows_of(record: dict) -> list[list[str]]:
    lines = []
    for link in record["links"]:
        lines.append([link["network"], link_text(link), *[""] * 6])
        rows = [r for r in record["rows"] if r["network"] == link["network"]]
        base = next((r for r in rows if r["method"] == "ddp" and "error" not in r), None)
        lines += [cells(row, base) for row in rows]
    return lines


def markdown(record: dict) -> str:
    """The table, padded so that it reads as text too."""
    rows = [HEAD, *rows_of(record)]
    wide = [max(len(row[c]) for row in rows) for c in range(len(HEAD))]
    left = [c < 2 for c in range(len(HEAD))]
    ruler = ["-" * wide[c] if left[c] else "-" * (wide[c] - 1) + ":" for c in range(len(HEAD))]
    padded = [
        [cell.ljust(wide[c]) if left[c] else cell.rjust(wide[c]) for c, cell in enumerate(row)]
        for row in rows
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in [padded[0], ruler, *padded[1:]])


def conditions(record: dict) -> str:
    """What the numbers hold for, in words."""
    of = record["conditions"]
    computed = [r["median"] for r in record["rows"] if r["method"] == "none" and "error" not in r]
    alone = (
        f", {duration(min(computed))} per step without any exchange (row none)" if computed else ""
    )
    found = [r["parameters"] for r in record["rows"] if "error" not in r]
    count = max(found, default=of["parameters"])
    return (
        f"{of['ranks']} ranks on {of['cores']} cores, {of['cpu']}, Linux {of['kernel']}, "
        f"torch {of['torch']}. A perceptron with {count:,} parameters, {of['batch']} samples per "
        f"rank and step: its computation is small beside a slow network{alone}. "
        f"Delay added: {of['delay'] * 1e3:g} ms. "
        f"oktopk: density {of['density']:g}, codec {of['codec'] or 'as the library chooses'}."
    )


def split_at_markers(page: Path) -> tuple[str, str]:
    """What stands before the table and after it; ValueError when the page has no place for one."""
    before, start, rest = page.read_text().partition(f"{START}\n")
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"{page}: no {START} ... {END}")
    return before + start, end + after


def write_docs(page: Path, text: str) -> None:
    """Puts the text between the page's markers."""
    before, after = split_at_markers(page)
    page.write_text(f"{before}\n{text}\n\n{after}")
