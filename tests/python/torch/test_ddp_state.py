# SPDX-License-Identifier: Apache-2.0
"""OkTopkState between steps: steps that are skipped, saving and restoring."""

import io
import pickle

import numpy as np
import pytest
import torch
from models import (
    DEVICE,
    STAGING,
    add,
    flat,
    flat_gradients,
    loss_of,
    make_ddp,
    small_model,
    train,
    unsent_of,
)
from ranks import in_processes
from test_ddp import check_mass
from torch.nn.parallel import DistributedDataParallel
from versions import needs_cpu_scaler

import oktopk
import oktopk.torch

BAD_STEPS = {3: 0, 6: 1}  # step -> the rank whose gradients overflow


def with_scaler(rank, P, min_numel, bad_layer, options=None):
    """Scaled gradients; in some steps one rank's are not finite in one layer, and the scaler leaves
    the step out. What is given counts only in steps that were taken."""
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=1024.0, growth_interval=2)
    settings = {"start_iter": 0, "grad_scaler": scaler, "min_numel": min_numel}
    model, state = make_ddp(**settings, **(options or {}))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    own = small_model()
    given, applied, taken = {}, {}, 0
    for step in range(9):
        optimiser.zero_grad()
        own.load_state_dict(model.module.state_dict())
        own.zero_grad()
        loss_of(own, rank, step).backward()
        loss = loss_of(model, rank, step)
        if BAD_STEPS.get(step) == rank:
            loss = loss + (model.module[bad_layer].bias * float("inf")).sum()
        before = flat(model)
        scaler.scale(loss).backward()
        scaler.unscale_(optimiser)
        is_finite = all(bool(p.grad.isfinite().all()) for p in model.parameters())
        if is_finite:
            add(given, flat_gradients(own))
            add(applied, flat_gradients(model))
            taken += 1
        scaler.step(optimiser)
        scaler.update()
        assert is_finite != np.array_equal(before, flat(model))
        assert all(np.isfinite(x).all() for x in unsent_of(state).values())
    return given, applied, unsent_of(state), taken


@needs_cpu_scaler
@pytest.mark.parametrize("min_numel, bad_layer", [(100, 0), (100, 4), (2000, 4)])
def test_steps_that_the_scaler_skips_leave_no_trace(min_numel, bad_layer):
    # min_numel 2000: the last layer's bucket is dense, so no sparse bucket sees the overflow.
    results = in_processes(2, with_scaler, min_numel, bad_layer)
    assert [r[3] for r in results] == [7, 7]
    check_mass(results, 2)


def nan_skipped(rank, P, preset):
    model, state = make_ddp(start_iter=0, nan_policy="skip", preset=preset)
    before = unsent_of(state)
    loss = loss_of(model, rank, 0)
    (loss * float("nan") if rank == 1 else loss).backward()
    gradient = np.concatenate(list(flat_gradients(model).values()))
    train(model, rank, 3)
    return not gradient.any() and not before, flat(model)


@pytest.mark.parametrize("preset", ["circulant", "auto"])
def test_nan_with_policy_skip_leaves_the_buckets_out(preset):
    results = in_processes(2, nan_skipped, preset)
    assert all(clean and np.isfinite(weights).all() for clean, weights in results)
    assert np.array_equal(results[0][1], results[1][1])


def save_and_go_on(rank, P, folder, options=None):
    model, state = make_ddp(**(options or {}))
    train(model, rank, 6)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "hook": state.state_dict()}, file)
    with open(f"{folder}/{rank}.pt", "wb") as out:
        out.write(file.getvalue())
    return unsent_of(state), state.iteration


def read(folder, rank):
    return torch.load(f"{folder}/{rank}.pt", weights_only=True)


def restore(rank, P, folder):
    model, state = make_ddp()
    saved = read(folder, rank)
    model.load_state_dict(saved["model"])
    state.load_state_dict(saved["hook"])
    (again,) = state.state_dict().values()  # loaded and not used: the same
    assert again[0]["iteration"] == 6
    model.zero_grad()
    (0.0 * loss_of(model, rank, 0)).backward()  # a step whose gradient is zero
    applied = flat_gradients(model)
    unsent = unsent_of(state)
    train(model, rank, 5, first=6)
    return applied, unsent, state.iteration, flat(model)


