#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills, stops and pauses ranks of small training runs at random points, and judges what the other ranks do.

    kill.py --build build --points 100 [--transport tcp,elastic,threads,mpi,torchrun] [--kind kill,...] [--seed 1]

A point is a moment of the run, or a message of the rank that is struck; the seed draws it, and the rank. Prints one row
per transport and kind, and each failure with its seed. Exits 1 if there was one. docs/reliability.md has the promises.
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from arbiter import Arbiter
from jobs import ENVIRONMENT, PATIENCE, Job, accused
from judge import AWAY, GRACE, JOIN, SILENCE, SLACK, STOPPED, TIMEOUT, Judge, Row, Verdict

TORCH_JOBS = str(Path(__file__).parent / "torch_jobs.py")
RANKS = 4
STAGGER = 0.3  # early kill: the ranks come within so many seconds
ON_TCP = ["early kill", "kill", "kill at a message", "two kills", "stop", "short pause", "long pause"]
KINDS = {
    "threads": ["throw", "stop", "short pause", "long pause"],
    "tcp": ON_TCP,
    "elastic": [
        *ON_TCP,
        "kill and restart",
        "arbiter stopped",
        "arbiter restarted",
        "arbiter restarted with state",
        "arbiter cut off",
        "arbiter restarted and kill",
        "arbiter cut off and kill",
    ],
    "mpi": ["kill", "stop", "short pause", "long pause", "throw", "give up"],
    "torchrun": ["early kill", "kill", "two kills", "stop", "short pause", "long pause"],
}
AT_A_MESSAGE = {"kill at a message": "kill", "throw": "throw", "give up": "give_up"}


