# SPDX-License-Identifier: Apache-2.0
"""total_steps asks for the recipe of oktopk.recipe(); what a user gives replaces that part. Runs are extended by
another total_steps, and preset auto measures no more than they are worth."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.distributed as dist
from models import flat, make_ddp, train
from ranks import in_processes, in_threads, on_ranks

import oktopk
from oktopk.torch import LocalSteps, OkTopkState, Reducer, SparseAdamW
from oktopk.options import without_coding

P = 3


def test_a_state_that_knows_its_steps_follows_the_recipe():
    recipe = oktopk.recipe(2000)
    assert recipe["warmup"] == [(200, 0.9)] and recipe["codec"] == "elias_fano+log4"
    named = OkTopkState(total_steps=2000, preset="circulant")
    assert {name: named.options[name] for name in recipe} == recipe and named.start_iter == 0
    auto = OkTopkState(total_steps=2000)
    assert (auto.density, auto.codec, auto.options["coarsest"]) == (recipe["density"], None, "log4")
    assert auto.options["warmup"] == recipe["warmup"]


def test_what_is_given_replaces_its_part():
    state = OkTopkState(total_steps=2000, preset="circulant", density=0.1, codec="elias_fano+bf16", warmup=[(3, 0.5)])
    assert (state.density, state.codec, state.options["warmup"]) == (0.1, "elias_fano+bf16", [(3, 0.5)])
    assert OkTopkState(total_steps=2000, k=50).density is None
    chosen = OkTopkState(total_steps=2000, start_iter=0.02)  # a start of the user's own: no recipe
    assert (chosen.start_iter, chosen.density, chosen.options.get("warmup")) == (40, 0.01, None)
    unknown = OkTopkState()
    assert (unknown.start_iter, unknown.density, unknown.codec) == (100, 0.01, None)


@pytest.mark.parametrize("preset", ["oktopk", "topka", "slots"])
def test_presets_with_other_codings_begin_densely(preset):
    state = OkTopkState(total_steps=2000, preset=preset)
    assert (state.start_iter, state.codec, state.options.get("warmup")) == (200, None, None)
    assert state.density == oktopk.recipe(2000)["density"]


def test_slots_chosen_by_auto_begins_densely():
    options = without_coding(OkTopkState(total_steps=2000).options)
    assert (options["preset"], options["coarsest"], options["warmup"]) == ("slots", None, [(200, 1.0)])


@pytest.mark.parametrize("total_steps", [0, -1, 1.5, True, "many"])
def test_a_number_of_steps_that_is_none_is_refused(total_steps):
    with pytest.raises(oktopk.UsageError, match="total_steps = "):
        OkTopkState(total_steps=total_steps)


def test_a_whole_run_sends_about_a_fortieth_of_dense():
    steps, n = 60, 60_000
    comms = oktopk.thread_world(P, 60.0)

    def run(rank):
        torch.manual_seed(rank)
        parameter = torch.nn.Parameter(torch.zeros(n))
        reducer = Reducer([parameter], communicator=comms[rank], preset="circulant", total_steps=steps)
        sent, means = 0, []
        for step in range(steps):
            parameter.grad = torch.randn(n)
            reducer.reduce_gradients()
            sent += reducer.stats["wire_bytes"]
            means.append(parameter.grad.clone())
        return sent, means

    with ThreadPoolExecutor(P) as pool:
        results = list(pool.map(run, range(P)))
    for _, means in results:
        assert all(torch.equal(mine, first) for mine, first in zip(means, results[0][1]))
    dense = steps * 2 * (P - 1) / P * 4 * n
    assert 30 < dense / (sum(sent for sent, _ in results) / P) < 50
    counts = [mean.count_nonzero().item() / n for mean in results[0][1]]
    assert min(counts[:6]) > 0.7 and 0.02 < sorted(counts[10:])[25] < 0.03


def resumed(rank, saved, weights, total_steps, **options):
    """Goes on for three steps: the weights, shares of the values that were sent, and the state."""
    shares = []
    model, state = make_ddp(total_steps=total_steps, density=None, start_iter=None, **options)
    state.callback = lambda m: shares.append(m["k"] / m["n"])
    model.load_state_dict(weights)
    state.load_state_dicts(saved) if len(saved) > 1 else state.load_state_dict(saved[0])
    train(model, rank, 3, first=state.iteration)
    return flat(model), shares, state.state_dict()


@pytest.mark.parametrize("preset", ["circulant", "oktopk"])
@on_ranks(2)
def test_a_run_is_extended_by_another_total_steps(rank, P, preset):
    model, state = make_ddp(total_steps=40, density=None, start_iter=None, preset=preset)
    states = []
    for step in range(6):
        states.append((state.state_dict(), {k: v.clone() for k, v in model.state_dict().items()}))
        train(model, rank, 1, first=step)
    saved, weights = state.state_dict(), model.state_dict()
    same, shares, _ = resumed(rank, [saved], weights, 40, preset=preset)
    everyone = [None] * P
    dist.all_gather_object(everyone, saved)
    for given in ([saved], everyone):
        longer, others, again = resumed(rank, given, weights, 4000, preset=preset)
        assert np.array_equal(longer, same) and others == shares and len(shares) >= 3
        resumed(rank, [again], weights, 4000, preset=preset)
    if preset == "circulant":  # its start is sparse, and a part of what is saved
        assert max(shares) < 0.06
        _, shares, _ = resumed(rank, [states[2][0]], states[2][1], 400, preset=preset)
        assert min(shares) > 0.8
        with pytest.raises(oktopk.UsageError, match="inside of a warm-up of 4 x 0.9, but the .* total_steps"):
            resumed(rank, [states[2][0]], states[2][1], 10, preset=preset)


def test_reducers_and_local_steps_are_extended_on_any_number_of_ranks():
    n = 1000

    def steps(reducer, count):
        torch.manual_seed(reducer.place().rank)
        for _ in range(count):
            reducer.reduce(torch.randn(n))
        return reducer.state_dict()

    def locals_of(comm, length):
        return LocalSteps([torch.nn.Parameter(torch.zeros(n))], every=1, communicator=comm, warmup=[(length, 1.0)])

    states = in_threads(2, lambda comm: steps(Reducer(n, communicator=comm, total_steps=40, preset="circulant"), 6))

    def outer_steps(comm):
        outer = locals_of(comm, 2)
        for _ in range(3):
            outer.synchronise()
        return outer.state_dict()

    outer_states = in_threads(2, outer_steps)

    def go_on(comm):
        reducer = Reducer(n, communicator=comm, total_steps=4000, preset="circulant")
        outer = locals_of(comm, 30)
        if comm.size == 2:
            reducer.load_state_dict(states[comm.rank])
            outer.load_state_dict(outer_states[comm.rank])
        else:
            reducer.load_state_dicts(states)
            outer.load_state_dicts(outer_states)
        steps(reducer, 1)
        outer.synchronise()
        return reducer.stats["k"], outer.reducer.stats["dense"]

    for P in (2, 3):
        assert in_threads(P, go_on) == [(25, False)] * P


def as_in_the_readme(rank, P):
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
    ddp, seen = torch.nn.parallel.DistributedDataParallel(model), []
    state = OkTopkState(total_steps=200, callback=seen.append, timeout=60)
    ddp.register_comm_hook(state, oktopk.torch.oktopk_hook)
    optimiser = SparseAdamW(model.parameters(), state, lr=1e-3)
    for _ in range(3):
        optimiser.zero_grad()
        ddp(torch.randn(4, 256)).square().mean().backward()
        optimiser.step()
    stats, dense = state.compression_stats(), 4 * sum(p.numel() for p in model.parameters())
    measured = [m["measured_bytes"] for m in seen]
    assert stats.wire_bytes == sum(m["wire_bytes"] for m in seen) + sum(measured)
    return measured, dense, seen[0]["preset"]


def test_auto_measures_with_fewer_bytes_than_ten_dense_steps():
    results = in_processes(2, as_in_the_readme)
    for measured, dense, preset in results:
        assert dense < measured[0] < 10 * dense and not any(measured[1:])
        assert preset == results[0][2]


def all_dense(rank, P, dtypes):
    rates = []
    for dtype in dtypes:
        model, state = make_ddp(hook=None)
        model = torch.nn.parallel.DistributedDataParallel(model.module.to(dtype))
        state = OkTopkState(preset="dense")
        model.register_comm_hook(state, oktopk.torch.oktopk_hook)
        for _ in range(2):
            model(torch.ones(2, 32, dtype=dtype)).square().mean().backward()
        rates.append(state.compression_stats().rate)
        rates.append(state.compression_stats().wire_bytes / sum(p.numel() * dtype.itemsize for p in model.parameters()))
    return rates


def test_dense_sums_count_in_the_type_of_the_gradients():
    for rates in in_processes(2, all_dense, [torch.float64, torch.float32, torch.float16]):
        assert rates == [1.0, 2.0] * 3  # 2 (P - 1) / P allreduces of two steps
