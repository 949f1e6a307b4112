# SPDX-License-Identifier: Apache-2.0
"""A new process group that its own ranks make by themselves, in every version of torch."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any, Dict, List

import torch.distributed as dist
import torch.distributed.distributed_c10d


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
