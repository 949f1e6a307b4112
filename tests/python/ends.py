#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ways to end a two-rank PyTorch job, and how its processes must end (docs/decisions/0030-the-end-of-a-process.md).

    ends.py --runs 200 [--front hook,ddp] [--way "error in backward"] [--jobs 2] [--seed 1]

Each rank is a process of its own that falls off the end of its script, so the interpreter ends as a user's does. A
zygote imports torch once and forks the ranks. Prints one row for each front and way; front "ddp" is DDP without a hook,
for comparison: it fails where torch itself does. Exits 1 if a run of another front failed.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
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
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

STEPS = 4
LONG = 400  # steps of a rank that goes on until it hears of the other's end
PATIENCE = 60.0  # for a whole job, on a busy machine
PROMPT = 15.0  # for the rank that is left; `silence` is 60 s here
LEFTOVERS = 5.0  # until the processes of a job are gone after its ranks


class Way(NamedTuple):
    """Rank 1 does `act` in its third step. codes: of rank 0 and rank 1; a negative one is a signal."""

    act: str
    codes: Tuple[int, int]
    words: Tuple[str, str] = ("", "")  # regular expressions in what they print
    fronts: Tuple[str, ...] = ("hook",)


ALL = ("hook", "two hooks", "reducer", "local", "fsdp", "elastic")
FORKED = "UsageError: .*this process was forked from (rank 1|process)"
LOST = r"CommError: .*rank 1|member 2 is lost"
BREAKS = ("hook", "two hooks", "reducer", "local", "fsdp")
WAYS: Dict[str, Way] = {
    "end": Way("end", (0, 0), fronts=ALL),
    "end, groups destroyed": Way("destroy", (0, 0), fronts=BREAKS),
    "end, rank 1 first": Way("end first", (0, 0), fronts=ALL),
    "error between steps": Way("raise", (1, 1), (LOST, "ValueError: of the user"), BREAKS),
    "error in backward": Way("raise in backward", (1, 1), (LOST, "ValueError: of the user"), ("hook", "two hooks")),
    "error in backward, dense step": Way("raise in backward", (1, 1), ("CommError", "ValueError: of the user"), ("dense hook",)),
    "error after backward": Way("raise after backward", (1, 1), (LOST, "ValueError: of the user"), BREAKS),
    "sys.exit(3) between steps": Way("exit", (1, 3), (LOST, ""), BREAKS),
    "sys.exit(3) in backward": Way("exit in backward", (1, 3), (LOST, "")),
    "sys.exit(3) beside a daemon thread in an exchange": Way("exit beside", (1, 3), (LOST, ""), ("reducer",)),
    "Ctrl-C": Way("SIGINT", (1, -signal.SIGINT), (LOST, "KeyboardInterrupt"), BREAKS),
    "Ctrl-C while rank 0 does not come": Way("SIGINT, late", (1, -signal.SIGINT), (LOST, "KeyboardInterrupt"), ("reducer", "local")),
    "SIGTERM": Way("SIGTERM", (1, -signal.SIGTERM), (LOST, ""), BREAKS),
    "SIGTERM with a handler that exits": Way("SIGTERM handler", (1, 143), (LOST, ""), BREAKS),
    "SIGKILL": Way("SIGKILL", (1, -signal.SIGKILL), (LOST, ""), BREAKS),
    "child of os.fork ends": Way("fork", (0, 0), fronts=("elastic",)),
    "child of multiprocessing ends": Way("child", (0, 0), fronts=("hook", "reducer", "local", "elastic")),
    "child drops its objects": Way("child that drops", (0, 0), fronts=("hook", "reducer", "local", "elastic")),
    "child makes a step": Way("child that steps", (0, 0), ("", FORKED), ("hook", "reducer", "local")),
    "child while an exchange runs": Way("child in backward", (0, 0)),
    "SIGKILL beside busy DataLoader workers": Way("SIGKILL with workers", (1, -signal.SIGKILL), (LOST, ""), ("hook", "reducer")),
}
PLAIN = "ddp"  # compared in the ways of the hook, but for words


