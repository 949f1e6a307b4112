# SPDX-License-Identifier: Apache-2.0
"""OkTopkCallback for the Trainer of transformers: its check-points carry every rank's hook."""

import pytest
from transformers import Trainer, TrainingArguments

import oktopk
import oktopk.torch
import oktopk.transformers
from launched import check_example, run_launched
from small import BATCH, BATCHES, OPTIONS, Net, Samples, assert_same, note


def make_trainer(folder, epochs, resume_from=None):
    callback = oktopk.transformers.OkTopkCallback(resume_from=resume_from, **OPTIONS)
    args = TrainingArguments(
        str(folder),
        use_cpu=True,
        num_train_epochs=epochs,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        save_strategy="epoch",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        Net(),
        args,
        train_dataset=Samples(),
        optimizer_cls_and_kwargs=(oktopk.torch.SparseAdamW, {"lr": 1e-2}),
        callbacks=[callback],
    )
    return trainer, callback


def train(rank, folder, resume, resume_from):
    trainer, callback = make_trainer(folder, 3, resume_from)
    trainer.train(resume_from_checkpoint=resume)
    assert trainer.optimizer.optimizer.source is callback.state
    note(folder, rank, callback.state, trainer.model)
    if resume:
        trainer.train()  # once more: the same DDP model, the same state
        assert callback.state.iteration == 6 * BATCHES


def test_resumed_run_is_the_uninterrupted_one(tmp_path):
    """From a check-point that was moved elsewhere."""
    whole, resumed, moved = tmp_path / "whole", tmp_path / "resumed", str(tmp_path / "moved")
    run_launched(2, train, whole, None, None)
    middle = whole / f"checkpoint-{2 * BATCHES}"
    assert sorted(p.name for p in middle.glob("oktopk*")) == [
        "oktopk-1.json",
        "oktopk-1_rank_0_of_2.pt",
        "oktopk-1_rank_1_of_2.pt",
    ]
    middle.rename(moved)
    run_launched(2, train, resumed, moved, moved)
    assert_same(whole, resumed, 3 * BATCHES)


def test_one_process_is_refused(tmp_path):
    trainer, callback = make_trainer(tmp_path, 1)
    with pytest.raises(oktopk.UsageError, match="the Trainer runs one process, so there is nothing to"):
        trainer.train()
    with pytest.raises(oktopk.UsageError, match="exists from the beginning of train"):
        callback.state
    with pytest.raises(oktopk.UsageError, match="OkTopkCallback takes no grad_scaler"):
        oktopk.transformers.OkTopkCallback(grad_scaler=None)


def test_example_learns_and_sends_little(tmp_path):
    check_example("trainer_mnist.py", tmp_path)
