# SPDX-License-Identifier: Apache-2.0
"""Worlds whose members change, in the place of a communicator: they make the native Reducer themselves. ElasticWorld
(elastic.py) and ManagedWorld (torchft.py) are such worlds."""

from __future__ import annotations

from typing import Any, Dict, Protocol, Union

from oktopk import _core
from oktopk.torch._layout import Start


class World(Protocol):
    """Its Reducer has no GPU: tensors of a GPU are copied to host memory for each step."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def make_core(self, n: int, options: Dict[str, Any]) -> Any:
        """In the place of a native Reducer; once for each world."""
        ...

    def check_start(self, start: Start) -> None:
        """After make_core(): compares the parameters now, or whenever members meet others."""
        ...

    def check_joined(self, shares_more: bool = False) -> None:
        """Before this member's first step: UsageError where it joined others that have other parameters, or share more
        than it does. shares_more: its user may call share() after this."""
        ...


AnyWorld = Union[_core.Communicator, World]


def changes(comm: Any) -> bool:
    """Whether its members change."""
    return hasattr(comm, "make_core")


def make_core(comm: Any, n: int, options: Dict[str, Any], external_dense: bool) -> Any:
    """The native Reducer over a communicator or a World."""
    return comm.make_core(n, options) if changes(comm) else _core.Reducer(comm, n, options, external_dense)
