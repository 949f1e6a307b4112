# SPDX-License-Identifier: Apache-2.0
"""What SparseAdamW owes to silent coordinates, and paying it: once, without underflow, not for frozen
parameters; for an evaluation in the middle of training, on one rank alone, without a trace."""

from __future__ import annotations

import copy
from typing import Any, List

import pytest
import torch
from optim_runs import BOTH, Told, indices, parameter, sparse_steps

from oktopk import UsageError
from oktopk.torch import interval_clock
from oktopk.torch.optim import SparseAdamW


def test_catch_up_pays_the_decay_that_is_owed_once():
    def run(catches: List[int]) -> torch.Tensor:
        source, weights = Told(), parameter(9)
        optimiser = SparseAdamW([weights], source, weight_decay=2.0)
        for step in range(1, 7):
            optimiser.param_groups[0]["lr"] = 0.1 / step
            weights.grad = torch.zeros(9)
            source.tell(weights, indices(4) if step == 3 else indices())
            optimiser.step()
            if step in catches:
                optimiser.catch_up()
                optimiser.catch_up()
        return weights.detach()

    start, decay = parameter(9).detach(), 1.0
    for step in range(1, 7):
        decay *= 1 - 2.0 * 0.1 / step
    rested = [0, 1, 2, 3, 5, 6, 7, 8]
    assert torch.equal(run([])[rested], start[rested])
    torch.testing.assert_close(run([6]), start * decay)
    torch.testing.assert_close(run([2, 4, 6]), start * decay)


def test_decay_of_many_steps_does_not_underflow():
    source, weights = Told(), parameter(2)
    optimiser = SparseAdamW([weights], source, lr=0.5, weight_decay=1.8)
    for _ in range(700):  # a decay of 10^-700
        weights.grad = torch.zeros(2)
        source.tell(weights, indices(0))
        optimiser.step()
    optimiser.catch_up()
    assert weights.tolist() == [0, 0]
    weights.data.fill_(1)
    optimiser.step()
    optimiser.catch_up()
    torch.testing.assert_close(weights.data, torch.full((2,), 0.1))


@BOTH
def test_the_clock_stands_still_for_parameters_without_gradient(ours):
    """Frozen or unused: no decay, and what arrives next counts as the next step."""

    def run(rest: List[int]) -> List[torch.Tensor]:
        source, weights, other = Told(), parameter(6, 2), parameter(3)
        optimiser = ours([weights, other], source, lr=0.1, weight_decay=0.1)
        steps = 0
        for step in range(12):
            if step == 5:
                optimiser.catch_up()
            if step in rest:
                weights.grad, other.grad = None, torch.ones(3)
                source.tell(other, None)
                optimiser.step()
            sparse_steps(optimiser, source, [weights], range(steps, steps + 1))
            steps += 1
        optimiser.catch_up()
        return [weights.detach(), other.detach()]

    assert torch.equal(run([])[0], run([0, 5, 6])[0])
    assert not torch.equal(run([])[1], run([5, 6])[1])


@BOTH
def test_evaluating_in_between_changes_no_bit(ours):
    """As rank 0 does it alone: the other ranks' weights must stay equal to its own."""

    def run(evaluates: bool) -> List[Any]:
        source, weights = Told(), [parameter(5, 7), parameter(6, dtype=torch.bfloat16)]
        optimiser = ours(weights, source, lr=0.1, weight_decay=0.1)
        for step in range(8):
            sparse_steps(optimiser, source, weights, range(step, step + 1))
            if evaluates:
                before, owes = weights[0].detach().clone(), ours is SparseAdamW and step != 3
                with pytest.raises(ZeroDivisionError), optimiser.caught_up():
                    assert torch.equal(weights[0], before) != owes
                    raise ZeroDivisionError
        state = optimiser.state[weights[0]]
        return [w.tolist() for w in weights] + [v.tolist() for v in state.values()]

    assert run(True) == run(False)


