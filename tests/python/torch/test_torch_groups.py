# SPDX-License-Identifier: Apache-2.0
"""oktopk.torch.Reducer over process groups of Gloo: all ranks, some of them, and one that is late."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import all_equal, run_processes

import oktopk
from oktopk.torch.reducer import Reducer

N = 353


def gradient_of(rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(N, generator=generator) ** 3 * (1 + rank)


def check_group(group, ranks, rank):
    """Equal results and no lost gradients; the defaults, so preset auto."""
    parameter = torch.nn.Parameter(torch.zeros(N))
    reducer = Reducer([parameter], group, density=0.1, timeout=100.0)
    applied = torch.zeros(N, dtype=torch.float64)
    for step in range(4):
        if step < 3:
            parameter.grad = gradient_of(rank, step)
            reducer.reduce_gradients()
        else:
            reducer.flush()
        assert all_equal(parameter.grad, group)
        applied += parameter.grad.double()
    given = sum(gradient_of(r, s).double() for r in ranks for s in range(3))
    torch.testing.assert_close(applied * len(ranks), given, rtol=1e-5, atol=1e-4)


def work_in_groups(rank, P):
    """A group without the middle ranks is what a pipeline's stages have."""
    check_group(None, list(range(P)), rank)
    ends = dist.new_group([0, P - 1])
    if rank in (0, P - 1):
        check_group(ends, [0, P - 1], rank)
    else:
        with pytest.raises(oktopk.UsageError, match="not a member"):
            Reducer(N, ends)


@pytest.mark.parametrize("P", [2, 3, 4])
def test_all_ranks_and_some_of_them(tmp_path, P):
    run_processes(P, work_in_groups, tmp_path)


def work_without_one(rank, P):
    reducer = Reducer(N, timeout=2.0, preset="circulant")
    if rank != 1:
        with pytest.raises(oktopk.CommError):
            reducer.reduce(gradient_of(rank, 0))


def test_a_rank_that_does_not_come_is_an_error_after_the_timeout(tmp_path):
    run_processes(3, work_without_one, tmp_path)
