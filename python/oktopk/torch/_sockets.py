# SPDX-License-Identifier: Apache-2.0
"""The messages of a process group over sockets of our own (transport tcp): no Python and no Gloo per message.

The ranks find each other through torch's store; its first rank makes the secret by which they know each other. Where
one rank cannot reach the others, or has a build without the transport, all of them stay with Gloo.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, List, Optional

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from oktopk import _ends
from oktopk._core import CommError, NativeMessages, UsageError, make_random_secret, tcp_available, tcp_messages

VARIABLE = "OKTOPK_TORCH_MESSAGES"  # tcp or gloo; absent: tcp where all ranks have it
CHOICES = ("tcp", "gloo")
_CONNECT_SECONDS = 60.0


def wanted() -> bool:
    """Whether this rank can and may use sockets of our own. UsageError names a bad value of the variable."""
    choice = os.environ.get(VARIABLE, "")
    if choice and choice not in CHOICES:
        raise UsageError(f"oktopk: {VARIABLE} = {choice!r}, but it must be one of {', '.join(CHOICES)}")
    return tcp_available() and choice != "gloo"


def connect(group: Any, seconds: float, silence: float) -> Optional[NativeMessages]:
    """Collective over the group, whose ranks all want it: messages between its ranks, or None where one failed."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    first: List[Any] = [(make_random_secret(), make_random_secret()) if rank == 0 else None]
    dist.broadcast_object_list(first, src=dist.get_global_rank(group, 0), group=group)
    secret, job = first[0]
    patience = min(seconds / 2, _CONNECT_SECONDS)  # a rank that failed at once still waits for the others below
    messages, trouble = None, ""
    try:
        store = Store(c10d._get_default_store(), f"oktopk/{job}", patience)
        messages = tcp_messages(
            rank,
            size,
            store.set,
            store.get,
            secret=secret,
            job=job,
            interface=interface(),
            timeout=seconds,
            join_timeout=patience,
            silence=silence,
        )
    except (CommError, UsageError) as error:
        trouble = str(error)
    failed: List[Any] = [None] * size
    dist.all_gather_object(failed, trouble, group=group)
    if any(failed):
        return None
    return messages


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
