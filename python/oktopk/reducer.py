# SPDX-License-Identifier: Apache-2.0
"""Reducers on numpy arrays: the synchronisation of one flat gradient per training step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from oktopk import _core, flight
from oktopk._core import Communicator, FlightRecorder
from oktopk.options import ReducerOptions, require_known, show_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Update(NamedTuple):
    """The result of a step: the mean over the ranks, bitwise equal on all of them."""

    indices: NDArray[np.uint32]  # increasing; empty after a dense step
    values: NDArray[np.float32]
    dense: Optional[NDArray[np.float32]]  # all n values after a dense step
    skipped: bool  # some rank's gradient was not finite, and nan_policy is "skip"

    def subtract_from(self, weights: NDArray[np.float32], factor: float = 1.0) -> None:
        """weights -= factor * mean, in place."""
        if self.dense is not None:
            weights -= np.float32(factor) * self.dense
        else:
            weights[self.indices] -= np.float32(factor) * self.values


class ReducerBase:
    """Properties of Reducers, of arrays and of tensors."""

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
    def leaders(self) -> List[int]:
        """With group_size: the ranks that lead a node. Empty without."""
        return self._core.leaders

    @property
    def unsent_norm(self) -> float:
        """The norm of what is unsent on this rank: residual and memory; O(n)."""
        return self._core.unsent_norm

    @property
    def stats(self) -> Dict[str, Any]:
        """Numbers of the last step: counts, bytes on the wire, seconds per phase, preset in force."""
        return self._core.stats

    def forget(self) -> None:
        """Drops what was not applied yet. All ranks should do it together."""
        self._core.forget()


class _OnArrays:
    """Steps and saved states, which all Reducers on arrays have."""

    _core: Any
    _recorder: FlightRecorder

    def _watch(self, comm: Communicator) -> None:
        self._recorder = flight.watch(comm)

    def flight(self) -> Dict[str, Any]:
        """The last operations of this rank, as in a dump (docs/observability.md)."""
        return flight.as_dict(self._recorder)

    def step(self, gradient: Optional[NDArray[Any]], scale: float = 1.0) -> Update:
        """Collective: adds scale * gradient to what is unsent, and synchronises."""
        with flight.dumps_errors(self._recorder):
            self._core.step(gradient, scale)
        return self._update()

    def flush(self) -> Update:
        """Collective: applies everything that is unsent, in one dense exchange."""
        with flight.dumps_errors(self._recorder):
            self._core.flush()
        return self._update()

    def _update(self) -> Update:
        core = self._core
        dense = core.dense if core.is_dense else None
        return Update(core.indices, core.values, dense, core.skipped)

    def save(self) -> bytes:
        """This rank's state: everything that later steps depend on."""
        state: bytes = self._core.save()
        return state

    def load(self, state: bytes) -> None:
        """Collective: continues from what this rank saved, bitwise as if never stopped."""
        self._core.load(state)

    def load_all(self, states: Sequence[bytes]) -> None:
        """Collective: continues from the states of all ranks of an earlier run, in rank order, whatever their number
        was."""
        self._core.load_all(list(states))


@show_options
class Reducer(_OnArrays, ReducerBase):
    """Synchronises the gradients of n values over the ranks of a communicator.

    Each step adds the gradient to what is unsent on this rank, exchanges about `density * n` entries, and gives the
    mean of the largest sums; the rest waits for a later step.

    A Reducer belongs to one rank. All ranks make the same calls with the same options, all by keyword. With group_size
    the constructor is collective.
    """

    def __init__(self, comm: _core.Communicator, n: int, **options: Unpack[ReducerOptions]):
        require_known(Reducer.__init__, options)
        ReducerBase.__init__(self, _core.Reducer(comm, n, dict(options)))
        self._watch(comm)

    @property
    def residual(self) -> NDArray[np.float32]:
        """The unsent gradient of this rank: a copy of n values."""
        return self._core.residual

    @property
    def memory(self) -> Tuple[int, NDArray[np.float32]]:
        """(first index, values) that this rank remembers for the region it owns."""
        return self._core.memory


@show_options
class NodeReducer(Reducer):
    """A Reducer in which the ranks of a node sum their gradients densely first, and only the node's leader exchanges
    entries with other nodes (docs/hierarchy.md). The constructor is collective. The leader holds the unsent values of
    its node. group_size is "host" unless given.
    """

    def __init__(self, comm: _core.Communicator, n: int, **options: Unpack[ReducerOptions]):
        require_known(NodeReducer.__init__, options)
        if options.get("group_size") is None:
            options["group_size"] = "host"
        super().__init__(comm, n, **options)


@show_options
class BucketedReducer(_OnArrays):
    """Synchronises a gradient of many tensors while the backward pass still computes it: buckets of tensors, each with
    a Reducer of its own, are exchanged by another thread, from the last bucket to the first (docs/many_tensors.md).

        reducer.begin(gradient)          # memory of all n values
        for t in reversed(range(T)):
            ...                          # computes tensor t
            reducer.ready(t)
        update = reducer.wait()

    tensors: their sizes, in the order of their memory. fusion: "size" fills buckets up to bucket_values values;
    "tensor" makes one per tensor, "whole" a single one. k is divided over the buckets. The other options are those of a
    Reducer, without group_size.
    """

    def __init__(
        self,
        comm: _core.Communicator,
        tensors: Sequence[int],
        *,
        fusion: str = "size",
        bucket_values: int = 1 << 20,
        **options: Unpack[ReducerOptions],
    ):
        require_known(BucketedReducer.__init__, options)
        self._core = _core.BucketedReducer(comm, list(tensors), dict(options), fusion, bucket_values)
        self._watch(comm)

    def begin(self, gradient: NDArray[Any], scale: float = 1.0) -> None:
        """Collective: begins a step. The gradient must not change after ready() until wait()."""
        self._core.begin(gradient, scale)

    def ready(self, tensor: int) -> None:
        """The values of this tensor are final. Once per tensor and step, from any thread."""
        self._core.ready(tensor)

    def wait(self) -> Update:
        """Collective: ends the step. UsageError, and the step goes on, while tensors are missing."""
        with flight.dumps_errors(self._recorder):
            self._core.wait()
        return self._update()

    @property
    def n(self) -> int:
        return int(self._core.n)

    @property
    def buckets(self) -> List[Tuple[int, int]]:
        """(first tensor, one past the last) of each bucket, in the order of their exchange."""
        return list(self._core.buckets)

    @property
    def stats(self) -> Dict[str, Any]:
        """Numbers of the last step, summed over the buckets."""
        return dict(self._core.stats)
