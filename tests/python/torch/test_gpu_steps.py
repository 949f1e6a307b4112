# SPDX-License-Identifier: Apache-2.0
"""Steps that stay on the GPU, over NCCL, in CUDA graphs and in LocalSteps. Needs a GPU; all ranks share it."""

import os
import subprocess
import sys

import pytest
import torch
from gloo_ranks import all_equal, run_processes
from gpu import nccl_group, needs_gpu, same_bits, use_gpu
from gpu_models import N, batch_of, gradient_of, hooked, weights_of

from oktopk.torch import LocalSteps, Reducer, SparseAdamW

pytestmark = needs_gpu


def work_graph(rank, P):
    """A Reducer's step in a CUDA graph that is replayed, beside one that is queued step by step."""
    device, group = use_gpu(), nccl_group(rank, P)
    in_graph, eager = (Reducer(N, group, preset="slots", density=0.01) for _ in range(2))
    flat = torch.empty(N, device=device)
    side = torch.cuda.Stream()
    for step in range(3):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            in_graph.reduce(flat.copy_(gradient_of(rank, step)))
        torch.cuda.current_stream().wait_stream(side)
        assert same_bits(flat, eager.reduce(gradient_of(rank, step).to(device)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        in_graph.reduce(flat)
    for step in range(3, 9):
        flat.copy_(gradient_of(rank, step))
        graph.replay()
        assert same_bits(flat, eager.reduce(gradient_of(rank, step).to(device))), step
    assert in_graph.unsent_norm == eager.unsent_norm > 0
    assert same_bits(in_graph.flush(), eager.flush())


@pytest.mark.parametrize("P", [1, 2])
def test_a_step_can_be_part_of_a_cuda_graph(P, tmp_path):
    run_processes(P, work_graph, tmp_path)


class WholeStep:
    """Forward, backward with the hook, and the optimiser, on memory that stays where it is."""

    def __init__(self, device, group):
        self.stream = torch.cuda.Stream()
        with torch.cuda.stream(self.stream):  # DDP must be made on the stream of its steps
            self.ddp, state = hooked(device, group)
            self.optimiser = SparseAdamW(self.ddp.parameters(), state, lr=1e-3, capturable=True)
        self.x, self.y = torch.zeros(32, 64, device=device), torch.zeros(32, dtype=torch.long, device=device)

    def fill(self, rank, number):
        x, y = batch_of(rank, number)
        self.x.copy_(x)
        self.y.copy_(y)

    def make(self):
        self.optimiser.zero_grad(set_to_none=False)
        torch.nn.functional.cross_entropy(self.ddp(self.x), self.y).backward()
        self.optimiser.step()

    def make_eagerly(self, rank, number):
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.fill(rank, number)
            self.make()
        torch.cuda.current_stream().wait_stream(self.stream)


def work_training_graph(rank, P):
    device, group = use_gpu(), nccl_group(rank, P)
    in_graph, eager = WholeStep(device, group), WholeStep(device, group)
    for number in range(14):  # DDP makes its last changes after eleven
        in_graph.make_eagerly(rank, number)
        eager.make_eagerly(rank, number)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        in_graph.make()
    for number in range(14, 20):
        in_graph.fill(rank, number)
        graph.replay()
        eager.make_eagerly(rank, number)
        torch.cuda.synchronize()
        assert same_bits(weights_of(in_graph.ddp), weights_of(eager.ddp)), number
        assert all_equal(weights_of(in_graph.ddp))


@pytest.mark.parametrize("P", [1, 2])
def test_a_training_step_can_be_a_cuda_graph(P, tmp_path):
    run_processes(P, work_training_graph, tmp_path)


def work_local_steps(rank, P):
    """Outer steps over NCCL have the bits of those over Gloo, and continue from their state."""
    device, group = use_gpu(), nccl_group(rank, P)
    options = {"every": 2, "density": 0.05, "preset": "slots", "codec": None, "outer_momentum": 0.9}

    def start(on):
        torch.manual_seed(rank)
        return torch.nn.Parameter(torch.randn(3001).to(on))

    ours, theirs = start(device), start("cpu")
    loops = LocalSteps([ours], group, **options), LocalSteps([theirs], **options)
    for step in range(6):
        for weights, loop in zip((ours, theirs), loops):
            with torch.no_grad():
                weights -= 0.1 * gradient_of(rank, step)[: len(weights)].to(weights.device)
            loop.step()
        assert step % 2 == 0 or (same_bits(ours, theirs) and all_equal(ours.detach().cpu())), step
        if step == 3:
            loops[0].load_state_dict(loops[1].state_dict())
    assert loops[0].reducer._flat_reducer._resident is not None


@pytest.mark.parametrize("P", [2, 3])
def test_local_steps_stay_on_the_gpu(P, tmp_path):
    run_processes(P, work_local_steps, tmp_path)


SCRIPT = """
import tempfile, torch, torch.distributed as dist, oktopk.torch
dist.init_process_group("cpu:gloo,cuda:nccl", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
for preset in ("circulant", "slots"):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 100).cuda())
    state = oktopk.torch.OkTopkState(start_iter=0, min_numel=10, preset=preset)
    model.register_comm_hook(state, oktopk.torch.oktopk_hook)
    model(torch.randn(4, 100).cuda()).sum().backward()
torch.cuda.synchronize()
"""


def test_a_script_ends_without_a_word_about_objects_that_live():
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, env=os.environ)
    assert ran.returncode == 0, ran.stderr
    assert "leaked" not in ran.stderr and "nanobind" not in ran.stderr
