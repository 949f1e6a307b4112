# SPDX-License-Identifier: Apache-2.0
"""oktopk.torch.Reducer: means, layouts and errors, beside the laws (test_laws.py), on ranks that are threads."""

from __future__ import annotations

import pytest
import torch
from ranks import in_threads
from torch import nn

import oktopk
from oktopk.torch.reducer import Reducer

SHAPES = [(40, 7), (13,), (5, 4, 3)]
N = 40 * 7 + 13 + 60


def make_parameters():
    return [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]


def gradient_of(rank, step, dtype=torch.float32):
    """Heavy-tailed, and on the grid of 2^-10 so that sums in float32 are exact."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(N, generator=generator) ** 3 * (1 + rank)
    return ((x * 1024).round() / 1024).to(dtype)


def give(parameters, flat):
    parts = torch.split(flat, [p.numel() for p in parameters])
    for p, part in zip(parameters, parts):
        p.grad = part.view(p.shape).clone()


def take(parameters):
    return torch.cat([p.grad.reshape(-1) for p in parameters])


def test_a_missing_gradient_counts_as_zero_and_is_there_afterwards():
    def work(comm):
        parameters = make_parameters()
        reducer = Reducer(parameters, communicator=comm, preset="dense")
        for step in range(2):  # what the first left behind must not count in the second
            give(parameters, gradient_of(comm.rank, step))
            if (comm.rank, step) == (1, 1):
                parameters[1].grad = None
            reducer.reduce_gradients()
        return take(parameters)

    expected = sum(gradient_of(rank, 1).double() for rank in range(3))
    expected[280:293] -= gradient_of(1, 1).double()[280:293]
    for result in in_threads(3, work):
        torch.testing.assert_close(result.double() * 3, expected, rtol=1e-6, atol=1e-6)


def test_frozen_and_repeated_parameters_have_no_place():
    def work(comm):
        a, b, c = make_parameters()
        b.requires_grad_(False)
        reducer = Reducer([a, b, a, c], communicator=comm)
        with pytest.raises(oktopk.UsageError, match="was not given, or that was frozen"):
            reducer.arrived(b)
        return reducer.n

    assert in_threads(1, work) == [N - 13]


def test_strides_may_be_any_and_indices_count_in_memory_order():
    mean = torch.arange(120.0).view(2, 3, 4, 5)

    def work(comm):
        p = nn.Parameter(torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last))
        reducer = Reducer([p], communicator=comm, preset="circulant", k=40)
        p.grad = mean.transpose(0, 3).contiguous().transpose(0, 3)  # other strides than p's
        reducer.reduce_gradients()
        in_memory = p.grad.permute(0, 2, 3, 1).reshape(-1)
        assert torch.equal(reducer.arrived(p), in_memory.nonzero().reshape(-1))
        kept = p.grad != 0
        assert torch.equal(p.grad[kept], mean[kept]) and 30 < kept.sum() < 50
        reducer.flush()
        assert torch.equal(p.grad[~kept], mean[~kept])

    in_threads(2, work)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_reduce_works_in_place_in_any_type(dtype):
    def work(comm):
        options = {"preset": "circulant", "density": 0.1, "warmup": [(1, 1.0)]}
        reducer, same = (Reducer(N, communicator=comm, **options) for _ in range(2))
        for step in range(3):
            flat = gradient_of(comm.rank, step, dtype)
            before = flat.data_ptr()
            wide = same.reduce(flat.float(), scale=0.5)
            result = reducer.reduce(flat, scale=0.5)
            assert result.data_ptr() == before and result.dtype == dtype
            assert torch.equal(result, wide.to(dtype))
        assert reducer.flush().dtype == torch.float32
        out = torch.ones(N, dtype=dtype)
        assert reducer.flush(out) is out and not out.any()  # nothing was left
        return result

    results = in_threads(3, work)
    assert all(torch.equal(result, results[0]) for result in results)


def test_unfit_tensors_are_refused_before_anything_is_sent():
    def work(comm):
        reducer = Reducer(8, communicator=comm)
        unfit = {
            "torch.float64": torch.zeros(8, dtype=torch.float64),
            "torch.int32": torch.zeros(8, dtype=torch.int32),
            "host_staging=True": torch.zeros(8, device="meta"),
            "torch.sparse_coo": torch.zeros(8).to_sparse(),
            "n = 8": torch.zeros(9),
            "one dimension": torch.zeros(2, 4),
            "contiguous": torch.zeros(16)[::2],
        }
        for words, tensor in unfit.items():
            with pytest.raises(oktopk.UsageError, match=words):
                reducer.reduce(tensor)
        with pytest.raises(oktopk.UsageError, match="reduce_gradients.* n only"):
            reducer.reduce_gradients()
        wide = [nn.Parameter(torch.zeros(2, dtype=torch.float64))]
        frozen = [nn.Parameter(torch.zeros(2), requires_grad=False)]
        for parameters in (wide, frozen, [], [3], torch.zeros(3)):
            with pytest.raises(oktopk.UsageError):
                Reducer(parameters, communicator=comm)

    in_threads(1, work)
