# SPDX-License-Identifier: Apache-2.0
"""The decoupled weight decay that a lazy optimiser owes to coordinates that did not arrive, and paying it: for good, by
all ranks together; or for the length of a block, by any rank alone.
COST: O(n) of the parameters that owe something.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator, List, Tuple

import torch
from torch import Tensor

from oktopk.torch import native_step, torch_step
from oktopk.torch.coordinates import Layout, clock_of, layout_of
from oktopk.torch.flat import local
from oktopk.torch.interval_clock import IntervalClock
from oktopk.torch.saved_optimiser import SavedOptimiser


class OwedDecay(SavedOptimiser):
    """The part of a lazy optimiser that applies owed weight decay."""

    @torch.no_grad()
    def catch_up(self) -> None:
        """Applies the decoupled weight decay that is owed to coordinates that did not arrive. Changes
        the weights, so all ranks must call it together: at the end of training, before an export. To evaluate on one
        rank in the middle of it, use `with optimiser.caught_up():`. O(n)."""
        self._refuse_while_caught_up("catch_up()")
        for clock, params in self._owing():
            self._pay(clock, params)
            for param in params:
                self.state[param]["caught_up"].fill_(clock_of(self.state[param]))
        for plan in self._plans.values():
            plan.tell_caught_up()

    @contextmanager
    def caught_up(self) -> Iterator[None]:
        """Inside, the weights are as after catch_up(); afterwards they are bit by bit what they were, so that a rank
        may do it alone. Other changes of weights inside the block are undone, too.
        COST: O(n), and a copy of the weights that owe something."""
        self._refuse_while_caught_up("caught_up()")
        owing = self._owing()
        with torch.no_grad():
            copies = [(param, local(param).clone()) for _, params in owing for param in params]
            for clock, params in owing:
                self._pay(clock, params)
        self._is_caught_up = True
        try:
            yield
        finally:
            self._is_caught_up = False
            with torch.no_grad():
                for param, copy in copies:
                    local(param).copy_(copy)

    def _owing(self) -> List[Tuple[IntervalClock, List[Tensor]]]:
        found = []
        for group in self.param_groups:
            clock = self._clock(group)
            states = [(param, self.state.get(param, {})) for param in group["params"]]
            params = [param for param, state in states if "last" in state and not state["whole"]]
            if self.decoupled_decay and clock.native.has_decayed and params:
                found.append((clock, params))
        return found

    def _pay(self, clock: IntervalClock, params: List[Tensor]) -> None:
        rows = native_step.Rows(())
        for param in params:
            layout = self._layout(param)
            if layout.is_native:
                rows.owing(self.state[param], param, layout)
            else:
                torch_step.pay_decay(param, self.state[param], clock)
        native_step.pay_decay(rows, clock)

    def _layout(self, param: Tensor) -> Layout:
        known = self._layouts.get(param)
        if known is not None and not known.is_sharded:
            same = param.stride() == known.stride and param.dtype == known.dtype
            if same and param.is_cpu == known.is_native:
                return known
        self._layouts[param] = found = layout_of(param)
        return found
