# SPDX-License-Identifier: Apache-2.0
"""Steps that stay on the GPU, over NCCL: bit by bit those of preset slots on the host; DDP's hook, GradScaler, preset
auto, FSDP. Needs a GPU; all ranks share it."""

import pytest
import torch
from gloo_ranks import all_equal, run_processes
from gpu import nccl_group, needs_gpu, same_bits, several_on_one_gpu, use_gpu
from gpu_models import N, gradient_of, hooked, loss_of, model_of, train, weights_of
from torch.nn.parallel import DistributedDataParallel
from versions import needs_torch

from oktopk.torch import Reducer, SparseAdamW, _choice, register_fsdp
from oktopk.torch._choice import ALL
from oktopk.torch._worker import HookStream
from oktopk.torch.coordinates import WHERE_NONZERO

pytestmark = needs_gpu


def work_bits(rank, P):
    device, group = use_gpu(), nccl_group(rank, P)
    for dtype in (torch.float32, torch.bfloat16):
        on_gpu = Reducer(N, group, preset="slots", density=0.01)
        on_host = Reducer(N, preset="slots", density=0.01)
        for step in range(8):
            a = on_gpu.reduce(gradient_of(rank, step, dtype).to(device))
            assert same_bits(a, on_host.reduce(gradient_of(rank, step, dtype))), (dtype, step)
        assert on_gpu._flat_reducer._resident is not None and on_host._flat_reducer._resident is None
        assert on_gpu._core.resident_state()["void_steps"] == 0
        assert on_gpu.unsent_norm == on_host.unsent_norm > 0
        states = on_gpu.state_dict(), on_host.state_dict()
        on_host.load_state_dict(states[0])
        on_gpu.load_state_dict(states[1])
        for step in range(8, 11):
            a = on_gpu.reduce(gradient_of(rank, step, dtype).to(device))
            assert same_bits(a, on_host.reduce(gradient_of(rank, step, dtype))), (dtype, step)
        good = gradient_of(rank, 11, dtype)
        bad = good.to(device)
        if rank == P - 1:
            good[17], bad[17] = 0.0, float("inf")
        assert on_gpu.reduce(bad).isnan().all() and on_gpu.skipped
        assert on_gpu._core.resident_state()["void_steps"] == 1
        on_host._core.give_unsent(good.float())
        assert same_bits(on_gpu.flush(), on_host.flush()), dtype  # finite values stay unsent


@pytest.mark.parametrize("P", [1, 2, 3])
def test_steps_on_the_gpu_have_the_bits_of_the_host(P, tmp_path):
    run_processes(P, work_bits, tmp_path)


def work_hook(rank, P):
    """NCCL and the hook's stream against Gloo and the hook's thread, on the same GPU."""
    device, group = use_gpu(), nccl_group(rank, P)
    start = 2 if P < 3 else 0  # dense sums of three have the bits of their order, which NCCL and Gloo choose
    fast, state = hooked(device, group, start_iter=start)
    slow, other = hooked(device, None, start_iter=start)
    train(fast, rank, 10, device)
    train(slow, rank, 10, device)
    assert isinstance(state._worker, HookStream) and not isinstance(other._worker, HookStream)
    assert same_bits(weights_of(fast), weights_of(slow)) and all_equal(weights_of(fast))
    answers = state.arrived_of(list(fast.parameters()))
    assert WHERE_NONZERO in answers and (P == 1 or state.compression_stats().rate > 1)
    saved = state.state_dict()
    state.load_state_dict(saved)
    train(fast, rank, 3, device)
    assert all_equal(weights_of(fast))


@pytest.mark.parametrize("P", [1, 2, 3])
def test_the_hook_over_nccl_has_the_bits_of_the_hook_over_gloo(P, tmp_path):
    run_processes(P, work_hook, tmp_path)


def work_no_wait(rank, P):
    """Once everything is made, no step waits for the GPU."""
    device, group = use_gpu(), nccl_group(rank, P)
    ddp, _ = hooked(device, group, start_iter=0)
    train(ddp, rank, 3, device)
    loss = loss_of(ddp, rank, 3, device)
    torch.cuda.set_sync_debug_mode("error")
    loss.backward()
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()


def test_nothing_waits_for_the_gpu(tmp_path):
    run_processes(2, work_no_wait, tmp_path)


