# SPDX-License-Identifier: Apache-2.0
"""What a user of torch's optimisers expects of SparseAdamW and SparseSGD: hooks, schedulers that change
betas too, rates as tensors, copies; and the same numbers by native code and by torch's operations."""

from __future__ import annotations

import copy
from typing import Any, List, Optional

import pytest
import torch
from arrivals import Everywhere, Told, indices, parameter, sparse_steps
from torch import Tensor

from oktopk import UsageError
from oktopk.torch import coordinates
from oktopk.torch.optim import WHERE_NONZERO, SparseAdamW, SparseSGD

BOTH = pytest.mark.parametrize("ours", [SparseAdamW, SparseSGD])


@pytest.fixture
def by_torch(monkeypatch):
    """A switch: from now on new optimisers work as on another device."""

    def switch() -> None:
        def elsewhere(param: Tensor) -> coordinates.Layout:
            return coordinates.layout_of(param)._replace(is_native=False)

        monkeypatch.setattr("oktopk.torch.owed_decay.layout_of", elsewhere)

    return switch


CASES = [(SparseAdamW, {"mode": mode, "weight_decay": 0.1}) for mode in SparseAdamW.modes] + [
    (SparseSGD, {"mode": mode, "momentum": mu, "nesterov": mu > 0, "weight_decay": 0.1})
    for mode in SparseSGD.modes
    for mu in (0.0, 0.9)
]


@pytest.mark.parametrize("ours, options", CASES)
def test_native_steps_are_those_by_torch(ours, options, by_torch):
    types = [torch.float32, torch.float64, torch.bfloat16, torch.float16]

    def run() -> List[Tensor]:
        source = Told()
        weights = [parameter(37, 3, dtype=dtype) for dtype in types]
        weights.append(torch.nn.Parameter(torch.tensor(0.5)))
        optimiser = ours(weights, source, lr=0.01, **options)
        sparse_steps(optimiser, source, weights, range(20), lambda step: 0.01 / (1 + step % 5))
        with optimiser.caught_up():
            inside = [w.detach().clone() for w in weights]
        optimiser.catch_up()
        assert all(torch.equal(w, seen) for w, seen in zip(weights, inside))
        states = [optimiser.state[w] for w in weights]
        moments = [state[name] for state in states for name in ours.moments if name in state]
        return [w.detach() for w in weights] + moments

    native = run()
    by_torch()
    rounding = {torch.float64: 1e-12, torch.bfloat16: 1e-2, torch.float16: 2e-3}
    for here, there in zip(native, run()):
        rtol = rounding.get(here.dtype, 2e-5)
        torch.testing.assert_close(here, there, rtol=rtol, atol=rtol / 10)


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


@BOTH
@pytest.mark.parametrize("native", [True, False])
def test_where_nonzero_names_what_is_not_zero_in_the_order_of_memory(ours, native, by_torch):
    if not native:
        by_torch()
    source = Told()
    images = parameter(2, 3, 4, 5).detach().contiguous(memory_format=torch.channels_last)
    listed, nonzero = torch.nn.Parameter(images.clone()), torch.nn.Parameter(images.clone())
    pair = [(ours([p], source, lr=0.1, weight_decay=0.1), p) for p in (listed, nonzero)]
    for step in range(5):
        random = torch.Generator().manual_seed(step)
        mean = torch.randn(2, 3, 4, 5, generator=random)
        mean[torch.rand(mean.shape, generator=random) < 0.5] = -0.0
        mean[0, 0, 0, 0] = float("nan") if step == 4 else 0.0
        for optimiser, param in pair:
            param.grad = torch.empty_like(param).copy_(mean)
            flat = param.grad.permute(0, 2, 3, 1).reshape(-1)
            where = WHERE_NONZERO if param is nonzero else torch.tensor([i for i, x in enumerate(flat) if x != 0])
            source.tell(param, where)
            optimiser.step()
        if step == 3:
            optimiser.catch_up()
            pair[0][0].catch_up()
    assert listed.isnan().sum() == 1 and nonzero.isnan()[0, 0, 0, 0]
    assert torch.equal(listed.nan_to_num(), nonzero.nan_to_num())
    assert torch.equal(pair[0][0].state[listed]["last"], pair[1][0].state[nonzero]["last"])
