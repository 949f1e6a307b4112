# SPDX-License-Identifier: Apache-2.0
"""Levels change the units of the native Reducer only: whatever comes out of it has those of the gradient again."""

import numpy as np
import pytest
import torch
from models import DEVICE, add, flat, flat_gradients, loss_of, small_model
from ranks import in_processes
from test_ddp import check_mass
from test_resident_hook import pretend

from oktopk import UsageError
from oktopk.torch import Reducer, SparseAdamW, _levels
from oktopk.torch._flat_reducer import FlatReducer
from oktopk.torch._levels import SecondMoments
from oktopk.torch.process_group import communicator

pytestmark = pytest.mark.skipif(DEVICE.type != "cpu", reason="pretends that CPU tensors are a GPU's")


class OneMoment:
    """An optimiser that knows one parameter."""

    def __init__(self, parameter, moment):
        self.param_groups, self.state = [{"params": [parameter]}], {parameter: {"exp_avg_sq": moment}}


def every_way(rank, P, preset, dtype, is_resident):
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


@pytest.mark.parametrize("preset, dtype", [("dense", "float32"), ("circulant", "float32"), ("oktopk", "bfloat16")])
def test_every_way_of_a_step_keeps_the_units_of_the_gradient(preset, dtype):
    check(in_processes(2, every_way, preset, getattr(torch, dtype), False), dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_that_stay_on_the_gpu_keep_the_units_of_the_gradient(dtype):
    check(in_processes(2, every_way, "slots", getattr(torch, dtype), True), dtype)


def check(results, dtype):
    given, unsent = (sum(result[i] for result in results) for i in (0, 2))
    error = 1e-4 if dtype == "float32" else 0.1  # rounding of means to 16 bits; a wrong unit is off by up to 16 times
    assert np.allclose(2 * results[0][1] + unsent, given, atol=error)
    assert np.allclose(2 * results[0][3], given, atol=error)


def own_loop(rank, P, folder, is_resumed):
    """A Reducer of parameters levels as the hook does: mass, agreement, saving and loading bit by bit."""
    _levels.LEAST_STEPS = 2
    model = small_model()
    reducer = Reducer(model.parameters(), total_steps=30, density=0.05, preset="circulant", timeout=30.0)
    optimiser = SparseAdamW(model.parameters(), reducer, lr=0.01)
    if is_resumed:
        saved = torch.load(folder / f"{rank}.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        reducer.load_state_dict(saved["reducer"])
    given, applied = {}, {}
    for step in range(8 if is_resumed else 0, 14):
        if step == 8 and not is_resumed:
            parts = {"model": model, "optimiser": optimiser, "reducer": reducer}
            torch.save({name: part.state_dict() for name, part in parts.items()}, folder / f"{rank}.pt")
        optimiser.zero_grad()
        loss_of(model, rank, step).backward()
        add(given, flat_gradients(model))
        reducer.reduce_gradients()
        add(applied, flat_gradients(model))
        optimiser.step()
    levels = reducer._flat_reducer.levels
    assert levels is not None and float(levels.max()) > 1
    unsent = reducer._flat_reducer.unsent()
    assert reducer.unsent_norm == pytest.approx(float(unsent.norm()))
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    left = dict(zip(sizes, (part.double().numpy() for part in unsent.split(list(sizes.values())))))
    return given, applied, left, flat(model)


def test_a_reducer_of_parameters_is_levelled_and_continues_bit_by_bit(tmp_path):
    results = in_processes(2, own_loop, tmp_path, False)
    check_mass(results, 2)
    resumed = in_processes(2, own_loop, tmp_path, True)
    assert all(np.array_equal(results[0][3], result[3]) for result in (*results, *resumed))


def half(rank, P):
    """One rank forgot the optimiser: an error on all, not wrong sums."""
    model = small_model()
    reducer = Reducer(model.parameters(), total_steps=30, preset="circulant", timeout=30.0)
    optimiser = SparseAdamW(model.parameters(), reducer if rank == 0 else None, lr=0.01)
    loss_of(model, rank, 0).backward()
    with pytest.raises(UsageError, match="levelled by an optimiser"):
        reducer.reduce_gradients()
    del optimiser


def test_ranks_that_differ_in_their_optimisers_are_told():
    in_processes(2, half)