class Verdict(NamedTuple):
    trouble: str  # empty: as it must be
    text: str


# In a rank.


def be_rank(front: str, act: str, rank: int, folder: Path) -> None:
    """The script of one rank; it ends with the interpreter."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    if front != "elastic":
        from datetime import timedelta

        limit = timedelta(seconds=PATIENCE)
        dist.init_process_group("gloo", f"file://{folder}/store", limit, rank=rank, world_size=2)
    job = FRONTS[front]()
    batches = workers() if act == "SIGKILL with workers" else None
    goes_on = any(way.act == act and way.codes[0] != 0 for way in WAYS.values()) and front != "elastic"
    for step in range(LONG if goes_on and rank == 0 else STEPS):
        if batches is not None:
            next(batches)
        if rank == 1 and step == 2:
            ACTS[act](job)
        elif rank == 0 and step == 2:
            await_the_other(folder, act)
        job.step()
    job.end()
    if act == "destroy":
        dist.barrier()
        dist.destroy_process_group()
    if act == "end first" and rank == 0:
        time.sleep(0.5)


def await_the_other(folder: Path, act: str) -> None:
    """Rank 1 waits in its exchange for so long, or until it has ended, whichever it does."""
    other = int((folder / "1.log.session").read_text())
    deadline = time.monotonic() + (PATIENCE / 2 if act == "SIGINT, late" else 0.3)
    while (other, other) in processes() and time.monotonic() < deadline:
        time.sleep(0.02)
    if act == "SIGINT, late" and time.monotonic() >= deadline:
        print("rank 1 did not end", flush=True)
        os._exit(99)


class Job:
    """Trains a small net; `spoil` is called in the middle of the next backward pass, after the first bucket left."""

    def __init__(self) -> None:
        import torch

        self.nets = [self.net()]
        self.optimiser = torch.optim.SGD(self.nets[0].parameters(), lr=0.05)
        self.spoil: Optional[Callable[[], None]] = None
        self.spoil_after: Optional[Callable[[], None]] = None

    @staticmethod
    def net() -> Any:
        import torch

        # DDP closes its first bucket at 1 MiB: the last layer has one of its own.
        return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4200))

    def backward(self, model: Any) -> None:
        import torch

        x = torch.randn(8, 64)
        hidden = model(x)
        if self.spoil is not None:
            spoil, self.spoil = self.spoil, None
            self.inner.register_full_backward_hook(lambda *_: self.after_a_bucket(spoil))
        hidden.square().mean().backward()
        if self.spoil_after is not None:
            self.spoil_after()

    def after_a_bucket(self, spoil: Callable[[], None]) -> None:
        time.sleep(0.1)  # its exchange waits for rank 0
        spoil()

    @property
    def inner(self) -> Any:
        return self.nets[-1][1]  # the last layer's gradients are there

    def step(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        pass


class Ddp(Job):
    def __init__(self, count: int = 1) -> None:
        import torch

        super().__init__()
        self.nets = [self.net() for _ in range(count)]
        self.models = [torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.01) for net in self.nets]
        parameters = [p for net in self.nets for p in net.parameters()]
        self.optimiser = torch.optim.SGD(parameters, lr=0.05)
        for model in self.models:
            self.hook(model)

    def hook(self, model: Any) -> None:
        pass

    def step(self) -> None:
        self.optimiser.zero_grad()
        for model in self.models:
            self.backward(model)
        self.optimiser.step()


class Hook(Ddp):
    start_iter = 1

    def hook(self, model: Any) -> None:
        import oktopk.torch

        state = oktopk.torch.OkTopkState(
            preset="circulant", density=0.05, start_iter=self.start_iter, min_numel=16, silence=60.0
        )
        model.register_comm_hook(state, oktopk.torch.oktopk_hook)


class DenseHook(Hook):
    start_iter = 1000


class ReducerJob(Job):
    def __init__(self) -> None:
        super().__init__()
        self.reducer = self.make()

    def make(self) -> Any:
        import oktopk.torch

        return oktopk.torch.Reducer(self.nets[0].parameters(), preset="circulant", density=0.05, silence=60.0)

    def step(self) -> None:
        self.optimiser.zero_grad()
        self.backward(self.nets[0])
        self.reducer.reduce_gradients()
        self.optimiser.step()


class Local(ReducerJob):
    def make(self) -> Any:
        import oktopk.torch

        return oktopk.torch.LocalSteps(self.nets[0].parameters(), every=1, silence=60.0)

    def step(self) -> None:
        self.optimiser.zero_grad()
        self.backward(self.nets[0])
        self.optimiser.step()
        self.reducer.step()


class Fsdp(Job):
    def __init__(self) -> None:
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        import oktopk.torch

        super().__init__()
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
        for layer in (self.nets[0][0], self.nets[0][2], self.nets[0]):
            fully_shard(layer, mesh=mesh["shard"])
        options = {"preset": "circulant", "density": 0.05, "start_iter": 1, "silence": 60.0}
        self.state = oktopk.torch.register_fsdp(self.nets[0], mesh["replicate"], **options)
        self.optimiser = torch.optim.SGD(self.nets[0].parameters(), lr=0.05)

    def step(self) -> None:
        self.optimiser.zero_grad()
        self.backward(self.nets[0])
        self.optimiser.step()


class ElasticJob(ReducerJob):
    def make(self) -> Any:
        import oktopk.torch

        self.world = oktopk.torch.ElasticWorld(timeout=30.0, least=2)
        return oktopk.torch.Reducer(
            self.nets[0].parameters(), communicator=self.world, preset="circulant", density=0.05
        )

    def step(self) -> None:
        if self.world.committed == STEPS - 1:
            self.world.leave_after_next()
        super().step()


FRONTS: Dict[str, Callable[[], Job]] = {
    "ddp": Ddp,
    "hook": Hook,
    "dense hook": DenseHook,
    "two hooks": lambda: type("TwoHooks", (Hook,), {"__init__": lambda self: Ddp.__init__(self, 2)})(),
    "reducer": ReducerJob,
    "local": Local,
    "fsdp": Fsdp,
    "elastic": ElasticJob,
}


def fail() -> None:
    raise ValueError("of the user")


def at_once(act: Callable[[], Any]) -> Callable[[Job], None]:
    return lambda job: act()


def in_backward(act: Callable[[], None]) -> Callable[[Job], None]:
    return lambda job: setattr(job, "spoil", act)


def soon(number: int, pause: float = 0.1) -> None:
    """The signal comes while this rank waits for rank 0."""
    threading.Timer(pause, os.kill, (os.getpid(), number)).start()


def exit_by_signal(job: Job) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    soon(signal.SIGTERM)


def exit_beside(job: Job) -> None:
    threading.Thread(target=job.step, daemon=True).start()
    time.sleep(0.1)
    sys.exit(3)


def fork(job: Job) -> None:
    """A child that ends as a script does. Gloo hangs in it, so that there must be no group of torch.distributed."""
    child = os.fork()
    if child == 0:
        sys.exit(0)
    expect(lambda: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def start_child(act: Callable[[Job], None], job: Job) -> None:
    """A child that ends as those of multiprocessing do: by os._exit(), after its finalizers."""
    child = multiprocessing.get_context("fork").Process(target=act, args=(job,))
    child.start()
    expect(lambda: child.join() or child.exitcode)  # type: ignore[func-returns-value]


def expect(await_code: Callable[[], Optional[int]]) -> None:
    """The code of a child must be 0."""

    def look() -> None:
        code = await_code()
        if code != 0:
            print(f"the child ended with {code}", flush=True)
            os._exit(99)

    threading.Thread(target=look).start()


def nothing(job: Job) -> None:
    pass


def drop(job: Job) -> None:
    vars(job).clear()
    gc.collect()


def step_in_child(job: Job) -> None:
    try:
        job.step()
    except ValueError as error:
        print(f"child: {type(error).__name__}: {error}", flush=True)


class Endless:
    """A data set whose workers are busy for long."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> int:
        if index > 8:
            time.sleep(PATIENCE)
        return index


