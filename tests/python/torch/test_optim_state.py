# SPDX-License-Identifier: Apache-2.0
"""SparseAdamW and SparseSGD as torch optimisers: saving and loading, groups, schedules, closures,
scalers, layouts and precisions of parameters."""

from __future__ import annotations

import io
from typing import Any, Dict, List

import pytest
import torch
from optim_runs import BOTH, Everywhere, Told, indices, parameter, sparse_steps
from versions import needs_cpu_scaler, needs_torch

from oktopk import UsageError
from oktopk.torch.optim import SparseAdamW, SparseSGD


def saved(optimiser: torch.optim.Optimizer) -> Any:
    file = io.BytesIO()
    torch.save(optimiser.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loaded_state_continues_bit_by_bit(ours, dtype):
    def schedule(step: int) -> float:
        return 0.1 / (1 + step)

    source, weights = Told(), [parameter(5, 7, dtype=dtype), parameter(11, dtype=dtype)]
    first = ours(weights, source, lr=0.1, weight_decay=0.1)
    sparse_steps(first, source, weights, range(10), schedule)
    others = [torch.nn.Parameter(w.detach().clone()) for w in weights]
    second = ours(others, source, lr=0.5)
    second.load_state_dict(saved(first))
    assert second.state[others[0]]["last"].dtype == torch.int32
    for optimiser, params in ((first, weights), (second, others)):
        sparse_steps(optimiser, source, params, range(10, 20), schedule)
        optimiser.catch_up()
    assert all(torch.equal(a, b) for a, b in zip(weights, others))


@pytest.mark.parametrize("ours, theirs", [(SparseAdamW, "AdamW"), (SparseSGD, "SGD")])
def test_a_state_of_torch_is_taken_over(ours, theirs):
    weights, others = parameter(6, 3), parameter(6, 3)
    options = {"lr": 0.01, "weight_decay": 0.1}
    if theirs == "SGD":
        options["momentum"] = 0.9
    dense = getattr(torch.optim, theirs)([weights], foreach=False, **options)
    again = ours([others], Everywhere(listed=True), mode="interval_aware")
    sparse_steps(dense, Told(), [weights], range(5))
    others.data.copy_(weights)
    again.load_state_dict(saved(dense))
    for optimiser, param in ((dense, weights), (again, others)):
        sparse_steps(optimiser, Told(), [param], range(5, 9))
    torch.testing.assert_close(weights, others, rtol=1e-6, atol=1e-7)


def test_a_state_of_torch_that_means_something_else_is_refused():
    weights = parameter(3)
    for name, theirs, ours in (
        ("amsgrad", torch.optim.AdamW([weights], amsgrad=True), SparseAdamW),
        ("maximize", torch.optim.AdamW([weights], maximize=True), SparseAdamW),
        ("dampening", torch.optim.SGD([weights], lr=0.1, momentum=0.9, dampening=0.5), SparseSGD),
    ):
        with pytest.raises(UsageError, match=f"made with {name} = .*{ours.__name__} does not have"):
            ours([weights]).load_state_dict(theirs.state_dict())
    plain = torch.optim.SGD([weights], lr=0.1)  # whose momentum_buffer is None
    weights.grad = torch.ones(3)
    plain.step()
    again = SparseSGD([weights], Everywhere(listed=True))
    again.load_state_dict(plain.state_dict())
    again.step()
    assert again.param_groups[0]["momentum"] == 0


def after_two_steps(optimiser: torch.optim.Optimizer) -> Any:
    for param in (p for group in optimiser.param_groups for p in group["params"]):
        param.grad = torch.ones_like(param)
    optimiser.step()
    optimiser.step()
    return optimiser.state_dict()


OF_ANOTHER_KIND = [
    (SparseAdamW, torch.optim.SGD, {"momentum": 0.9}, "lacks the option betas of SparseAdamW"),
    (SparseAdamW, torch.optim.SGD, {}, "lacks the option betas of SparseAdamW"),
    (SparseAdamW, SparseSGD, {}, "lacks the option betas of SparseAdamW"),
    (SparseAdamW, torch.optim.RMSprop, {"momentum": 0.9}, "lacks the option betas of SparseAdamW"),
    (SparseAdamW, torch.optim.Adamax, {}, r"lacks 'exp_avg_sq' of SparseAdamW and has \['exp_avg', 'exp_inf'"),
    (SparseAdamW, torch.optim.Adam, {"weight_decay": 0.1}, "weight_decay = 0.1 in the gradient, as Adam has it"),
    (SparseSGD, torch.optim.AdamW, {}, "lacks the option momentum of SparseSGD"),
    (SparseSGD, torch.optim.Adam, {}, "lacks the option momentum of SparseSGD"),
    (SparseSGD, SparseAdamW, {}, "lacks the option momentum of SparseSGD"),
]


@pytest.mark.parametrize("ours, theirs, options, words", OF_ANOTHER_KIND)
def test_a_state_of_another_kind_is_refused_and_nothing_changes(ours, theirs, options, words):
    foreign = theirs([parameter(3)], lr=0.5, **options)
    if theirs is torch.optim.Adam and options and "decoupled_weight_decay" not in foreign.defaults:
        pytest.skip("this torch does not say in a state whether the decay was decoupled")
    optimiser = ours([parameter(3)], lr=0.01)
    before = str(after_two_steps(optimiser))
    with pytest.raises(UsageError, match=words):
        optimiser.load_state_dict(after_two_steps(foreign))
    assert str(optimiser.state_dict()) == before


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}, {"foreach": False}, {}])
def test_a_state_that_torch_made_in_another_way_is_taken_over(options):
    for theirs, more in ((torch.optim.AdamW, {}), (torch.optim.Adam, {"weight_decay": 0})):
        optimiser, foreign = SparseAdamW([parameter(3)]), theirs([parameter(3)], lr=0.5, **options, **more)
        optimiser.load_state_dict(after_two_steps(foreign))
        assert optimiser.param_groups[0]["lr"] == 0.5
        after_two_steps(optimiser)


