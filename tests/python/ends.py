#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ways to end a two-rank PyTorch job, and how its processes must end (docs/decisions/0030-the-end-of-a-process.md).

    ends.py --runs 200 [--front hook,ddp] [--way "error in backward"] [--jobs 2]

Each rank is a process of its own that falls off the end of its script, so the interpreter ends as a user's does. A
zygote imports torch once and forks the ranks. Prints one row for each front and way; front "ddp" is DDP without a hook,
for comparison: it fails where torch itself does. Exits 1 if a run of another front failed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ends_rank import PATIENCE, be_rank, processes

PROMPT = 15.0  # for the rank that is left; `silence` is 60 s here
LEFTOVERS = 5.0  # until the processes of a job are gone after its ranks


class Way(NamedTuple):
    """Rank 1 does `act` in its third step. codes: of rank 0 and rank 1; a negative one is a signal."""

    act: str
    codes: Tuple[int, int]
    words: Tuple[str, str] = ("", "")  # regular expressions in what they print
    fronts: Tuple[str, ...] = ("hook",)


ALL = ("hook", "two hooks", "reducer", "local", "fsdp", "elastic")
GLOO = ALL[:-1]  # their ranks form a group of torch.distributed, and cannot go on without one of them
LOST = "CommError: .*rank 1"
USERS = "ValueError: of the user"
FORKED = "UsageError: .*this process was forked from (rank 1|process)"
INT, TERM, KILL = -signal.SIGINT, -signal.SIGTERM, -signal.SIGKILL
WAYS: Dict[str, Way] = {
    "end": Way("end", (0, 0), fronts=ALL),
    "end, groups destroyed": Way("destroy", (0, 0), fronts=GLOO),
    "end, rank 1 first": Way("end first", (0, 0), fronts=ALL),
    "error between steps": Way("raise", (1, 1), (LOST, USERS), GLOO),
    "error between steps, others go on": Way("raise", (0, 1), ("", USERS), ("elastic",)),
    "error in backward": Way("raise in backward", (1, 1), (LOST, USERS), ("hook", "two hooks", "large hook")),
    "error in backward, dense step": Way("raise in backward", (1, 1), ("CommError", USERS), ("dense hook",)),
    "error after backward": Way("raise after backward", (1, 1), (LOST, USERS), GLOO),
    "sys.exit(3) between steps": Way("exit", (1, 3), (LOST, ""), GLOO),
    "sys.exit(3) in backward": Way("exit in backward", (1, 3), (LOST, "")),
    "sys.exit(3) beside a daemon thread in an exchange": Way("exit beside", (1, 3), (LOST, ""), ("reducer",)),
    "Ctrl-C": Way("SIGINT", (1, INT), (LOST, "KeyboardInterrupt"), GLOO),
    "Ctrl-C, others go on": Way("SIGINT", (0, INT), ("", "KeyboardInterrupt"), ("elastic",)),
    "Ctrl-C, and rank 0 does not come": Way("SIGINT, late", (1, INT), (LOST, "KeyboardInter"), ("reducer", "local")),
    "SIGTERM": Way("SIGTERM", (1, TERM), (LOST, ""), GLOO),
    "SIGTERM, others go on": Way("SIGTERM", (0, TERM), fronts=("elastic",)),
    "SIGTERM with a handler that exits": Way("SIGTERM handler", (1, 143), (LOST, ""), GLOO),
    "SIGKILL": Way("SIGKILL", (1, KILL), (LOST, ""), GLOO),
    "SIGKILL beside busy DataLoader workers": Way("SIGKILL with workers", (1, KILL), (LOST, ""), ("hook", "reducer")),
    "child of os.fork ends": Way("fork", (0, 0), fronts=("elastic",)),
    "child of multiprocessing ends": Way("child", (0, 0), fronts=("hook", "reducer", "local", "elastic")),
    "child drops its objects": Way("child that drops", (0, 0), fronts=("hook", "reducer", "local", "elastic")),
    "child makes a step": Way("child that steps", (0, 0), ("", FORKED), ("hook", "reducer", "local")),
    "child while an exchange runs": Way("child in backward", (0, 0)),
}
PLAIN = "ddp"  # compared in the ways of the hook, but for words


class Verdict(NamedTuple):
    trouble: str  # empty: as it must be
    text: str


# In the zygote.


