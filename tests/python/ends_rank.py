# SPDX-License-Identifier: Apache-2.0
"""The ranks of ends.py: small training jobs over each front-end, and what rank 1 does in its third step."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

STEPS = 4
LONG = 400  # steps of a rank that goes on until it hears of the other's end
PATIENCE = 60.0  # for a whole job, on a busy machine


def be_rank(front: str, act: str, rank: int, folder: Path, goes_on: bool) -> None:
    """The script of one rank; it ends with the interpreter. goes_on: until it hears of the other's end."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    if front != "elastic":
        from datetime import timedelta

        limit = timedelta(seconds=PATIENCE)
        dist.init_process_group("gloo", f"file://{folder}/store", limit, rank=rank, world_size=2)
    job = FRONTS[front]()
    for step in range(LONG if goes_on else STEPS):
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

    pause = 0.1  # until its exchange waits for rank 0

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
        time.sleep(self.pause)
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


class LargeHook(Hook):
    """The error comes while the thread of the hook selects entries of a large bucket."""

    pause = 0.0

    @staticmethod
    def net() -> Any:
        import torch

        return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1 << 17))


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
    "large hook": LargeHook,
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
        if index > 1:
            time.sleep(PATIENCE)
        return index


def die_beside_workers(job: Job) -> None:
    """They are forked while its sockets are open, and too busy to see that it dies."""
    import torch

    loader: Any = torch.utils.data.DataLoader(Endless(), num_workers=2, multiprocessing_context="fork")  # type: ignore
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    os.kill(os.getpid(), signal.SIGKILL)


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
    "SIGKILL with workers": die_beside_workers,
}


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
