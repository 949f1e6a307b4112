# SPDX-License-Identifier: Apache-2.0
"""The ways in which SparseAdamW and SparseSGD make a step: native code on the host, torch's operations, the kernels of
a GPU. All give the same numbers. On the CPU the host plays the kernels (host_kernels.py), so that tables, clock and
plans are tested without a GPU; with OKTOPK_TEST_DEVICE=cuda the kernels are the real ones."""

from __future__ import annotations

import copy
from typing import Any, Callable, List

import pytest
import torch
from host_kernels import host_kernels  # noqa: F401  a fixture
from models import DEVICE, needs_cpu, needs_gpu
from optim_runs import BOTH, CASES, Told, assert_same, gradients, indices, many_parameters, parameter, results, train
from torch import Tensor
from versions import needs_cpu_scaler

from oktopk import UsageError, _core
from oktopk.torch import coordinates, cuda_step
from oktopk.torch.optim import WHERE_NONZERO, SparseAdamW

ON_CPU = ["host", "torch", "kernels"] if DEVICE.type == "cpu" else []
WAYS = pytest.mark.parametrize("way", [*ON_CPU, *(["cuda"] if DEVICE.type == "cuda" else [])])
OF_GPU = pytest.mark.parametrize("way", ["kernels" if DEVICE.type == "cpu" else "cuda"])


@pytest.fixture
def go(host_kernels, monkeypatch):
    """go(way): from now on new optimisers work so. Returns the device of their parameters."""

    def elsewhere(param: Tensor) -> coordinates.Layout:
        return coordinates.layout_of(param)._replace(is_native=False)

    def switch(way: str) -> str:
        if way == "torch":
            monkeypatch.setattr("oktopk.torch.lazy_optimiser.layout_of", elsewhere)
        elif way == "kernels":
            switch.kernels = host_kernels()
        return "cuda" if way == "cuda" else "cpu"

    return switch


