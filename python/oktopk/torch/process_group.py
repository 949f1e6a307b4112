# SPDX-License-Identifier: Apache-2.0
"""The ranks of a torch.distributed process group as a communicator: torchrun needs no MPI.

Messages are the host's bytes, so they travel by Gloo (or MPI, UCC), whatever backend the group has
for its tensors; a group of our own over the same ranks keeps them apart from the user's. A receive
does not know its size: each message is a head of fixed size, with the size and the first bytes,
followed by the rest where there is one. COST: one more latency for messages above the head.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.distributed as dist

from oktopk._core import CommError, PythonCommunicator, UsageError
from oktopk.torch._group import Timeout, as_group, new_group, seconds_of
from oktopk.transport import Bytes, Message

HEAD_BYTES = 512  # most notes and votes fit; a waste of 40 us at 100 Mbit/s
_SIZE_BYTES = 8
_TAGS = 1 << 29  # tags are 31 bits wide in some backends
_HOST_BACKENDS = ("gloo", "mpi", "ucc")


def communicator(
    process_group: Optional[Any] = None, timeout: Optional[Timeout] = None
) -> PythonCommunicator:
    """The ranks of a process group, or of a DeviceMesh of one dimension (default: all ranks).
    Collective over the group.

    timeout: after which a wait gives up, in seconds or as a datetime.timedelta; default: the one
    that the group was made with, as by init_process_group(timeout=...).
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise UsageError(
            "oktopk: torch.distributed is not initialised: call torch.distributed."
            "init_process_group() first (torchrun sets the variables it needs)"
        )
    group = as_group(process_group)
    seconds = seconds_of(timeout, group)
    if dist.get_rank(group) < 0:
        raise UsageError("oktopk: this rank is not a member of the process group")
    return PythonCommunicator(ProcessGroupTransport(_sibling(group, seconds)), seconds)


def _sibling(group: Any, seconds: float) -> Any:
    """A new group over the same ranks that moves host memory."""
    backend = str(dist.get_backend(group)).lower()
    if backend not in _HOST_BACKENDS:
        backend = "gloo"
    try:
        return new_group(dist.get_process_group_ranks(group), backend, seconds)
    except RuntimeError as error:
        raise CommError(f"oktopk: the ranks could not make a group of their own: {error}") from error


class _Incoming(NamedTuple):
    peer: int
    into: Bytes
    tag: int
    head: torch.Tensor
    work: Any


