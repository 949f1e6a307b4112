# SPDX-License-Identifier: Apache-2.0
"""Levelled selection: the optimiser's second moments take part in the choice of values, and change nothing else. They
change the units of the native Reducer only: whatever comes out of it has those of the gradient again. test_laws.py
holds levelled front-ends to the laws (Levelled, LevelledNodes, LevelledReducer)."""

import numpy as np
import pytest
import torch
from models import DEVICE, flat, loss_of, make_ddp, needs_cpu, small_model, unsent_of
from on_gpu import pretend
from ranks import in_processes

import oktopk.torch
from oktopk.torch import OkTopkState, Reducer, SparseAdamW, _levels
from oktopk.torch._flat_reducer import FlatReducer
from oktopk.torch._levels import SecondMoments, factors_of, next_time
from oktopk.torch.process_group import communicator

OPTIONS = {"levelled": True, "start_iter": None, "total_steps": 30, "density": 0.05}


def test_factors_are_about_the_fourth_root_and_bounded():
    second = torch.logspace(-12, -3, 1000)
    factors = factors_of(second)
    wanted = (second / second.max()).clamp(min=_levels.FLOOR) ** -0.25
    assert float(factors[-1]) == 1.0
    assert bool((factors[:-1] >= factors[1:]).all())
    assert float((factors / wanted - 1).abs().max()) < 0.1
    assert float(factors.max()) <= 16.0


def test_factors_without_any_moment_change_nothing():
    assert torch.equal(factors_of(torch.zeros(5)), torch.ones(5))
    assert float(factors_of(torch.tensor([0.0, 1.0]))[0]) == 16.0  # it never had a gradient: as the smallest


def test_next_time_is_when_the_steps_have_doubled():
    assert [next_time(steps) for steps in (0, 50, 160, 4000)] == [100, 150, 320, 8000]


def test_recipe_is_levelled_and_other_settings_are_not():
    assert OkTopkState(total_steps=2000).levelled and not OkTopkState().levelled
    assert not OkTopkState(start_iter=0.02, total_steps=2000).levelled
    assert not OkTopkState(total_steps=2000, levelled=False).levelled
    with pytest.raises(oktopk.UsageError, match="levelled"):
        OkTopkState(levelled="yes")


def trained(rank, P, steps, before=None, after=None, **options):
    """A model, its optimiser and its state after some steps. New levels are made every few steps. before and after: are
    called around a step."""
    _levels.LEAST_STEPS = 2
    model, state = make_ddp(**{**OPTIONS, **options})
    optimiser = SparseAdamW(model.parameters(), state, lr=0.01)
    for step in range(steps):
        noted = before and before(model, state, optimiser)
        optimiser.zero_grad()
        loss_of(model, rank, step).backward()
        if after is not None:
            after(step, noted, state)
        optimiser.step()
    return model, optimiser, state


def levels_of(state):
    return [channel.levels for channel in state._channels.to_save()]


def made(rank, P):
    """The factors are those of the moments of the bucket's parameters, in its order, when they were made."""
    seen = []

    def note(model, state, optimiser):
        named = model.module.named_parameters()
        moments = {name: optimiser.state[p]["exp_avg_sq"].clone() for name, p in named if p in optimiser.state}
        return moments, levels_of(state) if state._channels is not None else []

    def look(step, noted, state):
        moments, before = noted
        if step > 3:  # DDP has rebuilt its buckets
            for old, channel in zip(before, state._channels.to_save()):
                if channel.levels is not None and (old is None or old.next_time != channel.levels.next_time):
                    second = torch.cat([moments[name].flatten() for name in channel.names])
                    assert torch.equal(channel.levels.factors, factors_of(second).cpu())
                    seen.append(step)

    trained(rank, P, 14, note, look)
    return len(seen)


def test_levels_are_those_of_the_moments_in_the_order_of_the_bucket():
    assert min(in_processes(2, made)) >= 4


def with_zero(rank, P):
    """Each rank has the moments of a part of the parameters."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model, state = make_ddp(**OPTIONS)
    optimiser = ZeroRedundancyOptimizer(model.parameters(), SparseAdamW, source=state, lr=0.01)
    for step in range(12):
        optimiser.zero_grad()
        loss_of(model, rank, step).backward()
        optimiser.step()
    assert all(level is None for level in levels_of(state))
    return flat(model)


def test_ranks_with_moments_of_their_own_have_no_levels():
    results = in_processes(2, with_zero)
    assert np.array_equal(results[0], results[1])


def report(rank, P):
    """The callback's norm is that of the values as they are."""
    norms = []

    def note(metrics):
        if metrics["iteration"] == 7:
            norms.append(metrics["residual_norm"])

    *_, state = trained(rank, P, 8, callback=note)
    true = np.sqrt(sum((x**2).sum() for x in unsent_of(state).values()))
    return np.sqrt(np.sum(np.square(norms))), true


def test_metrics_show_the_norm_in_the_units_of_the_gradient():
    for shown, true in in_processes(2, report):
        assert shown == pytest.approx(true, rel=1e-4)


def choose(rank, P, levelled):
    """Where the last of many steps arrived, and the second moments before it."""
    _, optimiser, state = trained(rank, P, 12, levelled=levelled)
    found = []
    for parameter, values in optimiser.state.items():
        places = state.arrived(parameter)
        if places is not None and parameter.numel() > 1000:
            found.append(float(values["exp_avg_sq"].flatten()[places].log().mean()))
    return np.mean(found)


def test_levelled_selection_takes_coordinates_with_smaller_moments():
    plain, levelled = (in_processes(2, choose, is_on)[0] for is_on in (False, True))
    assert levelled < plain


