#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills and stops ranks of small training runs at random points, and judges what the other ranks do.

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
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from jobs import Job, accused

SILENCE = 3.0  # seconds without a sign of life, over tcp
GRACE = 3.0  # for members that do not come to the next epoch
TIMEOUT = 2.0  # of a wait over mpi and threads
SLACK = 4.0  # for a machine that is busy
RANKS = 4
KINDS = {
    "tcp": ["kill", "kill at a message", "two kills", "stop", "short pause", "long pause"],
    "elastic": ["kill", "kill at a message", "two kills", "stop", "short pause", "long pause", "kill and restart"],
    "threads": ["throw", "stop"],
    "mpi": ["kill", "stop", "throw", "give up"],
    "torchrun": ["kill", "short pause"],
}


@dataclass
class Verdict:
    named: int = 0  # ranks whose error blames a rank that was struck, and nobody else
    errors: int = 0  # ranks with an error
    seconds: float = 0.0  # from the blow to the last error; elastic, torchrun, a killed job of mpirun: to its end
    failure: str = ""
    came_late: bool = False  # the run was over before the blow fell


@dataclass
class Row:
    transport: str
    kind: str
    bound: float
    verdicts: list[Verdict] = field(default_factory=list)

    def text(self) -> str:
        errors = sum(v.errors for v in self.verdicts)
        named = f"{sum(v.named for v in self.verdicts)} of {errors}" if errors else "-"
        longest = max((v.seconds for v in self.verdicts), default=0.0)
        failures = sum(bool(v.failure) for v in self.verdicts)
        points = sum(not v.came_late for v in self.verdicts)
        cells = [self.transport, self.kind, points, named, f"{longest:.1f} s", f"{self.bound:.0f} s", failures]
        return "| " + " | ".join(str(cell) for cell in cells) + " |"


