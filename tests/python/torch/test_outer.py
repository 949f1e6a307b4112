# SPDX-License-Identifier: Apache-2.0
"""LocalSteps: momentum, moves of 16-bit weights, equal weights, learning, open local steps."""

from __future__ import annotations

import copy

import pytest
import torch
from ranks import all_equal, in_threads, on_ranks
from torch import nn

from oktopk.torch.checkpoint import unwrap
from oktopk.torch.outer import LocalSteps

EXACT = {"codec": "coo32+fp32", "decay": 1.0}


def make_model(seed=0):
    """Not by torch.manual_seed(), which ranks that are threads would share."""
    model = nn.Sequential(nn.Linear(11, 17), nn.Tanh(), nn.Linear(17, 3))
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.data.uniform_(-0.3, 0.3, generator=generator)
    return model


def flatten(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def flatten_all(parameters):
    return torch.cat([p.detach().reshape(-1) for p in parameters]).double()


def local_step(model, optimizer, rank, step):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(8, 11, generator=generator)
    y = torch.sin(x[:, :3]) * (1 + rank)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


def train(model, outer, rank, steps, first=0, lr=0.05):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(first, first + steps):
        local_step(model, optimizer, rank, step)
        if outer is not None:
            outer.step()


@pytest.mark.parametrize("nesterov", [True, False])
def test_momentum_is_that_of_sgd(nesterov):
    """Dense, on one rank, against torch.optim.SGD that steps on the same pseudo-gradients."""

    def work(comm):
        model, expected = make_model(), make_model()
        how = {"outer_lr": 0.7, "outer_momentum": 0.9, "nesterov": nesterov, **EXACT}
        outer = LocalSteps(model.parameters(), every=2, preset="dense", communicator=comm, **how)
        sgd = torch.optim.SGD(expected.parameters(), lr=0.7, momentum=0.9, nesterov=nesterov)
        for t in range(4):
            alone = copy.deepcopy(expected)
            train(alone, None, 0, 2, first=2 * t)
            train(model, outer, 0, 2, first=2 * t)
            for p, q in zip(expected.parameters(), alone.parameters()):
                p.grad = p.detach() - q.detach()
            sgd.step()
            torch.testing.assert_close(flatten(model), flatten(expected), rtol=1e-5, atol=1e-6)

    in_threads(1, work)


@pytest.mark.parametrize("P", [2, 3])
def test_nothing_of_16_bit_weights_is_lost_without_decay(P):
    """All local moves, from the weights as the parameters hold them, are applied in the end."""

    def work(comm):
        start = torch.linspace(-1, 1, 150).to(torch.bfloat16)
        parameters = [nn.Parameter(start.clone()) for _ in range(2)]
        outer = LocalSteps(parameters, every=2, communicator=comm, density=0.05, **EXACT)
        start = flatten_all(parameters)
        moved = torch.zeros(300, dtype=torch.float64)
        generator = torch.Generator().manual_seed(comm.rank)
        for step in range(10):
            before = flatten_all(parameters)
            with torch.no_grad():
                for p in parameters:
                    p.add_(torch.randn(150, generator=generator).pow(3).to(p) * 0.1)
            moved += flatten_all(parameters) - before
            assert outer.step() == (step % 2 == 1)
        assert outer.reducer.unsent_norm > 0
        outer.flush()
        assert outer.local_steps == 0
        return start, moved, unwrap(outer.state_dict())["weights"].double()

    results = in_threads(P, work)
    moved = sum(moved for _, moved, _ in results) / P
    for start, _, end in results:
        torch.testing.assert_close(end - start, moved, rtol=1e-5, atol=1e-5)


@on_ranks(3)
def test_weights_are_bitwise_equal_after_outer_steps(rank, P):
    """The defaults but for their density; other weights on each rank at first."""
    model = make_model(seed=rank)
    outer = LocalSteps(model.parameters(), every=3, density=0.05, timeout=60.0)
    assert all_equal(flatten(model))  # those of the first rank
    start = flatten(model)
    for t in range(5):
        train(model, outer, rank, 2, first=3 * t)
        assert outer.local_steps == 2 and not all_equal(flatten(model))
        train(model, outer, rank, 1, first=3 * t + 2)
        assert outer.local_steps == 0 and all_equal(flatten(model))
    assert outer.reducer.stats["codec"] == "elias_fano+log4"
    assert not torch.equal(flatten(model), start)


def test_ranks_that_meet_learn_more_than_ranks_alone():
    """Each of three ranks sees a third of the inputs' space; the loss is that over all of it."""
    inputs = torch.rand(600, 11, generator=torch.Generator().manual_seed(5)) * 2 - 1
    targets = torch.stack([torch.sin(3 * inputs[:, 0]), inputs[:, 1] ** 2, inputs[:, 2]], 1)
    order = inputs[:, 0].argsort()

    def loss_of(model):
        with torch.no_grad():
            return nn.functional.mse_loss(model(inputs), targets).item()

    def work(comm):
        models = [copy.deepcopy(untrained) for _ in range(2)]
        outer = LocalSteps(models[1].parameters(), every=10, density=0.03, communicator=comm)
        mine = order[comm.rank * 200 : (comm.rank + 1) * 200]
        generator = torch.Generator().manual_seed(comm.rank)
        optimizers = [torch.optim.AdamW(m.parameters(), lr=3e-3) for m in models]
        for _ in range(400):
            batch = mine[torch.randint(200, (16,), generator=generator)]
            for model, optimizer in zip(models, optimizers):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(inputs[batch]), targets[batch]).backward()
                optimizer.step()
            outer.step()
        return loss_of(models[0]), loss_of(models[1])

    untrained = make_model()
    results = in_threads(3, work)
    together = results[0][1]
    assert all(result[1] == together for result in results)
    assert together < min(alone for alone, _ in results)
    assert together < loss_of(untrained)


def test_a_state_between_two_meetings_continues_bitwise():
    def work(comm):
        options = {"every": 3, "density": 0.05, "outer_momentum": 0.5, "communicator": comm}
        model = make_model()
        outer = LocalSteps(model.parameters(), **options)
        train(model, outer, comm.rank, 7)  # one local step is open
        state, weights = outer.state_dict(), copy.deepcopy(model.state_dict())
        train(model, outer, comm.rank, 8, first=7)

        again = make_model(seed=1)
        other = LocalSteps(again.parameters(), **options)
        again.load_state_dict(weights)
        other.load_state_dict(state)
        assert other.local_steps == 1
        train(again, other, comm.rank, 8, first=7)
        assert torch.equal(flatten(again), flatten(model))

    in_threads(2, work)
