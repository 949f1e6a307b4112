# SPDX-License-Identifier: Apache-2.0
"""Levelled selection: the optimiser's second moments take part in the choice of values, and change nothing else."""

import io

import numpy as np
import pytest
import torch
from models import DEVICE, add, flat, flat_gradients, loss_of, make_ddp, small_model, unsent_of
from ranks import in_processes
from test_ddp import check_mass
from versions import needs_cpu_scaler

import oktopk.torch
from oktopk.torch import OkTopkState, SparseAdamW, _levels
from oktopk.torch._levels import factors_of, next_time

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


def train_levelled(rank, P, steps, options, first=0, saved=None):
    """The mass of all steps, and what the hook has afterwards. New levels are made every few steps."""
    _levels.LEAST_STEPS = 2
    model, state = make_ddp(**{**OPTIONS, **options})
    optimiser = SparseAdamW(model.parameters(), state, lr=0.01)
    if saved is not None:
        model.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        state.load_state_dict(saved["hook"])
    own, given, applied = small_model(), {}, {}
    for step in range(first, first + steps):
        optimiser.zero_grad()
        own.load_state_dict(model.module.state_dict())
        own.zero_grad()
        loss_of(own, rank, step).backward()
        loss_of(model, rank, step).backward()
        add(given, flat_gradients(own))
        add(applied, flat_gradients(model))
        optimiser.step()
    return model, optimiser, state, (given, applied, unsent_of(state), flat(model))


def levels_of(state):
    return [channel.levels for channel in state._channels.to_save()]


def mass(rank, P, options):
    *_, state, results = train_levelled(rank, P, 14, options)
    levels = levels_of(state)
    assert levels and all(level is not None and float(level.factors.max()) > 1 for level in levels)
    return results


@pytest.mark.parametrize("P", [2, 3])
@pytest.mark.parametrize("preset", ["circulant", "topka", "slots"])
def test_levels_lose_no_mass_and_ranks_agree(preset, P):
    results = in_processes(P, mass, {"preset": preset})
    left = check_mass(results, P)
    assert sum(np.abs(x).sum() for x in left.values()) > 0
    assert all(np.array_equal(results[0][3], result[3]) for result in results)


def test_levels_on_nodes_lose_no_mass_and_ranks_agree():
    results = in_processes(4, mass, {"preset": "circulant", "group_size": 2})
    check_mass(results, 4)
    assert all(np.array_equal(results[0][3], result[3]) for result in results)


def made(rank, P):
    """The factors are those of the moments of the bucket's parameters, in its order, when they were made."""
    _levels.LEAST_STEPS = 2
    model, state = make_ddp(**OPTIONS)
    optimiser = SparseAdamW(model.parameters(), state, lr=0.01)
    named, seen = dict(model.module.named_parameters()), 0
    for step in range(14):
        before = levels_of(state) if state._channels is not None else []
        moments = {name: optimiser.state[p]["exp_avg_sq"].clone() for name, p in named.items() if p in optimiser.state}
        optimiser.zero_grad()
        loss_of(model, rank, step).backward()
        if step > 3:  # DDP has rebuilt its buckets
            for old, channel in zip(before, state._channels.to_save()):
                if channel.levels is not None and (old is None or old.next_time != channel.levels.next_time):
                    second = torch.cat([moments[name].flatten() for name in channel.names])
                    assert torch.equal(channel.levels.factors, factors_of(second).cpu())
                    seen += 1
        optimiser.step()
    return seen


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
    _levels.LEAST_STEPS = 2
    model, state = make_ddp(**OPTIONS, callback=lambda metrics: norms.append(metrics["residual_norm"]))
    optimiser = SparseAdamW(model.parameters(), state, lr=0.01)
    for step in range(8):
        norms.clear()
        optimiser.zero_grad()
        loss_of(model, rank, step).backward()
        optimiser.step()
    true = np.sqrt(sum((x**2).sum() for x in unsent_of(state).values()))
    return np.sqrt(np.sum(np.square(norms))), true


def test_metrics_show_the_norm_in_the_units_of_the_gradient():
    for shown, true in in_processes(2, report):
        assert shown == pytest.approx(true, rel=1e-4)


def choose(rank, P, levelled):
    """Where the last of many steps arrived, and the second moments before it."""
    _, optimiser, state, _ = train_levelled(rank, P, 12, {"levelled": levelled})
    found = []
    for parameter, values in optimiser.state.items():
        places = state.arrived(parameter)
        if places is not None and parameter.numel() > 1000:
            found.append(float(values["exp_avg_sq"].flatten()[places].log().mean()))
    return np.mean(found)


def test_levelled_selection_takes_coordinates_with_smaller_moments():
    plain, levelled = (in_processes(2, choose, is_on)[0] for is_on in (False, True))
    assert levelled < plain


def save(rank, P, folder):
    model, optimiser, state, results = train_levelled(rank, P, 11, {})
    file = io.BytesIO()
    saved = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "hook": state.state_dict()}
    torch.save(saved, file)
    (folder / f"{rank}.pt").write_bytes(file.getvalue())
    return results[2]


def resume(rank, P, folder):
    """Three more steps. DDP begins with other buckets than it ended with, so levels are made anew on the way."""
    saved = torch.load(folder / f"{rank}.pt", weights_only=True)
    assert next(iter(saved["hook"].values()))[0]["oktopk"] == 2
    *_, state, results = train_levelled(rank, P, 3, {}, first=11, saved=saved)
    assert all(level is not None for level in levels_of(state))
    return results


def test_saved_levels_continue_without_loss(tmp_path):
    unsent = in_processes(2, save, tmp_path)
    results = in_processes(2, resume, tmp_path)
    assert np.array_equal(results[0][3], results[1][3])
    for (given, *_), before in zip(results, unsent):
        add(given, before)
    check_mass(results, 2)


def with_scaler(rank, P):
    """Steps that overflow in one layer are undone."""
    _levels.LEAST_STEPS = 2
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=1024.0, growth_interval=2)
    model, state = make_ddp(**OPTIONS, grad_scaler=scaler)
    optimiser = SparseAdamW(model.parameters(), state, lr=0.01)
    own, given, applied, taken = small_model(), {}, {}, 0
    for step in range(12):
        optimiser.zero_grad()
        own.load_state_dict(model.module.state_dict())
        own.zero_grad()
        loss_of(own, rank, step).backward()
        loss = loss_of(model, rank, step)
        if step in (7, 9) and rank == 1:
            loss = loss + (model.module[0].bias * float("inf")).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimiser)
        if all(bool(p.grad.isfinite().all()) for p in model.parameters()):
            add(given, flat_gradients(own))
            add(applied, flat_gradients(model))
            taken += 1
        scaler.step(optimiser)
        scaler.update()
    assert any(level is not None for level in levels_of(state))
    return given, applied, unsent_of(state), taken


@needs_cpu_scaler
def test_levelled_steps_that_the_scaler_skips_leave_no_trace():
    results = in_processes(2, with_scaler)
    assert [r[3] for r in results] == [10, 10]
    check_mass(results, 2)


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