@pytest.mark.parametrize("P", [2, 3])
def test_a_restored_state_owes_what_the_saved_one_owed(P, tmp_path):
    before = in_processes(P, save_and_go_on, str(tmp_path))
    after = in_processes(P, restore, str(tmp_path))
    owed, found = {}, {}
    for unsent, _ in before:
        add(owed, unsent)
    for _, unsent, _, _ in after:
        add(found, unsent)
    add(found, after[0][0], P)
    for name, total in owed.items():
        assert np.allclose(found[name], total, atol=1e-5 * max(np.abs(total).max(), 1e-3)), name
    assert all(r[2] == 12 for r in after)
    assert all(np.array_equal(r[3], after[0][3]) for r in after)


def restore_elsewhere(rank, P, folder, saved_ranks):
    model, state = make_ddp()
    saved = [read(folder, r) for r in range(saved_ranks)]
    model.load_state_dict(saved[0]["model"])
    state.load_state_dicts([s["hook"] for s in saved])
    model.zero_grad()
    (0.0 * loss_of(model, rank, 0)).backward()
    return flat_gradients(model), unsent_of(state)


def test_states_of_four_ranks_go_on_with_two(tmp_path):
    before = in_processes(4, save_and_go_on, str(tmp_path))
    after = in_processes(2, restore_elsewhere, str(tmp_path), 4)
    owed, found = {}, {}
    for unsent, _ in before:
        add(owed, unsent, 1 / 4)  # what the weights are owed: the mean over the ranks
    for _, unsent in after:
        add(found, unsent, 1 / 2)
    add(found, after[0][0])
    for name, total in owed.items():
        assert np.allclose(found[name], total, atol=1e-5 * max(np.abs(total).max(), 1e-3)), name


def restore_alone(rank, P, folder):
    """One state of two ranks is not all of them; the error comes in every step, until all are given."""
    model, state = make_ddp()
    state.load_state_dict(read(folder, rank)["hook"])
    for _ in range(2):
        with pytest.raises(oktopk.UsageError, match="one of 2 ranks.*load_state_dicts"):
            loss_of(model, rank, 0).backward()
    state.load_state_dicts([read(folder, r)["hook"] for r in range(2)])
    model.zero_grad()
    loss_of(model, rank, 0).backward()
    return True


def test_a_state_of_another_number_of_ranks_is_refused_until_all_are_given(tmp_path):
    in_processes(2, save_and_go_on, str(tmp_path))
    assert all(in_processes(1, restore_alone, str(tmp_path)))


def pickled(rank, P):
    model, state = make_ddp(callback=print)
    state.callback = None
    train(model, rank, 5)
    again = pickle.loads(pickle.dumps(state))
    assert again.process_group is None and again.iteration == 5 and again.options == state.options
    other, _ = make_ddp(state=again)
    other.load_state_dict(model.state_dict())
    train(other, rank, 3, first=5)
    return flat(other)


def test_a_pickled_state_goes_on():
    results = in_processes(2, pickled)
    assert np.array_equal(results[0], results[1])


def within_another(rank, P, wrapped_twice):
    """A hook of the user's own around ours: DDP knows its state, and not ours."""
    inner = oktopk.torch.OkTopkState(
        density=0.05, preset="circulant", start_iter=0, min_numel=100, timeout=30.0, **STAGING
    )

    def hook(
        outer: dict, bucket: torch.distributed.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        return oktopk.torch.oktopk_hook(outer["inner"], bucket)

    model, _ = make_ddp(hook=None)
    other = DistributedDataParallel(model.module) if wrapped_twice else None
    model.register_comm_hook({"inner": inner}, hook)
    train(model, rank, 3)
    del other
    names = list(inner.unsent())
    if not wrapped_twice:  # a state is loaded by its parameters' names
        inner.load_state_dict(inner.state_dict())
    train(model, rank, 3, first=3)
    return names, flat(model)


def test_a_state_within_another_finds_its_model():
    (names, weights), (_, others) = in_processes(2, within_another, False)
    assert sorted(names) == sorted(name for name, _ in small_model(device="cpu").named_parameters())
    assert np.array_equal(weights, others)


def test_a_state_within_another_does_without_the_names_of_its_model():
    (_, weights), (_, others) = in_processes(2, within_another, True)
    assert np.array_equal(weights, others)


def test_a_state_of_something_else_is_refused():
    state = oktopk.torch.OkTopkState()
    with pytest.raises(oktopk.UsageError, match="state_dict of an OkTopkState"):
        state.load_state_dict({"weights": 1})
