# SPDX-License-Identifier: Apache-2.0
"""The host's part of steps on a GPU: tables, clock and plans, with the host in place of the kernels. They must give the
steps of native_step.py. test_gpu_optim.py has the kernels themselves."""

from __future__ import annotations

import copy
from typing import Any, List

import pytest
import torch
from arrivals import Told, indices, parameter
from host_kernels import host_kernels  # noqa: F401  a fixture
from optim_runs import CASES, assert_same, gradients, many_parameters, results, train
from torch import Tensor
from versions import needs_cpu_scaler

from oktopk import UsageError
from oktopk.torch.optim import WHERE_NONZERO, SparseAdamW, SparseSGD

BOTH = pytest.mark.parametrize("ours", [SparseAdamW, SparseSGD])

@pytest.mark.parametrize("answer", ["list", "nonzero", "any"])
@pytest.mark.parametrize("ours, options", CASES)
def test_plans_make_the_steps_of_the_host(ours, options, answer, host_kernels):
    expected = train(ours, options, "list")
    assert_same(train(ours, options, "nonzero"), expected)  # where the host finds what is not zero
    kernels = host_kernels()
    assert_same(train(ours, options, answer), expected)
    assert kernels.steps == 14


@BOTH
def test_a_state_moves_between_host_and_gpu(ours, host_kernels, monkeypatch):
    def half(steps: range, saved: Any, params: List[Any]) -> Any:
        source = Told()
        optimiser = ours(params, source, lr=0.01, weight_decay=0.1)
        if saved is not None:
            optimiser.load_state_dict(saved)
        for step in steps:
            gradients(params, source, step, "any")
            optimiser.step()
        return optimiser

    def run(first: bool, second: bool) -> List[Tensor]:
        params = many_parameters()
        saved = None
        for on_gpu, steps in ((first, range(7)), (second, range(7, 14))):
            with pytest.MonkeyPatch.context() as patch:
                if not on_gpu:
                    patch.setattr("oktopk.torch.cuda_step.kernels_of", lambda device: None)
                optimiser = half(steps, saved, params)
                saved = copy.deepcopy(optimiser.state_dict())
                found = results(optimiser, params)
        return found

    host_kernels()
    expected = run(False, False)
    for first, second in ((True, True), (True, False), (False, True)):
        assert_same(run(first, second), expected)


@BOTH
def test_a_plan_lives_until_something_moves(ours, host_kernels):
    host_kernels()
    source, params = Told(), [parameter(40), parameter(30)]
    optimiser = ours(params, source, lr=0.01)
    plans = []

    def step(make_gradients: bool = True) -> None:
        for param in params:
            if make_gradients:
                param.grad = torch.ones_like(param)
            source.tell(param, WHERE_NONZERO)
        optimiser.step()
        plans.append(next(iter(optimiser._plans.values())))

    step()
    step()
    assert plans[0] is plans[1]  # new gradients, the same plan
    params[0].data = params[0].detach().clone()
    step()
    assert plans[2] is not plans[1]
    name = ours.moments[0]
    optimiser.state[params[1]][name] = optimiser.state[params[1]][name].clone()
    step()
    assert plans[3] is not plans[2]
    step(make_gradients=False)
    assert plans[4] is plans[3]
    params[0].grad = None
    step(make_gradients=False)
    assert plans[5] is not plans[4]
    optimiser.catch_up()
    step(make_gradients=False)
    assert plans[6] is plans[5]
    optimiser.state.clear()  # as some loops begin anew
    step()
    assert int(optimiser.state[params[0]].get("step", 1)) == 1


@BOTH
def test_a_clock_gets_room_for_any_number_of_steps(ours, host_kernels):
    def run() -> List[Tensor]:
        source, param = Told(), torch.nn.Parameter(torch.ones(3))
        optimiser = ours([param], source, lr=0.001, weight_decay=0.01)
        for step in range(2100):
            param.grad = torch.tensor([1.0, step % 7 == 0, step % 1500 == 1])
            source.tell(param, WHERE_NONZERO)
            optimiser.step()
        optimiser.catch_up()
        return results(optimiser, [param])

    expected = run()
    host_kernels()
    assert all(map(torch.equal, run(), expected))


@BOTH
@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_step_that_a_scaler_leaves_out_changes_nothing(ours, on_gpu, host_kernels):
    if on_gpu:
        host_kernels()
    source, param = Told(), parameter(50)
    optimiser = ours([param], source, lr=0.01, weight_decay=0.1)

    def step(found_inf: float, scale: float) -> None:
        random = torch.Generator().manual_seed(7)
        param.grad = scale * torch.randn(50, generator=random)
        param.grad[::3] = 0
        source.tell(param, WHERE_NONZERO)
        optimiser.found_inf, optimiser.grad_scale = torch.tensor(found_inf), torch.tensor(scale)
        optimiser.step()
        del optimiser.found_inf, optimiser.grad_scale

    def seen() -> List[Tensor]:
        return [*results(optimiser, [param]), torch.tensor(optimiser.state_dict()["param_groups"][0]["clock_runs"])]

    for _ in range(3):
        step(0.0, 1024.0)
    before = seen()
    step(1.0, 1024.0)
    assert all(map(torch.equal, seen(), before))
    step(0.0, 2048.0)
    assert not torch.equal(seen()[0], before[0])
    plain = ours([other := parameter(50)], source, lr=0.01, weight_decay=0.1)
    for _ in range(4):
        other.grad = param.grad if not on_gpu else param.grad / 2048
        source.tell(other, WHERE_NONZERO)
        plain.step()
    assert torch.equal(param, other)


