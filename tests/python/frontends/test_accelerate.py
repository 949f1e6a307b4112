# SPDX-License-Identifier: Apache-2.0
"""prepare_hook() for Accelerate: save_state() and load_state() carry every rank's hook."""

import accelerate
import pytest
import torch

import oktopk
import oktopk.accelerate
import oktopk.torch
from launched import check_example, run_launched
from small import BATCH, BATCHES, OPTIONS, Net, Samples, assert_same, note
from versions import TORCH


def train(rank, folder, epochs, save, load):
    accelerator = accelerate.Accelerator(cpu=True)
    if TORCH >= (2, 3):
        accelerator.scaler = torch.amp.GradScaler("cpu")  # Accelerate makes one on a GPU alone
    net = Net()
    optimiser = oktopk.torch.SparseAdamW(net.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(Samples(), BATCH)
    model, optimiser, loader = accelerator.prepare(net, optimiser, loader)
    state = oktopk.accelerate.prepare_hook(accelerator, model, **OPTIONS)
    assert optimiser.optimizer.source is state and state.grad_scaler is accelerator.scaler
    if load:
        accelerator.load_state(load)
    for epoch in range(epochs):
        for batch in loader:
            accelerator.backward(model(**batch)["loss"])
            optimiser.step()
            optimiser.zero_grad()
        if save and epoch == 1:
            accelerator.save_state(save)
    note(folder, rank, state, net)
    if load:
        check_refusals(rank, accelerator, model, net, load)


def check_refusals(rank, accelerator, model, net, load):
    with pytest.raises(oktopk.UsageError, match="has a communication hook already, and DDP takes one"):
        oktopk.accelerate.prepare_hook(accelerator, model, density=0.01)
    with pytest.raises(oktopk.UsageError, match="is a Net, not DistributedDataParallel .distributed_t"):
        oktopk.accelerate.prepare_hook(accelerator, net, density=0.01)
    if rank == 1:
        (load / "oktopk-1_rank_1_of_2.pt").unlink()
    accelerator.wait_for_everyone()
    with pytest.raises(oktopk.UsageError, match="check-point of 2 ranks in .* lacks files that these ranks need: 1: "):
        accelerator.load_state(str(load))


def test_resumed_run_is_the_uninterrupted_one(tmp_path):
    whole, resumed, saved = tmp_path / "whole", tmp_path / "resumed", tmp_path / "saved"
    whole.mkdir()
    resumed.mkdir()
    run_launched(2, train, whole, 3, saved, None)
    assert sorted(p.name for p in saved.glob("oktopk*")) == [
        "oktopk-1.json",
        "oktopk-1_rank_0_of_2.pt",
        "oktopk-1_rank_1_of_2.pt",
    ]
    run_launched(2, train, resumed, 1, None, saved)
    assert_same(whole, resumed, 3 * BATCHES)


@pytest.fixture
def alone():
    """An Accelerator of this process, whose shared state no later test inherits."""
    yield accelerate.Accelerator(cpu=True)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def test_one_process_is_refused(alone):
    accelerator = alone
    model = accelerator.prepare(Net())
    with pytest.raises(oktopk.UsageError, match="is a Net, .* because Accelerate runs one process: st"):
        oktopk.accelerate.prepare_hook(accelerator, model, density=0.01)
    with pytest.raises(oktopk.UsageError, match=r"prepare_hook\(\) takes no grad_scaler"):
        oktopk.accelerate.prepare_hook(accelerator, model, grad_scaler=None)


def test_example_learns_and_sends_little(tmp_path):
    check_example("accelerate_mnist.py", tmp_path)
