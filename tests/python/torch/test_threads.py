# SPDX-License-Identifier: Apache-2.0
"""The threads of a rank where nobody says how many, and that results do not depend on them."""

import os
from types import SimpleNamespace

import pytest
import torch
from ranks import in_processes, in_threads

from oktopk.torch import Reducer, _flat_reducer
from oktopk.torch._flat_reducer import default_threads


@pytest.mark.parametrize(
    "cores, ranks, local_world_size, n, threads",
    [
        (16, 4, None, 1 << 24, 4),
        (16, 8, None, 1 << 24, 2),
        (64, 1, None, 1 << 24, 4),  # memory is full before
        (16, 1, "8", 1 << 24, 2),  # ranks of other groups are there, too
        (2, 4, None, 1 << 24, 1),
        (16, 1, None, 1 << 19, 2),  # little to share
        (16, 1, None, 1, 1),
        (16, 4, "none", 1 << 24, 4),
    ],
)
def test_cores_are_shared_by_the_ranks_of_a_host(
    monkeypatch, cores, ranks, local_world_size, n, threads
):
    monkeypatch.setattr(_flat_reducer, "cores", lambda: cores)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if local_world_size is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local_world_size)
    assert default_threads(SimpleNamespace(ranks_of_host=ranks), n) == threads


def test_ranks_that_are_unknown_take_one_thread_each(monkeypatch):
    monkeypatch.setattr(_flat_reducer, "cores", lambda: 16)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert default_threads(None, 1 << 24) == 1


def counted(rank, P):
    from oktopk.torch import communicator

    os.environ.pop("LOCAL_WORLD_SIZE", None)
    _flat_reducer.cores = lambda: 4 * P
    comm = communicator(timeout=30.0)
    part = comm.split(0, rank)
    before = len(os.listdir("/proc/self/task"))
    reducer = Reducer(1 << 20, communicator=comm, preset="circulant")
    one = Reducer(1 << 20, communicator=comm, preset="circulant", threads=1)
    more = len(os.listdir("/proc/self/task")) - before
    assert reducer.n == one.n
    ranks = [c.python_transport.ranks_of_host for c in (comm, part)]
    return more, ranks


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads in /proc")
def test_a_process_group_knows_the_ranks_of_the_host_and_threads_overrides():
    assert in_processes(2, counted) == [(3, [2, 2])] * 2


@pytest.mark.parametrize("preset", ["circulant", "oktopk", "dense"])
def test_results_do_not_depend_on_the_number_of_threads(preset):
    n = 300_000

    def work(comm):
        results = []
        for threads in (1, 3):
            noise = torch.Generator().manual_seed(comm.rank)
            reducer = Reducer(n, communicator=comm, preset=preset, threads=threads)
            results.append(
                [reducer.reduce(torch.randn(n, generator=noise) ** 3) for _ in range(3)]
                + [torch.from_numpy(reducer._core.residual)]
            )
        return all(torch.equal(a, b) for a, b in zip(*results))

    assert in_threads(2, work) == [True, True]