def serve() -> Optional[Dict[str, Any]]:
    """Forks a process for each line of the input, and tells when it has ended. Returns in the process."""
    import torch._dynamo  # the first step of an optimiser would do it
    import torch.distributed.fsdp
    import torch.nn.parallel
    import torch.utils.data  # noqa: F401

    import oktopk.torch  # noqa: F401

    gc.freeze()  # the end of a rank need not visit all of torch: 0.5 s of a processor instead of 1.7
    names: Dict[int, str] = {}
    text = b""
    say("ready")
    while True:
        if select.select([0], [], [], 0.01)[0]:
            more = os.read(0, 1 << 16)
            if not more:
                return None
            *lines, text = (text + more).split(b"\n")
            for line in lines:
                job: Dict[str, Any] = json.loads(line)
                child = os.fork()
                if child == 0:
                    become(job)
                    return job
                names[child] = job["name"]
        while names:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child == 0:
                break
            say(f"{names.pop(child)} {os.waitstatus_to_exitcode(status)}")


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def become(job: Dict[str, Any]) -> None:
    """This process gets a session of its own, by which its children are found, and the log as its output."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets its background jobs ignore it
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    Path(job["log"] + ".session").write_text(str(os.getpid()))
    os.environ.update(job["variables"])


class Zygote:
    """Runs jobs; any thread may ask for one."""

    def __init__(self, python: str = sys.executable) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
        command = [python, __file__, "_zygote"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, bufsize=1
        )
        self.folder = tempfile.TemporaryDirectory()
        self.codes: Dict[str, int] = {}
        self.changed = threading.Condition()
        self.jobs = 0
        assert self.process.stdout is not None and self.process.stdout.readline() == "ready\n"
        threading.Thread(target=self.listen, daemon=True).start()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.folder.cleanup()

    def listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            name, code = line.split()
            with self.changed:
                self.codes[name] = int(code)
                self.changed.notify_all()

    def start(self, name: str, log: Path, variables: Dict[str, str], what: Dict[str, Any]) -> None:
        """what: the arguments of be_rank()."""
        assert self.process.stdin is not None
        request = {"name": name, "log": str(log), "variables": variables, "what": what}
        self.process.stdin.write(json.dumps(request) + "\n")

    def ended(self, name: str, deadline: float) -> Optional[int]:
        """The code of a process; None: it did not end in time."""
        with self.changed:
            self.changed.wait_for(lambda: name in self.codes, max(0.0, deadline - time.monotonic()))
            return self.codes.pop(name, None)

    def run(self, front: str, way: Way) -> Verdict:
        with self.changed:
            self.jobs += 1
            number = self.jobs
        folder = Path(self.folder.name) / str(number)
        folder.mkdir()
        server, variables = None, {}
        if front == "elastic":
            import oktopk

            secret = "a secret of the ends"
            server = oktopk.RendezvousServer(secret=secret, grace=5.0)
            variables = {"OKTOPK_RENDEZVOUS": server.address, "OKTOPK_SECRET": secret}
        logs = [folder / f"{rank}.log" for rank in range(2)]
        began = time.monotonic()
        for rank, log in enumerate(logs):
            goes_on = rank == 0 and way.codes[0] != 0
            what = {"front": front, "act": way.act, "rank": rank, "folder": str(folder), "goes_on": goes_on}
            self.start(f"{number}/{rank}", log, variables, what)
        one = self.ended(f"{number}/1", began + PATIENCE)
        after = time.monotonic()
        zero = self.ended(f"{number}/0", after + PROMPT)
        late = await_sessions(logs, LEFTOVERS if zero is not None and one is not None else 0.0)
        if server is not None:
            server.close()
        texts = [log.read_text(errors="replace") for log in logs]
        return Verdict(judge(front, way, (zero, one), texts, late), "\n".join(texts))


def await_sessions(logs: List[Path], limit: float) -> List[int]:
    """The processes of a job that are left after the limit; they are killed."""
    sessions = {int(Path(f"{log}.session").read_text()) for log in logs}
    deadline = time.monotonic() + limit
    while True:
        left = [pid for pid, session in processes() if session in sessions]
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return left


def judge(front: str, way: Way, codes: Tuple[Optional[int], Optional[int]], texts: List[str], left: List[int]) -> str:
    trouble = []
    for rank, (code, wanted) in enumerate(zip(codes, way.codes)):
        if code != wanted:
            trouble.append(f"rank {rank} " + ("did not end" if code is None else f"ended with {code}, not {wanted}"))
        elif front != PLAIN and not re.search(way.words[rank], texts[rank]):
            trouble.append(f"rank {rank} did not say {way.words[rank]!r}")
    if left and None not in codes and KILL not in way.codes:  # nobody tells the workers of a rank that is killed
        trouble.append(f"{len(left)} processes were left behind")
    for text in ("terminate called", "Fatal Python error"):
        if text in "".join(texts):
            trouble.append(f"{text!r} was printed")
    return "; ".join(trouble)


def table(fronts: List[str], ways: List[str]) -> List[Tuple[str, str]]:
    """Pairs of a front and the name of a way."""
    pairs = []
    for name in ways:
        own = [front for front in WAYS[name].fronts if front in fronts]
        pairs += [(front, name) for front in own]
        if PLAIN in fronts and "hook" in WAYS[name].fronts:
            pairs.append((PLAIN, name))
    return pairs


def main() -> int:
    known = [PLAIN, "dense hook", "large hook", *ALL]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--front", default=",".join(known))
    parser.add_argument("--way", action="append", choices=sorted(WAYS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="what the ranks of failed runs printed")
    arguments = parser.parse_args()
    zygote, failures = Zygote(), 0
    print("| front | way | codes | runs | as it must be | otherwise |", flush=True)
    print("| --- | --- | --- | ---: | ---: | --- |", flush=True)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for front, name in table(arguments.front.split(","), arguments.way or list(WAYS)):
            way = WAYS[name]
            verdicts = list(pool.map(lambda _: zygote.run(front, way), range(arguments.runs)))
            bad = [verdict for verdict in verdicts if verdict.trouble]
            failures += len(bad) if front != PLAIN else 0
            kinds = "; ".join(f"{count}x {trouble}" for trouble, count in Counter(v.trouble for v in bad).items())
            codes, good = ", ".join(map(str, way.codes)), len(verdicts) - len(bad)
            print(f"| {front} | {name} | {codes} | {len(verdicts)} | {good} | {kinds} |", flush=True)
            if arguments.show:
                for verdict in bad[:2]:
                    print(verdict.text, flush=True)
    zygote.close()
    return int(failures > 0)


if __name__ == "__main__":
    if sys.argv[1:] == ["_zygote"]:
        asked = serve()
        if asked is not None:
            what = asked["what"]
            be_rank(**{**what, "folder": Path(what["folder"])})
    else:
        sys.exit(main())
