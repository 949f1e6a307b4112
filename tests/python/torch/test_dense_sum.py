# SPDX-License-Identifier: Apache-2.0
"""Dense steps are the process group's own all_reduce: auto's choice, warm-ups, flush. Same bits as
without oktopk, nothing lost, errors on all ranks alike."""

import pytest
import torch
import torch.distributed as dist
from models import DEVICE, STAGING
from ranks import all_equal, in_processes, in_threads, on_ranks
from versions import TORCH

import oktopk
from oktopk.torch import Reducer
from oktopk.torch._sharded import arrived_of

N = 3000
SUMMED = [torch.float32, torch.float16] + [torch.bfloat16] * (TORCH >= (2, 2))  # by Gloo itself


def gradient_of(rank, step, dtype=torch.float32):
    """On a grid on which sums of floats are exact."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(N, generator=generator) ** 3
    return ((x * 256).round() / 256).to(dtype).to(DEVICE)


def arrived_everywhere(reducer):
    return arrived_of([reducer.span(0, N)], [torch.empty(0)])[0]


class Count:
    """Counts the calls of dist.all_reduce by oktopk, and lets them through."""

    def __init__(self):
        self.sizes = []
        self._plain = dist.all_reduce
        dist.all_reduce = self

    def __call__(self, tensor, *args, **options):
        self.sizes.append(tensor.numel())
        return self._plain(tensor, *args, **options)

    def take(self):
        sizes, self.sizes = self.sizes, []
        return sizes


def plain_mean(x, P):
    x = x.clone().mul_(1.0 / P)
    dist.all_reduce(x)
    return x


@on_ranks(2, 3)
def test_dense_steps_are_the_group_s_own_all_reduce_bit_by_bit(rank, P):
    calls = Count()
    for dtype in SUMMED:
        for options in ({"preset": "dense"}, {"preset": "circulant", "warmup": [(2, 1.0)]}):
            reducer = Reducer(N, timeout=30.0, **STAGING, **options)
            for step in range(2):
                expected = plain_mean(gradient_of(rank, step, dtype), P)
                calls.take()
                result = reducer.reduce(gradient_of(rank, step, dtype))
                assert calls.take() == [N]
                assert result.dtype == dtype and torch.equal(result, expected)
                assert arrived_everywhere(reducer) is None
                stats = reducer.stats
                assert stats["dense"] and stats["gathered"] == N and stats["step"] == step + 1
                assert stats["wire_bytes"] >= 2 * N * (P - 1) / P * result.element_size()
            assert reducer.unsent_norm == 0
    # A loss scale of 2^15 on gradients that fp16 could not hold without it.
    tiny = torch.full((N,), 2.0**-9, dtype=torch.float16, device=DEVICE)
    reducer = Reducer(N, timeout=30.0, preset="dense", **STAGING)
    result = reducer.reduce(tiny, scale=2.0**-15, factor=2.0**15)
    assert torch.equal(result, torch.full_like(tiny, 2.0**-9))
    # Parameters, one of which has no gradient here.
    a, b = (torch.nn.Parameter(torch.zeros(size, device=DEVICE)) for size in (7, 5))
    reducer = Reducer([a, b], timeout=30.0, preset="dense", **STAGING)
    a.grad = torch.ones_like(a) if rank == 0 else None
    reducer.reduce_gradients(scale=2.0)
    assert torch.allclose(a.grad, torch.full_like(a, 2.0 / P)) and not b.grad.any()
    # A group is known from its communicator, too.
    comm = oktopk.torch.communicator(timeout=30.0)
    calls.take()
    Reducer(N, communicator=comm, preset="dense", **STAGING).reduce(gradient_of(rank, 0))
    assert calls.take() == [N]


@on_ranks(2, 3)
def test_what_is_unsent_goes_along_and_nothing_is_lost(rank, P):
    calls = Count()
    for dtype in (torch.float32, torch.bfloat16):
        sparse = Reducer(N, timeout=30.0, preset="circulant", density=0.02, **STAGING)
        applied = torch.zeros(N, dtype=torch.float64)
        for step in range(4):
            applied += sparse.reduce(gradient_of(rank, step, dtype).float()).double().cpu()
        states = [None] * P
        dist.all_gather_object(states, sparse.state_dict())
        dense = Reducer(N, timeout=30.0, preset="dense", **STAGING)
        dense.load_state_dicts(states)
        calls.take()
        last = dense.reduce(gradient_of(rank, 4, dtype).float())
        assert calls.take() == [N] and all_equal(last)
        applied += last.double().cpu()
        given = sum(gradient_of(r, s, dtype).double().cpu() for r in range(P) for s in range(5))
        torch.testing.assert_close(applied * P, given, rtol=1e-5, atol=1e-4)
        assert dense.unsent_norm == 0
        # Unsent mass joins 16-bit gradients as floats.
        again = Reducer(N, timeout=30.0, preset="dense", **STAGING)
        again.load_state_dicts(states)
        assert torch.equal(again.reduce(gradient_of(rank, 4, dtype)), last.to(dtype))
        # flush() takes the same way, and then there is nothing.
        calls.take()
        rest = sparse.flush()
        assert calls.take() == [N] and all_equal(rest)
        mine = sum(gradient_of(r, 4, dtype).double().cpu() for r in range(P))
        owed = given - mine - (applied - last.double().cpu()) * P
        torch.testing.assert_close(rest.double() * P, owed, rtol=1e-5, atol=1e-4)
        assert not sparse.flush().any() and calls.take() == []


def bad_steps(rank, P):
    options = {"timeout": 30.0, "preset": "dense", **STAGING}
    strict, lenient = Reducer(N, **options), Reducer(N, nan_policy="skip", **options)
    bad = gradient_of(rank, 0)
    if rank == 1:
        bad[285] = float("inf")
    texts = []
    for reducer in (strict, lenient):
        reducer._core.give_unsent(torch.full((N,), 0.5).numpy())
        before = reducer.unsent_norm
        if reducer is strict:
            with pytest.raises(oktopk.UsageError) as error:
                reducer.reduce(bad.clone())
            texts.append(str(error.value))
        else:
            assert reducer.reduce(bad.clone()).isnan().all() and reducer.skipped
            assert len(arrived_everywhere(reducer)) == 0
        assert reducer.unsent_norm == before and reducer.steps == 0
        result = reducer.reduce(gradient_of(rank, 1))
        assert not reducer.skipped and reducer.steps == 1
        mean = sum(gradient_of(r, 1) for r in range(P)) / P + 0.5
        torch.testing.assert_close(result, mean)
    with pytest.raises(oktopk.UsageError, match="nan at index 0"):
        strict.reduce(gradient_of(rank, 2), scale=float("nan") if rank == 0 else 1.0)
    huge = torch.full((N,), 3e38, device=DEVICE)  # the sum of all values overflows, no value does
    torch.testing.assert_close(strict.reduce(huge.clone()), huge)

    def fail(*args, **options):
        raise RuntimeError("Connection closed by peer")

    plain, dist.all_reduce = dist.all_reduce, fail
    with pytest.raises(oktopk.CommError, match="all_reduce failed: Connection closed by peer"):
        strict.reduce(gradient_of(rank, 3))
    dist.all_reduce = plain
    with pytest.raises(oktopk.CommError, match="an earlier step failed half-way"):
        strict.reduce(gradient_of(rank, 3))
    return texts[0]


def test_a_dense_step_that_is_not_finite_ends_alike_on_all_ranks():
    texts = in_processes(3, bad_steps)
    assert texts == [
        "oktopk: a dense step: the mean over the ranks is inf at index 285, so the gradient of some "
        "rank is not finite there, or the sum overflowed: no rank has taken it"
    ] * 3


def choices(rank, P):
    calls = Count()
    measured = Reducer(N, timeout=30.0, density=0.01, **STAGING)
    for step in range(3):
        measured.reduce(gradient_of(rank, step))
    latency, per_byte = measured.profile.external_dense
    assert latency > 0 and per_byte >= 0 and calls.take()[:10] == [188] * 4 + [1] + [N] * 4 + [1]
    profile = oktopk.Profile()
    for price, is_dense in (((1e-9, 0.0), True), ((10.0, 0.0), False)):
        profile.external_dense = price
        reducer = Reducer(N, timeout=30.0, density=0.01, profile=profile, **STAGING)
        calls.take()
        reducer.reduce(gradient_of(rank, 0))
        assert reducer.stats["dense"] == is_dense
        assert calls.take() == [N] * is_dense
    return latency, per_byte


def test_auto_measures_the_group_s_all_reduce_and_takes_it_where_it_is_cheapest():
    results = in_processes(3, choices)
    assert results == results[:1] * 3


def test_explain_shows_the_group_s_all_reduce():
    profile = oktopk.Profile()
    assert profile.external_dense is None
    assert not any(c.external for c in oktopk.explain(10**6, 0.01, 8, profile))
    profile.external_dense = (1e-6, 1e-13)
    best = oktopk.explain(10**6, 0.01, 8, profile)[0]
    assert best.external and repr(best) == "<dense fp32 by the process group: 0.001400 ms>"
    with pytest.raises(oktopk.UsageError, match="external_dense = .-1, 0.* negative"):
        profile.external_dense = (-1.0, 0.0)
    profile.external_dense = None
    assert profile.external_dense is None


def test_without_a_process_group_the_dense_exchange_is_ours():
    def work(comm):
        reducer = Reducer(N, communicator=comm, preset="dense")
        result = reducer.reduce(gradient_of(comm.rank, 0).cpu())
        return result.numpy(), reducer.stats["messages"]

    for result, messages in in_threads(3, work):
        mean = sum(gradient_of(rank, 0).cpu() for rank in range(3)) / 3
        torch.testing.assert_close(torch.from_numpy(result), mean)
        assert messages >= 4
