# SPDX-License-Identifier: Apache-2.0
"""New process groups that their own ranks make by themselves, in every version of torch: one that
moves host memory for our messages, and one that sums tensors where they live."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any, Dict, List, Optional

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d

HOST_BACKENDS = ("gloo", "mpi", "ucc")


def sibling(group: Any, seconds: float) -> Any:
    """Collective: a new group over the same ranks that moves host memory."""
    backend = str(dist.get_backend(group)).lower()
    if backend not in HOST_BACKENDS:
        backend = "gloo"
    return new_group(dist.get_process_group_ranks(group), backend, seconds)


def sums_group(group: Any, ours: Any, seconds: float, concurrent: bool) -> Optional[Any]:
    """Collective: the group for dense sums of tensors. `ours`, the sibling, where it has the same
    backend; else the group itself, unless other threads use it at the same time; then a new one.
    A new group of NCCL takes GPU memory only when it is used."""
    backend = str(dist.get_backend(group)).lower()
    if backend in HOST_BACKENDS:
        return ours
    if not concurrent:
        return group
    ranks = dist.get_process_group_ranks(group)
    is_bound = getattr(dist.group.WORLD, "bound_device_id", None) is not None
    if is_bound and len(ranks) < dist.get_world_size():
        return None  # torch would split the world's communicator, and wait for ranks not among us
    config = getattr(dist, "get_backend_config", None)
    return new_group(ranks, config(group) if config is not None else backend, seconds)


def serves(group: Any, device: torch.device) -> bool:
    """Whether the group has a backend for tensors of this device."""
    try:
        group._get_backend(torch.device(device.type))
    except (RuntimeError, AttributeError):
        return False
    return True


def new_group(ranks: List[int], backend: str, seconds: float = 1800.0) -> Any:
    """Collective over these ranks, which need not be all. They are numbered as they are sorted."""
    everyone = len(ranks) == dist.get_world_size()
    options: Dict[str, Any] = {} if everyone else {"use_local_synchronization": True}
    timeout = timedelta(seconds=seconds)
    if options.keys() <= inspect.signature(dist.new_group).parameters.keys():
        return dist.new_group(ranks, timeout, backend, **options)
    return _as_in_torch_2_0(sorted(ranks), timeout, backend)


def _as_in_torch_2_0(ranks: List[int], timeout: timedelta, backend: str) -> Any:
    """Its new_group() without what needs all ranks of the job: the count of groups as the name, and
    the barrier."""
    c10d: Any = dist.distributed_c10d  # Any: newer versions differ
    name = "oktopk_" + "_".join(str(rank) for rank in ranks)
    while name in c10d._world.pg_names.values():  # on all members alike
        name += "_"
    group = c10d._new_process_group_helper(
        len(ranks),
        ranks.index(dist.get_rank()),
        ranks,
        dist.Backend(backend),
        c10d._get_default_store(),
        group_name=name,
        timeout=timeout,
    )
    c10d._world.pg_group_ranks[group] = {rank: place for place, rank in enumerate(ranks)}
    return group
