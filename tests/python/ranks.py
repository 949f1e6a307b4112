# SPDX-License-Identifier: Apache-2.0
"""Worlds for tests: P ranks as threads of this process, or as processes with a group of torch.distributed."""

from __future__ import annotations

import functools
import inspect
import os
import queue
import sys
import tempfile
import threading
import time
import traceback
from typing import Any, Callable, List

import pytest

import oktopk


def in_threads(P: int, body: Callable[..., Any], *args: Any, world: Any = None) -> List[Any]:
    """body(comm, *args) on P ranks; their results in rank order. The first error is raised. world: communicators."""
    comms = world or oktopk.thread_world(P, 60.0)
    results: List[Any] = [None] * P
    errors: List[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = body(comms[rank], *args)
        except BaseException as error:
            errors.append(error)
            comms[rank].kill()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(P)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def _one_process(rank: int, P: int, store: str, out: Any, body: Callable[..., Any], args: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        backend = getattr(body, "backend", "gloo")
        dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=P)
        result = getattr(body, "of_rank", body)(rank, P, *args)
        if torch.cuda.is_initialized():  # nobody leaves while others still talk to its GPU
            torch.cuda.synchronize()
            dist.barrier()
        out.put((rank, None, result))
    except BaseException:
        out.put((rank, traceback.format_exc(), None))
    finally:
        out.close()
        out.join_thread()
        if "oktopk._ends" in sys.modules:  # a goodbye, as at the end of a usual process
            sys.modules["oktopk._ends"].end_worlds()
        os._exit(0)  # a Gloo group whose peers are gone would wait in its destructor


def import_for_ranks() -> None:
    """The modules that each forked rank would else import by itself: torch's optimisers import its compiler (1 s) when
    the first of them is made."""
    import torch._dynamo
    import torch.nn.parallel  # noqa: F401

    import oktopk.torch  # noqa: F401


def in_processes(P: int, body: Callable[..., Any], *args: Any, timeout: float = 180.0) -> List[Any]:
    """body(rank, P, *args) in P processes with torch.distributed over Gloo, or over what the attribute `backend` of the
    function says; their results in rank order. Results are numpy arrays, numbers and texts. Forks: imports are paid
    once. For a GPU the ranks come from a server of forks, since CUDA does not live through a fork."""
    import multiprocessing

    on_gpu = os.environ.get("OKTOPK_TEST_DEVICE", "cpu") != "cpu"
    if on_gpu:
        multiprocessing.set_forkserver_preload(["torch.distributed.fsdp", "torch._dynamo"])
    else:
        import_for_ranks()
    context: Any = multiprocessing.get_context("forkserver" if on_gpu else "fork")
    out = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        processes = [
            context.Process(target=_one_process, args=(r, P, store, out, body, args), daemon=True)
            for r in range(P)
        ]
        for process in processes:
            process.start()
        results: List[Any] = [None] * P
        try:
            for _ in range(P):
                rank, error, result = out.get(timeout=timeout)
                assert error is None, f"rank {rank}:\n{error}"
                results[rank] = result
        except queue.Empty:
            raise AssertionError(f"the ranks did not end within {timeout} s") from None
        finally:
            for process in processes:
                process.kill()
                process.join()
    return results


def on_ranks(*sizes: int) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Makes a test of what each rank does, body(rank, P, further arguments of the test), for each of these numbers of
    ranks; without any, other marks give P."""

    def decorate(body: Callable[..., Any]) -> Callable[..., None]:
        _, P, *others = inspect.signature(body).parameters.values()

        def test(**given: Any) -> None:
            in_processes(given["P"], test, *(given[other.name] for other in others))

        functools.update_wrapper(test, body)
        test.of_rank, test.__signature__ = body, inspect.Signature([P, *others])  # type: ignore[attr-defined]
        return pytest.mark.parametrize("P", sizes)(test) if sizes else test

    return decorate


def all_equal(tensor: Any, group: Any = None) -> bool:
    """Whether a tensor has the same bits on all ranks of a group."""
    import torch
    import torch.distributed as dist

    bits = tensor.detach().cpu().contiguous().view(torch.uint8)
    gathered = [torch.empty_like(bits) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, bits, group=group)
    return all(torch.equal(gathered[0], other) for other in gathered)


def wait_for(context: Any, name: str, timeout: float) -> None:
    """Until all processes of torch's start_processes() have ended; whatever one raised is raised."""
    try:
        deadline = time.monotonic() + timeout
        while not context.join(timeout=1.0):  # returns whenever one of them has ended
            if time.monotonic() > deadline:
                ranks = len(context.processes)
                raise TimeoutError(f"{name}: {ranks} ranks did not end within {timeout} s")
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