def in_bf16(rank, P):
    """Buckets in 16 bits: levelled in float, and rounded once."""
    _levels.LEAST_STEPS = 2
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64).to(DEVICE, torch.bfloat16)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    state = OkTopkState(**{**OPTIONS, "preset": "circulant", "min_numel": 100, "timeout": 30.0})
    ddp.register_comm_hook(state, oktopk.torch.oktopk_hook)
    optimiser = SparseAdamW(ddp.parameters(), state, lr=0.01)
    losses = []
    generator = torch.Generator().manual_seed(rank)
    for _ in range(25):
        x = torch.randn(32, 64, generator=generator).to(DEVICE, torch.bfloat16)
        optimiser.zero_grad()
        loss = (ddp(x) - x).float().square().mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert all(level is not None for level in levels_of(state))
    return losses, flat(ddp.float())


def test_levels_of_16_bit_gradients_learn_and_ranks_agree():
    results = in_processes(2, in_bf16)
    assert np.array_equal(results[0][1], results[1][1])
    assert np.mean(results[0][0][-5:]) < 0.8 * np.mean(results[0][0][:5])


def with_other_moments(rank, P):
    """Sums of values in other units would be no gradients."""
    model, state = make_ddp(**{**OPTIONS, "total_steps": None, "start_iter": 2})
    betas = (0.9, 0.99 if rank == P - 1 else 0.999)
    optimiser = SparseAdamW(model.parameters(), state, lr=0.01, betas=betas)
    words = rf"rank {P - 1} has second moments \w+ of SparseAdamW, rank 0 has .*: give all ranks the same options"
    with pytest.raises(oktopk.UsageError, match=words):
        for step in range(4):
            optimiser.zero_grad()
            loss_of(model, rank, step).backward()
            optimiser.step()
    return step


def test_moments_that_differ_between_ranks_are_refused():
    assert in_processes(3, with_other_moments) == [2] * 3


class OneMoment:
    """An optimiser that knows one parameter."""

    def __init__(self, parameter, moment):
        self.param_groups, self.state = [{"params": [parameter]}], {parameter: {"exp_avg_sq": moment}}


def every_way(rank, P, preset, dtype, is_resident, is_levelled=True):
    """Steps, one skipped, one half undone, one wholly undone, and a flush: what was given is applied or unsent. A step
    that stays on the GPU is undone by making its mean unsent again."""
    if is_resident:
        pretend()
    n, generator = 2000, torch.Generator().manual_seed(rank)
    density = {} if preset == "dense" else {"density": 0.05}
    reducer = FlatReducer(communicator(None, 30.0), n, {"preset": preset, "nan_policy": "skip", **density})
    parameter, moments = torch.nn.Parameter(torch.zeros(n)), SecondMoments()
    optimiser = OneMoment(parameter, torch.logspace(-9, 0, n))
    moments.add(optimiser)
    if is_levelled:
        reducer.level_by(moments, [parameter])
        assert float(reducer.levels.max()) > 8
    given, applied = torch.randn(n, generator=generator), torch.zeros(n)
    reducer.give_unsent(given)
    for step in range(6):
        gradient = torch.randn(n, generator=generator).to(dtype)
        sent = gradient.clone()
        if step == 3 and rank == 1 and not is_resident:
            sent[5] = float("nan")
        reducer.keep_for_undo(sent.device)
        reducer.step(sent, 0.5)
        assert reducer.core.skipped == (step == 3 and not is_resident)
        if reducer.core.skipped:
            continue
        mean = torch.empty(n, dtype=dtype)
        reducer.write(mean)
        sent.fill_(-1.0)  # it is the caller's, although a dense step works in it
        if step == 4:
            reducer.undo([(0, 1000), (1000, n)], [True, False])
            mean[1000:] = 0
        if step == 5:
            reducer.undo([(0, 1000), (1000, n)], [False, False])
            mean.zero_()
            if not is_resident:
                continue
        given += 0.5 * gradient.float()
        applied += mean.float()
    unsent = reducer.unsent()
    mean = torch.empty(n)
    reducer.flush()
    reducer.write(mean)
    return [x.double().numpy() for x in (given, applied, unsent, applied + mean)]


@needs_cpu
@pytest.mark.parametrize("preset, dtype", [("dense", "float32"), ("circulant", "float32"), ("oktopk", "bfloat16")])
def test_every_way_of_a_step_keeps_the_units_of_the_gradient(preset, dtype):
    for is_levelled in (True, False):
        check(in_processes(2, every_way, preset, getattr(torch, dtype), False, is_levelled), dtype)


@needs_cpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_that_stay_on_the_gpu_keep_the_units_of_the_gradient(dtype):
    check(in_processes(2, every_way, "slots", getattr(torch, dtype), True), dtype)


def check(results, dtype):
    given, unsent = (sum(result[i] for result in results) for i in (0, 2))
    error = 1e-4 if dtype == "float32" else 0.1  # rounding of means to 16 bits; a wrong unit is off by up to 16 times
    assert np.allclose(2 * results[0][1] + unsent, given, atol=error)
    assert np.allclose(2 * results[0][3], given, atol=error)


def half(rank, P):
    """One rank forgot the optimiser: an error on all, not wrong sums."""
    model = small_model()
    reducer = Reducer(model.parameters(), total_steps=30, preset="circulant", timeout=30.0)
    optimiser = SparseAdamW(model.parameters(), reducer if rank == 0 else None, lr=0.01)
    loss_of(model, rank, 0).backward()
    with pytest.raises(oktopk.UsageError, match="levelled by an optimiser"):
        reducer.reduce_gradients()
    del optimiser


@needs_cpu
def test_ranks_that_differ_in_their_optimisers_are_told():
    in_processes(2, half)
