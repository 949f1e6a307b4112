# SPDX-License-Identifier: Apache-2.0
"""The saved states of a Reducer of parameters or of flat tensors."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Sequence

from oktopk._core import UsageError
from oktopk.reducer import ReducerBase
from oktopk.torch._levelled import Levelled
from oktopk.torch.checkpoint import Place, unwrap, wrap
from oktopk.torch.flat import Layout, load_states, state_to_bytes, state_to_tensor


class SavedReducer(Levelled, ReducerBase):
    _choice: Any
    _layout: Optional[Layout]

    def _take_choice(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def state_dict(self) -> Dict[str, Any]:
        """This rank's state: every rank saves its own."""
        own = {
            "version": 1,
            "rank": self._comm.rank,
            "ranks": self._comm.size,
            "n": self.n,
            "state": state_to_tensor(self._core.save()),
            **self._saved_levels(),
        }
        if self._layout is not None:
            own["parameters"] = self._layout.to_save()
        if self._choice is not None:
            own["choice"] = self._choice
        return wrap(self.place(), own)

    def place(self) -> Place:
        """The place of this rank in its group."""
        return Place.of_communicator(self._comm)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Collective: continues from what this rank saved, bitwise as if never stopped."""
        state = self._own_state(state)
        if (state["rank"], state["ranks"]) != (self._comm.rank, self._comm.size):
            raise UsageError(
                f"oktopk: the state of rank {state['rank']} of {state['ranks']}, but this is rank "
                f"{self._comm.rank} of {self._comm.size}: load_state_dicts() takes those of all"
            )
        self._take_choice(state)
        load_states(self._core, [state_to_bytes(state["state"])])
        self._load_levels(state)

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Collective: continues from the states of all ranks of an earlier run, in any order, whatever their number
        was. All ranks give the same states."""
        own = [self._own_state(state) for state in states]
        ordered = sorted(own, key=lambda state: state["rank"])
        ranks = [state["rank"] for state in ordered]
        if ranks != list(range(ordered[0]["ranks"] if ordered else 1)):
            raise UsageError(f"oktopk: the states of ranks {ranks}, but all of the earlier run are needed")
        self._take_choice(ordered[0])
        self._core.load_all([state_to_bytes(state["state"]) for state in ordered])
        self._load_levels(ordered[0])

    def _own_state(self, wrapped: Mapping[str, Any]) -> Mapping[str, Any]:
        state = unwrap(wrapped)
        missing = {"version", "rank", "ranks", "n", "state"} - set(state)
        if missing or state["version"] not in (1, 2):
            raise UsageError(f"oktopk: not a Reducer's state of version 1 or 2 (lacks {sorted(missing)})")
        if state["n"] != self.n:
            raise UsageError(f"oktopk: a state of n = {state['n']} values, but here n = {self.n}")
        if self._layout is not None:
            self._layout.check_saved(state.get("parameters"))
        return state
