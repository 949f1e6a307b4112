# SPDX-License-Identifier: Apache-2.0
"""The ranks of a torch.distributed process group as a communicator: torchrun needs no MPI.

Messages lie in host memory, whatever backend the group has for its tensors. They travel over sockets of our own where
all ranks have them (_sockets.py), otherwise by Gloo (or MPI, UCC). A group of our own over the same ranks keeps them
apart from the user's. There a receive does not know its size: each message begins with it, and the first 64 KiB travel
as one message, the rest as a second.
COST of Gloo: 8 bytes per message; one more latency above 64 KiB; Python for every message.
"""

from __future__ import annotations

import socket
import struct
import time
from datetime import timedelta
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from oktopk import flight
from oktopk._core import CommError, NativeMessages, PythonCommunicator, UsageError, tcp_available
from oktopk.torch import _sockets
from oktopk.torch._group import DEFAULT_SECONDS, Timeout, agree, as_group, count_groups, fill_groups, new_group
from oktopk.torch._group import seconds_of, serves, sibling, silence_of, sums_group
from oktopk.torch._sockets import File, Secrecy, secrecy_of
from oktopk.transport import Bytes, Message

FIRST_BYTES = 1 << 16  # of a message travel at once, its size before them
PADDED_BYTES = 512  # the same where a receive must have the size of its message
_SIZE = struct.Struct("<Q")
_SIZE_BYTES = _SIZE.size
_TAGS = 1 << 29  # tags are 31 bits wide in some backends
_SHORT_MESSAGES = ("gloo", "mpi")


