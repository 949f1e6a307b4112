# SPDX-License-Identifier: Apache-2.0
"""P ranks of a benchmark: processes of this machine, or whatever torchrun has started."""

from __future__ import annotations

import os
import tempfile
from typing import Any, Callable, List

import torch
import torch.distributed as dist
import torch.multiprocessing


def run(P: int, work: Callable[..., None], *args: Any, backend: str = "gloo") -> None:
    """work(rank, P, *args) on every rank, torch.distributed ready."""
    if "LOCAL_RANK" in os.environ:  # torchrun
        dist.init_process_group(backend)
        work(dist.get_rank(), dist.get_world_size(), *args)
        dist.destroy_process_group()
        return
    with tempfile.TemporaryDirectory() as folder:
        started = (P, os.path.join(folder, "store"), backend, work, args)
        # A forked rank has torch already, but cannot use a GPU that this process has looked at.
        method = "spawn" if torch.cuda.is_available() else "fork"
        torch.multiprocessing.start_processes(_one, started, P, start_method=method)


def _one(rank: int, P: int, store: str, backend: str, work: Callable[..., None], args: Any) -> None:
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // P))
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=P)
    work(rank, P, *args)
    dist.barrier()
    os._exit(0)  # threads of torch's own sometimes abort a process that ends in the usual way


def slowest(values: List[float]) -> List[float]:
    """Collective: of each value the largest over the ranks."""
    on_gpu = dist.get_backend() == "nccl"
    tensor = torch.tensor(values, dtype=torch.float64, device="cuda" if on_gpu else "cpu")
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor.tolist()
