# SPDX-License-Identifier: Apache-2.0
"""The phases of a training step by CUDA events, for gpu_training.py: backward and optimiser, and the parts of steps
that stay on the GPU (oktopk/torch/_resident.py), summed over the buckets of a step."""

from __future__ import annotations

import statistics
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Tuple

import torch

from oktopk.torch import _flat_reducer
from oktopk.torch._resident import ResidentSteps

_COLLECTIVES = {"all_to_all_single": "exchange"}  # by name; the other one gathers


class Phases:
    """While it is on, all steps that stay on the GPU report to it."""

    def __init__(self, device: torch.device, is_on: bool):
        self._is_on = is_on and device.type == "cuda"
        self._open: List[Tuple[str, Any, Any]] = []
        self._steps: List[Dict[str, float]] = []
        if self._is_on:
            _flat_reducer.ResidentSteps = _timed(self)  # type: ignore[misc]

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """What is queued on the current stream within."""
        if not self._is_on:
            yield
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        self._open.append((name, begin, end))

    def clear(self) -> None:
        self._open, self._steps = [], []

    def end_step(self) -> None:
        """After a wait for the device."""
        step: Dict[str, float] = {}
        for name, begin, end in self._open:
            step[name] = step.get(name, 0.0) + begin.elapsed_time(end)
        self._open = []
        self._steps.append(step)

    def medians(self) -> Dict[str, float]:
        """Milliseconds, by phase."""
        names = {name: None for step in self._steps for name in step}
        return {name: statistics.median(step.get(name, 0.0) for step in self._steps) for name in names}


class _TimedCore:
    """A native Reducer whose resident_...() calls are timed."""

    def __init__(self, core: Any, phases: Phases):
        self._core, self._phases = core, phases

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._core, name)
        if not name.startswith("resident_") or not callable(found) or name == "resident_state":
            return found

        def timed(*args: Any) -> Any:
            with self._phases.of(name[len("resident_") :]):
                return found(*args)

        return timed


def _timed(phases: Phases) -> Any:
    class Timed(ResidentSteps):
        def __init__(self, core: Any, *args: Any):
            super().__init__(_TimedCore(core, phases), *args)

        def _exchange(self, collective: Any, into: torch.Tensor, what: torch.Tensor) -> None:
            with phases.of(_COLLECTIVES.get(collective.__name__, "gather")):
                super()._exchange(collective, into, what)

    return Timed
