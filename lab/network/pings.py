# SPDX-License-Identifier: Apache-2.0
"""Starts the two ranks of one measurement of transports.py, over one transport.

Each transport is a function that takes a place, the seconds per size and the sizes, and returns the
seconds of a message one way and of two that cross, by size. Every process has ended when it returns.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PATIENCE = 90.0  # seconds of one measurement

Times = dict[int, tuple[float, float]]


@dataclass(frozen=True)
class Place:
    """Where the two ranks run: the words that enter it, their addresses and their interface."""

    enter: list[list[str]]
    hosts: list[str]
    interface: str


Measure = Callable[[Place, float, list[int]], Times]


class Absent(Exception):
    """The transport is not on this machine; the message says what is missing."""


class Failed(Exception):
    """A rank failed; the message has its last words."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return int(door.getsockname()[1])


def core(rank: int) -> list[str]:
    """The words that bind a rank to a core of its own, where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    return ["taskset", "-c", str(cores[rank])] if len(cores) > 1 else []


def run(commands: list[list[str]], environments: list[dict[str, str]]) -> str:
    """What the first process printed. All are ended when one fails or the time is over."""
    started = [
        subprocess.Popen(
            command,
            env={**os.environ, **added},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        for command, added in zip(commands, environments)
    ]
    try:
        said = [process.communicate(timeout=PATIENCE) for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # its own session: it and what it started
                process.wait()
    for process, (_, words) in zip(started, said):
        if process.returncode:
            last = " / ".join(words.strip().splitlines()[-3:])
            raise Failed(f"status {process.returncode}: {last}")
    return said[0][0]


def read_lines(text: str) -> Times:
    """Lines of bytes, seconds one way, seconds both ways."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    return {int(size): (float(one), float(both)) for size, one, both in lines}


def tcp(command: str, folder: Path) -> Measure:
    if not Path(command).exists():
        raise Absent(f"{command} is not built")
    secret, out = folder / "secret", folder / "ping.json"
    secret.write_text(secrets.token_hex(32) + "\n")
    secret.chmod(0o600)

    def take(place: Place, budget: float, sizes: list[int]) -> Times:
        words = [
            *("tune", "--links", "--transport", "tcp", "--world-size", "2", "--secret-file", str(secret)),
            *("--rendezvous", f"{place.hosts[0]}:{free_port()}", "--budget", str(budget)),
            *("--bytes", ",".join(map(str, sizes)), "--json", str(out)),
        ]
        commands = [
            [*place.enter[rank], *core(rank), command, *words, "--rank", str(rank)]
            for rank in range(2)
        ]
        run(commands, [{}, {}])
        rows = json.loads(out.read_text())["rows"]
        return {row["bytes"]: (row["one_way"], row["both_ways"]) for row in rows}

    return take


def gloo() -> Measure:
    if importlib.util.find_spec("torch") is None:
        raise Absent(f"the Python package torch is not there ({sys.executable})")

    def take(place: Place, budget: float, sizes: list[int]) -> Times:
        words = [sys.executable, str(HERE / "gloo_ping.py"), str(budget), *map(str, sizes)]
        port = str(free_port())
        environments = [
            {
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": place.hosts[0],
                "MASTER_PORT": port,
                "GLOO_SOCKET_IFNAME": place.interface,
                "OMP_NUM_THREADS": "1",
            }
            for rank in range(2)
        ]
        return read_lines(run([[*enter, *words] for enter in place.enter], environments))

    return take


def open_mpi(folder: Path) -> Measure:
    """mpirun runs where rank 0 is, and starts its daemon where rank 1 is by an agent of ours."""
    if not shutil.which("mpicc") or not shutil.which("mpirun"):
        raise Absent("mpicc and mpirun are not there")
    if "Open MPI" not in run([["mpirun", "--version"]], [{}]):
        raise Absent("mpirun is not Open MPI's")
    program = folder / "mpi_ping"
    run([["mpicc", "-O2", "-o", str(program), str(HERE / "mpi_ping.c")]], [{}])
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def take(place: Place, budget: float, sizes: list[int]) -> Times:
        words = ["mpirun", "-n", "2", "--bind-to", "core" if core(0) else "none"]
        words += ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", place.interface]
        start: list[str] = []
        if place.enter[0]:
            start = [*place.enter[0], *rename(0)]
            words += ["--host", ",".join(place.hosts), "--map-by", "node"]
            words += ["--mca", "plm_rsh_agent", str(write_agent(folder, place))]
            words += ["--mca", "oob_tcp_if_include", place.interface, "--bind-to", "none"]
        else:
            words += ["--oversubscribe"]
        return read_lines(
            run([[*start, *words, str(program), str(budget), *map(str, sizes)]], [root])
        )

    return take


def rename(rank: int) -> list[str]:
    """A host name of its own for each namespace: mpirun tells hosts apart by their names."""
    return ["unshare", "--uts", "sh", "-c", f'hostname oktopk-rank{rank}; exec "$0" "$@"']


def write_agent(folder: Path, place: Place) -> Path:
    """What mpirun calls in place of ssh: host and command. There is one other host."""
    agent = folder / "agent"
    enter = " ".join(f"'{word}'" for word in [*place.enter[1], "unshare", "--uts", "sh", "-c"])
    agent.write_text(f'#!/bin/sh\nshift\nexec {enter} "hostname oktopk-rank1; $*"\n')
    agent.chmod(0o755)
    return agent
