#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times messages between two processes over our sockets, Open MPI and Gloo, in turns.

    sudo python lab/network/transports.py                      # loopback, 1 Gbit/s, 100 Mbit/s
    python lab/network/transports.py --network loopback --rounds 9

One table: microseconds of a message one way (half of a message and its answer) and of two that
cross, medians over the rounds; `x best` is our time beside the better of the others. Networks other
than loopback are two namespaces behind links that tc limits (namespaces.py), and need
root. Ranks of tcp and Open MPI have a core each, as mpirun does it; Gloo needs its threads and is
not bound. A transport that this machine lacks is left out, with a note.

Exit code: 0 all measured, 1 a measurement failed, 2 bad input or nothing to measure.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from network import arguments, namespaces, pings  # noqa: E402

NETWORKS = "loopback,1gbit,100mbit"
BYTES = "8,4096,65536,1048576,16777216"
MOST_SECONDS = 0.5  # of one message: larger ones are left out on slow links


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--network", default=NETWORKS, help="loopback or rates, with commas")
    made.add_argument("--bytes", default=BYTES, help="sizes of messages, with commas")
    made.add_argument("--rounds", type=int, default=5, help="turns of every transport")
    made.add_argument("--budget", type=float, default=0.1, help="seconds per size and way")
    made.add_argument("--oktopk", default="build/oktopk", help="the command, built with tcp")
    return made


@contextlib.contextmanager
def place_of(name: str) -> Iterator[tuple[pings.Place, float | None]]:
    """Where the ranks run, and the bits per second of their link."""
    if name == "loopback":
        yield pings.Place([[], []], ["127.0.0.1", "127.0.0.1"], "lo"), None
        return
    rate = arguments.rate(name)
    with namespaces.Network(2, namespaces.Link(rate.bits)) as network:
        hosts = [network.address(rank) for rank in range(2)]
        yield pings.Place([network.enter(rank) for rank in range(2)], hosts, "eth0"), rate.bits


def transports(options: argparse.Namespace, folder: Path) -> dict[str, pings.Measure]:
    """Those that this machine has; a note about each of the others."""
    found: dict[str, pings.Measure] = {}
    makers: dict[str, Callable[[], pings.Measure]] = {
        "tcp": lambda: pings.tcp(options.oktopk, folder),
        "Open MPI": lambda: pings.open_mpi(folder),
        "Gloo": pings.gloo,
    }
    for name, make in makers.items():
        try:
            found[name] = make()
        except pings.Absent as error:
            note(f"{name} is left out: {error}")
    return found


def measure(
    place: pings.Place, all_of: dict[str, pings.Measure], sizes: list[int], o: argparse.Namespace
) -> tuple[dict[str, list[pings.Times]], int]:
    """The times of each transport by round, and the number of measurements that failed."""
    times: dict[str, list[pings.Times]] = {name: [] for name in all_of}
    failures = 0
    for _ in range(o.rounds):
        for name, take in all_of.items():
            try:
                times[name].append(take(place, o.budget, sizes))
            except (pings.Failed, subprocess.TimeoutExpired) as error:
                failures += 1
                note(f"{name}: {error}")
    return times, failures


def rows(network: str, times: dict[str, list[pings.Times]], sizes: list[int]) -> Iterator[str]:
    for size in sizes:
        for way, title in enumerate(("one way", "both ways")):
            medians = {
                name: statistics.median(run[size][way] for run in runs)
                for name, runs in times.items()
                if runs
            }
            others = [value for name, value in medians.items() if name != "tcp"]
            best = f"{medians['tcp'] / min(others):.2f}" if others and "tcp" in medians else "-"
            cells = [f"{medians[n] * 1e6:.1f}" if n in medians else "-" for n in times]
            yield f"| {network} | {size} | {title} | {' | '.join(cells)} | {best} |"


def check(options: argparse.Namespace) -> tuple[list[str], list[int]]:
    names = options.network.split(",")
    sizes = [int(word) for word in options.bytes.split(",")]
    if not all(0 < size < 2**31 for size in sizes):
        raise ValueError(f"--bytes {options.bytes}: sizes are from 1 to 2147483647")
    if options.rounds < 1 or options.budget <= 0:
        raise ValueError(
            f"--rounds {options.rounds} --budget {options.budget}: both must be positive"
        )
    for name in names:
        if name != "loopback":
            arguments.rate(name)
    if names != ["loopback"] and (lacking := namespaces.missing_rights()):
        raise ValueError(
            f"missing: {'; '.join(lacking)}. Namespaces need root; --network loopback does not"
        )
    return names, sizes


def end_by_signal(number: int, _: object) -> None:
    raise SystemExit(128 + number)  # unwinds: ranks are ended and namespaces deleted on the way


def main(words: list[str] | None = None) -> int:
    options = parser().parse_args(words)
    signal.signal(signal.SIGTERM, end_by_signal)
    failures = 0
    try:
        names, sizes = check(options)
        with tempfile.TemporaryDirectory(prefix="oktopk-transports-") as folder:
            all_of = transports(options, Path(folder))
            if not all_of:
                raise ValueError("no transport is here: build oktopk, install Open MPI or torch")
            print(f"| network | bytes | | {' | '.join(f'{n} (us)' for n in all_of)} | x best |")
            print(f"| --- | ---: | --- | {' | '.join('---:' for _ in all_of)} | ---: |")
            for name in names:
                with place_of(name) as (place, bits):
                    fitting = [s for s in sizes if not bits or 8 * s / bits <= MOST_SECONDS]
                    times, failed = measure(place, all_of, fitting, options)
                failures += failed
                print("\n".join(rows(name, times, fitting)), flush=True)
    except (ValueError, argparse.ArgumentTypeError, namespaces.NetworkError) as error:
        note(f"transports: {error}")
        return 2
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
