# SPDX-License-Identifier: Apache-2.0
"""Errors of the DDP hook as the caller of backward() sees them, beside those of all front-ends (test_laws.py): type,
text, and what works after."""

import os
import subprocess
import sys
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
from models import DEVICE, STAGING, batch, flat, loss_of, make_ddp, train
from ranks import in_processes
from torch.nn.parallel import DistributedDataParallel
from versions import TORCH

import oktopk
import oktopk.torch
from oktopk.torch._owner import Owner


class OwnError(Exception):
    pass


def fails(action):
    """Type and text of what is raised."""
    try:
        action()
    except BaseException as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def raises(metrics):
    raise OwnError("of the callback")


def leaves(metrics):
    raise SystemExit(3)


def with_callback(rank, P):
    model, state = make_ddp(start_iter=0, callback=raises)
    own = fails(lambda: loss_of(model, rank, 0).backward())
    state.callback = leaves
    left = fails(lambda: loss_of(model, rank, 1).backward())
    state.callback = None
    train(model, rank, 2, first=2)
    return own, left, flat(model)


def test_what_a_callback_raises_comes_out_of_backward_as_it_is():
    (own, left, weights), (_, _, others) = in_processes(2, with_callback)
    assert own == ("OwnError", "of the callback") and left == ("SystemExit", "3")
    assert np.array_equal(weights, others)


def late_errors(rank, P):
    """The first backward finds what a later step would stumble over, on all ranks."""
    found = []
    truth = Owner.parameters
    if rank == 1:
        Owner.parameters = lambda self: [torch.empty(3, device="meta")]
    model, _ = make_ddp(start_iter=100, host_staging=False)
    found.append(fails(lambda: loss_of(model, rank, 0).backward()))
    found.append(fails(lambda: loss_of(model, rank, 1).backward()))
    Owner.parameters = truth
    train(model, rank, 1)  # it was refused, and not broken
    if TORCH >= (2, 3):  # a disabled scaler is none
        model, _ = make_ddp(start_iter=100, grad_scaler=torch.amp.GradScaler(DEVICE.type, enabled=False))
        with pytest.raises(oktopk.UsageError, match="nan"):
            (loss_of(model, rank, 0) * float("nan" if rank == 1 else 1)).backward()
    model, _ = make_ddp(start_iter=100, skips="7", preset="circulant")
    found.append(fails(lambda: loss_of(model, rank, 0).backward()))
    return found


@pytest.mark.skipif(DEVICE.type != "cpu", reason="pretends that one rank's gradients are elsewhere")
def test_what_later_steps_need_is_checked_in_the_first():
    for first, second, skips in in_processes(2, late_errors):
        assert first == second and first[0] == "UsageError"
        assert first[1].startswith("oktopk: rank 1: the gradients are on meta")
        assert "host_staging=True" in first[1]
        assert skips[0] == "UsageError" and "skips" in skips[1]


def peer_is_silent(rank, P, start_iter):
    """Rank 1 stays away from the third step: DDP itself talks before the second."""
    group = dist.new_group(timeout=timedelta(seconds=2))
    assert oktopk.torch.communicator(group).timeout == 2
    options = {"start_iter": start_iter, "timeout": None, "process_group": group}
    model, _ = make_ddp(ddp_options={"process_group": group}, **options)
    train(model, rank, 2)
    errors = []
    if rank == 0:
        errors = [fails(lambda: loss_of(model, rank, 2).backward()) for _ in range(2)]
    dist.barrier()
    return errors


@pytest.mark.parametrize("start_iter", [0, 100], ids=["sparse", "dense"])
def test_a_silent_peer_is_a_comm_error_now_and_later(start_iter):
    (first, second), _ = in_processes(2, peer_is_silent, start_iter)
    assert first[0] == second[0] == "CommError"
    assert "an earlier step failed" in second[1] and first[1] in second[1]