def test_nothing_is_done_to_weights_that_are_only_lent():
    source, weights = Told(), parameter(4)
    optimiser = SparseAdamW([weights], source, lr=0.1)
    sparse_steps(optimiser, source, [weights], range(2))
    with optimiser.caught_up():
        for act in (optimiser.step, optimiser.catch_up, optimiser.state_dict):
            with pytest.raises(UsageError, match=rf"{act.__name__}\(\) inside of `with optimiser"):
                act()
        with pytest.raises(UsageError, match=r"caught_up\(\) inside"), optimiser.caught_up():
            pass
    optimiser.step()


def test_the_clock_of_a_constant_rate_is_three_numbers():
    source, weights = Told(), parameter(4)
    optimiser = SparseAdamW([weights], source, lr=0.5, weight_decay=0.25)
    sparse_steps(optimiser, source, [weights], range(30))
    optimiser.param_groups[0]["lr"] = 0.125
    sparse_steps(optimiser, source, [weights], range(30, 31))
    runs = optimiser.state_dict()["param_groups"][0]["clock_runs"]
    assert runs == [30, 0.5, 0.25, 1, 0.125, 0.25]


def go_on(optimiser: Any, param: torch.Tensor, steps: range, last_of_all: bool = False) -> None:
    """Under a schedule; one coordinate arrives in every step, others rarely, the last one only with all others."""
    source = Told()
    optimiser.source = source
    for step in steps:
        due = [i for i, every in enumerate((1, 2, 7, 97, 211, 389, 501)) if step % every == 0]
        source.tell(param, indices(*(range(8) if last_of_all and step == steps[-1] else due)))
        param.grad = torch.full((8,), 0.1 + step % 3)
        optimiser.param_groups[0]["lr"] = 0.5 + 0.1 / (1 + step)
        optimiser.step()


@BOTH
def test_the_clock_of_a_schedule_is_bounded_and_gives_the_same_bits(ours, monkeypatch):
    most, steps = 32, 600
    monkeypatch.setattr(interval_clock, "MOST_RUNS", most)
    options = {"weight_decay": 1.5} if ours is SparseAdamW else {}  # which becomes too small for a double
    through = parameter(8)
    whole = ours([through], Told(), lr=0.6, **options)
    weights = torch.nn.Parameter(through.detach().clone())
    paused = ours([weights], Told(), lr=0.6, **options)
    for begin, end in ((0, steps), (steps, steps + 50), (steps + 50, steps + 60)):
        go_on(whole, through, range(begin, end), end == steps + 60)
        go_on(paused, weights, range(begin, end), end == steps + 60)
        state = copy.deepcopy(paused.state_dict())
        runs = state["param_groups"][0]["clock_runs"]
        assert most < len(runs) // 3 < steps / 2 and runs[0] <= 0
        weights = torch.nn.Parameter(weights.detach().clone())
        paused = ours([weights], Told(), lr=0.6, **options)
        paused.load_state_dict(state)
    for optimiser in (whole, paused):
        optimiser.catch_up()
    assert torch.equal(weights, through) and bool(weights.isfinite().all())


def test_a_clock_that_another_rank_saved_serves_nearly_as_well(monkeypatch):
    """Shards: each rank knows its own coordinates, and one saves the clock of all."""
    monkeypatch.setattr(interval_clock, "MOST_RUNS", 32)
    mine, theirs = parameter(8), parameter(8)
    here, there = SparseAdamW([mine], Told(), lr=0.6), SparseAdamW([theirs], Told(), lr=0.6)
    go_on(here, mine, range(600))
    go_on(there, theirs, range(0, 600, 600))
    for step in range(1, 600):  # nothing arrives
        there.source.tell(theirs, indices())
        there.param_groups[0]["lr"] = 0.5 + 0.1 / (1 + step)
        there.step()
    state = copy.deepcopy(here.state_dict())
    state["param_groups"][0]["clock_runs"] = there.state_dict()["param_groups"][0]["clock_runs"]
    again = torch.nn.Parameter(mine.detach().clone())
    other = SparseAdamW([again], Told(), lr=0.6)
    other.load_state_dict(state)
    for optimiser, param in ((here, mine), (other, again)):
        go_on(optimiser, param, range(600, 601), last_of_all=True)
    torch.testing.assert_close(again, mine, rtol=1e-3, atol=1e-5)