class Harness:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.build, self.python, self.seed = arguments.build, arguments.python, arguments.seed
        self.rank = str(self.build / "tests" / "oktopk_kill_rank")
        self.steps = arguments.steps
        self.server: subprocess.Popen[bytes] | None = None
        self.folder = tempfile.TemporaryDirectory()
        self.judge = Judge(lambda transport, seed: Job(self.command(transport, [], seed)))

    def command(self, transport: str, options: list[str], seed: int = 1, launcher: list[str] = []) -> list[str]:
        if transport == "torchrun":
            return [sys.executable, TORCH_JOBS, "run", self.torch_server(), "300", str(SILENCE)]
        timeout = str(TIMEOUT if transport == "mpi" else 60)
        program = [self.rank, "--transport", transport, "--steps", str(self.steps), "--seed", str(seed)]
        program += ["--silence", str(SILENCE), "--timeout", timeout, *options]
        if transport == "mpi":
            return ["mpirun", "--oversubscribe", "-n", "3", *program]
        run = [str(self.build / "oktopk"), "run", "--keep-going", "-n", str(RANKS), "--grace", str(GRACE)]
        return [*run, *launcher, "--", *program]

    def torch_server(self) -> str:
        """Where clients ask for jobs of torchrun; starts the server if it does not run yet."""
        path = Path(self.folder.name) / "_rank"
        if self.server is None:
            self.server = subprocess.Popen([self.python, TORCH_JOBS, "serve", str(path)], env=ENVIRONMENT)
        deadline = time.monotonic() + PATIENCE
        while not path.exists() and self.server.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        return str(path)

    def close(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server.wait()
        self.folder.cleanup()

    def play(self, transport: str, kind: str, point: int) -> Verdict:
        for attempt in range(5):
            draw = random.Random(f"{self.seed} {transport} {kind} {point} {attempt}")
            verdict = self.play_once(transport, kind, point, draw)
            if not verdict.came_late:
                return verdict
        return Verdict(came_late=True)

    def play_once(self, transport: str, kind: str, point: int, draw: random.Random) -> Verdict:
        P = RANKS if transport in ("tcp", "elastic") else 3
        victims = sorted(draw.sample(range(P), 2 if kind == "two kills" else 1))
        arbiter = self.make_arbiter(kind, point)
        job = self.start(transport, kind, victims[0], draw, arbiter)
        try:
            if arbiter:
                struck = self.strike_arbiter(arbiter, job, kind, victims, draw)
            else:
                struck = self.strike(job, transport, kind, victims, draw)
            if kind in STOPPED:
                for rank in set(range(P)) - set(victims):
                    job.await_word(rank)
            # mpirun must end a stopped rank itself, unless the run was over: MPI_Finalize has no timeout.
            if kind == "long pause" or (kind == "stop" and (transport != "mpi" or job.ranks[victims[0]].weights)):
                job.signal(victims[0], signal.SIGKILL if kind == "stop" else signal.SIGCONT)
        finally:
            ended = job.finish()
            if arbiter:
                job.text.extend(arbiter.text)
                arbiter.close()
        verdict = self.judge.judge(transport, kind, job, victims, struck or min(job.struck, default=job.end))
        if not ended:
            verdict.failure = "the job hung"
        if verdict.failure and not verdict.came_late:
            where = f"{transport}, {kind}, point {point}, ranks {victims}, seed {self.seed}"
            print(f"FAILED {where}: {verdict.failure}\n  " + "\n  ".join(job.text), flush=True)
        return verdict

    def make_arbiter(self, kind: str, point: int) -> Arbiter | None:
        if not kind.startswith("arbiter"):
            return None
        folder = Path(tempfile.mkdtemp(prefix=f"{point}-", dir=self.folder.name))
        return Arbiter(str(self.build / "oktopk"), folder, GRACE, "with state" in kind)

    def strike_arbiter(
        self, arbiter: Arbiter, job: Job, kind: str, victims: list[int], draw: random.Random
    ) -> float:
        """When the blow fell. A stopped arbiter does not continue while the run lasts."""
        job.await_ready(RANKS)
        time.sleep(draw.uniform(0, self.judge.duration("elastic")))
        struck = time.monotonic()
        kills = kind.endswith("and kill")
        if kills and draw.random() < 0.5:
            job.signal(victims[0], signal.SIGKILL)
        if "stopped" in kind:
            arbiter.signal(signal.SIGSTOP)
        elif "cut off" in kind:
            arbiter.relay.cut(draw.uniform(0, AWAY))
        else:
            arbiter.kill()
            time.sleep(draw.uniform(0, AWAY))
            arbiter.start()
        if kills:
            job.signal(victims[0], signal.SIGKILL)
        return struck

    def start(
        self, transport: str, kind: str, victim: int, draw: random.Random, arbiter: Arbiter | None = None
    ) -> Job:
        options: list[str] = []
        if kind in AT_A_MESSAGE:
            most = min(rank.messages for rank in self.judge.calm(transport)[0].ranks.values())
            options = ["--struck-rank", str(victim), "--at", str(draw.randrange(most)), "--kind", AT_A_MESSAGE[kind]]
        if kind in ("early kill", "kill and restart"):
            options = ["--join-timeout", str(JOIN)]
        if kind == "early kill":
            options += ["--stagger", str(round(1000 * STAGGER)), "--stagger-seed", str(draw.randrange(1000))]
        launcher = ["--restart", "1"] if kind == "kill and restart" else []
        if arbiter:
            launcher = ["--join", "--rendezvous", arbiter.relay.address, "--secret-file", str(arbiter.secret_file)]
        return Job(self.command(transport, options, launcher=launcher))

    def strike(self, job: Job, transport: str, kind: str, victims: list[int], draw: random.Random) -> float:
        """When the blow fell; 0: the rank strikes itself."""
        if kind in AT_A_MESSAGE:
            return 0.0
        if kind == "early kill":
            job.await_start(victims[0])
            time.sleep(draw.uniform(0, STAGGER if transport != "torchrun" else self.meeting()))
        else:
            job.await_ready(RANKS if transport in ("tcp", "elastic") else 3)
            time.sleep(draw.uniform(0, self.judge.duration(transport)))
        struck = time.monotonic()
        for rank in victims:
            job.signal(rank, signal.SIGKILL if "kill" in kind else signal.SIGSTOP)
        if kind == "short pause":
            time.sleep(SILENCE / 6)
            job.signal(victims[0], signal.SIGCONT)
        return struck

    def meeting(self) -> float:
        """Seconds from the first line of a rank of torchrun until it has met the others."""
        ranks = self.judge.calm("torchrun")[0].ranks.values()
        return max(rank.ready for rank in ranks) - max(rank.started for rank in ranks)


def threads_row(harness: Harness, kind: str, points: int) -> Row:
    row = Row("threads", kind, TIMEOUT + SLACK if kind in STOPPED else SLACK)
    command = [harness.rank, "--transport", "threads", "--points", str(points), "--kind", kind, "--pace", "0"]
    command += ["--timeout", str(TIMEOUT), "--seed", str(harness.seed), "--steps", str(harness.steps)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=points * (TIMEOUT + 60))
    lines: dict[int, list[re.Match[str]]] = {point: [] for point in range(points)}
    line_of = re.compile(r"point (\d+) victim (\d+) rank (\d+) (?:seconds (\S+) error: (.*)|weights (\S+))")
    for found in filter(None, map(line_of.match, done.stdout.splitlines())):
        lines[int(found[1])].append(found)
    calm = re.search(r"calm weights (\S+)", done.stdout)
    row.verdicts = [threads_verdict(kind, said, calm[1] if calm else "", row.bound) for said in lines.values()]
    for point, verdict in enumerate(row.verdicts):
        if verdict.failure:
            where = f"threads, {kind}, point {point}, seed {harness.seed}"
            print(f"FAILED {where}: {verdict.failure}", *(found[0] for found in lines[point]), sep="\n  ", flush=True)
    return row


def threads_verdict(kind: str, said: list[re.Match[str]], calm: str, bound: float) -> Verdict:
    """said: a line of each of five ranks."""
    errors = [found for found in said if found[5] is not None and found[2] != found[3]]
    verdict = Verdict(errors=len(errors), seconds=max((float(found[4]) for found in errors), default=0.0))
    verdict.named = sum(accused(f[5].split("the world is dead: ")[-1]) == {int(f[2])} for f in errors)
    if len(said) != 5:
        verdict.failure = "a rank ended without a word"
    elif kind == "short pause":
        verdict.failure = "" if {found[6] for found in said} == {calm} else "a short pause was not harmless"
    elif any(found[5] is None for found in said):
        verdict.failure = "a rank ended as if nothing had happened"
    elif verdict.named < verdict.errors:
        verdict.failure = "an error blames the wrong rank"
    elif verdict.seconds > bound:
        verdict.failure = f"{verdict.seconds:.1f} s, but the bound is {bound:.1f} s"
    return verdict


def processes_row(harness: Harness, transport: str, kind: str, points: int, jobs: int) -> Row:
    harness.judge.calm(transport)  # before several threads ask for them
    row = Row(transport, kind, harness.judge.bound(transport, kind))
    with ThreadPoolExecutor(jobs) as pool:
        play: Callable[[int], Verdict] = lambda point: harness.play(transport, kind, point)
        row.verdicts = list(pool.map(play, range(points)))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--transport", default=",".join(KINDS))
    parser.add_argument("--kind", default="", help="with commas; empty: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200, help="of a run")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--python", default=sys.executable, help="for torchrun: an interpreter with torch and oktopk")
    arguments = parser.parse_args()
    with closing(Harness(arguments)) as harness:
        sys.exit(play_all(harness, arguments))


def play_all(harness: Harness, arguments: argparse.Namespace) -> bool:
    """Whether there was a failure."""
    rows = []
    print("| transport | kind | points | right rank named | longest | bound | failures |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for transport in arguments.transport.split(","):
        for kind in KINDS[transport]:
            if arguments.kind and kind not in arguments.kind.split(","):
                continue
            if transport == "threads":
                rows.append(threads_row(harness, kind, arguments.points))
            else:
                rows.append(processes_row(harness, transport, kind, arguments.points, arguments.jobs))
            print(rows[-1].text(), flush=True)
    return any(verdict.failure for row in rows for verdict in row.verdicts)


if __name__ == "__main__":
    main()
