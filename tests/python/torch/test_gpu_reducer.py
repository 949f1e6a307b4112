# SPDX-License-Identifier: Apache-2.0
"""Reducers of CUDA tensors against those of CPU tensors, bit by bit, over Gloo: what is of length n stays on the GPU,
entries pass through the host. Needs a GPU."""

import pytest
import torch
import torch.distributed as dist
from ranks import all_equal, in_processes, on_ranks
from test_gpu_resident import N, gradient_of
from models import needs_gpu, same_bits, use_gpu

import oktopk
from oktopk.torch import LocalSteps, Reducer

pytestmark = needs_gpu
TYPES = [torch.float32, torch.bfloat16, torch.float16]


def pair(preset, **options):
    """Two Reducers: for CUDA tensors and for CPU tensors."""
    return [Reducer(N, preset=preset, density=0.01, **options) for _ in range(2)]


@on_ranks(1, 2, 3)
def test_cuda_tensors_give_the_bits_of_cpu_tensors(rank, P):
    device = use_gpu()
    for preset in ("circulant", "oktopk", "topka", "slots"):
        for dtype in TYPES:
            on_gpu, on_host = pair(preset)
            for step in range(6):
                a = on_gpu.reduce(gradient_of(rank, step, dtype).to(device), 0.5, 2.0)
                b = on_host.reduce(gradient_of(rank, step, dtype), 0.5, 2.0)
                assert same_bits(a, b), (preset, dtype, step)
            assert on_gpu.unsent_norm == on_host.unsent_norm > 0
            assert same_bits(torch.from_numpy(on_gpu._core.residual), torch.from_numpy(on_host._core.residual))
            assert same_bits(on_gpu.flush(), on_host.flush())
            assert on_gpu.unsent_norm == 0


def work_states(rank, P):
    """Saved on the GPU, loaded on the host, and back; a snapshot; a Reducer of parameters; local steps."""
    device = use_gpu()
    for preset in ("circulant", "slots"):
        on_gpu, on_host = pair(preset)
        for step in range(3):
            on_gpu.reduce(gradient_of(rank, step).to(device))
        on_host.load_state_dict(on_gpu.state_dict())
        back = Reducer(N, preset=preset, density=0.01)
        back.load_state_dict(on_host.state_dict())
        on_gpu.keep_snapshot()
        on_gpu.reduce(gradient_of(rank, 9).to(device))
        on_gpu.go_back()
        for step in range(3, 6):
            want = on_host.reduce(gradient_of(rank, step))
            assert same_bits(on_gpu.reduce(gradient_of(rank, step).to(device)), want), (preset, step)
            assert same_bits(back.reduce(gradient_of(rank, step).to(device)), want), (preset, step)


def weights_of(rank, device):
    torch.manual_seed(0)
    weights = [torch.randn(300, 70).to(device).requires_grad_(), torch.randn(50).to(device).requires_grad_()]
    torch.manual_seed(1 + rank)
    for w in weights:
        w.grad = torch.randn(w.shape).to(device)
    return weights


def work_parameters(rank, P):
    device = use_gpu()
    ours, theirs = weights_of(rank, device), weights_of(rank, "cpu")
    a, b = [Reducer(w, preset="circulant", density=0.05) for w in (ours, theirs)]
    for reducer, weights in ((a, ours), (b, theirs)):
        reducer.reduce_gradients()
        reducer.reduce_gradients()
    for x, y in zip(ours, theirs):
        assert same_bits(x.grad, y.grad) and same_bits(a.arrived(x), b.arrived(y))
    outer = [LocalSteps(w, every=1, density=0.05, outer_momentum=0.9) for w in (ours, theirs)]
    for _ in range(3):
        for loop, weights in zip(outer, (ours, theirs)):
            with torch.no_grad():
                for w in weights:
                    w -= 0.1 * w.grad
            loop.step()
    for x, y in zip(ours, theirs):
        assert same_bits(x, y) and all_equal(x.detach().cpu())
    outer[1].load_state_dict(outer[0].state_dict())
    return device


def work_streams(rank, P):
    """The gradient is ready late, on a stream that is not the default one."""
    device = use_gpu()
    on_gpu, on_host = pair("circulant")
    stream = torch.cuda.Stream()
    for step in range(6):
        with torch.cuda.stream(stream if step % 2 else torch.cuda.current_stream()):
            flat = torch.full((N,), float("nan"), device=device)
            late = gradient_of(rank, step).to(device)
            torch.cuda._sleep(50_000_000)
            flat.copy_(late)
            result = on_gpu.reduce(flat)
        torch.cuda.synchronize()
        assert same_bits(result, on_host.reduce(gradient_of(rank, step))), step


def work_errors(rank, P):
    device = use_gpu()
    (reducer, _) = pair("circulant")
    bad = gradient_of(rank, 0).to(device)
    if rank == 1:
        bad[5] = float("nan")
    with pytest.raises(oktopk.UsageError, match=r"rank 1: gradient\[5\] = nan"):
        reducer.reduce(bad.clone())
    reducer.reduce(gradient_of(rank, 0).to(device))  # nothing was lost
    staged, on_host = pair("circulant", host_staging=True)
    for step, dtype in enumerate(TYPES):
        result = staged.reduce(gradient_of(rank, step, dtype).to(device))
        assert same_bits(result, on_host.reduce(gradient_of(rank, step, dtype))), dtype
    assert staged._flat_reducer._gpu is None and reducer._flat_reducer._gpu == device
    dist.barrier()


@pytest.mark.parametrize("work", [work_states, work_parameters, work_streams, work_errors])
def test_states_parameters_streams_and_errors(work):
    in_processes(2, work)