class Harness:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.build, self.python, self.seed = arguments.build, arguments.python, arguments.seed
        self.rank = str(self.build / "tests" / "oktopk_kill_rank")
        self.steps = arguments.steps
        self.calm: dict[str, list[Job]] = {}

    def command(self, transport: str, options: list[str], seed: int = 1, launcher: list[str] = []) -> list[str]:
        if transport == "torchrun":
            script = str(Path(__file__).parent / "torch_rank.py")
            start = [self.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
            return [*start, "--monitor-interval", "0.1", script, "300"]
        timeout = str(TIMEOUT if transport == "mpi" else 60)
        program = [self.rank, "--transport", transport, "--steps", str(self.steps), "--seed", str(seed)]
        program += ["--silence", str(SILENCE), "--timeout", timeout, *options]
        if transport == "mpi":
            return ["mpirun", "--oversubscribe", "-n", "3", *program]
        run = [str(self.build / "oktopk"), "run", "--keep-going", "-n", str(RANKS), "--grace", str(GRACE)]
        return [*run, *launcher, "--", *program]

    def size(self, transport: str) -> int:
        return RANKS if transport in ("tcp", "elastic") else 3

    def calm_runs(self, transport: str) -> list[Job]:
        """Runs that nobody disturbs: how long they take, what they learn. The first has the seed of all others."""
        if transport not in self.calm:
            self.calm[transport] = []
            for seed in range(1, 6 if transport == "elastic" else 2):
                job = Job(self.command(transport, [], seed))
                if not job.finish() or job.status != 0:
                    sys.exit(f"{transport}: a run that nobody disturbs failed:\n" + "\n".join(job.text))
                self.calm[transport].append(job)
        return self.calm[transport]

    def duration(self, transport: str) -> float:
        job = self.calm_runs(transport)[0]
        return min(rank.done_at for rank in job.ranks.values()) - max(rank.ready for rank in job.ranks.values())

    def bound(self, transport: str, kind: str) -> float:
        if transport == "elastic":
            waits = SILENCE + GRACE + SILENCE if kind in ("stop", "long pause") else SILENCE
            return 2 * self.duration(transport) + waits + SLACK
        if transport == "torchrun":
            return 60.0  # torchrun gives ranks 30 s to end
        if transport == "tcp":
            return SLACK + (SILENCE if kind in ("stop", "long pause") else 0)
        return TIMEOUT + SLACK

    def play(self, transport: str, kind: str, point: int) -> Verdict:
        for attempt in range(5):
            draw = random.Random(f"{self.seed} {transport} {kind} {point} {attempt}")
            verdict = self.play_once(transport, kind, point, draw)
            if not verdict.came_late:
                return verdict
        return Verdict(came_late=True)

    def play_once(self, transport: str, kind: str, point: int, draw: random.Random) -> Verdict:
        P = self.size(transport)
        victims = sorted(draw.sample(range(P), 2 if kind == "two kills" else 1))
        at_message = kind in ("kill at a message", "throw", "give up")
        options: list[str] = []
        if at_message:
            most = min(rank.messages for rank in self.calm_runs(transport)[0].ranks.values())
            blow = {"kill at a message": "kill", "throw": "throw", "give up": "give_up"}[kind]
            options = ["--struck-rank", str(victims[0]), "--at", str(draw.randrange(most)), "--kind", blow]
        job = Job(self.command(transport, options, launcher=["--restart", "1"] if kind == "kill and restart" else []))
        try:
            job.await_ready(P)
            struck = 0.0
            if not at_message:
                time.sleep(draw.uniform(0, self.duration(transport)))
                struck = time.monotonic()
                self.disturb(job, kind, victims)
            if kind in ("stop", "long pause"):
                for rank in set(range(P)) - set(victims):
                    job.await_word(rank)
            # mpirun must end a stopped rank itself, unless the run was over: MPI_Finalize has no timeout.
            if kind in ("stop", "long pause") and (transport != "mpi" or job.ranks[victims[0]].weights):
                job.signal(victims[0], signal.SIGKILL if kind == "stop" else signal.SIGCONT)
        finally:
            ended = job.finish()
        verdict = self.judge(transport, kind, job, victims, struck or min(job.struck, default=job.end))
        if not ended:
            verdict.failure = "the job hung"
        if verdict.failure and not verdict.came_late:
            where = f"{transport}, {kind}, point {point}, ranks {victims}, seed {self.seed}"
            print(f"FAILED {where}: {verdict.failure}\n  " + "\n  ".join(job.text), flush=True)
        return verdict

    def disturb(self, job: Job, kind: str, victims: list[int]) -> None:
        for rank in victims:
            job.signal(rank, signal.SIGKILL if "kill" in kind else signal.SIGSTOP)
        if kind == "short pause":
            time.sleep(SILENCE / 6)
            job.signal(victims[0], signal.SIGCONT)

    def judge(self, transport: str, kind: str, job: Job, victims: list[int], struck: float) -> Verdict:
        others = [job.ranks[r] for r in sorted(job.ranks) if r not in victims]
        verdict = Verdict(errors=sum(bool(rank.error) for rank in others))
        verdict.named = sum(bool(accused(r.error)) and accused(r.error) <= set(victims) for r in others)
        last = max((rank.error_at for rank in others if rank.error), default=struck)
        to_the_end = transport in ("elastic", "torchrun") or (transport, kind) == ("mpi", "kill")
        verdict.seconds = (job.end if to_the_end else last) - struck
        if transport == "elastic":  # there are no errors: the survivors know whom they lost
            members = {job.ranks[r].first_member for r in victims}
            verdict.errors = sum(bool(rank.lost) for rank in others)
            verdict.named = sum(bool(rank.lost) and rank.lost <= members for rank in others)
        verdict.came_late = kind != "short pause" and all(rank.weights for rank in job.ranks.values())
        if kind == "kill and restart":
            verdict.came_late = not verdict.errors
        verdict.failure = self.find_failure(transport, kind, job, victims, verdict)
        if not verdict.failure and verdict.seconds > self.bound(transport, kind):
            verdict.failure = f"{verdict.seconds:.1f} s, but the bound is {self.bound(transport, kind):.1f} s"
        return verdict

    def find_failure(self, transport: str, kind: str, job: Job, victims: list[int], verdict: Verdict) -> str:
        calm = self.calm_runs(transport)
        others = [job.ranks[r] for r in sorted(job.ranks) if r not in victims]
        weights = {rank.weights for rank in others if rank.weights}
        if len(weights) > 1:
            return "the weights of the ranks that ended differ"
        if kind == "short pause":
            right = {rank.weights for rank in calm[0].ranks.values()}
            everybody = {rank.weights for rank in job.ranks.values()}
            return "" if everybody == right and job.status == 0 else "a short pause was not harmless"
        if transport == "mpi" and kind == "kill":
            was_over = all(rank.weights for rank in job.ranks.values())
            return "" if job.status != 0 or was_over else "the job ended as if nothing had happened"
        if transport == "elastic":
            return self.find_elastic_failure(kind, job, victims)
        if any(not rank.error and not rank.weights for rank in others):
            return "a rank ended without a word"
        # A stopped rank cannot tell, and over mpi nobody can ask it: each rank names the peer that it waits for.
        needed = min(1, verdict.errors) if (transport, kind) == ("mpi", "stop") else verdict.errors
        if verdict.named < needed:
            return "an error blames the wrong rank"
        zombie = job.ranks[victims[0]]
        if kind == "long pause" and not zombie.error and not zombie.weights:
            return "the rank that continued has no error"
        return ""

    def find_elastic_failure(self, kind: str, job: Job, victims: list[int]) -> str:
        others = [job.ranks[r] for r in sorted(job.ranks) if r not in victims]
        struck = [job.ranks[r] for r in victims if not job.ranks[r].weights]
        if any(not rank.weights for rank in others):
            return "a member that was not struck did not end the training"
        losses = [rank.loss for run in self.calm_runs("elastic") for rank in run.ranks.values()]
        spread = max(losses) - min(losses)
        if not min(losses) - spread <= others[0].loss <= max(losses) + spread:
            return f"loss {others[0].loss}, but that of runs without a failure is {min(losses)} to {max(losses)}"
        if kind == "kill and restart":
            late = job.ranks[victims[0]]  # it may have come when the run was over
            if {member for rank in others for member in rank.lost} - {late.first_member}:
                return "a member was lost that nobody struck"
            same = late.weights in ("", others[0].weights)
            return "" if same and (late.weights or late.error or job.status != 0) else "the new member differs"
        named = {member for rank in others for member in rank.lost}
        wrong = named - {job.ranks[r].first_member for r in victims}
        if wrong:
            return f"members {wrong} were lost, but nobody struck them"
        if any(job.ranks[r].weights not in ("", others[0].weights) for r in victims):
            return "a member that was struck ended with other weights"
        if kind == "long pause" and any(not rank.error for rank in struck):
            return "the zombie was not refused"
        return ""


def threads_row(harness: Harness, kind: str, points: int) -> Row:
    row = Row("threads", kind, TIMEOUT + SLACK if kind == "stop" else SLACK)
    command = [harness.rank, "--transport", "threads", "--points", str(points), "--kind", kind, "--pace", "0"]
    command += ["--timeout", str(TIMEOUT), "--seed", str(harness.seed), "--steps", str(harness.steps)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=points * (TIMEOUT + 60))
    verdicts: dict[int, Verdict] = {}
    for line in done.stdout.splitlines():
        found = re.match(r"point (\d+) victim (\d+) rank \d+ (?:seconds (\S+) )?error: (.*)", line)
        if not found:
            continue
        verdict = verdicts.setdefault(int(found[1]), Verdict())
        verdict.errors += 1
        verdict.seconds = max(verdict.seconds, float(found[3] or 0))
        verdict.named += accused(found[4].split("the world is dead: ")[-1]) == {int(found[2])}
        if verdict.named < verdict.errors or verdict.seconds > row.bound:
            verdict.failure = line
            print(f"FAILED threads, {kind}, seed {harness.seed}: {line}", flush=True)
    row.verdicts = [verdicts.get(point, Verdict(failure="no rank said anything")) for point in range(points)]
    return row


def processes_row(harness: Harness, transport: str, kind: str, points: int, jobs: int) -> Row:
    harness.calm_runs(transport)  # before several threads ask for them
    row = Row(transport, kind, harness.bound(transport, kind))
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
    harness = Harness(arguments)
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
    sys.exit(any(verdict.failure for row in rows for verdict in row.verdicts))


if __name__ == "__main__":
    main()
