# SPDX-License-Identifier: Apache-2.0
"""Steps that stay on the GPU, over NCCL, beside what test_laws.py and test_resident.py check on both devices: the bits
of preset slots on the host, nothing waits, GradScaler, FSDP, nodes, LocalSteps, CUDA graphs. Needs a GPU; all ranks
share it."""

import os
import subprocess
import sys

import pytest
import torch
from models import batch, loss_of, make_ddp, nccl_group, needs_gpu, same_bits, several_on_one_gpu, train, use_gpu
from ranks import all_equal, in_processes, on_ranks
from versions import needs_torch

from oktopk.torch import LocalSteps, Reducer, SparseAdamW, _choice, register_fsdp
from oktopk.torch._choice import ALL
from oktopk.torch._sharded import ShardedReducer
from oktopk.torch._worker import HookStream

pytestmark = needs_gpu
N = 300_001


def gradient_of(rank, step, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return (torch.randn(N, generator=generator) * torch.rand(N, generator=generator).square()).to(dtype)


def hooked(group, **options):
    settings = {"preset": "slots", "start_iter": 0, **options}
    return make_ddp(ddp_options={"process_group": group}, **settings)


def weights_of(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()


@on_ranks(1, 2, 3)
def test_steps_on_the_gpu_have_the_bits_of_the_host(rank, P):
    device, group = use_gpu(), nccl_group(rank, P)
    for dtype in (torch.float32, torch.bfloat16):
        on_gpu = Reducer(N, group, preset="slots", density=0.01)
        on_host = Reducer(N, preset="slots", density=0.01)

        def step(number):
            a = on_gpu.reduce(gradient_of(rank, number, dtype).to(device))
            assert same_bits(a, on_host.reduce(gradient_of(rank, number, dtype))), (dtype, number)

        for number in range(8):
            step(number)
        assert on_gpu._flat_reducer._resident is not None and on_host._flat_reducer._resident is None
        assert on_gpu._core.resident_state()["void_steps"] == 0
        assert on_gpu.unsent_norm == on_host.unsent_norm > 0
        states = on_gpu.state_dict(), on_host.state_dict()
        on_host.load_state_dict(states[0])
        on_gpu.load_state_dict(states[1])
        for number in range(8, 11):
            step(number)
        good = gradient_of(rank, 11, dtype)
        bad = good.to(device)
        if rank == P - 1:
            good[17], bad[17] = 0.0, float("inf")
        assert on_gpu.reduce(bad).isnan().all() and on_gpu.skipped
        assert on_gpu._core.resident_state()["void_steps"] == 1
        on_host._core.give_unsent(good.float())
        assert same_bits(on_gpu.flush(), on_host.flush()), dtype  # finite values stay unsent


@pytest.mark.parametrize("P, G", [(2, None), (4, 2), (6, 3)])
@on_ranks()
def test_nothing_waits_for_the_gpu(rank, P, G):
    """Once everything is made, no step waits for the GPU; with nodes of G ranks, too."""
    use_gpu()
    model, state = hooked(nccl_group(rank, P), group_size=G)
    train(model, rank, 6)
    assert isinstance(state._worker, HookStream) and all_equal(weights_of(model))
    kinds = {type(channel.reducer) for channel in state._channels._channels.values()}
    assert (kinds == {ShardedReducer}) == (G is not None)
    loss = loss_of(model, rank, 6)
    torch.cuda.set_sync_debug_mode("error")
    loss.backward()
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()


@pytest.mark.parametrize("P, G", [(4, 2), (6, 3)])
@on_ranks()
def test_a_value_that_is_not_finite_makes_all_shards_void(rank, P, G):
    device, group = use_gpu(), nccl_group(rank, P)
    weights = torch.nn.Parameter(torch.zeros(N, device=device))
    reducer = Reducer([weights], group, preset="slots", group_size=G)
    weights.grad = gradient_of(rank, 5).to(device)
    if rank == P - 1:
        weights.grad[17] = float("inf")
    reducer.reduce_gradients()
    assert weights.grad.isnan().all() and reducer.skipped


@on_ranks(2)
def test_a_scaler_skips_a_void_step_on_all_ranks(rank, P):
    group = (use_gpu(), nccl_group(rank, P))[1]
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    (ddp, state), (plain, _) = hooked(group, grad_scaler=scaler), hooked(group)
    optimiser = torch.optim.SGD(ddp.parameters(), lr=0.05)
    train(ddp, rank, 3, optimiser=optimiser, scaler=scaler)
    train(plain, rank, 3, optimiser=torch.optim.SGD(plain.parameters(), lr=0.05))
    assert same_bits(weights_of(ddp), weights_of(plain))  # a scale of a power of two changes no bit
    before, unsent = weights_of(ddp), state.unsent()
    optimiser.zero_grad()
    loss = loss_of(ddp, rank, 3) * (float("inf") if rank == 0 else 1.0)
    scaler.scale(loss).backward()
    scaler.step(optimiser)
    scaler.update()
    assert scaler.get_scale() == 512.0 and same_bits(weights_of(ddp), before)
    for name, values in state.unsent().items():
        assert rank == 1 or same_bits(values, unsent[name])  # no value of its gradient was finite
    train(ddp, rank, 3, first=4, optimiser=optimiser, scaler=scaler)
    assert all_equal(weights_of(ddp)) and weights_of(ddp).isfinite().all()


@on_ranks(2)
def test_sums_in_bf16_follow_dense_ones(rank, P):
    """Sums in bf16, which preset auto may choose: the hook's stream reads memory that backward's stream made."""
    group = (use_gpu(), nccl_group(rank, P))[1]
    _choice.choose = lambda *arguments: "bf16"
    (ddp, state), (plain, _) = hooked(group, preset="auto"), make_ddp(None, ddp_options={"process_group": group})
    for model in (ddp, plain):
        train(model, rank, 30)
    assert state._choice == "bf16" and all_equal(weights_of(ddp))
    assert torch.allclose(weights_of(ddp), weights_of(plain), atol=2e-3)


@on_ranks(2)
def test_three_lines_train_on_gpus(rank, P):
    """The README's lines as they are: preset auto, which all ranks resolve alike; and the sparse optimiser."""
    group = (use_gpu(), nccl_group(rank, P))[1]
    for preset in ("auto", "slots"):
        ddp, state = hooked(group, preset=preset, start_iter=2)
        first = float(loss_of(ddp, rank, 0).detach())
        train(ddp, rank, 40, optimiser=SparseAdamW(ddp.parameters(), state, lr=1e-3))
        assert float(loss_of(ddp, rank, 0).detach()) < first
        assert all_equal(weights_of(ddp))
        assert preset == "slots" or state._choice in ALL


def work_fsdp(rank, P):
    from fsdp_models import Net, backward, weights
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    device = use_gpu()
    several_on_one_gpu(rank)
    mesh = init_device_mesh("cuda", (P, 1), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    model = Net().to(device)
    fully_shard(model, mesh=mesh["shard"])
    sync = register_fsdp(model, mesh["replicate"], density=0.02, preset="slots", start_iter=1, min_numel=100)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(5):
        optimiser.zero_grad()
        backward(model, rank, step)
        optimiser.step()
    assert all_equal(weights(model)) and weights(model).isfinite().all()
    assert all(unit.reducer._flat_reducer._resident is not None for unit in sync._units.values())


work_fsdp.backend = "cpu:gloo,cuda:nccl"


@needs_torch((2, 7), "set_all_reduce_hook() of fully_shard")
def test_fsdp_units_stay_on_the_gpu():
    in_processes(2, work_fsdp)


@on_ranks(2, 3)
def test_local_steps_stay_on_the_gpu(rank, P):
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
        assert step % 2 == 0 or (same_bits(ours, theirs) and all_equal(ours)), step
        if step == 3:
            loops[0].load_state_dict(loops[1].state_dict())
    assert loops[0].reducer._flat_reducer._resident is not None


def captured(act):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        act()
    return graph


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
    graph = captured(lambda: in_graph.reduce(flat))
    for step in range(3, 9):
        flat.copy_(gradient_of(rank, step))
        graph.replay()
        assert same_bits(flat, eager.reduce(gradient_of(rank, step).to(device))), step
    assert in_graph.unsent_norm == eager.unsent_norm > 0
    assert same_bits(in_graph.flush(), eager.flush())


class WholeStep:
    """Forward, backward with the hook, and the optimiser, on memory that stays where it is."""

    def __init__(self, group):
        self.stream = torch.cuda.Stream()
        with torch.cuda.stream(self.stream):  # DDP must be made on the stream of its steps
            self.ddp, state = hooked(group, start_iter=2)
            self.optimiser = SparseAdamW(self.ddp.parameters(), state, lr=1e-3, capturable=True)
        self.x, self.y = batch(0, 0)

    def fill(self, rank, number):
        x, y = batch(rank, number)
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
    group = (use_gpu(), nccl_group(rank, P))[1]
    in_graph, eager = WholeStep(group), WholeStep(group)
    for number in range(14):  # DDP makes its last changes after eleven
        in_graph.make_eagerly(rank, number)
        eager.make_eagerly(rank, number)
    torch.cuda.synchronize()
    graph = captured(in_graph.make)
    for number in range(14, 20):
        in_graph.fill(rank, number)
        graph.replay()
        eager.make_eagerly(rank, number)
        torch.cuda.synchronize()
        assert same_bits(weights_of(in_graph.ddp), weights_of(eager.ddp)), number
        assert all_equal(weights_of(in_graph.ddp))


@pytest.mark.parametrize("work", [work_graph, work_training_graph])
@pytest.mark.parametrize("P", [1, 2])
def test_a_step_can_be_part_of_a_cuda_graph(P, work):
    in_processes(P, work)


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
