# SPDX-License-Identifier: Apache-2.0
"""Finds the DistributedDataParallel that a state was registered on. DDP does not tell its hook, but only the DDP module
knows the names of parameters, whether join() is active, and whether two models share a state."""

from __future__ import annotations

import gc
import weakref
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from oktopk._core import UsageError
from oktopk.torch.flat import plain_name


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


def group_of(state: Any) -> Optional[Any]:
    """The process group of the DDP module that has this state; the state's own where none is found."""
    owner = state._owner or find_owner(state, None)
    return owner.process_group(state.process_group) if owner else state.process_group
