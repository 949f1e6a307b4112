# SPDX-License-Identifier: Apache-2.0
"""The common part of oktopk.lightning, oktopk.accelerate and oktopk.transformers. A front-end makes the DDP model
itself, so the hook is registered after that, and SparseAdamW and SparseSGD, which were made without a source, get the
hook's state as theirs. COST: once per training."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import Any, Dict, Iterable, Iterator, List, Optional

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from oktopk._core import UsageError
from oktopk.torch._group import HOST_BACKENDS, new_group
from oktopk.torch._owner import live_ddp_models
from oktopk.torch._unaware import SPARSE, trouble_with, unwrapped, warn
from oktopk.torch.ddp import oktopk_hook
from oktopk.torch.state import OkTopkState

__all__ = ["catch_up", "check_options", "find_ddp", "give_source", "host_group", "of_model", "register", "warn"]


def check_options(options: Dict[str, Any], who: str) -> None:
    """UsageError at once, not when training begins, where an option is unfit."""
    if "grad_scaler" in options:
        raise UsageError(f"oktopk: {who} takes no grad_scaler: it finds that of the training itself")
    OkTopkState(**options)


def register(ddp: DistributedDataParallel, state: OkTopkState, optimisers: Iterable[Optimizer]) -> None:
    """Registers the hook on a DDP model, and makes the state the source of its optimisers. A second call with the same
    pair changes nothing."""
    if not any(other is state for _, other in getattr(ddp, "_comm_hooks", [])):
        _register_hook(ddp, state)
    give_source(of_model(optimisers, ddp), state)


def _register_hook(ddp: DistributedDataParallel, state: OkTopkState) -> None:
    try:
        ddp.register_comm_hook(state, oktopk_hook)
    except RuntimeError as error:
        if "only be called once" not in str(error):
            raise
        raise UsageError(
            "oktopk: the DDP model has a communication hook already, and DDP takes one: leave the other one out"
        ) from error


def of_model(optimisers: Iterable[Optimizer], model: torch.nn.Module) -> List[Optimizer]:
    """The optimisers, without the front-end's wrappers, that change a parameter of the model."""
    mine = {id(parameter) for parameter in model.parameters()}
    bare = [unwrapped(optimiser) for optimiser in optimisers]
    return [o for o in bare if any(id(p) in mine for g in o.param_groups for p in g["params"])]


def give_source(optimisers: Iterable[Optimizer], state: OkTopkState) -> None:
    """UsageError where an optimiser has another source; a warning where it can have none."""
    state.trust_optimisers()
    for optimiser in optimisers:
        if not isinstance(optimiser, SPARSE):
            text = trouble_with(optimiser)
            if text is not None:
                warn(text)
        elif optimiser.source is None or optimiser.source is state:
            optimiser.source = state
        else:
            raise UsageError(
                f"oktopk: {type(optimiser).__name__} has a source of its own, a {type(optimiser.source).__name__} "
                "that is not this hook's state: leave source= out, it is set when the hook is registered"
            )


def catch_up(optimisers: Iterable[Optimizer]) -> None:
    """Applies the weight decay that is owed to silent coordinates, before weights are used. On all ranks."""
    for optimiser in optimisers:
        bare = unwrapped(optimiser)
        if isinstance(bare, SPARSE):
            bare.catch_up()


def find_ddp(model: torch.nn.Module) -> Optional[DistributedDataParallel]:
    """The live DDP module around a model, for front-ends that do not hand it over."""
    found = _live_ddp(model)
    if len(found) > 1:  # one of an earlier training may wait for the garbage collector
        del found
        gc.collect()
        found = _live_ddp(model)
    if len(found) > 1:
        raise UsageError(f"oktopk: {len(found)} DDP modules are around this model: delete those of earlier trainings")
    return found[0] if found else None


def _live_ddp(model: torch.nn.Module) -> List[DistributedDataParallel]:
    first = next(model.parameters(), None)
    return [ddp for ddp in live_ddp_models() if any(p is first for p in ddp.parameters())]


@contextmanager
def host_group() -> Iterator[Any]:
    """A group of all ranks that moves host memory. Collective."""
    if str(dist.get_backend()).lower() in HOST_BACKENDS:
        yield dist.group.WORLD
        return
    group = new_group(list(range(dist.get_world_size())), "gloo")
    try:
        yield group
    finally:
        dist.destroy_process_group(group)
