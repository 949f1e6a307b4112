# SPDX-License-Identifier: Apache-2.0
"""What a user of torch's optimisers expects of SparseAdamW and SparseSGD: hooks, schedulers that change betas too,
rates as tensors, copies, groups, closures, layouts and precisions of parameters; wrong use is named before anything
changes."""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Optional

import pytest
import torch
from optim_runs import BOTH, Everywhere, Told, indices, parameter, sparse_steps
from torch import Tensor

from oktopk import UsageError
from oktopk.torch import coordinates
from oktopk.torch.optim import SparseAdamW, SparseSGD


@pytest.fixture
def by_torch(monkeypatch):
    """A switch: from now on new optimisers work as on another device."""

    def switch() -> None:
        def elsewhere(param: Tensor) -> coordinates.Layout:
            return coordinates.layout_of(param)._replace(is_native=False)

        monkeypatch.setattr("oktopk.torch.lazy_optimiser.layout_of", elsewhere)

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
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_have_float_state_and_move(ours, dtype):
    source, weights, wide = Told(), parameter(40, dtype=dtype), parameter(40)
    wide.data.copy_(weights)
    for param in (weights, wide):
        optimiser = ours([param], source, lr=1e-2)
        sparse_steps(optimiser, source, [param], range(6))
        kept = [v for k, v in optimiser.state[param].items() if k in ("exp_avg", "momentum_buffer")]
        assert [v.dtype for v in kept] == [torch.float32]
    assert weights.dtype == dtype
    torch.testing.assert_close(weights.float(), wide.data, rtol=0.03, atol=0.03)


@BOTH
def test_a_sparse_step_touches_only_what_arrives(ours):
    source, weights = Told(), parameter(8)
    optimiser = ours([weights], source, lr=0.1)
    source.tell(weights, None)
    weights.grad = torch.ones(8)
    optimiser.step()
    names = list(optimiser.state[weights])

    def coordinates() -> Dict[str, torch.Tensor]:
        state = optimiser.state[weights].items()
        found = {k: v.clone() for k, v in state if torch.is_tensor(v) and v.dim()}
        return {"weights": weights.detach().clone(), **found}

    before = coordinates()
    source.tell(weights, indices(2, 5))
    optimiser.step()
    after = coordinates()
    assert list(optimiser.state[weights]) == names  # from the first step on
    assert after.pop("last").tolist() == [1, 1, 2, 1, 1, 2, 1, 1]
    if ours is SparseAdamW:
        assert after.pop("arrivals").tolist() == [1, 1, 2, 1, 1, 2, 1, 1]
    for name, new in after.items():
        assert (before[name] != new).nonzero().view(-1).tolist() == [2, 5]


def test_groups_schedulers_and_closures_work_as_in_torch():
    source, first, second = Told(), parameter(4), parameter(5)
    optimiser = SparseAdamW([first], source, lr=0.1)
    optimiser.add_param_group({"params": [second], "lr": 0.01, "mode": "published"})
    scheduler = torch.optim.lr_scheduler.StepLR(optimiser, 1, gamma=0.5)
    source.tell(first, indices(0, 2))

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = first.sum() + second.sum()
        loss.backward()
        return loss

    before = float(closure().detach())
    for _ in range(3):
        loss = optimiser.step(closure)
        scheduler.step()
    assert float(loss.detach()) < before
    assert [group["lr"] for group in optimiser.param_groups] == [0.1 / 8, 0.01 / 8]
    assert "last" in optimiser.state[first] and "last" not in optimiser.state[second]


@BOTH
def test_indices_follow_the_memory_of_the_parameter(ours):
    source, plain = Told(), parameter(3, 4, 2, 5)
    lasting = torch.nn.Parameter(plain.detach().clone(memory_format=torch.channels_last))
    order = torch.arange(plain.numel()).view(3, 4, 2, 5).permute(0, 2, 3, 1).reshape(-1)
    pair = [(ours([p], source, lr=0.1), p) for p in (plain, lasting)]
    for step in range(4):
        gradient = torch.randn(3, 4, 2, 5, generator=torch.Generator().manual_seed(step))
        here = torch.arange(step, plain.numel(), 3)  # places in memory of `lasting`
        source.tell(lasting, here)
        source.tell(plain, order[here].sort().values)
        for optimiser, param in pair:
            param.grad = gradient.clone()
            optimiser.step()
    torch.testing.assert_close(plain.data, lasting.data.contiguous(), rtol=1e-6, atol=1e-7)
    assert lasting.is_contiguous(memory_format=torch.channels_last)


WRONG = [
    (SparseAdamW, {"mode": "aware"}, "'aware'.*interval_aware, published"),
    (SparseSGD, {"mode": "aware"}, "interval_aware, published"),
    (SparseAdamW, {"lr": -1.0}, "lr = -1.0"),
    (SparseAdamW, {"betas": (0.9, 1.0)}, r"betas = \(0.9, 1.0\)"),
    (SparseAdamW, {"eps": 0.0}, "eps = 0.0"),
    (SparseAdamW, {"lr": 0.5, "weight_decay": 2.0}, "weight_decay = 2.0.*1 / lr"),
    (SparseSGD, {"momentum": 1.0}, "momentum = 1.0"),
    (SparseSGD, {"momentum": 0.0, "nesterov": True}, "nesterov"),
    (SparseSGD, {"source": 5}, r"int.*arrived\(param\)"),
]


@pytest.mark.parametrize("ours, options, words", WRONG)
def test_a_bad_option_is_named(ours, options, words):
    with pytest.raises(UsageError, match=words):
        ours([parameter(2)], **options)


@BOTH
def test_options_of_torch_s_are_taken_where_they_change_nothing(ours):
    names = ("foreach", "fused", "maximize", "amsgrad", "differentiable", "dampening")
    for value in (None, False, 0):
        optimiser = ours([parameter(2)], **dict.fromkeys(names, value))
        assert not set(names) & set(optimiser.defaults)
    for name in names:
        words = f"{ours.__name__}: {name} = True, but it must be"
        with pytest.raises(UsageError, match=words):
            ours([parameter(2)], **{name: True})
        with pytest.raises(UsageError, match=words):
            optimiser.add_param_group({"params": [parameter(2)], name: True})
    with pytest.raises(TypeError, match="unexpected keyword argument 'beta'"):
        ours([parameter(2)], beta=0.9)


def test_a_bad_option_that_a_schedule_sets_is_named():
    for name, value, words in (
        ("betas", (1.5, 0.999), r"SparseAdamW: betas = \(1.5, 0.999\)"),
        ("lr", 0.5, "weight_decay = 2.0, but it must be less than 1 / lr, and lr = 0.5"),
    ):
        source, weights = Told(), parameter(2)
        optimiser = SparseAdamW([weights], source, lr=0.1, weight_decay=2.0)
        optimiser.param_groups[0][name] = value
        source.tell(weights, indices(0))
        weights.grad = torch.ones(2)
        with pytest.raises(UsageError, match=words):
            optimiser.step()


@BOTH
def test_a_parameter_with_gaps_in_memory_is_refused(ours):
    source, weights = Told(), torch.nn.Parameter(torch.zeros(3, 4)[:, :2])
    optimiser = ours([weights], source, lr=0.1)
    weights.grad = torch.ones(3, 2)
    source.tell(weights, indices(0))
    with pytest.raises(UsageError, match=r"\(3, 2\) and strides \(4, 1\)"):
        optimiser.step()
    source.tell(weights, None)
    optimiser.step()  # a dense step does not mind
    assert (weights < 0).all()
