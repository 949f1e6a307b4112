# SPDX-License-Identifier: Apache-2.0
"""Ranks for tests: processes over Gloo, and threads of this process where that is enough."""

from __future__ import annotations

import multiprocessing
import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, List

import torch
import torch.distributed as dist
import torch.multiprocessing
from ranks import wait_for

import oktopk

TIMEOUT = 180.0


def run_processes(P: int, work: Callable[..., None], path: Path, *args: Any) -> None:
    """work(rank, P, *args) on P processes with torch.distributed over Gloo, or over what the attribute `backend` of
    the function says; whatever one raises is raised here. Files go below path, which must be empty of earlier runs."""
    multiprocessing.set_forkserver_preload(["torch.distributed.fsdp"])  # imported once
    rendezvous = path / f"rendezvous_{P}_{work.__name__}"
    context = torch.multiprocessing.start_processes(
        _run, (P, str(rendezvous), work, args), P, join=False, start_method="forkserver"
    )
    wait_for(context, work.__name__, TIMEOUT)


def _run(rank: int, P: int, rendezvous: str, work: Callable[..., None], args: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        getattr(work, "backend", "gloo"),
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=P,
        timeout=timedelta(seconds=TIMEOUT),
    )
    try:
        work(rank, P, *args)
        dist.barrier()  # nobody leaves while others still talk to it
    except BaseException:
        dist.destroy_process_group()
        raise
    os._exit(0)  # threads of torch's own sometimes abort a process that ends in the usual way


def run_threads(P: int, work: Callable[[oktopk.Communicator], Any]) -> List[Any]:
    """What work(communicator) returns on each of P threads of this process."""
    results: List[Any] = [None] * P
    errors: List[BaseException] = []

    def run(comm: oktopk.Communicator) -> None:
        try:
            results[comm.rank] = work(comm)
        except BaseException as error:  # to be raised in the test's own thread
            errors.append(error)
            comm.kill()

    world = oktopk.thread_world(P, TIMEOUT)
    threads = [threading.Thread(target=run, args=(comm,), daemon=True) for comm in world]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive(), f"a rank did not end within {TIMEOUT} s"
    if errors:
        raise errors[0]
    return results


def all_equal(tensor: torch.Tensor, group: Any = None) -> bool:
    """Whether a tensor has the same bits on all ranks of a group."""
    bits = tensor.detach().contiguous().view(torch.uint8)
    gathered = [torch.empty_like(bits) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, bits, group=group)
    return all(torch.equal(gathered[0], other) for other in gathered)