def communicator(
    process_group: Optional[Any] = None,
    timeout: Optional[Timeout] = None,
    *,
    silence: Optional[Timeout] = None,
    concurrent: bool = False,
    secret_file: Optional[File] = None,
    encrypt: Optional[bool] = None,
) -> PythonCommunicator:
    """The ranks of a process group, or of a DeviceMesh of one dimension (default: all ranks). Collective over the
    group.

    timeout: seconds, or a datetime.timedelta, after which a wait gives up; default: the one that the group was made
        with, as by init_process_group(timeout=...).
    silence: seconds, or a datetime.timedelta, at least 0.1 s and the same on all ranks (default: 30 s). A rank that
        shows no sign of life for so long is lost; a thread of its own shows them. Messages over Gloo have none.
    concurrent: True where one thread uses the communicator while others use the process group. Dense sums then get a
        group of their own: the ranks could not keep the order of two threads.
    secret_file: a file of this user alone, whose first line is the secret by which the ranks know each other (default:
        OKTOPK_SECRET_FILE, OKTOPK_SECRET, or else a random one that they exchange over the process group).
    encrypt: whether the messages are encrypted, with a secret from outside only (default: OKTOPK_ENCRYPT = 1). Dense
        sums then travel as messages, too, and not by the process group.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise UsageError(
            "oktopk: torch.distributed is not initialised: call torch.distributed."
            "init_process_group() first (torchrun sets the variables it needs)"
        )
    group = as_group(process_group)
    seconds, silent = seconds_of(timeout, group), silence_of(silence)
    if dist.get_rank(group) < 0:
        raise UsageError("oktopk: this rank is not a member of the process group")
    ours = sibling(group, seconds)
    secrecy, wants, trouble = _secrecy(secret_file, encrypt)
    # A rank with a longer silence would show its signs of life too seldom for the others.
    told = agree(ours, f"silence {silent} s, {secrecy.words}", trouble, (socket.gethostname(), wants))
    sums = None if secrecy.encrypt else sums_group(group, ours, seconds, concurrent)
    transport = ProcessGroupTransport(ours, sums=sums)
    transport.hosts = hosts = [host for host, _ in told]
    transport.ranks_of_host = hosts.count(hosts[transport.rank])
    transport.silence, transport.seconds, transport.encrypts = silent, seconds, secrecy.encrypt
    transport.secret_file = secret_file
    if transport.size > 1 and all(wants for _, wants in told):
        _sockets.use(transport, _sockets.connect(ours, seconds, silent, secrecy))
    comm = PythonCommunicator(transport, seconds)
    flight.watch(comm)
    return comm


def _secrecy(secret_file: Optional[File], encrypt: Optional[bool]) -> Tuple[Secrecy, bool, str]:
    """Also whether this rank sends over sockets of our own, and why it cannot go on, for the others to hear."""
    try:
        secrecy, wants = secrecy_of(secret_file, encrypt), _sockets.wanted()
    except UsageError as error:
        return Secrecy(), False, str(error)
    if secrecy.encrypt and not wants:
        why = f"{_sockets.VARIABLE} = 'gloo'" if tcp_available() else "this build has none: OpenSSL was not found"
        return secrecy, wants, f"encryption needs transport tcp, but {why}"
    return secrecy, wants, ""


class _Room(NamedTuple):
    """Memory of the first message, kept from exchange to exchange; both are the same bytes."""

    tensor: torch.Tensor
    array: Bytes


class _Incoming(NamedTuple):
    peer: int
    into: Bytes
    tag: int
    room: Optional[_Room]  # None: from this rank itself
    work: Any


class _Exchange(NamedTuple):
    incoming: List[_Incoming]
    rooms: List[_Room]  # of what is sent
    sends: List[Any]


class ProcessGroupTransport:
    """Messages over the point-to-point operations of one process group, which is ours alone."""

    name = "torch"

    def __init__(self, group: Any, order: Optional[Sequence[int]] = None, sums: Optional[Any] = None):
        """order: which of the group's ranks is rank 0, 1, ... here; default: as they are. sums: a group of the same
        ranks for dense sums of tensors, on the devices that it serves."""
        self.group = group
        self.native: Optional[NativeMessages] = None  # moves the messages instead of begin() and finish() here
        self._sums = sums
        self.gpus: Dict[int, Any] = {}  # native devices, by number (_gpu.py)
        self.nodes: Dict[str, Any] = {}  # of GPUs, by their ranks (_sharded.py)
        self.ranks_of_host = 1  # of this group, on the host of this rank
        self.silence: Optional[float] = None  # of the native messages, in seconds
        self.seconds = DEFAULT_SECONDS  # the timeout of the groups that split() makes
        self.secret_file: Optional[File] = None
        self.encrypts = False
        self.hosts: List[Any] = []  # by rank, the name of its host; empty: not known
        # split() gives the same object for the same ranks: for parts that are used one after the other, in one order.
        self.shares_parts = False
        self._parts: Dict[Tuple[Any, ...], ProcessGroupTransport] = {}
        self.size: int = dist.get_world_size(group)
        self._peers = list(order) if order is not None else list(range(self.size))
        self.rank: int = self._peers.index(dist.get_rank(group))
        # A receive of these may be larger than its message; of others it must not.
        self._may_be_short = str(dist.get_backend(group)).lower() in _SHORT_MESSAGES
        self._first = FIRST_BYTES if self._may_be_short else PADDED_BYTES
        self._free: List[_Room] = []
        self._open: Dict[int, _Exchange] = {}
        self._sent = [0] * self.size
        self._received = [0] * self.size
        # Messages to oneself, by their number: the n-th send meets the n-th receive.
        self._to_itself: Dict[int, Bytes] = {}

    def begin(self, ticket: int, sends: Sequence[Message], recvs: Sequence[Message]) -> None:
        exchange = _Exchange([self._receive_first(peer, into) for peer, into in recvs], [], [])
        for peer, what in sends:
            self._send(peer, what, exchange)
        self._open[ticket] = exchange

    def finish(self, ticket: int, timeout: float) -> List[int]:
        exchange = self._open[ticket]
        deadline = time.monotonic() + timeout
        sizes, rests = [], []
        for message in exchange.incoming:
            size = self._end_first(message, deadline)
            sizes.append(size)
            if message.room is not None and size > self._first - _SIZE_BYTES:
                rests.append((message, *self._receive_rest(message, size)))
        for message, tensor, work in rests:
            _wait(work, deadline, message.peer)
            begin = self._first - _SIZE_BYTES
            message.into[begin : begin + len(tensor)] = tensor.numpy()
        for work in exchange.sends:
            _wait(work, deadline, None)
        del self._open[ticket]
        self._free += exchange.rooms
        self._free += [message.room for message in exchange.incoming if message.room is not None]
        return sizes

    def abandon(self, ticket: int) -> None:
        # Works under way hold tensors of their own, which nobody uses again: nothing of the caller's is touched any
        # more.
        self._open.pop(ticket, None)

    def split(self, color: int, key: int) -> "ProcessGroupTransport":
        members: List[Any] = [None] * self.size
        everywhere = dist.get_rank()
        dist.all_gather_object(members, (color, key, self.rank, everywhere, count_groups()), group=self.group)
        partition = tuple(sorted(m[:4] for m in members))  # equal on all ranks: all of them find it, or none
        if self.shares_parts and partition in self._parts:
            return self._parts[partition]
        fill_groups(max(m[4] for m in members))
        mine = [m for m in partition if m[0] == color]
        chosen = [r for _, _, _, r in mine]
        group = new_group(chosen, str(dist.get_backend(self.group)).lower(), self.seconds)
        places = sorted(chosen)  # how torch numbers the ranks of a group
        part = ProcessGroupTransport(group, [places.index(r) for r in chosen])
        if self.native is not None:
            _sockets.use(part, self.native.split(color, key))
        part.ranks_of_host = self.ranks_of_host
        part.silence, part.seconds, part.encrypts = self.silence, self.seconds, self.encrypts
        part.hosts = [self.hosts[r] for _, _, r, _ in mine] if self.hosts else []
        self._parts[partition] = part
        return part

    def host(self) -> int:
        """The lowest rank on the host of this one."""
        return self.hosts.index(self.hosts[self.rank]) if self.hosts else self.rank

    def group_for_sums(self, device: torch.device) -> Optional[Any]:
        """The group that sums tensors of this device; None: there is none, or its sums would travel in clear."""
        if self.encrypts:
            return None
        return next((g for g in (self._sums, self.group) if g and serves(g, device)), None)

    def _room(self) -> _Room:
        if self._free:
            return self._free.pop()
        tensor = torch.empty(self._first, dtype=torch.uint8)
        return _Room(tensor, tensor.numpy())

    def _send(self, peer: int, what: Bytes, exchange: _Exchange) -> None:
        tag = self._next_tag(self._sent, peer)
        if peer == self.rank:
            self._to_itself[tag] = what.copy()
            return
        room = self._room()
        exchange.rooms.append(room)
        size = len(what)
        end = min(size + _SIZE_BYTES, self._first)
        _SIZE.pack_into(room.array.data, 0, size)
        room.array[_SIZE_BYTES:end] = what[: end - _SIZE_BYTES]
        first = room.tensor[:end] if self._may_be_short else room.tensor
        exchange.sends.append(self.group.send([first], self._peers[peer], tag))
        if size > end - _SIZE_BYTES:
            rest = torch.from_numpy(what[end - _SIZE_BYTES :].copy())
            exchange.sends.append(self.group.send([rest], self._peers[peer], tag + 1))

    def _receive_first(self, peer: int, into: Bytes) -> _Incoming:
        tag = self._next_tag(self._received, peer)
        if peer == self.rank:
            return _Incoming(peer, into, tag, None, None)
        room = self._room()
        work = self.group.recv([room.tensor], self._peers[peer], tag)
        return _Incoming(peer, into, tag, room, work)

    def _end_first(self, message: _Incoming, deadline: float) -> int:
        if message.room is None:
            return self._end_own(message)
        _wait(message.work, deadline, message.peer)
        array = message.room.array
        size: int = _SIZE.unpack_from(array.data)[0]
        _check_capacity(size, message)
        end = min(size + _SIZE_BYTES, self._first)
        message.into[: end - _SIZE_BYTES] = array[_SIZE_BYTES:end]
        return size

    def _end_own(self, message: _Incoming) -> int:
        what = self._to_itself.pop(message.tag, None)
        if what is None:
            raise CommError("a receive from itself before its send was begun")
        _check_capacity(len(what), message)
        message.into[: len(what)] = what
        return len(what)

    def _receive_rest(self, message: _Incoming, size: int) -> Tuple[torch.Tensor, Any]:
        tensor = torch.empty(size + _SIZE_BYTES - self._first, dtype=torch.uint8)
        return tensor, self.group.recv([tensor], self._peers[message.peer], message.tag + 1)

    @staticmethod
    def _next_tag(counts: List[int], peer: int) -> int:
        count = counts[peer]
        counts[peer] = count + 1
        return 2 * (count % _TAGS)


def _check_capacity(size: int, message: _Incoming) -> None:
    if size > len(message.into):
        raise CommError(f"a message of {size} bytes from rank {message.peer}, capacity {len(message.into)}")


def _wait(work: Any, deadline: float, peer: Optional[int]) -> None:
    """peer: the rank whose message is awaited; None: a message of ours is to leave."""
    left = max(deadline - time.monotonic(), 1e-3)
    try:
        if work.wait(timedelta(seconds=left)) is not False:
            return
        reason = "no answer within the timeout"
    except RuntimeError as error:
        reason = str(error)
    what = "a send" if peer is None else f"message from rank {peer}"
    raise CommError(f"{what}: {reason}")
