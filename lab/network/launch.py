# SPDX-License-Identifier: Apache-2.0
"""Starts one script on every rank, each in its namespace, and collects what they measured.

A script gets its plan as JSON in its first argument and writes its result as JSON to the file of
its second. When one rank fails, or the time is over, all are ended: nothing outlives the call.
Ranks are in sessions of their own, so that Ctrl-C reaches this process alone, which ends them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from network.namespaces import Network

HERE = Path(__file__).resolve().parent
PORT = 29500
# Freed memory is kept and large blocks are huge pages: methods that make copies of all gradients
# would otherwise be measured by the page faults of a small machine.
MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": 2**32,
    "MALLOC_TRIM_THRESHOLD_": 2**34,
    "THP_MEM_ALLOC_ENABLE": 1,
}
GRACE = 3.0  # seconds the others get to say why, after the first failure


class RankFailed(Exception):
    """A rank did not finish; the message has its last words."""


def python_path() -> str:
    """This folder's parent first, so that the scripts find their package; then what was there."""
    return os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))


def environment(network: Network, rank: int) -> dict[str, str]:
    ours = {
        **MEMORY,
        "RANK": rank,
        "WORLD_SIZE": len(network.ranks),
        "LOCAL_RANK": 0,
        "MASTER_ADDR": network.address(0),
        "MASTER_PORT": PORT,
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": 1,
        "PYTHONPATH": python_path(),
    }
    return {**os.environ, **{name: str(value) for name, value in ours.items()}}


def run_ranks(network: Network, script: str, plan: dict, timeout: float) -> list[dict]:
    """The results of all ranks, in order. Raises RankFailed; every process has ended by then."""
    with tempfile.TemporaryDirectory(prefix="oktopk-network-") as folder:
        out = [Path(folder, f"{r}.json") for r in range(len(network.ranks))]
        common = [sys.executable, str(HERE / script), json.dumps(plan)]
        run_commands(network, [[*common, str(path)] for path in out], timeout)
        return [json.loads(path.read_text()) for path in out]


def run_commands(network: Network, commands: list[list[str]], timeout: float) -> None:
    """One command per rank. Raises RankFailed; every process has ended by then."""
    with tempfile.TemporaryDirectory(prefix="oktopk-network-") as folder:
        said = [Path(folder, f"{r}.txt") for r in range(len(network.ranks))]
        started: list[subprocess.Popen] = []
        try:
            for rank, command in enumerate(commands):
                with said[rank].open("w") as stream:
                    started.append(
                        subprocess.Popen(
                            [*network.enter(rank), *command],
                            env=environment(network, rank),
                            stdout=stream,
                            stderr=subprocess.STDOUT,
                            stdin=subprocess.DEVNULL,
                            start_new_session=True,
                        )
                    )
            in_time = wait(started, timeout)
        finally:
            end(started)
        check(started, said, None if in_time else timeout)


def wait(started: list[subprocess.Popen], timeout: float) -> bool:
    """Until all have ended, or one has failed and its grace is over; False: the time is over."""
    deadline = time.monotonic() + timeout
    failed = False
    while any(p.poll() is None for p in started):
        if not failed and any(p.poll() for p in started):
            failed, deadline = True, time.monotonic() + GRACE
        if time.monotonic() > deadline:
            return failed
        time.sleep(0.02)
    return True


def end(started: list[subprocess.Popen]) -> None:
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # its own session: it and what it started
        process.wait()


def check(started: list[subprocess.Popen], said: list[Path], timeout: float | None) -> None:
    codes = [p.returncode for p in started]
    if not any(codes):
        return
    # A rank that failed by itself knows more than one that was ended for it.
    rank = next(
        (r for r, code in enumerate(codes) if code > 0), codes.index(next(c for c in codes if c))
    )
    words = [line for line in said[rank].read_text(errors="replace").splitlines() if line.strip()]
    reason = f"not done within {timeout:.0f} s" if timeout else f"exit code {codes[rank]}"
    raise RankFailed(f"rank {rank}: {reason}" + "".join(f"\n    {line}" for line in words[-8:]))
