# SPDX-License-Identifier: Apache-2.0
"""Judges a job that was disturbed: did the others end in time, and do they name the right rank? docs/reliability.md has
the promises."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from jobs import Job, Rank, accused

SILENCE = 3.0  # seconds without a sign of life, over tcp and under torchrun
GRACE = 3.0  # for members that do not come to the next epoch
TIMEOUT = 2.0  # of a wait over mpi and threads
JOIN = 5.0  # for ranks that do not come, and for those who want to come in, over tcp
SLACK = 4.0  # for a machine that is busy
TORCHRUN = 60.0  # torchrun gives ranks 30 s to end
AWAY = 1.0  # at most, of an arbiter that is started anew or cut off
STOPPED = ("stop", "long pause")
HARMLESS = ("short pause", "arbiter stopped", "arbiter restarted", "arbiter restarted with state", "arbiter cut off")


@dataclass
class Verdict:
    named: int = 0  # ranks whose error blames a rank that was struck, and nobody else
    errors: int = 0  # ranks with an error
    seconds: float = 0.0  # from the blow to the last error; where the row says so, to the end of the job
    failure: str = ""
    came_late: bool = False  # the run was over, or not yet at that point, when the blow fell
    joined: bool = False  # a rank that was started anew came in time


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
        joined = sum(v.joined for v in self.verdicts)
        kind = f"{self.kind} ({joined} came in time)" if self.kind == "kill and restart" else self.kind
        cells = [self.transport, kind, points, named, f"{longest:.1f} s", f"{self.bound:.0f} s", failures]
        return "| " + " | ".join(str(cell) for cell in cells) + " |"


class Judge:
    """calm: runs that nobody disturbs, by transport; the first has the seed of all others."""

    def __init__(self, calm_run: Callable[[str, int], Job]) -> None:
        self._calm_run = calm_run
        self._calm: dict[str, list[Job]] = {}

    def calm(self, transport: str) -> list[Job]:
        if transport not in self._calm:
            runs = [self._calm_run(transport, seed) for seed in range(1, 6 if transport == "elastic" else 2)]
            for job in runs:
                if not job.finish() or job.status != 0:
                    sys.exit(f"{transport}: a run that nobody disturbs failed:\n" + "\n".join(job.text))
            self._calm[transport] = runs
        return self._calm[transport]

    def duration(self, transport: str) -> float:
        """From the moment when all ranks have met to the first end."""
        ranks = self.calm(transport)[0].ranks.values()
        return min(rank.done_at for rank in ranks) - max(rank.ready for rank in ranks)

    def bound(self, transport: str, kind: str) -> float:
        waits = SILENCE if kind in STOPPED else 0.0
        if transport == "elastic":
            grace = GRACE if kind in STOPPED or kind == "early kill" else 0.0
            waits += SILENCE + grace + (JOIN if kind in ("early kill", "kill and restart") else 0.0)
            waits += AWAY if kind.startswith("arbiter") else 0.0
            return 2 * self.duration(transport) + waits + SLACK
        if transport == "torchrun":
            return TORCHRUN if kind == "early kill" else 2 * SLACK + waits
        if transport == "tcp":
            return SLACK + (JOIN if kind == "early kill" else waits)
        return TIMEOUT + SLACK

    def judge(self, transport: str, kind: str, job: Job, victims: list[int], struck: float) -> Verdict:
        others = [job.ranks[r] for r in sorted(job.ranks) if kind in HARMLESS or r not in victims]
        verdict = Verdict(errors=sum(bool(rank.error) for rank in others))
        verdict.named = sum(bool(accused(r.error)) and accused(r.error) <= set(victims) for r in others)
        last = max((rank.error_at for rank in others if rank.error), default=struck)
        to_the_end = transport == "elastic" or (transport, kind) in (("mpi", "kill"), ("torchrun", "early kill"))
        verdict.seconds = (job.end if to_the_end else last) - struck
        if transport == "elastic":
            self._count_elastic(job, others, victims, verdict)
        if (transport, kind) == ("torchrun", "early kill"):  # the launcher names it; the ranks have not met yet
            verdict.errors = 1
            verdict.named = any(f"(exitcode: -9) local_rank: {victims[0]} " in line for line in job.text)
        verdict.came_late = self._came_late(kind, job, victims, verdict)
        verdict.failure = self._find_failure(transport, kind, job, victims, verdict)
        if not verdict.failure and verdict.seconds > self.bound(transport, kind):
            verdict.failure = f"{verdict.seconds:.1f} s, but the bound is {self.bound(transport, kind):.1f} s"
        return verdict

    @staticmethod
    def _count_elastic(job: Job, others: list[Rank], victims: list[int], verdict: Verdict) -> None:
        """The survivors know whom they lost; where the first epoch did not come about, how many were missing."""
        known = {job.ranks[r].first_member for r in victims}
        strangers = {rank.first_member for rank in others}  # a victim that was never ready has no known number
        for rank in others:
            right = rank.lost <= known if known != {""} else not rank.lost & strangers
            verdict.named += bool(rank.lost) and right
            verdict.errors += bool(rank.lost)
            verdict.named += "the first epoch needs" in rank.error
        verdict.joined = bool(job.ranks[victims[0]].weights)

    @staticmethod
    def _came_late(kind: str, job: Job, victims: list[int], verdict: Verdict) -> bool:
        if kind == "early kill":
            return job.ranks[victims[0]].ready > 0
        if kind == "kill and restart":
            return not verdict.errors
        return kind not in HARMLESS and all(rank.weights for rank in job.ranks.values())

    def _find_failure(self, transport: str, kind: str, job: Job, victims: list[int], verdict: Verdict) -> str:
        others = [job.ranks[r] for r in sorted(job.ranks) if r not in victims]
        weights = {rank.weights for rank in others if rank.weights}
        if len(weights) > 1:
            return "the weights of the ranks that ended differ"
        if kind in HARMLESS:
            right = {rank.weights for rank in self.calm(transport)[0].ranks.values()}
            everybody = {rank.weights for rank in job.ranks.values()}
            return "" if everybody == right and job.status == 0 else f"{kind}: not harmless"
        if (transport, kind) in (("mpi", "kill"), ("torchrun", "early kill")):
            was_over = all(rank.weights for rank in job.ranks.values())
            return "" if job.status != 0 or was_over else "the job ended as if nothing had happened"
        if transport == "elastic":
            return self._find_elastic_failure(kind, job, victims, verdict)
        if any(not rank.error and not rank.weights for rank in others):
            return "a rank ended without a word"
        # A stopped rank cannot tell, and over mpi nobody can ask it: each rank names the peer that it waits for.
        needed = min(1, verdict.errors) if transport == "mpi" and kind in STOPPED else verdict.errors
        if verdict.named < needed:
            return "an error blames the wrong rank"
        zombie = job.ranks[victims[0]]
        if kind == "long pause" and not zombie.error and not zombie.weights:
            return "the rank that continued has no error"
        return ""

    def _find_elastic_failure(self, kind: str, job: Job, victims: list[int], verdict: Verdict) -> str:
        others = [job.ranks[r] for r in sorted(job.ranks) if r not in victims]
        if kind == "early kill" and all(rank.error for rank in others):  # the first epoch did not come about
            return "" if verdict.named == verdict.errors else "an error does not say how many are missing"
        if any(not rank.weights for rank in others):
            return "a member that was not struck did not end the training"
        if verdict.named < verdict.errors:
            return "a member was lost that nobody struck"
        losses = [rank.loss for run in self.calm("elastic") for rank in run.ranks.values()]
        spread = max(losses) - min(losses)
        if not min(losses) - spread <= others[0].loss <= max(losses) + spread:
            return f"loss {others[0].loss}, but that of runs without a failure is {min(losses)} to {max(losses)}"
        if any(job.ranks[r].weights not in ("", others[0].weights) for r in victims):
            return "a member that was struck ended with other weights"
        late = job.ranks[victims[0]]  # one that was started anew may have come when the run was over
        if kind == "kill and restart" and not (late.weights or late.error or job.status != 0):
            return "the member that was started anew has vanished"
        if kind == "long pause" and any(not job.ranks[r].error for r in victims if not job.ranks[r].weights):
            return "the zombie was not refused"
        return ""
