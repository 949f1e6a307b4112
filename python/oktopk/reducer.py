# SPDX-License-Identifier: Apache-2.0
"""Reducer on numpy arrays: one training step's synchronisation of one flat gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from oktopk import _core
from oktopk.options import ReducerOptions, require_known, show_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Update(NamedTuple):
    """What a step applies: the mean over the ranks, bitwise equal on all of them."""

    indices: NDArray[np.uint32]  # increasing; empty after a dense step
    values: NDArray[np.float32]
    dense: Optional[NDArray[np.float32]]  # all n values after a dense step
    skipped: bool  # some rank's gradient was not finite, and nan_policy is "skip"

    def add_to(self, x: NDArray[np.float32], factor: float = 1.0) -> None:
        """x += factor * mean, in place."""
        if self.dense is not None:
            x += np.float32(factor) * self.dense
        else:
            x[self.indices] += np.float32(factor) * self.values


class ReducerBase:
    """What Reducers of arrays and of tensors say of themselves in the same words."""

    def __init__(self, core: _core.Reducer):
        self._core = core

    @property
    def n(self) -> int:
        return self._core.n

    @property
    def k(self) -> int:
        """Entries per step after the warm-up; with adaptive_share those of the first one."""
        return self._core.k

    @property
    def steps(self) -> int:
        """Steps made so far; skipped ones do not count."""
        return self._core.steps

    @property
    def unsent_norm(self) -> float:
        """The norm of what is unsent on this rank: residual and memory; O(n)."""
        return self._core.unsent_norm

    @property
    def stats(self) -> Dict[str, Any]:
        """Of the last step: counts, bytes on the wire, seconds per phase, preset in force."""
        return self._core.stats

    def forget(self) -> None:
        """Drops what was not applied yet. All ranks should do it together."""
        self._core.forget()


class Reducer(ReducerBase):
    """Synchronises the gradients of n values over the ranks of a communicator.

    Each step adds the gradient to what is unsent on this rank, exchanges about `density * n`
    entries, and gives the mean of the largest sums; what was not sent waits for a later step.

    Belongs to one rank; all ranks make the same calls with the same options, all by keyword:
    oktopk/options.py says what each of them is.
    """

    @show_options
    def __init__(self, comm: _core.Communicator, n: int, **options: Unpack[ReducerOptions]):
        require_known(Reducer.__init__, options)
        super().__init__(_core.Reducer(comm, n, dict(options)))

    def step(self, gradient: Optional[NDArray[Any]], scale: float = 1.0) -> Update:
        """Collective: adds scale * gradient to what is unsent, and synchronises."""
        self._core.step(gradient, scale)
        return self._update()

    def flush(self) -> Update:
        """Collective: applies everything that is unsent, in one dense exchange."""
        self._core.flush()
        return self._update()

    def _update(self) -> Update:
        core = self._core
        dense = core.dense if core.is_dense else None
        return Update(core.indices, core.values, dense, core.skipped)

    @property
    def residual(self) -> NDArray[np.float32]:
        """What is unsent on this rank: a copy of n values."""
        return self._core.residual

    @property
    def memory(self) -> Tuple[int, NDArray[np.float32]]:
        """(first index, values) that this rank remembers for the region it owns."""
        return self._core.memory

    def save(self) -> bytes:
        """This rank's state: everything that later steps depend on."""
        return self._core.save()

    def load(self, state: bytes) -> None:
        """Collective: continues from what this rank saved, bitwise as if never stopped."""
        self._core.load(state)

    def load_all(self, states: Sequence[bytes]) -> None:
        """Collective: continues from the states of all ranks of an earlier run, in rank order,
        whatever their number was."""
        self._core.load_all(list(states))