def on(device: str, param: Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(param.detach().to(device))


@WAYS
@pytest.mark.parametrize("answer", ["list", "nonzero", "any"])
@pytest.mark.parametrize("ours, options", CASES)
def test_steps_are_those_of_the_host(ours, options, answer, way, go):
    """Bit by bit where all are sparse; else up to roots, which the host takes from torch."""
    exact = options["mode"] != "published" and way != "torch"  # published steps are dense
    runs = [(dense_steps, exact and not dense_steps) for dense_steps in ((), (0, 1, 6))]
    expected = [train(ours, options, "list", dense_steps=dense_steps) for dense_steps, _ in runs]
    device = go(way)
    for (dense_steps, is_exact), wanted in zip(runs, expected):
        assert_same(train(ours, options, answer, device, dense_steps), wanted, is_exact)
    assert way != "kernels" or go.kernels.steps == 28


@WAYS
@BOTH
def test_where_nonzero_names_what_is_not_zero_in_the_order_of_memory(ours, way, go):
    device, source = go(way), Told()
    images = parameter(2, 3, 4, 5).detach().contiguous(memory_format=torch.channels_last)
    listed, nonzero = on(device, images), on(device, images)
    pair = [(ours([p], source, lr=0.1, weight_decay=0.1), p) for p in (listed, nonzero)]
    for step in range(5):
        random = torch.Generator().manual_seed(step)
        mean = torch.randn(2, 3, 4, 5, generator=random)
        mean[torch.rand(mean.shape, generator=random) < 0.5] = -0.0
        mean[0, 0, 0, 0] = float("nan") if step == 4 else 0.0
        for optimiser, param in pair:
            param.grad = torch.empty_like(param).copy_(mean)
            flat = param.grad.permute(0, 2, 3, 1).reshape(-1)
            where = torch.tensor([i for i, x in enumerate(flat.tolist()) if x != 0], device=device)
            source.tell(param, WHERE_NONZERO if param is nonzero else where)
            optimiser.step()
        if step == 3:
            for optimiser, _ in pair:
                optimiser.catch_up()
    assert listed.isnan().sum() == 1 and nonzero.isnan()[0, 0, 0, 0]
    assert torch.equal(listed.nan_to_num(), nonzero.nan_to_num())
    assert torch.equal(pair[0][0].state[listed]["last"], pair[1][0].state[nonzero]["last"])


@needs_cpu_scaler
@WAYS
@BOTH
def test_a_step_that_a_scaler_leaves_out_changes_nothing(ours, way, go):
    def run(device: str, bad: Any) -> List[Tensor]:
        source, param = Told(), on(device, parameter(50))
        optimiser = ours([param], source, lr=0.01, weight_decay=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=256.0, growth_interval=2)
        for step in (s for s in range(10) if bad or s not in (0, 3, 6)):
            optimiser.zero_grad()
            factor = float("inf") if step in (0, 3, 6) else 1.0
            scaler.scale((param * (torch.arange(50, device=device) % 3) * (step + 1) * factor).sum()).backward()
            source.tell(param, WHERE_NONZERO)
            scaler.step(optimiser)
            scaler.update()
        return [*results(optimiser, [param]), torch.tensor(optimiser.state_dict()["param_groups"][0]["clock_runs"])]

    expected = run("cpu", False)
    assert_same(run(go(way), True), expected, is_exact=way != "torch")


@OF_GPU
@BOTH
def test_a_state_moves_between_host_and_gpu(ours, way, host_kernels):
    def run(first: bool, second: bool) -> List[Tensor]:
        params, saved = many_parameters(), None
        for on_gpu, steps in ((first, range(7)), (second, range(7, 14))):
            with pytest.MonkeyPatch.context() as patch:
                if way == "kernels" and not on_gpu:
                    patch.setattr("oktopk.torch.cuda_step.kernels_of", lambda device: None)
                params = [on(way if on_gpu and way == "cuda" else "cpu", param) for param in params]
                source = Told()
                optimiser = ours(params, source, lr=0.01, weight_decay=0.1)
                if saved is not None:
                    optimiser.load_state_dict(saved)
                for step in steps:
                    gradients(params, source, step, "any", dense_steps=())
                    optimiser.step()
                saved = copy.deepcopy(optimiser.state_dict())
                found = results(optimiser, params)
        return found

    if way == "kernels":
        host_kernels()
    expected = run(False, False)
    for first, second in ((True, True), (True, False), (False, True)):
        assert_same(run(first, second), expected, is_exact=True)


@needs_cpu
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


@OF_GPU
@BOTH
def test_a_clock_gets_room_for_any_number_of_steps(ours, way, go):
    def run(device: str) -> List[Tensor]:
        source, param = Told(), on(device, torch.ones(3))
        optimiser = ours([param], source, lr=0.001, weight_decay=0.01)
        for step in range(2100):
            param.grad = torch.tensor([1.0, step % 7 == 0, step % 1500 == 1], device=device)
            source.tell(param, WHERE_NONZERO)
            optimiser.step()
        optimiser.catch_up()
        return results(optimiser, [param])

    expected = run("cpu")
    assert_same(run(go(way)), expected, is_exact=True)


@needs_cpu
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


@OF_GPU
def test_capturable_steps_are_those_of_others(way, go):
    device = go(way)
    assert_same(train(SparseAdamW, {"capturable": True}, "any", device), train(SparseAdamW, {}, "any", device), True)


@needs_cpu
@pytest.mark.parametrize("way", ["host", "kernels"])
@BOTH
def test_shards_of_a_dtensor_make_the_steps_of_plain_tensors(ours, way, go, tmp_path):
    tensor = pytest.importorskip("torch.distributed.tensor", reason="DTensor needs torch 2.5")
    dist = torch.distributed
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))

        def run(sharded: bool) -> List[Tensor]:
            def wrap(value: Tensor) -> Tensor:
                return tensor.distribute_tensor(value, mesh, [tensor.Shard(0)]) if sharded else value

            source, param = Told(), torch.nn.Parameter(wrap(parameter(60, 80).detach()))
            optimiser = ours([param], source, lr=0.01, weight_decay=0.1)
            for step in range(7):
                mean = torch.randn(60, 80, generator=torch.Generator().manual_seed(step))
                mean[torch.rand(60, 80, generator=torch.Generator().manual_seed(step)) < 0.8] = 0
                param.grad = wrap(mean)
                listed = mean.view(-1).nonzero().view(-1)
                source.tell(param, None if step < 2 else listed if step == 4 else WHERE_NONZERO)
                optimiser.step()
            optimiser.catch_up()
            shard = param.to_local() if sharded else param
            return [shard.detach().clone(), torch.as_tensor(optimiser.state[param].get("step", 0)).clone()]

        go(way)
        assert all(map(torch.equal, run(True), run(False)))
    finally:
        dist.destroy_process_group()


@WAYS
@BOTH
def test_wrong_arrivals_are_refused_before_anything_changes(ours, way, go):
    device, source = go(way), Told()
    known, other = on(device, parameter(4)), on(device, parameter(3, 2))
    optimiser = ours([known, other], source, lr=0.1)
    ones = torch.ones(3, 2, device=device)
    known.grad, other.grad = torch.ones_like(known), ones
    source.tell(known, WHERE_NONZERO if way == "kernels" else indices(1).to(device))
    wrong = [
        ("nothing", ones, r"Told.*not know.*\(3, 2\)"),
        (indices(1).int(), ones, "int32"),
        (indices(1).view(1, 1), ones, "2 dimensions"),
        ([1], ones, "gave a list, but it must give a tensor of indices, WHERE_NONZERO or None"),
        (WHERE_NONZERO, ones.to_sparse(), r"\(3, 2\).*sparse"),
    ]
    if way == "host":  # a GPU finds these itself, later
        wrong += [
            (indices(1, 6), ones, "from 1 to 6.* 6 elements"),
            (indices(1, 6, 2), ones, "from 1 to 6.* 6 elements"),
            (indices(3, 2), ones, "from 2 to 3.* 6 elements, and indices increase"),
        ]

    def refused() -> None:
        before = results(optimiser, [known, other])
        for answer, gradient, words in wrong:
            other.grad = gradient
            source.indices.pop(other, None)
            if answer != "nothing":
                source.tell(other, answer.to(device) if isinstance(answer, Tensor) else answer)
            with pytest.raises(UsageError, match=words):
                optimiser.step()
        assert_same(results(optimiser, [known, other]), before, is_exact=True)

    refused()
    assert not optimiser.state[known] and optimiser.param_groups[0].get("clock", 0) == 0
    other.grad = ones
    source.tell(other, WHERE_NONZERO)
    optimiser.step()
    refused()


