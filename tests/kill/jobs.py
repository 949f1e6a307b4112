# SPDX-License-Identifier: Apache-2.0
"""Runs one job of ranks that are processes, disturbs it, and keeps what the ranks said (rank.cc, torch_jobs.py)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

START = re.compile(r"rank (\d+) start pid (\d+)")
READY = re.compile(r"rank (\d+) ready pid (\d+) member (\d+)")
DONE = re.compile(r"rank (\d+) done loss (\S+) weights (\S+) messages (\d+)(?: epoch (\d+) members (\S*) lost (\S*))?")
ERROR = re.compile(r"rank (\d+) error: (.*)")
PATIENCE = 120  # seconds, against hangs: a job that takes longer has hung

ENVIRONMENT = {
    **os.environ,
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


@dataclass
class Rank:
    pid: int = 0
    started: float = 0.0
    first_member: str = ""  # elastic: a rank that is started anew becomes another member
    ready: float = 0.0  # 0: it has not met the others
    error: str = ""
    error_at: float = 0.0
    done_at: float = 0.0
    loss: float = 0.0
    weights: str = ""  # empty: not done
    messages: int = 0
    lost: frozenset[str] = frozenset()


@dataclass
class Job:
    """The lines of a job come in while it runs; times are those at which they arrived."""

    command: list[str]
    ranks: dict[int, Rank] = field(default_factory=dict)
    text: list[str] = field(default_factory=list)
    struck: list[float] = field(default_factory=list)  # when a rank said that it strikes itself
    status: int | None = None
    end: float = 0.0

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            self.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=ENVIRONMENT,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._take(line.rstrip())
                self._changed.notify_all()

    def _take(self, line: str) -> None:
        now = time.monotonic()
        self.text.append(line)
        if found := START.search(line):
            rank = self.ranks.setdefault(int(found[1]), Rank())
            rank.pid, rank.started = int(found[2]), now
        elif found := READY.search(line):
            rank = self.ranks.setdefault(int(found[1]), Rank())
            rank.pid, rank.first_member, rank.ready = int(found[2]), rank.first_member or found[3], now
        elif found := DONE.search(line):
            rank = self.ranks.setdefault(int(found[1]), Rank())
            rank.done_at = now
            rank.loss, rank.weights, rank.messages = float(found[2]), found[3], int(found[4])
            rank.lost = frozenset((found[7] or "").split(",")) - {""}
        elif (found := ERROR.search(line)) and found[1].isdigit():
            rank = self.ranks.setdefault(int(found[1]), Rank())
            rank.error, rank.error_at = found[2], now
        elif line.endswith(" struck"):
            self.struck.append(now)

    def await_start(self, rank: int) -> bool:
        """Until the process of the rank runs."""
        with self._changed:
            return self._changed.wait_for(lambda: rank in self.ranks or self._is_over(), PATIENCE)

    def await_ready(self, count: int) -> bool:
        """Until so many ranks have met the others."""
        with self._changed:
            return self._changed.wait_for(
                lambda: sum(rank.ready > 0 for rank in self.ranks.values()) >= count or self._is_over(), PATIENCE
            )

    def await_word(self, rank: int) -> bool:
        """Until the rank is done or has told its error."""
        with self._changed:
            return self._changed.wait_for(
                lambda: bool(self.ranks[rank].error or self.ranks[rank].weights) or self._is_over(), PATIENCE
            )

    def _is_over(self) -> bool:
        return not self._reader.is_alive() or self._process.poll() is not None

    def signal(self, rank: int, number: int) -> None:
        try:
            os.kill(self.ranks[rank].pid, number)
        except (KeyError, ProcessLookupError):
            pass

    def finish(self, patience: float = PATIENCE) -> bool:
        """Waits for the end; False if the job hung. Ends it, with all that it started."""
        try:
            self.status = self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self.status = None
        self.end = time.monotonic()
        for pid in [rank.pid for rank in self.ranks.values() if rank.pid > 0]:
            self._end(pid)
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._reader.join(10)
        return self.status is not None

    def _end(self, pid: int) -> None:
        """A rank that was stopped for ever; not a process that has got its number since."""
        try:
            if "_rank" in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            pass


BLAME = "closed|broke|has been silent|left|abandoned|failed|gave up|was struck|died"
ACCUSED = [
    re.compile(r"could not join within \S+ s: rank (\d+):(?!.*; rank)"),
    re.compile(r"no answer within \S+ s from rank ([\d, ]+)"),
    re.compile(rf"\brank (\d+)(?: \([^)]*\))? (?:{BLAME})"),
    re.compile(r"these ranks did not come within \S+ s: ([\d, ]+)"),
]


def accused(error: str) -> set[int]:
    """The ranks that the text of an error blames."""
    for pattern in ACCUSED:
        if found := pattern.search(error):
            return {int(number) for number in re.findall(r"\d+", found[1])}
    return set()