def workers() -> Any:
    import torch

    loader: Any = torch.utils.data.DataLoader(Endless(), num_workers=2, multiprocessing_context="fork")  # type: ignore
    return iter(loader)


ACTS: Dict[str, Callable[[Job], None]] = {
    "end": lambda job: None,
    "destroy": lambda job: None,
    "end first": lambda job: None,
    "raise": at_once(fail),
    "raise in backward": in_backward(fail),
    "raise after backward": lambda job: setattr(job, "spoil_after", fail),
    "exit": at_once(lambda: sys.exit(3)),
    "exit in backward": in_backward(lambda: sys.exit(3)),
    "exit beside": exit_beside,
    "SIGINT": at_once(lambda: soon(signal.SIGINT)),
    "SIGINT, late": at_once(lambda: soon(signal.SIGINT)),
    "SIGTERM": at_once(lambda: soon(signal.SIGTERM)),
    "SIGTERM handler": exit_by_signal,
    "SIGKILL": at_once(lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "fork": fork,
    "child": lambda job: start_child(nothing, job),
    "child that drops": lambda job: start_child(drop, job),
    "child that steps": lambda job: start_child(step_in_child, job),
    "child in backward": lambda job: setattr(job, "spoil", lambda: start_child(nothing, job)),
    "SIGKILL with workers": at_once(lambda: os.kill(os.getpid(), signal.SIGKILL)),
}


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

    def start(self, name: str, log: Path, variables: Dict[str, str], **what: Any) -> None:
        assert self.process.stdin is not None
        request = {"name": name, "log": str(log), "variables": variables, **what}
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
            what = {"front": front, "act": way.act, "rank": rank, "folder": str(folder)}
            self.start(f"{number}/{rank}", log, variables, **what)
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


def processes() -> List[Tuple[int, int]]:
    """Those that are no zombies: pid and session."""
    found = []
    for name in os.listdir("/proc"):
        try:
            words = Path(f"/proc/{name}/stat").read_text().rsplit(")", 1)[1].split() if name.isdigit() else []
        except OSError:
            continue
        if words and words[0] != "Z":
            found.append((int(name), int(words[3])))
    return found


def judge(front: str, way: Way, codes: Tuple[Optional[int], Optional[int]], texts: List[str], left: List[int]) -> str:
    trouble = []
    for rank, (code, wanted) in enumerate(zip(codes, way.codes)):
        if code != wanted:
            trouble.append(f"rank {rank} " + ("did not end" if code is None else f"ended with {code}, not {wanted}"))
        elif front != PLAIN and not re.search(way.words[rank], texts[rank]):
            trouble.append(f"rank {rank} did not say {way.words[rank]!r}")
    if left and None not in codes:
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
    known = [PLAIN, "dense hook", *ALL]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--front", default=",".join(known))
    parser.add_argument("--way", action="append", choices=sorted(WAYS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="what the ranks of failed runs printed")
    arguments = parser.parse_args()
    zygote, failures = Zygote(), 0
    print("| front | way | codes | runs | as it must be | otherwise |\n| --- | --- | --- | ---: | ---: | --- |", flush=True)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for front, name in table(arguments.front.split(","), arguments.way or list(WAYS)):
            way = WAYS[name]
            verdicts = list(pool.map(lambda _: zygote.run(front, way), range(arguments.runs)))
            bad = [verdict for verdict in verdicts if verdict.trouble]
            failures += len(bad) if front != PLAIN else 0
            kinds = "; ".join(f"{count}x {trouble}" for trouble, count in Counter(v.trouble for v in bad).items())
            codes = ", ".join(map(str, way.codes))
            print(f"| {front} | {name} | {codes} | {len(verdicts)} | {len(verdicts) - len(bad)} | {kinds} |", flush=True)
            if arguments.show:
                for verdict in bad[:2]:
                    print(verdict.text, flush=True)
    zygote.close()
    return int(failures > 0)


if __name__ == "__main__":
    if sys.argv[1:] == ["_zygote"]:
        asked = serve()
        if asked is not None:
            be_rank(asked["front"], asked["act"], asked["rank"], Path(asked["folder"]))
    else:
        sys.exit(main())
