# SPDX-License-Identifier: Apache-2.0
"""The part of a Reducer of parameters that levels its selection (_levels.py)."""

from __future__ import annotations

from typing import Any, Dict, Mapping

import torch

from oktopk.reducer import ReducerBase
from oktopk.torch._flat_reducer import FlatReducer
from oktopk.torch._group import require_equal
from oktopk.torch._levels import Levels, SecondMoments
from oktopk.torch._world import changes
from oktopk.torch.flat import Layout


class Levelled(ReducerBase):
    """`levelled`: whether the second moments of SparseAdamW take part in the selection."""

    _comm: Any
    _flat_reducer: Any

    def _init_levels(self, levelled: bool) -> None:
        self._levelled, self._moments = levelled, SecondMoments()

    def use_second_moments(self, optimiser: torch.optim.Optimizer) -> None:
        """Called by SparseAdamW: with `levelled`, its `exp_avg_sq` takes part in the selection of reduce_gradients().
        It is equal on all ranks."""
        self._moments.add(optimiser)

    @property
    def unsent_norm(self) -> float:
        """The norm of all that is unsent on this rank. COST: a pass over n values, with levels a few."""
        reducer = self._flat_reducer
        if isinstance(reducer, FlatReducer) and reducer.levels is not None:
            return float(reducer.unsent().norm())
        return super().unsent_norm

    def _level(self, layout: Layout) -> None:
        """Before a step. Collective the first time: either all ranks have the moments, or none uses them. Members that
        come and go have no levels, and shards of a node neither."""
        reducer = self._flat_reducer
        if not self._levelled or not isinstance(reducer, FlatReducer) or changes(self._comm):
            return
        if not self._moments.is_decided:
            self._moments.use_for(layout.parameters)
            if getattr(self._comm, "python_transport", None) is not None:
                require_equal(self._comm, f"levelled by an optimiser {self._moments.in_use}")
        if self._moments.in_use:
            reducer.level_by(self._moments, layout.parameters)

    def _saved_levels(self) -> Dict[str, Any]:
        """What they add to a saved state."""
        reducer = self._flat_reducer
        if not isinstance(reducer, FlatReducer) or reducer.levels is None:
            return {}
        return {"version": 2, **Levels.write(reducer.saved_levels)}

    def _load_levels(self, state: Mapping[str, Any]) -> None:
        if isinstance(self._flat_reducer, FlatReducer):
            self._flat_reducer.load_levels(Levels.read(state))