@needs_cpu_scaler
@BOTH
def test_a_scaler_of_torch_is_understood(ours, host_kernels):
    def run(on_gpu: bool) -> List[Tensor]:
        if on_gpu:
            host_kernels()
        source, param = Told(), parameter(50)
        optimiser = ours([param], source, lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
        for step in range(8):
            optimiser.zero_grad()
            factor = float("inf") if step in (2, 5) else 1.0
            scaler.scale((param * torch.arange(50.0) * factor).sum()).backward()
            source.tell(param, WHERE_NONZERO)
            scaler.step(optimiser)
            scaler.update()
        assert int(optimiser.state[param]["step"]) == 6
        return results(optimiser, [param])

    assert all(map(torch.equal, run(False), run(True)))


def test_faults_of_the_gpu_are_raised_when_the_clock_is_asked(host_kernels):
    host_kernels()
    source, param = Told(), parameter(50)
    optimiser = SparseAdamW([param], source)
    source.tell(param, WHERE_NONZERO)
    param.grad = torch.ones(50)
    optimiser.step()
    clock = optimiser._clock(optimiser.param_groups[0])
    for fault, words in ((1, "learning rate"), (2, "1048576 steps"), (3, "index outside")):
        clock._on_gpu._head[2] = fault
        with pytest.raises(UsageError, match=words):
            optimiser.state_dict()
        assert optimiser.state_dict()["param_groups"][0]["clock_runs"][0] == 1


@BOTH
def test_capturable_needs_kernels(ours):
    source, param = Told(), parameter(5)
    optimiser = ours([param], source, capturable=True)
    param.grad = torch.ones(5)
    source.tell(param, indices(1))
    with pytest.raises(UsageError, match="capturable = True.*one NVIDIA GPU.*liboktopk_cuda.so"):
        optimiser.step()
    assert not optimiser.state[param]


def test_capturable_steps_are_those_of_others(host_kernels):
    host_kernels()
    plain = train(SparseAdamW, {}, "any")
    assert all(map(torch.equal, train(SparseAdamW, {"capturable": True}, "any"), plain))


def test_shards_of_a_dtensor_make_the_steps_of_plain_tensors(host_kernels, tmp_path):
    tensor = pytest.importorskip("torch.distributed.tensor", reason="DTensor needs torch 2.5")
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))

        def run(sharded: bool) -> List[Tensor]:
            def wrap(value: Tensor) -> Tensor:
                return tensor.distribute_tensor(value, mesh, [tensor.Shard(0)]) if sharded else value

            source, param = Told(), torch.nn.Parameter(wrap(parameter(60, 80).detach()))
            optimiser = SparseAdamW([param], source, lr=0.01, weight_decay=0.1)
            for step in range(6):
                mean = torch.randn(60, 80, generator=torch.Generator().manual_seed(step))
                mean[torch.rand(60, 80, generator=torch.Generator().manual_seed(step)) < 0.8] = 0
                param.grad = wrap(mean)
                source.tell(param, WHERE_NONZERO if step > 1 else None)
                optimiser.step()
            optimiser.catch_up()
            shard = param.to_local() if sharded else param
            return [shard.detach().clone(), optimiser.state[param]["step"].clone()]

        host_kernels()
        assert all(map(torch.equal, run(True), run(False)))
    finally:
        torch.distributed.destroy_process_group()


@BOTH
def test_wrong_use_is_named_before_anything_changes(ours, host_kernels):
    host_kernels()
    source, params = Told(), [parameter(4), parameter(3, 2)]
    optimiser = ours(params, source, lr=0.1)

    def step(answer: Any, second: Any) -> None:
        params[0].grad, params[1].grad = torch.ones(4), second
        source.tell(params[0], WHERE_NONZERO)
        source.tell(params[1], answer)
        optimiser.step()

    def refused() -> None:
        before = results(optimiser, params)
        for answer, second, words in (
            (indices(1).int(), torch.ones(3, 2), "int32"),
            ([1], torch.ones(3, 2), "gave a list"),
            (WHERE_NONZERO, torch.ones(3, 2).to_sparse(), r"\(3, 2\).*sparse"),
        ):
            with pytest.raises(UsageError, match=words):
                step(answer, second)
        assert all(map(torch.equal, results(optimiser, params), before))

    refused()
    assert not optimiser.state[params[0]]
    step(WHERE_NONZERO, torch.ones(3, 2))
    refused()