def as_saved_by_version_0_1(optimiser: torch.optim.Optimizer) -> Any:
    """The clock was a table by step, a parameter's numbers were Python's."""
    found = saved(optimiser)
    for group in found["param_groups"]:
        runs, sums = group.pop("clock_runs"), [0.0]
        for steps, rate in zip(runs[::3], runs[1::3]):
            for _ in range(steps):
                sums.append(sums[-1] + rate)
        group["clock"] = len(sums) - 1
        group["clock_totals"] = torch.tensor([sums + [0.0] * 50, [1.0] * (len(sums) + 50)]).double()
        group["clock_rate"] = group["clock_kept"] = 1.0
    for state in found["state"].values():
        step = state["step"] if "exp_avg" in state else state.pop("step")
        state["clock"] = int(step + state.pop("skew"))
        state["caught_up"] = int(state.get("caught_up", 0))
        del state["whole"]
    return found


@BOTH
def test_a_state_of_an_earlier_version_loads(ours):
    source, weights = Told(), parameter(5, 7)
    first = ours([weights], source, lr=0.1, weight_decay=0.1)
    sparse_steps(first, source, [weights], range(10), lambda step: 0.1 / (1 + step))
    others = torch.nn.Parameter(weights.detach().clone())
    second = ours([others], source)
    second.load_state_dict(as_saved_by_version_0_1(first))
    for optimiser, param in ((first, weights), (second, others)):
        sparse_steps(optimiser, source, [param], range(10, 20))
        optimiser.catch_up()
    torch.testing.assert_close(weights, others, rtol=1e-6, atol=1e-7)
    assert set(first.state[weights]) <= set(second.state[others])
    broken = saved(first)
    broken["param_groups"][0]["clock_runs"] = [1, 2]
    with pytest.raises(UsageError, match="clock_runs in a saved state is no list"):
        second.load_state_dict(broken)


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
