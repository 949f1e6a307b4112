#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains with PyTorch DDP on slow links, and says what each way to exchange gradients costs.

    sudo python lab/network/slow_network.py --rate 100mbit,1gbit --json slow.json --plot slow.png
    sudo python lab/network/slow_network.py --rate unlimited --methods ddp,circulant --parameters 25M
    python lab/network/slow_network.py --read slow.json --write-docs

Each rank is a process in a network namespace of its own, behind a link that tc limits in both
directions; all of it is private to this machine and gone afterwards. One table: time per step,
bytes on the wire (headers included), both beside plain DDP. Needs root (CAP_NET_ADMIN and
CAP_SYS_ADMIN), iproute2 and torch; oktopk for its presets.

Exit code: 0 all measured, 1 a method failed, 2 bad input or something is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import signal
import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from network import arguments, launch, methods, namespaces, plot, table  # noqa: E402

PAGE = Path(__file__).resolve().parents[2] / "docs/slow_network.md"
LEAST_STEPS = 5
LINK_SECONDS = 3.0


class Missing(Exception):
    """Something that is needed is not there."""


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def check_needs(options: argparse.Namespace) -> None:
    """Everything that is missing, in one message, before anything is made."""
    wanted = {"matplotlib": "--plot"} if options.plot else {}
    lacking = []
    if not options.read:
        wanted["torch"] = "all"
        if sparse := [m for m in options.methods if methods.needs_oktopk(m)]:
            wanted["oktopk"] = ", ".join(sparse)
        lacking += namespaces.missing_rights()
    lacking += [
        f"the Python package {p} (for {why})"
        for p, why in wanted.items()
        if not importlib.util.find_spec(p)
    ]
    if lacking:
        raise Missing(
            f"missing: {'; '.join(lacking)}. Nothing was measured. Network namespaces need root on "
            f"Linux, or a user namespace (docs/slow_network.md); packages: {sys.executable}"
        )


def check_files(options: argparse.Namespace) -> None:
    """What is to be written can be: asked before the measurement, not after it."""
    for file in filter(None, [options.json, options.plot]):
        folder = Path(file).resolve().parent
        if not folder.is_dir() or not os.access(folder, os.W_OK) or Path(file).is_dir():
            raise ValueError(
                f"{file}: cannot be written: {folder} must be a folder one may write to"
            )
    if options.write_docs:
        table.split_at_markers(PAGE)


def processor() -> str:
    try:
        found = re.search(
            r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE
        )
    except OSError:
        found = None
    return found.group(1) if found else platform.machine()


def conditions(options: argparse.Namespace) -> dict:
    return {
        "ranks": options.ranks,
        "cores": len(os.sched_getaffinity(0)),
        "cpu": processor(),
        "kernel": platform.release().partition("-")[0],
        "torch": metadata.version("torch"),
        "parameters": options.parameters,
        "batch": options.batch,
        "delay": options.delay,
        "density": options.density,
        "codec": options.codec,
        "warmup": options.warmup,
    }


def plan_for(method: str, options: argparse.Namespace) -> dict:
    same = ("parameters", "batch", "density", "codec", "steps", "seconds", "warmup", "timeout")
    return {
        "method": method,
        "least_steps": min(LEAST_STEPS, options.steps),
        **{name: getattr(options, name) for name in same},
    }


def measure_link(network: namespaces.Network, rate: arguments.Rate) -> dict:
    plan = {
        "addresses": [network.address(r) for r in range(len(network.ranks))],
        "seconds": LINK_SECONDS,
    }
    link = table.link_row(
        rate.name, rate.bits, launch.run_ranks(network, "link.py", plan, timeout=60)
    )
    note(f"{rate.name}: {table.link_text(link)}")
    return link


def measure_method(
    network: namespaces.Network, rate: str, method: str, options: argparse.Namespace
) -> dict:
    """The method's row; a failure becomes a row that says so, and the others get their turn."""
    try:
        ranks = launch.run_ranks(network, "worker.py", plan_for(method, options), options.timeout)
        row = table.summary(rate, method, ranks)
    except launch.RankFailed as error:
        row = {"network": rate, "method": method, "error": str(error)}
    said = (
        row.get("error")
        or f"{table.duration(row['median'])} per step, {table.size(row['wire'])} per rank"
    )
    note(f"{rate}: {method}: {said}")
    return row


def save(record: dict, file: str | None) -> None:
    if file:
        Path(file).write_text(json.dumps(record, indent=1) + "\n")


def measure(options: argparse.Namespace) -> dict:
    """All rates and methods; the file has what was measured so far, should the run be stopped."""
    record: dict = {
        "tool": "slow_network",
        "conditions": conditions(options),
        "links": [],
        "rows": [],
    }
    for rate in options.rate:
        link = namespaces.Link(rate.bits, options.delay)
        with namespaces.Network(options.ranks, link) as network:
            record["links"].append(measure_link(network, rate))
            for method in options.methods:
                record["rows"].append(measure_method(network, rate.name, method, options))
                save(record, options.json)
    return record


def read_record(file: str) -> dict:
    record = json.loads(Path(file).read_text())
    if not isinstance(record, dict) or record.get("tool") != "slow_network":
        raise ValueError(f"{file}: not written by lab/network/slow_network.py --json")
    return record


def show(record: dict, options: argparse.Namespace) -> None:
    text = table.markdown(record)
    said = table.conditions(record)
    print(f"{said}\n\n{text}")
    save(record, options.json)
    if options.plot:
        plot.draw(record, options.plot)
    if options.write_docs:
        table.write_docs(PAGE, f"{said}\n\n{text}")


def end_by_signal(number: int, _: object) -> None:
    raise SystemExit(128 + number)  # unwinds: ranks are ended and namespaces deleted on the way


def main(words: list[str] | None = None) -> int:
    options = arguments.parser(__doc__).parse_args(words)
    options.codec = None if options.codec == "none" else options.codec
    signal.signal(signal.SIGTERM, end_by_signal)
    try:
        check_needs(options)
        check_files(options)
        if names := namespaces.leftovers():
            note(
                f"warning: a run that was killed left these, `ip netns del` them: {' '.join(names)}"
            )
        record = read_record(options.read) if options.read else measure(options)
        show(record, options)
    except (Missing, namespaces.NetworkError, launch.RankFailed, ValueError, OSError) as error:
        note(f"slow_network: {error}")
        return 2
    except KeyboardInterrupt:
        note("slow_network: stopped; its namespaces are gone")
        return 130
    return 1 if any("error" in row for row in record["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
