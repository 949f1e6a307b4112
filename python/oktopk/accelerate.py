# SPDX-License-Identifier: Apache-2.0
"""oktopk for Accelerate: one call after accelerator.prepare().

    model, optimizer, loader = accelerator.prepare(model, SparseAdamW(model.parameters()), loader)
    state = oktopk.accelerate.prepare_hook(accelerator, model, total_steps=20_000)

accelerator.save_state() and load_state() then carry the state of every rank's hook, a file per rank
(docs/frontends.md).
"""

from __future__ import annotations

from typing import Any, List

import torch
from torch.nn.parallel import DistributedDataParallel

from oktopk._core import UsageError
from oktopk.torch import OkTopkState
from oktopk.torch._frontend import check_options, load_rank_files, register, save_rank_file

__all__ = ["prepare_hook"]


def prepare_hook(accelerator: Any, model: torch.nn.Module, **options: Any) -> OkTopkState:
    """Registers the hook on a model that accelerator.prepare() gave, makes its state the source of the prepared
    SparseAdamW or SparseSGD, and puts it into the accelerator's check-points.

    options: those of oktopk.torch.OkTopkState. The GradScaler is the accelerator's own.
    """
    check_options(options, "prepare_hook()")
    if not isinstance(model, DistributedDataParallel):
        raise UsageError(_why_not(accelerator, model))
    state = OkTopkState(grad_scaler=getattr(accelerator, "scaler", None), **options)
    register(model, state, getattr(accelerator, "_optimizers", []))

    def save(models: List[torch.nn.Module], weights: Any, folder: str) -> None:
        save_rank_file(state, folder, _name(models, model))

    def load(models: List[torch.nn.Module], folder: str) -> None:
        load_rank_files(state, folder, _name(models, model))

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
    return state


def _name(models: List[torch.nn.Module], model: DistributedDataParallel) -> str:
    """The file name, numbered as Accelerate numbers the files of its models: the first has no number. The list of
    models holds each with or without its DDP wrapper."""
    place = [other is model or other is model.module for other in models].index(True)
    return "oktopk" if place == 0 else f"oktopk_{place}"


def _why_not(accelerator: Any, model: torch.nn.Module) -> str:
    kind = type(model).__name__
    if accelerator.num_processes == 1:
        return (
            f"oktopk: the model is a {kind}, not DistributedDataParallel, because Accelerate runs one "
            "process: start it with torchrun --nproc-per-node 2 or more, or with accelerate launch "
            "--multi_gpu, or leave prepare_hook() out"
        )
    distributed = str(getattr(accelerator, "distributed_type", "")).replace("DistributedType.", "")
    return (
        f"oktopk: the model is a {kind}, not DistributedDataParallel (distributed_type {distributed}): call "
        "prepare_hook() with the model that accelerator.prepare() returned, and use neither FSDP nor DeepSpeed"
    )