class ProcessGroupTransport:
    """Messages over the point-to-point operations of one process group, which is ours alone."""

    name = "torch"

    def __init__(self, group: Any, order: Optional[Sequence[int]] = None):
        """order: which of the group's ranks is rank 0, 1, ... here; default: as they are."""
        self.group = group
        self.size: int = dist.get_world_size(group)
        self._peers = list(order) if order is not None else list(range(self.size))
        self.rank: int = self._peers.index(dist.get_rank(group))
        self._sent = [0] * self.size  # messages begun, by peer: the tags
        self._received = [0] * self.size
        self._open: Dict[int, Tuple[List[_Incoming], List[Any]]] = {}
        # Gloo does not send to oneself; the n-th send meets the n-th receive.
        self._to_itself: Dict[int, Bytes] = {}

    def begin(self, ticket: int, sends: Sequence[Message], recvs: Sequence[Message]) -> None:
        incoming = [self._receive_head(peer, into) for peer, into in recvs]
        works: List[Any] = []
        for peer, what in sends:
            works += self._send(peer, what)
        self._open[ticket] = (incoming, works)

    def finish(self, ticket: int, timeout: float) -> List[int]:
        incoming, sends = self._open[ticket]
        deadline = time.monotonic() + timeout
        sizes, rests = [], []
        for message in incoming:
            size = self._end_head(message, deadline)
            rest = self._receive_rest(message, size)
            sizes.append(size)
            if rest is not None:
                rests.append((message, *rest))
        for message, tensor, work in rests:
            _wait(work, deadline, f"message from rank {message.peer}")
            message.into[HEAD_BYTES - _SIZE_BYTES : len(tensor) + HEAD_BYTES - _SIZE_BYTES] = (
                tensor.numpy()
            )
        for work in sends:
            _wait(work, deadline, "a send")
        del self._open[ticket]
        return sizes

    def abandon(self, ticket: int) -> None:
        # Works under way hold tensors of their own: nothing of the caller's is touched any more.
        self._open.pop(ticket, None)

    def split(self, color: int, key: int) -> "ProcessGroupTransport":
        members: List[Any] = [None] * self.size
        everywhere = dist.get_rank()
        dist.all_gather_object(members, (color, key, self.rank, everywhere), group=self.group)
        chosen = [r for c, _, _, r in sorted(members, key=lambda m: m[:3]) if c == color]
        group = new_group(chosen, str(dist.get_backend(self.group)).lower())
        places = sorted(chosen)  # how torch numbers the ranks of a group
        return ProcessGroupTransport(group, [places.index(r) for r in chosen])

    def _send(self, peer: int, what: Bytes) -> List[Any]:
        tag = self._next_tag(self._sent, peer)
        if peer == self.rank:
            self._to_itself[tag] = what.copy()
            return []
        head = np.zeros(HEAD_BYTES, np.uint8)
        head[:_SIZE_BYTES] = np.frombuffer(len(what).to_bytes(_SIZE_BYTES, "little"), np.uint8)
        first = what[: HEAD_BYTES - _SIZE_BYTES]
        head[_SIZE_BYTES : _SIZE_BYTES + len(first)] = first
        works = [self.group.send([torch.from_numpy(head)], self._peers[peer], tag)]
        if len(what) > len(first):
            rest = torch.from_numpy(what[len(first) :].copy())
            works.append(self.group.send([rest], self._peers[peer], tag + 1))
        return works

    def _receive_head(self, peer: int, into: Bytes) -> _Incoming:
        tag = self._next_tag(self._received, peer)
        head = torch.empty(HEAD_BYTES, dtype=torch.uint8)
        work = None if peer == self.rank else self.group.recv([head], self._peers[peer], tag)
        return _Incoming(peer, into, tag, head, work)

    def _end_head(self, message: _Incoming, deadline: float) -> int:
        if message.peer == self.rank:
            return self._end_own(message)
        _wait(message.work, deadline, f"message from rank {message.peer}")
        head = message.head.numpy()
        size = int.from_bytes(head[:_SIZE_BYTES].tobytes(), "little")
        _check_capacity(size, message)
        first = min(size, HEAD_BYTES - _SIZE_BYTES)
        message.into[:first] = head[_SIZE_BYTES : _SIZE_BYTES + first]
        return size

    def _end_own(self, message: _Incoming) -> int:
        what = self._to_itself.pop(message.tag, None)
        if what is None:
            raise CommError("a receive from itself before its send was begun")
        _check_capacity(len(what), message)
        message.into[: len(what)] = what
        return len(what)

    def _receive_rest(self, message: _Incoming, size: int) -> Optional[Tuple[torch.Tensor, Any]]:
        left = size - (HEAD_BYTES - _SIZE_BYTES)
        if left <= 0 or message.peer == self.rank:
            return None
        tensor = torch.empty(left, dtype=torch.uint8)
        return tensor, self.group.recv([tensor], self._peers[message.peer], message.tag + 1)

    @staticmethod
    def _next_tag(counts: List[int], peer: int) -> int:
        count = counts[peer]
        counts[peer] = count + 1
        return 2 * (count % _TAGS)


def _check_capacity(size: int, message: _Incoming) -> None:
    if size > len(message.into):
        raise CommError(
            f"a message of {size} bytes from rank {message.peer}, capacity {len(message.into)}"
        )


def _wait(work: Any, deadline: float, what: str) -> None:
    left = max(deadline - time.monotonic(), 1e-3)
    try:
        done = work.wait(timedelta(seconds=left))
    except RuntimeError as error:
        raise CommError(f"{what}: {error}") from error
    if done is False:
        raise CommError(f"{what}: no answer within the timeout")
