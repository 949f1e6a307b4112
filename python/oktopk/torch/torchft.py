# SPDX-License-Identifier: Apache-2.0
"""Sparse steps under the Manager of torchft (pip install torchft): its quorum says who takes part, and its vote makes a
step final or takes it back (docs/elastic_pytorch.md).

    manager = torchft.Manager(pg=oktopk.torch.torchft.ProcessGroup(), ...)
    world = oktopk.torch.torchft.ManagedWorld(manager)
    reducer = oktopk.torch.Reducer(model.parameters(), communicator=world, preset="circulant", density=0.01)
    optimizer = torchft.Optimizer(world, torch.optim.SGD(...))     # zero_grad() asks for a quorum, step() votes
    while manager.current_step() < steps:
        optimizer.zero_grad(); ...; loss.backward(); reducer.reduce_gradients(); optimizer.step()

A step that is not committed stays unsent, and the next one sends it instead of its own gradient. A replica that gets
the state of another one (healing) drops what it had not sent. COST: beyond a Reducer's, O(k); sockets per quorum.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any, Dict, List, Optional

from oktopk import _requirements

_requirements.require_module("torchft", "oktopk.torch.torchft")

import torchft  # noqa: E402
from torchft.process_group import ProcessGroupWrapper, create_store_client  # noqa: E402

from oktopk import _core, flight  # noqa: E402
from oktopk._core import CommError, UsageError  # noqa: E402
from oktopk.torch import _sockets  # noqa: E402
from oktopk.torch._group import DEFAULT_SILENCE  # noqa: E402
from oktopk.torch._sockets import File, Secrecy, secrecy_of  # noqa: E402
from oktopk.torch.flat import Start  # noqa: E402

_KEY = "oktopk"  # of our state in the Manager


class ProcessGroup(ProcessGroupWrapper):
    """A process group of torchft for dense tensors, with sockets of ours between the same replicas for sparse steps.

    pg: serves the dense tensors (default: torchft's ProcessGroupGloo).
    timeout: of each wait.
    secret_file, encrypt: of the sockets, as in oktopk.torch.communicator(); without a secret from outside the first
        replica of each quorum puts a random one into torchft's store.
    """

    def __init__(
        self,
        pg: Optional[Any] = None,
        timeout: timedelta = timedelta(seconds=60),
        *,
        secret_file: Optional[File] = None,
        encrypt: Optional[bool] = None,
    ):
        self._secrecy = secrecy_of(secret_file, encrypt)
        super().__init__(timeout, pg if pg is not None else torchft.ProcessGroupGloo(timeout=timeout))
        self.communicator: Optional[_core.PythonCommunicator] = None  # of the last quorum; None: it failed
        self._messages: Optional[_Messages] = None

    def configure(
        self,
        store_addr: str,
        replica_id: str,
        rank: int,
        world_size: int,
        *more: Any,
        **named: Any,
    ) -> None:
        """Called by the Manager for each new quorum."""
        self.communicator = None
        if self._messages is not None:
            self._messages.close()
        super().configure(store_addr, replica_id, rank, world_size, *more, **named)
        store = create_store_client(store_addr, timeout=self._timeout)
        self._messages = _Messages(store, rank, world_size, self._timeout.total_seconds(), self._secrecy)
        self.communicator = _core.PythonCommunicator(self._messages, self._timeout.total_seconds())
        flight.watch(self.communicator)

    def errored(self) -> Optional[Exception]:
        inner: Any = self._pg
        return inner.errored() if hasattr(inner, "errored") else None

    def size(self) -> int:
        return 1 if self._messages is None else self._messages.size

    def getBackendName(self) -> str:
        return "torchft-oktopk"


class _Messages:
    """The messages between the replicas of one quorum. They find each other in its store, where the first one writes
    what all must have in common: the name of the job, and the secret where none comes from outside."""

    name = "torchft"

    def __init__(self, store: Any, rank: int, size: int, seconds: float, secrecy: Secrecy):
        self.rank, self.size = rank, size
        if rank == 0:
            made = _core.make_random_secret() if secrecy.secret is None else ""
            store.set("oktopk/first", "\n".join((_core.make_random_secret(), secrecy.words, made)))
        job, words, made = bytes(store.get("oktopk/first")).decode().split("\n")
        if words != secrecy.words:
            raise UsageError(
                f"oktopk: replica {rank} has '{secrecy.words}', replica 0 has '{words}': give all replicas the same"
            )
        found = _sockets.Store(store, f"oktopk/{job}", seconds)
        self.native: Optional[_core.NativeMessages] = None
        messages = _core.tcp_messages(
            rank,
            size,
            found.set,
            found.get,
            secret=secrecy.secret or made,
            job=job,
            interface=_sockets.interface(),
            timeout=seconds,
            join_timeout=seconds,
            silence=min(seconds, DEFAULT_SILENCE),
            encrypt=secrecy.encrypt,
        )
        _sockets.use(self, messages)

    def close(self) -> None:
        if self.native is not None:
            self.native.close()


class ManagedWorld:
    """The replicas of a Manager, as the `communicator` of one Reducer.

    manager: a torchft.Manager with a ProcessGroup of this module. One replica group has one rank.
    """

    def __init__(self, manager: torchft.Manager):
        group: Any = manager._pg
        if not isinstance(group, ProcessGroup):
            raise UsageError(
                f"oktopk: a Manager with a {type(group).__name__}, but it needs pg=oktopk.torch.torchft.ProcessGroup()"
            )
        self.manager = manager
        self._group = group
        self._core: Optional[_ManagedCore] = None

    @property
    def rank(self) -> int:
        comm = self._group.communicator
        return 0 if comm is None else comm.rank

    @property
    def size(self) -> int:
        comm = self._group.communicator
        return 1 if comm is None else comm.size

    def make_core(self, n: int, options: Dict[str, Any]) -> Any:
        if self._core is not None:
            raise UsageError("oktopk: this world has a Reducer already")
        for name in ("group_size", "adaptive_share"):
            if options.get(name) is not None:
                raise UsageError(f"oktopk: {name} = {options[name]!r}, which does not fit replicas that change")
        if options.get("warmup") and options.get("nan_policy") == "skip":
            raise UsageError("oktopk: warmup with nan_policy 'skip': replicas that join do not know the steps left out")
        if options.get("preset") == "auto" and options.get("profile") is None:
            raise UsageError("oktopk: preset auto without a profile: replicas that join could not help to measure it")
        self._core = _ManagedCore(self.manager, self._group, n, options)
        self.manager.register_state_dict_fn(_KEY, self._core.heal, lambda: {"version": 1})
        return self._core

    def check_start(self, start: Start) -> None:
        """From now on each new quorum compares the parameters. Weights are torchft's: it heals replicas."""
        assert self._core is not None
        self._core.start = start

    def check_joined(self, shares_more: bool = False) -> None:
        """Quorums compare."""

    def start_quorum(self, *arguments: Any, **named: Any) -> None:
        """The Manager's."""
        self.manager.start_quorum(*arguments, **named)

    def should_commit(self, timeout: Optional[timedelta] = None) -> bool:
        """The vote of the Manager; the step of this replica is committed or rolled back by it."""
        answer = False
        try:
            answer = self.manager.should_commit(timeout)
        finally:
            if self._core is not None:
                self._core.end(answer)
        return answer

    def __getattr__(self, name: str) -> Any:
        """Anything else that an Optimizer of torchft asks its Manager."""
        if name.startswith("__") or "manager" not in vars(self):
            raise AttributeError(name)
        return getattr(self.manager, name)


class _ManagedCore:
    """In the place of a native Reducer: a step proposes. The mean is over the replicas that participate; one that heals
    sends nothing."""

    def __init__(self, manager: torchft.Manager, group: ProcessGroup, n: int, options: Dict[str, Any]):
        self._manager = manager
        self._group = group
        self._alone: List[_core.Communicator] = _core.thread_world(1)  # before the first quorum
        self._make = lambda comm: _core.Reducer(comm, n, options)
        self._core: Any = self._make(self._alone[0])
        self._comm: Any = None
        self._is_healed = False
        self._factor = 1.0
        self.start: Optional[Start] = None

    def __getattr__(self, name: str) -> Any:
        """n, k, steps, stats, indices, is_dense, skipped, unsent_norm, forget(), ...: the native Reducer's."""
        if name.startswith("__") or "_core" not in vars(self):
            raise AttributeError(name)
        return getattr(self._core, name)

    def step(self, gradient: Any, scale: float) -> None:
        """Errors of the network go to the Manager, as in its own allreduce: its vote is then against the step."""
        self._manager.wait_quorum()
        if self._manager.errored():
            return
        try:
            self._follow_quorum()
            self._core.propose(gradient if self._manager.is_participating() else None, scale)
        except CommError as error:
            self._manager.report_error(error)

    def flush(self) -> None:
        raise UsageError("oktopk: flush() is not possible under a Manager: a step with nothing new sends what is left")

    def end(self, is_committed: bool) -> None:
        if not self._core.is_open:
            return
        if is_committed:
            self._core.commit()
        else:
            self._core.roll_back()

    def heal(self, _: Any) -> None:
        """This replica gets the state of another one. In the middle of a step (async quorum) it began anew already."""
        self._is_healed = not self._core.is_open

    def write_update(self, out: Any, factor: float = 1.0) -> None:
        self._core.write_update(out, factor * self._factor)

    @property
    def values(self) -> Any:
        return self._core.values * self._factor

    @property
    def dense(self) -> Any:
        return self._core.dense * self._factor

    def _follow_quorum(self) -> None:
        comm = self._group.communicator
        if comm is None:
            raise CommError("oktopk: the sockets of this quorum are missing")
        if comm is not self._comm and self.start is not None:
            self.start.compare(partial(_core.require_equal, comm), with_weights=False)
        if self._is_healed or not self._manager.is_participating():
            self._begin_anew(comm)
        elif comm is not self._comm:
            self._core.move_to(comm)
        self._comm = comm
        self._factor = comm.size / max(1, self._manager.num_participants())

    def _begin_anew(self, comm: Any) -> None:
        """A replica that heals: the others may have applied what is unsent here. All are at this place of a warm-up."""
        self._is_healed = False
        self._core = self._make(comm)
        self._core.begin_at(self._manager.current_step())
