# SPDX-License-Identifier: Apache-2.0
"""SparseAdamW and SparseSGD on an NVIDIA GPU: the bits of the host, no wait for the GPU, skipped steps of a GradScaler,
CUDA graphs. Skipped where there is no GPU, or no liboktopk_cuda.so beside the native module."""

from __future__ import annotations

import copy
from typing import Any, List

import pytest
import torch
from arrivals import Told, parameter
from optim_runs import CASES, assert_same, gradients, many_parameters, results, train
from torch import Tensor
from versions import needs_cpu_scaler

from oktopk import DeviceError, _core
from oktopk.torch import cuda_step
from oktopk.torch.optim import WHERE_NONZERO, SparseAdamW, SparseSGD

BOTH = pytest.mark.parametrize("ours", [SparseAdamW, SparseSGD])


def missing() -> str:
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    try:
        _core.CudaSteps(0)
        return ""
    except DeviceError as error:
        return str(error)


pytestmark = pytest.mark.skipif(bool(missing()), reason=f"needs an NVIDIA GPU: {missing()}")


SPARSE = [(ours, options) for ours, options in CASES if options["mode"] != "published"]  # whose steps are dense


@pytest.mark.parametrize("answer", ["list", "nonzero", "any"])
@pytest.mark.parametrize("ours, options", SPARSE)
def test_sparse_steps_are_those_of_the_host_bit_by_bit(ours, options, answer):
    expected = train(ours, options, "list", dense_steps=())
    found = train(ours, options, answer, "cuda", dense_steps=())
    assert [i for i, (a, b) in enumerate(zip(found, expected)) if not torch.equal(a, b)] == []


@pytest.mark.parametrize("ours, options", CASES)
def test_dense_steps_are_those_of_the_host_up_to_roots(ours, options):
    """The host takes roots from torch, which does not round them correctly."""
    assert_same(train(ours, options, "any", "cuda"), train(ours, options, "any"))


def test_steps_go_by_kernels():
    assert cuda_step.kernels_of(torch.device("cuda", 0)) is not None
    source, params = Told(), many_parameters("cuda")
    optimiser = SparseAdamW(params, source)
    gradients(params, source, 2, "nonzero")
    optimiser.step()
    assert len(optimiser._plans) == 1
    assert optimiser.state[params[0]]["step"].is_cuda


@BOTH
def test_a_step_with_clipping_and_scaling_waits_for_nothing(ours):
    source, params = Told(), [torch.nn.Parameter(parameter(300, 40).detach().cuda()) for _ in range(3)]
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


@needs_cpu_scaler
@BOTH
def test_a_step_that_a_scaler_leaves_out_changes_nothing(ours):
    def run(device: str) -> List[Tensor]:
        source, param = Told(), torch.nn.Parameter(parameter(50).detach().to(device))
        optimiser = ours([param], source, lr=0.01, weight_decay=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=256.0, growth_interval=2)
        for step in range(10):
            optimiser.zero_grad()
            factor = float("inf") if step in (0, 3, 6) else 1.0
            wanted = torch.arange(50, device=device) * torch.tensor([0.0, 1.0], device=device)[step % 2]
            scaler.scale((param * (wanted + 1) * factor).sum()).backward()
            source.tell(param, WHERE_NONZERO)
            scaler.step(optimiser)
            scaler.update()
        return [*results(optimiser, [param]), torch.tensor(optimiser.state_dict()["param_groups"][0]["clock_runs"])]

    assert all(map(torch.equal, run("cuda"), run("cpu")))


@BOTH
def test_a_state_moves_between_host_and_gpu(ours):
    def run(first: str, second: str) -> List[Tensor]:
        params, saved = many_parameters(first), None
        for device, steps in ((first, range(7)), (second, range(7, 14))):
            params = [torch.nn.Parameter(param.detach().to(device)) for param in params]
            source = Told()
            optimiser = ours(params, source, lr=0.01, weight_decay=0.1)
            if saved is not None:
                optimiser.load_state_dict(saved)
            for step in steps:
                gradients(params, source, step, "any", dense_steps=())
                optimiser.step()
            saved = copy.deepcopy(optimiser.state_dict())
        return results(optimiser, params)

    expected = run("cpu", "cpu")
    for first, second in (("cuda", "cuda"), ("cuda", "cpu"), ("cpu", "cuda")):
        assert all(map(torch.equal, run(first, second), expected)), (first, second)


@BOTH
def test_a_cuda_graph_holds_a_step(ours):
    means = [torch.randn(5000, generator=torch.Generator().manual_seed(i)) for i in range(12)]
    for i, mean in enumerate(means):
        mean[torch.rand(5000, generator=torch.Generator().manual_seed(100 + i)) < 0.9] = 0
    rates = [0.01 / (1 + i % 3) for i in range(12)]

    def begin(rate: Any) -> Any:
        source, param = Told(), torch.nn.Parameter(parameter(5000).detach().cuda())
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
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimiser.step()
    for i in range(3, 12):
        feed(i)
        graph.replay()
    assert all(map(torch.equal, results(optimiser, [param]), expected))
    runs = optimiser.state_dict()["param_groups"][0]["clock_runs"]
    assert sum(runs[::3]) == 12


@BOTH
def test_a_graph_cannot_hold_what_is_not_capturable(ours):
    source, param = Told(), torch.nn.Parameter(parameter(50).detach().cuda())
    source.tell(param, WHERE_NONZERO)
    param.grad = torch.ones_like(param)
    optimiser = ours([param], source, lr=0.01)
    optimiser.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(Exception, match="capturable = False"):
        with torch.cuda.graph(graph):
            optimiser.step()
    torch.cuda.synchronize()
    optimiser.step()


def test_an_index_outside_of_its_parameter_is_a_fault():
    source, param = Told(), torch.nn.Parameter(parameter(50).detach().cuda())
    optimiser = SparseAdamW([param], source)
    param.grad = torch.ones_like(param)
    source.tell(param, torch.tensor([3, 50], device="cuda"))
    optimiser.step()
    with pytest.raises(_core.UsageError, match="index outside of its parameter"):
        optimiser.state_dict()
    assert optimiser.state[param]["last"].sum() == 1
