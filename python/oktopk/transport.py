# SPDX-License-Identifier: Apache-2.0
"""The methods of a Python object that moves messages for oktopk.

`PythonCommunicator(transport)` makes a communicator of any object with these members. Two come along:
`oktopk.mpi.MpiTransport` (mpi4py) and `oktopk.torch.ProcessGroupTransport` (torch.distributed).
"""

from __future__ import annotations

from typing import List, Protocol, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Message = Tuple[int, Bytes]  # (peer, memory)


class Transport(Protocol):
    """P ranks that exchange bytes.

    The messages from one rank to another arrive in the order in which they were begun. Whatever a method raises becomes
    a `CommError`, after which the communicator is dead.
    """

    name: str
    rank: int
    size: int

    def begin(self, ticket: int, sends: Sequence[Message], recvs: Sequence[Message]) -> None:
        """Starts all sends and receives. The arrays are good until finish() or abandon() returns; the size of a
        receive's array is its capacity."""
        ...

    def finish(self, ticket: int, timeout: float) -> List[int]:
        """Waits until the exchange is complete, at most `timeout` seconds. Returns how many bytes each receive got.
        Exchanges may be finished in any order. Where it raises, it has let go of the arrays first, as abandon() does.
        """
        ...

    def abandon(self, ticket: int) -> None:
        """Lets an exchange go: its arrays must not be touched after this returns."""
        ...

    def split(self, color: int, key: int) -> "Transport":
        """Collective: ranks of one color form a new world, ordered by (key, rank)."""
        ...
