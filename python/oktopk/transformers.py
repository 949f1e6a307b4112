# SPDX-License-Identifier: Apache-2.0
"""oktopk for the Trainer of transformers: a callback.

    optimiser = oktopk.torch.SparseAdamW(model.parameters(), lr=5e-5)
    callback = oktopk.transformers.OkTopkCallback(total_steps=20_000)
    trainer = Trainer(model, args, train_dataset=..., optimizers=(optimiser, None), callbacks=[callback])

Check-points of the Trainer carry the state of every rank's hook, a file per rank (docs/frontends.md).
"""

from __future__ import annotations

import os
from typing import Any, Optional

import torch
from transformers import TrainerCallback

from oktopk._core import UsageError
from oktopk.torch import OkTopkState
from oktopk.torch._frontend import catch_up, check_options, find_ddp, load_rank_files, register, save_rank_file

__all__ = ["OkTopkCallback"]


class OkTopkCallback(TrainerCallback):
    """Registers the hook when training begins, and makes its state the source of SparseAdamW or SparseSGD; saves and
    loads it with the Trainer's check-points.

    resume_from: the check-point's folder, where train(resume_from_checkpoint=...) gets one that is
        not <output_dir>/checkpoint-<step>: the Trainer does not tell its callbacks.
    options: those of oktopk.torch.OkTopkState. The GradScaler is the Trainer's own.
    """

    def __init__(self, resume_from: Optional[str] = None, **options: Any):
        check_options(options, "OkTopkCallback")
        self._resume_from = resume_from
        self._options = options
        self._state: Optional[OkTopkState] = None

    @property
    def state(self) -> OkTopkState:
        """The hook's state, from the beginning of train() on."""
        if self._state is None:
            raise UsageError("oktopk: OkTopkCallback.state exists from the beginning of train() on")
        return self._state

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any
    ) -> None:
        ddp = find_ddp(model)
        if ddp is None:
            raise UsageError(_why_not(args, model))
        scaler = getattr(optimizer, "scaler", None)
        if self._state is None or self._state.grad_scaler is not scaler:
            self._state = OkTopkState(grad_scaler=scaler, **self._options)
        register(ddp, self._state, [optimizer])
        if state.global_step > 0:  # of the check-point that the Trainer resumes from
            folder = self._resume_from or _checkpoint(args, state)
            hint = "; OkTopkCallback(resume_from=...) names another folder"
            load_rank_files(self._state, folder, hint=hint)

    def on_step_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        if control.should_evaluate or control.should_save or control.should_training_stop:
            catch_up([optimizer])

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not args.save_only_model:
            save_rank_file(self.state, _checkpoint(args, state))


def _checkpoint(args: Any, state: Any) -> str:
    return os.path.join(args.output_dir, f"checkpoint-{state.global_step}")


def _why_not(args: Any, model: torch.nn.Module) -> str:
    if args.world_size == 1:
        return (
            "oktopk: the Trainer runs one process, so there is nothing to synchronise: start it with "
            "torchrun --nproc-per-node 2 or more, or leave OkTopkCallback out"
        )
    return (
        f"oktopk: no DistributedDataParallel is around the model, a {type(model).__name__}: the hook works with DDP "
        "alone, so leave FSDP and DeepSpeed out of TrainingArguments, or OkTopkCallback out of the callbacks"
    )
