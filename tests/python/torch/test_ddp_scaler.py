# SPDX-License-Identifier: Apache-2.0
"""GradScaler with the DDP hook: what counts is which optimiser applied its step, not the scale."""

import numpy as np
import pytest
import torch
from models import DEVICE, add, flat, flat_gradients, loss_of, make_ddp, small_model, unsent_of
from ranks import in_processes, in_threads
from test_ddp import check_mass
from versions import needs_cpu_scaler, needs_torch

from oktopk.torch._applied import Applied, undo
from oktopk.torch._flat_reducer import FlatReducer
from oktopk.torch.process_group import communicator

BAD_STEPS = {3: 0, 6: 1}  # step -> the rank on which the first model overflows


class Player:
    """One model, its optimiser, and the three terms of the mass law."""

    def __init__(self, scaler, fused):
        self.model, self.state = make_ddp(start_iter=0, grad_scaler=scaler)
        options = {"fused": True} if fused else {}
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=0.05, **options)
        self.given, self.applied, self.taken = {}, {}, 0

    def step(self, scaler, rank, step, overflows):
        self.optimiser.zero_grad()
        own = small_model()
        own.load_state_dict(self.model.module.state_dict())
        loss_of(own, rank, step).backward()
        loss, scale = loss_of(self.model, rank, step), scaler.get_scale()
        if overflows:
            loss = loss + (self.model.module[0].bias * float("inf")).sum()
        before = flat(self.model)
        scaler.scale(loss).backward()
        mean = add({}, flat_gradients(self.model), 1 / scale)
        scaler.step(self.optimiser)
        if not np.array_equal(before, flat(self.model)):
            self.taken += 1
            add(self.given, flat_gradients(own))
            add(self.applied, mean)

    def terms(self):
        self.state.state_dict()  # settles the last step
        return self.given, self.applied, unsent_of(self.state), self.taken


def two_players(rank, P, fused):
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=1024.0, growth_interval=4)
    first, second = Player(scaler, fused), Player(scaler, fused)
    for step in range(9):
        first.step(scaler, rank, step, BAD_STEPS.get(step) == rank)
        second.step(scaler, rank, step + 50, False)
        scaler.update()
    return first.terms(), second.terms()


@needs_cpu_scaler
@pytest.mark.parametrize(
    "fused", [False, pytest.param(True, marks=needs_torch((2, 4), "fused SGD on the CPU"))]
)
def test_two_models_share_a_scaler_and_each_keeps_its_mass(fused):
    results = in_processes(2, two_players, fused)
    for place, taken in enumerate([7, 9]):
        assert [r[place][3] for r in results] == [taken] * 2
        check_mass([r[place] for r in results], 2)


class Told(torch.optim.Optimizer):
    def step(self, closure=None):
        pass


def test_what_counts_as_applied():
    a, b, c = (torch.nn.Parameter(torch.ones(3)) for _ in range(3))
    optimiser = torch.optim.SGD([a], lr=0.1)
    applied = Applied()

    def after(action):
        applied.watch([a, b, c])
        for p in (a, b, c):
            p.grad = torch.ones(3)
        with torch.no_grad():
            action()
        return [p in applied for p in (a, b, c)]

    assert after(lambda: None) == [False, False, False]
    assert after(optimiser.step) == [True, False, False]
    assert after(lambda: b.sub_(b.grad)) == [False, True, False]  # by hand
    assert after(lambda: a.clamp_(-1, 1)) == [False, False, False]  # a has an optimiser
    told = Told([c], {})
    told.found_inf = torch.ones(())  # as a GradScaler tells fused optimisers
    assert after(told.step) == [False, False, False]
    told.found_inf = torch.zeros(())
    assert after(told.step) == [False, False, True]


def half_applied(comm):
    n, half = 100, 40
    options = {"preset": "circulant", "density": 0.1}
    reducer = FlatReducer(comm, n, options)
    given = torch.arange(n, dtype=torch.float32) * (comm.rank + 1)
    reducer.core.keep_snapshot()
    reducer.step(given, 1.0)
    mean = torch.empty(n)
    reducer.core.write_update(mean)
    undo(reducer, [(0, half), (half, n)], [True, False])
    unsent = torch.zeros(n)
    reducer.core.take_unsent(unsent)
    mean[half:] = 0  # not applied
    return given.numpy(), mean.numpy(), unsent.numpy()


def test_a_step_that_is_applied_in_part_owes_the_rest():
    results = in_threads(3, half_applied)
    given, applied, unsent = (sum(r[i] for r in results) for i in range(3))
    assert np.array_equal(given, applied + unsent)


def half_applied_densely(rank, P):
    """By the group's own all_reduce, whose result is in the caller's tensor and changes there."""
    n, half = 100, 40
    reducer = FlatReducer(communicator(), n, {"preset": "dense"})
    given = torch.arange(n, dtype=torch.float32) * (rank + 1)
    flat = 8 * given
    reducer.keep_snapshot()
    reducer.step(flat, 1 / 8)
    reducer.write(flat, 8.0)
    mean = flat / 8
    flat.fill_(-1.0)
    undo(reducer, [(0, half), (half, n)], [True, False])
    unsent = torch.zeros(n)
    reducer.core.take_unsent(unsent)
    mean[half:] = 0  # not applied
    return given.numpy(), mean.numpy(), unsent.numpy()


def test_a_dense_step_that_is_applied_in_part_owes_the_rest():
    results = in_processes(2, half_applied_densely)
    given, applied, unsent = (sum(r[i] for r in results) for i in range(3))
    assert np.allclose(given, applied + unsent)
    assert np.all(unsent[40:] > 0) and not unsent[:40].any()
