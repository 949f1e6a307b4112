# SPDX-License-Identifier: Apache-2.0
"""total_steps asks for the recipe of oktopk.recipe(); what a user gives replaces that part."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import oktopk
from oktopk.torch import OkTopkState, Reducer
from oktopk.torch._settings import without_coding

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