def work_scaler(rank, P):
    device, group = use_gpu(), nccl_group(rank, P)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    ddp, state = hooked(device, group, start_iter=0, grad_scaler=scaler)
    plain, _ = hooked(device, group, start_iter=0)
    optimiser = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step in range(3):
        optimiser.zero_grad()
        scaler.scale(loss_of(ddp, rank, step, device)).backward()
        scaler.step(optimiser)
        scaler.update()
    train(plain, rank, 3, device)
    assert same_bits(weights_of(ddp), weights_of(plain))  # a scale of a power of two changes no bit
    before, unsent = weights_of(ddp), state.unsent()
    optimiser.zero_grad()
    loss = loss_of(ddp, rank, 3, device) * (float("inf") if rank == 0 else 1.0)
    scaler.scale(loss).backward()
    scaler.step(optimiser)
    scaler.update()
    assert scaler.get_scale() == 512.0 and same_bits(weights_of(ddp), before)
    for name, values in state.unsent().items():
        assert rank == 1 or same_bits(values, unsent[name])  # no value of its gradient was finite
    train_scaled(ddp, scaler, optimiser, rank, device)
    assert all_equal(weights_of(ddp)) and weights_of(ddp).isfinite().all()


def train_scaled(ddp, scaler, optimiser, rank, device):
    for step in range(4, 7):
        optimiser.zero_grad()
        scaler.scale(loss_of(ddp, rank, step, device)).backward()
        scaler.step(optimiser)
        scaler.update()


def test_a_scaler_skips_a_void_step_on_all_ranks(tmp_path):
    run_processes(2, work_scaler, tmp_path)


def work_bf16(rank, P):
    """Sums in bf16, which preset auto may choose: the hook's stream reads memory that backward's stream made."""
    device, group = use_gpu(), nccl_group(rank, P)
    _choice.choose = lambda *arguments: "bf16"
    ddp, state = hooked(device, group, preset="auto", start_iter=0)
    plain = DistributedDataParallel(model_of(device), process_group=group, bucket_cap_mb=0.1)
    train(ddp, rank, 30, device)
    train(plain, rank, 30, device)
    assert state._choice == "bf16" and all_equal(weights_of(ddp))
    assert torch.allclose(weights_of(ddp), weights_of(plain), atol=2e-3)


def test_sums_in_bf16_follow_dense_ones(tmp_path):
    run_processes(2, work_bf16, tmp_path)


def work_three_lines(rank, P):
    """The README's lines as they are: preset auto, which all ranks resolve alike; and the sparse optimiser."""
    device, group = use_gpu(), nccl_group(rank, P)
    for options in ({"preset": "auto"}, {"preset": "slots"}):
        ddp, state = hooked(device, group, **options)
        optimiser = SparseAdamW(ddp.parameters(), state, lr=1e-3)
        first = float(loss_of(ddp, rank, 0, device).detach())
        train(ddp, rank, 40, device, optimiser)
        assert float(loss_of(ddp, rank, 0, device).detach()) < first
        assert all_equal(weights_of(ddp))
        assert options["preset"] == "slots" or state._choice in ALL


def test_three_lines_train_on_gpus(tmp_path):
    run_processes(2, work_three_lines, tmp_path)


def work_fsdp(rank, P):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    device = use_gpu()
    several_on_one_gpu(rank)
    mesh = init_device_mesh("cuda", (P, 1), mesh_dim_names=("replicate", "shard"))
    model = model_of(device)
    fully_shard(model, mesh=mesh["shard"])
    sync = register_fsdp(model, mesh["replicate"], density=0.02, preset="slots", start_iter=1, min_numel=100)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(5):
        optimiser.zero_grad()
        loss_of(model, rank, step, device).backward()
        optimiser.step()
    weights = torch.cat([p.detach().to_local().flatten() for p in model.parameters()]).cpu()
    assert all_equal(weights) and weights.isfinite().all()
    assert all(unit.reducer._flat_reducer._resident is not None for unit in sync._units.values())


work_fsdp.backend = "cpu:gloo,cuda:nccl"


@needs_torch((2, 7), "set_all_reduce_hook() of fully_shard")
def test_fsdp_units_stay_on_the_gpu(tmp_path):
    run_processes(2, work_fsdp, tmp_path)

