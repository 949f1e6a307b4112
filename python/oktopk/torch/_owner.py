# SPDX-License-Identifier: Apache-2.0
"""What DDP does not tell its hook. Only the DDP module that a state was registered on knows the names of parameters,
whether join() is active, and whether two models share a state. And nobody hands the optimisers over: all but plain SGD
and ours with a source take a coordinate that was not sent in a step for one whose gradient was zero. Front-ends find
these before training (_frontend.py); with plain DDP a watch looks at those that make a step after the first sparse one.
COST: nothing once the optimisers of the model have made a step.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from oktopk._core import UsageError
from oktopk.torch._scaler import after_each_step
from oktopk.torch.flat import plain_name
from oktopk.torch.optim import SparseAdamW, SparseSGD

SPARSE = (SparseAdamW, SparseSGD)
_LONG_ENOUGH = 100  # iterations in which no optimiser made a step


class Owner:
    """The DDP module of one state."""

    def __init__(self, ddp: DistributedDataParallel):
        self._ddp = weakref.ref(ddp)
        named = ddp.module.named_parameters()
        self.names: Dict[int, str] = {id(p): plain_name(name) for name, p in named}
        self._frozen = [(name, weakref.ref(p)) for name, p in self.synchronised() if not p.requires_grad]

    def synchronised(self) -> List[Tuple[str, torch.Tensor]]:
        """All parameters that DDP keeps equal, with their names: frozen ones and those with a second name, too."""
        ddp = self._ddp()
        if ddp is None:
            return []
        ignored = getattr(ddp, "parameters_to_ignore", ())
        named = ddp.module.named_parameters(remove_duplicate=False)
        return [(plain_name(name), p) for name, p in named if name not in ignored]

    def parameters(self) -> List[torch.Tensor]:
        """The parameters that get gradients."""
        ddp = self._ddp()
        return [p for p in ddp.parameters() if p.requires_grad] if ddp is not None else []

    def process_group(self, given: Optional[Any]) -> Any:
        """The process group of DDP; UsageError where the state was given another one."""
        ddp = self._ddp()
        own = getattr(ddp, "process_group", None)
        if given is None or own is None:
            return own if given is None else given
        ranks, others = dist.get_process_group_ranks(own), dist.get_process_group_ranks(given)
        if ranks != others:
            raise UsageError(
                f"oktopk: OkTopkState has a process group of ranks {others}, but DDP one of {ranks}: "
                "give both the same, or the state none"
            )
        return given

    def refuse_thawed(self) -> None:
        """UsageError where a parameter that was frozen before the first step is trained now."""
        frozen = ((name, reference()) for name, reference in self._frozen)
        thawed = next((name for name, p in frozen if p is not None and p.requires_grad), None)
        if thawed is not None:
            raise UsageError(
                f"oktopk: parameter '{thawed}' was frozen before, so DDP does not synchronise its gradients: thaw it "
                "on all ranks, and then make the DDP model and its OkTopkState anew"
            )

    def refuse_join(self) -> None:
        """Ranks that have no data left take part in DDP's own allreduce only."""
        ddp = self._ddp()
        config = getattr(ddp, "_join_config", None)
        if config is not None and config.enable and config.throw_on_early_termination is False:
            raise UsageError(
                "oktopk: DDP's join() (uneven inputs) does not work with a sparse hook: ranks that "
                "have joined cannot take part in the exchange. Give all ranks the same number of "
                "batches (DistributedSampler does), or join(throw_on_early_termination=True)"
            )


def live_ddp_models() -> List[DistributedDataParallel]:
    """All DDP modules of this process. COST: looks through all live objects."""
    # isinstance would ask proxies
    return [x for x in gc.get_objects() if issubclass(type(x), DistributedDataParallel)]


def find_owner(state: Any, parameter: Optional[torch.Tensor]) -> Optional[Owner]:
    """The DDP module that has this state, or else the only one that has the parameter: torch 2.0 keeps no list of
    hooks, and the state may be a part of another one."""
    models = live_ddp_models()
    found = [m for m in models if any(s is state for _, s in getattr(m, "_comm_hooks", []))]
    if len(found) > 1:
        raise UsageError(f"oktopk: {len(found)} DDP models have this OkTopkState: make one per model")
    if not found:
        found = [m for m in models if any(p is parameter for p in m.parameters())]
    return Owner(found[0]) if len(found) == 1 else None


def unwrapped(optimiser: Optimizer) -> Optimizer:
    """The optimiser inside the wrappers of front-ends and of ZeroRedundancyOptimizer."""
    while True:
        inner = getattr(optimiser, "optimizer", None) or getattr(optimiser, "optim", None)
        if not isinstance(inner, Optimizer):
            return optimiser
        optimiser = inner


def trouble_with(optimiser: Optimizer) -> Optional[str]:
    """The text of a warning; None: the optimiser knows which coordinates arrived, or need not."""
    groups, name = optimiser.param_groups, type(optimiser).__name__
    is_sgd = isinstance(optimiser, (torch.optim.SGD, SparseSGD))
    if is_sgd and all(group.get("momentum", 0) == 0 for group in groups):
        return None
    if not isinstance(optimiser, SPARSE):
        who, instead = name, f"use oktopk.torch.{'SparseSGD' if is_sgd else 'SparseAdamW'} in its place"
    elif optimiser.source is None and any(group["mode"] != "published" for group in groups):
        who, instead = f"{name} without a source", f"give it the state of the hook, {name}(params, state, ...)"
    else:
        return None
    return (
        f"oktopk: {who} takes a coordinate that was not sent in a step for one "
        f"whose gradient was zero, and learns less well: {instead}"
    )


def warn(text: str, stacklevel: int = 2) -> None:
    """Warns on one rank only."""
    if not dist.is_initialized() or dist.get_rank() == 0:
        warnings.warn(text, stacklevel=stacklevel + 1)


class Watch:
    """Warns once if an optimiser of these parameters is such a one. Nothing keeps the watch alive but its owner."""

    def __init__(self) -> None:
        self._ids: Set[int] = set()
        self._iterations = 0
        self._has_seen_step = self._has_warned = False
        self._end: Optional[Callable[[], Any]] = None
        self.is_over = False

    def add(self, parameters: Iterable[torch.Tensor]) -> None:
        """They are synchronised sparsely in this iteration."""
        self._ids.update(id(p) for p in parameters)
        if self._end is not None:
            return
        self._end = after_each_step(self._look_at)

    def begin_iteration(self) -> None:
        """The optimisers of an earlier sparse iteration have made their steps, unless a GradScaler left them out."""
        if self._end is None:
            return
        self._iterations += 1  # not in a hook: torch walks through all of them
        if self._has_seen_step or self._iterations > _LONG_ENOUGH:
            self.close()

    def close(self) -> None:
        """Not inside of an optimiser's step."""
        self.is_over = True
        self._ids.clear()
        if self._end is not None:
            self._end()

    def _look_at(self, optimiser: Optimizer) -> None:
        bare = unwrapped(optimiser)
        if self._has_warned or not any(id(p) in self._ids for group in bare.param_groups for p in group["params"]):
            return
        self._has_seen_step = True
        text = trouble_with(bare)
        if text is not None:
            self._has_warned = True
            warn(text, stacklevel=4)