# The tests below need a GPU.


@needs_gpu
def test_steps_go_by_kernels():
    assert cuda_step.kernels_of(torch.device("cuda", 0)) is not None
    source, params = Told(), many_parameters("cuda")
    optimiser = SparseAdamW(params, source)
    gradients(params, source, 2, "nonzero")
    optimiser.step()
    assert len(optimiser._plans) == 1
    assert optimiser.state[params[0]]["step"].is_cuda


@needs_gpu
@BOTH
def test_a_step_with_clipping_and_scaling_waits_for_nothing(ours):
    source, params = Told(), [on("cuda", parameter(300, 40)) for _ in range(3)]
    optimiser = ours(params, source, lr=0.01, weight_decay=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    for param in params:
        source.tell(param, WHERE_NONZERO)

    def step() -> None:
        for param in params:
            param.grad = torch.randn_like(param) * (torch.rand_like(param) < 0.1)
        scaler.scale(torch.ones((), device="cuda"))
        scaler.unscale_(optimiser)
        torch.nn.utils.clip_grad_norm_(params, 0.1)
        scaler.step(optimiser)
        scaler.update()
        for param in params:
            param.grad = torch.randn_like(param) * (torch.rand_like(param) < 0.1)
        optimiser.step()

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(int(optimiser.state[param]["step"]) == 12 for param in params)


def captured(act: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        act()
    return graph


@needs_gpu
@BOTH
def test_a_cuda_graph_holds_a_step(ours):
    means = [torch.randn(5000, generator=torch.Generator().manual_seed(i)) for i in range(12)]
    for i, mean in enumerate(means):
        mean[torch.rand(5000, generator=torch.Generator().manual_seed(100 + i)) < 0.9] = 0
    rates = [0.01 / (1 + i % 3) for i in range(12)]

    def begin(rate: Any) -> Any:
        source, param = Told(), on("cuda", parameter(5000))
        source.tell(param, WHERE_NONZERO)
        param.grad = torch.zeros_like(param)
        return param, ours([param], source, lr=rate, weight_decay=0.1, capturable=isinstance(rate, Tensor))

    param, optimiser = begin(0.0)
    for mean, rate in zip(means, rates):
        param.grad.copy_(mean)
        optimiser.param_groups[0]["lr"] = torch.tensor(rate).item()  # as a float32
        optimiser.step()
    expected = results(optimiser, [param])

    param, optimiser = begin(torch.zeros((), device="cuda"))
    lr = optimiser.param_groups[0]["lr"]

    def feed(i: int) -> None:
        param.grad.copy_(means[i])
        lr.fill_(rates[i])

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for i in range(3):
            feed(i)
            optimiser.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = captured(optimiser.step)
    for i in range(3, 12):
        feed(i)
        graph.replay()
    assert_same(results(optimiser, [param]), expected, is_exact=True)
    assert sum(optimiser.state_dict()["param_groups"][0]["clock_runs"][::3]) == 12


@needs_gpu
@BOTH
def test_a_graph_cannot_hold_what_is_not_capturable(ours):
    source, param = Told(), on("cuda", parameter(50))
    source.tell(param, WHERE_NONZERO)
    param.grad = torch.ones_like(param)
    optimiser = ours([param], source, lr=0.01)
    optimiser.step()
    torch.cuda.synchronize()
    with pytest.raises(Exception, match="capturable = False"):
        captured(optimiser.step)
    torch.cuda.synchronize()
    optimiser.step()


@needs_gpu
def test_an_index_outside_of_its_parameter_is_a_fault():
    source, param = Told(), on("cuda", parameter(50))
    optimiser = SparseAdamW([param], source)
    param.grad = torch.ones_like(param)
    source.tell(param, torch.tensor([3, 50], device="cuda"))
    optimiser.step()
    with pytest.raises(_core.UsageError, match="index outside of its parameter"):
        optimiser.state_dict()
    assert optimiser.state[param]["last"].sum() == 1
