# SPDX-License-Identifier: Apache-2.0
"""The messages of a process group over sockets of our own (transport tcp): no Python and no Gloo per message.

The ranks find each other through torch's store, under a random name of the job. The secret by which they know each
other, and whether their messages are encrypted, come from arguments, or from the variables of the environment that
`oktopk run` sets (docs/tcp.md). Such a secret does not travel; without one the first rank makes it, and the process
group carries it to the others in clear (SECURITY.md). Where one rank cannot reach the others, or has a build without
the transport, all of them stay with Gloo, unless they have a secret from outside.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from datetime import timedelta
from typing import Any, List, NamedTuple, Optional, Union

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from oktopk import _ends
from oktopk._core import CommError, NativeMessages, UsageError, make_random_secret, read_secret_file, tcp_available
from oktopk._core import tcp_messages
from oktopk.options import truth

File = Union[str, "os.PathLike[str]"]

SECRET, SECRET_FILE, ENCRYPT = "OKTOPK_SECRET", "OKTOPK_SECRET_FILE", "OKTOPK_ENCRYPT"
LEAST_BYTES = 16


class Secrecy(NamedTuple):
    """secret: None: the ranks have none from outside, and the first one makes it."""

    secret: Optional[str] = None
    encrypt: bool = False

    def __repr__(self) -> str:  # no message or traceback shows the secret
        return f"Secrecy(from outside {self.secret is not None}, encrypt {self.encrypt})"

    @property
    def words(self) -> str:
        """What all ranks must have in common."""
        return f"encrypt {self.encrypt}, secret from outside {self.secret is not None}"

    def fingerprint(self, job: str) -> str:
        """Equal where the secrets are equal. It tells a stranger no more than a recorded handshake does."""
        return hmac.new((self.secret or "").encode(), f"oktopk secret of {job}".encode(), hashlib.sha256).hexdigest()


def secrecy_of(secret_file: Optional[File] = None, encrypt: Optional[bool] = None) -> Secrecy:
    """UsageError names an argument, a variable or a file that is unfit, and encryption without a secret from outside:
    the ranks would have to send each other the key in clear."""
    secret = secret_of(secret_file)
    encrypts = wants_encryption(encrypt)
    if encrypts and secret is None:
        raise UsageError(
            f"oktopk: encryption needs a secret that all ranks have: give secret_file=, or set {SECRET_FILE} or "
            f"{SECRET}; without it the ranks would send each other the key in clear"
        )
    return Secrecy(secret, encrypts)


def wants_encryption(encrypt: Optional[bool]) -> bool:
    """As the argument says; None: as the variable says."""
    if encrypt is not None:
        return truth("encrypt", encrypt)
    said = os.environ.get(ENCRYPT, "")
    if said not in ("", "0", "1"):
        raise UsageError(f"oktopk: {ENCRYPT} = {said!r}, but it must be 0 or 1")
    return said == "1"


def secret_of(secret_file: Optional[File]) -> Optional[str]:
    """The secret in a file, or that of the environment, or None."""
    if secret_file is not None:
        return read_secret_file(os.fspath(secret_file))
    file, text = os.environ.get(SECRET_FILE, ""), os.environ.get(SECRET, "")
    read = read_secret_file(file) if file else ""
    if read and text and read != text:
        raise UsageError(f"oktopk: {SECRET_FILE} = {file!r} holds another secret than {SECRET}: set one of them")
    if text and len(text.encode(errors="surrogateescape")) < LEAST_BYTES:
        raise UsageError(f"oktopk: {SECRET} has {len(text)} bytes, but it must have at least {LEAST_BYTES}")
    return read or text or None


VARIABLE = "OKTOPK_TORCH_MESSAGES"  # tcp or gloo; absent: tcp where all ranks have it
CHOICES = ("tcp", "gloo")
_CONNECT_SECONDS = 60.0


def wanted() -> bool:
    """Whether this rank can and may use sockets of our own. UsageError names a bad value of the variable."""
    choice = os.environ.get(VARIABLE, "")
    if choice and choice not in CHOICES:
        raise UsageError(f"oktopk: {VARIABLE} = {choice!r}, but it must be one of {', '.join(CHOICES)}")
    return tcp_available() and choice != "gloo"


def connect(group: Any, seconds: float, silence: float, secrecy: Secrecy) -> Optional[NativeMessages]:
    """Collective over the group, whose ranks all want it: messages between its ranks, or None where one failed. With a
    secret from outside a failure is an error: Gloo would not ask for it."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    made = make_random_secret() if secrecy.secret is None else None
    first: List[Any] = [(make_random_secret(), made) if rank == 0 else None]
    dist.broadcast_object_list(first, src=dist.get_global_rank(group, 0), group=group)
    job, made = first[0]
    if secrecy.secret is not None:
        _require_one_secret(group, secrecy.fingerprint(job))
    patience = min(seconds / 2, _CONNECT_SECONDS)  # a rank that failed at once still waits for the others below
    messages, trouble = None, ""
    try:
        store = Store(c10d._get_default_store(), f"oktopk/{job}", patience)
        messages = tcp_messages(
            rank,
            size,
            store.set,
            store.get,
            secret=secrecy.secret or made,
            job=job,
            interface=interface(),
            timeout=seconds,
            join_timeout=patience,
            silence=silence,
            encrypt=secrecy.encrypt,
        )
    except (CommError, UsageError) as error:
        trouble = str(error)
    failed: List[Any] = [None] * size
    dist.all_gather_object(failed, trouble, group=group)
    if not any(failed):
        return messages
    if secrecy.secret is not None:
        reasons = "; ".join(f"rank {other}: {why}" for other, why in enumerate(failed) if why)
        raise CommError(f"oktopk: the ranks have a secret, but could not connect by it: {reasons}")
    return None


def _require_one_secret(group: Any, fingerprint: str) -> None:
    told: List[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(told, fingerprint, group=group)
    odd = next((rank for rank, other in enumerate(told) if other != told[0]), None)
    if odd is not None:
        raise UsageError(f"oktopk: rank {odd} has another secret than rank 0: give all ranks the same")


def use(transport: Any, messages: Optional[NativeMessages]) -> None:
    """From now on they move the transport's messages. Peers get a goodbye when the interpreter ends: a rank that is
    ready first must not look like one that died."""
    if messages is not None:
        _ends.own_world(messages)
    transport.native = messages


def interface() -> str:
    """The first network interface that Gloo was told to use."""
    return os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]


class Store:
    """A store of torch as two functions."""

    def __init__(self, store: Any, prefix: str, seconds: float):
        self._store = dist.PrefixStore(prefix, store)
        self._store.set_timeout(timedelta(seconds=seconds))

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)  # type: ignore[arg-type]  # torch takes bytes, too

    def get(self, key: str, seconds: float) -> Optional[bytes]:
        try:
            self._store.wait([key], timedelta(seconds=seconds))
        except RuntimeError:  # torch has no type of its own for "it did not come"
            return None
        return bytes(self._store.get(key))
