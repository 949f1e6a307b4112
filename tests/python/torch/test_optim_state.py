# SPDX-License-Identifier: Apache-2.0
"""SparseAdamW and SparseSGD: what they save, what they load of torch's own and of earlier versions, and what they
refuse."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from optim_runs import BOTH, Everywhere, Told, parameter, sparse_steps

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