class Words(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.table = torch.nn.Embedding(50, 32, sparse=True)
        self.out = torch.nn.Linear(32, 10)

    def forward(self, rows):
        return self.out(self.table(rows))


def with_sparse_layout(rank, P, hooked):
    model = DistributedDataParallel(Words().to(DEVICE))
    if hooked:
        state = oktopk.torch.OkTopkState(density=0.1, start_iter=2, min_numel=100, **STAGING)
        model.register_comm_hook(state, oktopk.torch.oktopk_hook)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = []
    for step in range(4):
        x, y = batch(rank, step)
        optimiser.zero_grad()
        indices = (x[:, 0].abs() * 10).long().clamp(max=49)
        torch.nn.functional.cross_entropy(model(indices), y).backward()
        gradient = model.module.table.weight.grad
        assert gradient.layout == torch.sparse_coo
        rows.append(gradient.to_dense().cpu().numpy())
        optimiser.step()
    return rows, flat(model)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="Gloo sums sparse tensors of the CPU")
def test_gradients_in_sparse_layout_are_summed_as_ddp_does():
    plain = in_processes(2, with_sparse_layout, False)
    hooked = in_processes(2, with_sparse_layout, True)
    for step in range(3):  # the first sparse step of the rest comes after the third's forward
        assert np.array_equal(plain[0][0][step], hooked[0][0][step]), step
    assert np.array_equal(hooked[0][1], hooked[1][1])


def loaded_on_one(rank):
    model, state = make_ddp()
    if rank == 0:
        saved = {"oktopk": 1, "world": 2, "rank": 0, "iteration": 50, "buckets": []}
        state.load_state_dict(saved)
    with pytest.raises(oktopk.UsageError, match="iteration 50"):
        loss_of(model, rank, 0).backward()


def in_a_group_of_another_model(rank):
    mine = [dist.new_group([0]), dist.new_group([1])][rank]
    model, _ = make_ddp(ddp_options={"process_group": mine}, process_group=dist.group.WORLD, start_iter=0)
    with pytest.raises(oktopk.UsageError, match="process group of ranks"):
        loss_of(model, rank, 0).backward()


def joined(rank):
    model, _ = make_ddp()
    with pytest.raises(oktopk.UsageError, match="join"), model.join():
        for step in range(1 + rank):
            loss_of(model, rank, step).backward()


def on_two_models(rank):
    model, state = make_ddp(start_iter=0)
    with pytest.raises(oktopk.UsageError, match="one per model|one state per model"):
        second, _ = make_ddp(state=state)
        loss_of(model, rank, 0).backward()
        if TORCH < (2, 1):  # it does not tell before
            loss_of(second, rank, 0).backward()


def registered_twice(rank):
    model, state = make_ddp()
    with pytest.raises(RuntimeError, match="once"):
        model.register_comm_hook(state, oktopk.torch.oktopk_hook)


def refused(rank, P):
    for act in (loaded_on_one, in_a_group_of_another_model, registered_twice, on_two_models, joined):
        act(rank)


def test_bad_use_is_an_error_on_every_rank_and_never_a_hang():
    """In one start of the ranks; the traceback has the name of what failed."""
    in_processes(2, refused)


SCRIPT = """
import tempfile, torch, torch.distributed as dist, oktopk.torch
dist.init_process_group("gloo", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 100))
state = oktopk.torch.OkTopkState(start_iter=0, min_numel=10, preset="circulant")
model.register_comm_hook(state, oktopk.torch.oktopk_hook)
model(torch.randn(4, 100)).sum().backward()
(model(torch.randn(4, 100)).sum() * float("nan")).backward()
"""


def test_a_script_that_ends_with_an_error_prints_that_error_alone():
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, env=os.environ
    )
    assert ran.returncode == 1 and "UsageError: reducer: rank 0: gradient[" in ran.stderr
    assert "leaked" not in ran.stderr and "nanobind" not in ran.stderr
