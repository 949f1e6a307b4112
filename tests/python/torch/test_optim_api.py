# SPDX-License-Identifier: Apache-2.0
"""What a user of torch's optimisers expects of SparseAdamW and SparseSGD: hooks, schedulers that change
betas too, rates as tensors, copies; and the same numbers by native code and by torch's operations."""

from __future__ import annotations

import copy
from typing import Any, List, Optional

import pytest
import torch
from optim_runs import BOTH, Everywhere, Told, indices, parameter, sparse_steps
from torch import Tensor

from oktopk import UsageError
from oktopk.torch import coordinates
from oktopk.torch.optim import WHERE_NONZERO, SparseAdamW, SparseSGD


@pytest.fixture
def by_torch(monkeypatch):
    """A switch: from now on new optimisers work as on another device."""

    def switch() -> None:
        def elsewhere(param: Tensor) -> coordinates.Layout:
            return coordinates.layout_of(param)._replace(is_native=False)

        monkeypatch.setattr("oktopk.torch.owed_decay.layout_of", elsewhere)

    return switch


def test_one_cycle_changes_rates_and_betas(by_torch):
    """Densely as torch's AdamW, sparsely as by torch's operations."""

    def run(make: Any, source: Optional[Told]) -> Tensor:
        weights = parameter(6, 5)
        optimiser = make([weights])
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=0.1, total_steps=40)
        for step in range(30):
            if source is None:
                weights.grad = torch.randn(6, 5, generator=torch.Generator().manual_seed(step))
                optimiser.step()
            else:
                sparse_steps(optimiser, source, [weights], range(step, step + 1))
            scheduler.step()
        assert optimiser.param_groups[0]["betas"][0] != 0.9
        return weights.detach()

    theirs = run(lambda params: torch.optim.AdamW(params, foreach=False), None)
    torch.testing.assert_close(run(SparseAdamW, None), theirs, rtol=1e-6, atol=1e-7)
    told = Told()
    native = run(lambda params: SparseAdamW(params, told), told)
    by_torch()
    again = run(lambda params: SparseAdamW(params, told), told)
    torch.testing.assert_close(native, again, rtol=1e-5, atol=1e-6)


@BOTH
def test_hooks_and_rates_as_tensors_work_as_in_torch(ours):
    called: List[str] = []

    def run(lr: Any) -> Tensor:
        weights = parameter(3, 2)
        optimiser = ours([weights], Everywhere(listed=True), lr=lr)
        optimiser.register_step_pre_hook(lambda *_: called.append("before"))
        optimiser.register_step_post_hook(lambda *_: called.append("after"))
        for _ in range(2):
            weights.sum().backward()
            optimiser.step()
            optimiser.zero_grad()
            assert weights.grad is None
        return weights.detach()

    assert torch.equal(run(0.25), run(torch.tensor(0.25)))
    assert called == ["before", "after"] * 4


@BOTH
def test_a_copy_without_its_source_says_so(ours):
    weights = parameter(4)
    optimiser = ours([weights], Everywhere(listed=True), lr=0.1)
    weights.grad = torch.ones(4)
    optimiser.step()
    twin = copy.deepcopy(optimiser)
    twin.param_groups[0]["params"][0].grad = torch.ones(4)
    with pytest.raises(UsageError, match=f"{ours.__name__} is a copy.*have no source"):
        twin.step()
    dense = copy.deepcopy(ours([parameter(4)], lr=0.1))
    dense.param_groups[0]["params"][0].grad = torch.ones(4)
    dense.step()


def test_a_bad_option_that_a_schedule_sets_is_named():
    weights = parameter(4)
    optimiser = SparseAdamW([weights])
    weights.grad = torch.ones(4)
    optimiser.param_groups[0]["betas"] = (1.5, 0.999)
    with pytest.raises(UsageError, match=r"SparseAdamW: betas = \(1.5, 0.999\)"):
        optimiser.step()


def test_a_source_is_asked_once_where_it_can_answer_for_all():
    class Together(Told):
        asked = 0

        def arrived_of(self, params: List[Tensor]) -> List[Optional[Tensor]]:
            self.asked += 1
            return [self.indices[param] for param in params]

        def arrived(self, param: Tensor) -> Optional[Tensor]:
            raise AssertionError("asked one by one")

    source, weights = Together(), [parameter(4), parameter(5)]
    optimiser = SparseAdamW(weights, source)
    sparse_steps(optimiser, source, weights, range(3))
    assert source.asked == 3
    assert optimiser.state[weights[0]]["last"].max() == 3


@pytest.mark.parametrize("count", [1, 3])
def test_a_source_that_gives_another_number_of_answers_is_refused(count):
    class Miscounting(Told):
        def arrived_of(self, params: List[Tensor]) -> List[Optional[Tensor]]:
            return [indices(0)] * count

    weights = [parameter(4), parameter(5)]
    optimiser = SparseAdamW(weights, Miscounting())
    for w in weights:
        w.grad = torch.ones_like(w)
    with pytest.raises(UsageError, match=f"Miscounting. gave {count} answers for 2 parameters"):
        optimiser.step()


@BOTH
def test_gradients_of_another_layout_are_taken_as_they_are_meant(ours):
    source, plain, other = Told(), parameter(4, 6), parameter(4, 6)
    pair = [(ours([p], source, lr=0.1), p) for p in (plain, other)]
    for step in range(3):
        gradient = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
        plain.grad, other.grad = gradient, gradient.t().contiguous().t()
        for optimiser, param in pair:
            source.tell(param, indices(*range(step, 24, 2)))
            optimiser.step()
    assert torch.equal(plain, other)
