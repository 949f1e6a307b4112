# SPDX-License-Identifier: Apache-2.0
"""oktopk in the race, by the code that users run: P Reducers on P threads, and one optimiser, since all ranks have the
same weights. Also TopkA and Ok-Topk as published."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Union

import torch
from torch import Tensor

import oktopk
from oktopk.torch import LocalSteps, Reducer, SparseAdamW, SparseSGD

from .method import Method
from .schedule import Rules, Stages, in_steps
from .tasks import Task

TIMEOUT = 300.0  # seconds


def sparse_optimiser(
    param: torch.nn.Parameter, source: Any, rules: Rules, mode: str = "interval_aware"
) -> Union[SparseAdamW, SparseSGD]:
    if rules.optimiser == "adam":
        betas = (rules.beta1, rules.beta2)
        return SparseAdamW([param], source, lr=rules.lr, betas=betas, weight_decay=rules.weight_decay, mode=mode)
    return SparseSGD(
        [param], source, lr=rules.lr, momentum=rules.beta1, weight_decay=rules.weight_decay, mode=mode
    )


class Ranks:
    """Threads that make one collective call each."""

    def __init__(self, ranks: int):
        self.comms = oktopk.thread_world(ranks, TIMEOUT)
        self._pool = ThreadPoolExecutor(ranks)

    def all(self, call: Callable[[int], Any]) -> List[Any]:
        """What call(rank) returns, by rank. An error of one rank ends the others."""

        def on(rank: int) -> Any:
            try:
                return call(rank)
            except BaseException:
                self.comms[rank].kill()
                raise

        return [future.result() for future in [self._pool.submit(on, rank) for rank in range(len(self.comms))]]


class OkTopk(Method):
    """start: stages before the others, as Reducer's `warmup` with shares of all steps for steps."""

    def __init__(
        self,
        task: Task,
        rules: Rules,
        preset: str,
        density: float,
        start: Stages,
        mode: str = "interval_aware",
        **options: Any,
    ):
        super().__init__(task, rules)
        self._params = [torch.nn.Parameter(self.weights) for _ in range(rules.ranks)]
        self._ranks = Ranks(rules.ranks)
        self._reducers: List[Reducer] = self._ranks.all(
            lambda rank: Reducer(
                [self._params[rank]],
                communicator=self._ranks.comms[rank],
                preset=preset,
                density=density,
                warmup=in_steps(start, rules.steps) or None,
                **options,
            )
        )
        self._optimiser = sparse_optimiser(self._params[0], self._reducers[0], rules, mode)

    def step(self, step: int, gradients: Tensor) -> float:
        def reduce(rank: int) -> float:
            self._params[rank].grad = gradients[rank]
            self._reducers[rank].reduce_gradients()
            return float(self._reducers[rank].stats["wire_bytes"])

        sent = self._ranks.all(reduce)
        self._optimiser.param_groups[0]["lr"] = self.rules.rate(step)
        self._optimiser.step()
        return sum(sent) / len(sent)

    def finish(self) -> float:
        self._optimiser.catch_up()
        return 0.0

    def state_dict(self) -> Dict[str, Any]:
        reducers = [reducer.state_dict() for reducer in self._reducers]
        return {"weights": self.weights, "reducers": reducers, "optimiser": self._optimiser.state_dict()}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.weights.copy_(state["weights"])
        self._ranks.all(lambda rank: self._reducers[rank].load_state_dict(state["reducers"][rank]))
        self._optimiser.load_state_dict(state["optimiser"])




class OurLocalSteps(Method):
    """LocalSteps: H steps of AdamW on each rank, then a sparse mean of what they moved."""

    def __init__(self, task: Task, rules: Rules, every: int, **options: Any):
        super().__init__(task, rules)
        self._own = self.weights.repeat(rules.ranks, 1)
        self._params = [torch.nn.Parameter(own) for own in self._own]
        self._ranks = Ranks(rules.ranks)
        self._inner = [
            torch.optim.AdamW(
                [param], lr=rules.lr, betas=(rules.beta1, rules.beta2), weight_decay=rules.weight_decay, eps=1e-8
            )
            for param in self._params
        ]
        self._outer: List[LocalSteps] = self._ranks.all(
            lambda rank: LocalSteps(
                [self._params[rank]], communicator=self._ranks.comms[rank], every=every, **options
            )
        )

    def at(self) -> Tensor:
        return self._own

    def result(self) -> Tensor:
        return self._own[0]

    def step(self, step: int, gradients: Tensor) -> float:
        def one(rank: int) -> float:
            self._params[rank].grad = gradients[rank]
            self._inner[rank].param_groups[0]["lr"] = self.rules.rate(step)
            self._inner[rank].step()
            is_outer = self._outer[rank].step()
            return float(self._outer[rank].reducer.stats["wire_bytes"]) if is_outer else 0.0

        sent = self._ranks.all(one)
        return sum(sent) / len(sent)

    def finish(self) -> float:
        if self._outer[0].local_steps == 0:
            return 0.0
        self._ranks.all(lambda rank: self._outer[rank].synchronise())
        return sum(float(outer.reducer.stats["wire_bytes"]) for outer in self._outer) / len(self._outer)

    def state_dict(self) -> Dict[str, Any]:
        return {
            "own": self._own,
            "inner": [inner.state_dict() for inner in self._inner],
            "outer": [outer.state_dict() for outer in self._outer],
        }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self._own.copy_(state["own"])
        for inner, old in zip(self._inner, state["inner"]):
            inner.load_state_dict(old)
        self._ranks.all(lambda rank: self._outer[rank].load_state_dict(state["outer"][rank]))
