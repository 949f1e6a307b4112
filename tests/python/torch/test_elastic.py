# SPDX-License-Identifier: Apache-2.0
"""Elastic worlds in PyTorch: members that leave and join, the states that travel, and the steps of a quiet run."""

import threading

import numpy as np
import pytest
import torch
from elastic_ranks import SECONDS, Job, run_members
from ranks import in_threads

import oktopk
from oktopk._core import tcp_available
from oktopk.torch import LocalSteps, Reducer, SparseAdamW

if not tcp_available():
    pytest.skip("this build has no transport tcp (OpenSSL was not found)", allow_module_level=True)

SPARSE = {"preset": "circulant", "density": 0.1}


ONE_AT_A_TIME = threading.Lock()  # torch has one generator for all threads


def small_model():
    with ONE_AT_A_TIME, torch.random.fork_rng():
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 4))


def backward(model, step, rank):
    """Skewed: the last input is large."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(8, 20, generator=generator)
    x[:, -1] *= 10
    model.zero_grad()
    model(x).square().mean().backward()


def weights_of(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy().copy()


def train(model, optimiser, reducer, comm, steps):
    for step in range(steps):
        backward(model, step, comm.rank)
        reducer.reduce_gradients()
        optimiser.step()


def quiet(job, place):
    model = small_model()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with job.world() as world:
        train(model, optimiser, Reducer(model.parameters(), communicator=world, **SPARSE), world, 6)
        assert (world.committed, world.epoch, world.size) == (6, 1, job.least)
    return weights_of(model)


def fixed(comm):
    model = small_model()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train(model, optimiser, Reducer(model.parameters(), communicator=comm, **SPARSE), comm, 6)
    return weights_of(model)


@pytest.mark.parametrize("P", [1, 2, 3])
def test_a_quiet_run_gives_the_bits_of_a_fixed_world(P):
    expected = in_threads(P, fixed)[0]
    for weights in run_members(P, quiet):
        assert np.array_equal(weights, expected)


class Run:
    """How far the members are: the run ends 4 steps after one has joined. One object per member."""

    def __init__(self, leaves=None, reached=None):
        self.leaves, self.reached = leaves, reached
        self.changes = []
        self.end = None

    def note(self, change):
        self.changes.append(change)
        if change.joined:
            self.end = change.step + 4

    def goes_on(self, world):
        if self.reached is not None and world.committed == 4:
            self.reached.set()
        assert world.committed < 100_000
        return world.committed != self.end and world.committed != self.leaves


def member(job, run, make):
    model = small_model()
    world = job.world(on_change=run.note)
    reducer = Reducer(model.parameters(), communicator=world, **SPARSE)
    source = {"source": reducer} if make is SparseAdamW else {"momentum": 0.9}
    optimiser = make(model.parameters(), lr=0.01, **source)
    world.share(model=model, optimizer=optimiser)
    began = world.committed
    while run.goes_on(world):
        backward(model, world.committed, world.rank)
        reducer.reduce_gradients()
        optimiser.step()
    seen = world.committed, world.size
    world.close()
    return began, seen, weights_of(model), optimiser.state_dict()


def local_member(job, run, _):
    model = small_model()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    world = job.world(on_change=run.note)
    outer = LocalSteps(model.parameters(), every=3, density=0.1, outer_momentum=0.5, communicator=world)
    began, step = world.committed, 0
    while run.goes_on(world):
        backward(model, step, world.rank)
        optimiser.step()
        step += 1
        outer.step()
    assert step == 3 * (world.committed - began)
    seen = world.committed, world.size
    state = outer.state_dict()
    world.close()
    (own,) = next(iter(state.values()))
    return began, seen, weights_of(model), {"velocity": own["velocity"], "weights": own["weights"]}


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize(
    "body, make", [(member, torch.optim.SGD), (member, SparseAdamW), (local_member, None)], ids=["SGD", "Adam", "local"]
)
def test_members_leave_and_join_and_their_states_stay_equal(body, make):
    job = Job(3)
    reached = threading.Event()
    runs = [Run(), Run(leaves=2), Run(reached=reached), Run()]
    for run in runs[:3]:
        job.start(body, run, make)
    assert reached.wait(SECONDS)
    job.start(body, runs[3], make)
    results = job.wait()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    first, left, third, joined = results
    assert left[1] == (2, 3)
    lost, came = runs[0].changes
    assert (len(lost.lost), lost.joined, len(lost.members), lost.step) == (1, [], 2, 2)
    assert (came.lost, len(came.joined), len(came.members)) == ([], 1, 3)
    assert came.epoch > lost.epoch > 1 and lost.left == came.left == came.losses == []
    assert [loss["id"] for loss in lost.losses] == lost.lost and lost.losses[0]["memory"] == "recovered"
    assert runs[2].changes == [lost, came]
    assert (first[0], third[0]) == (0, 0) and joined[0] >= came.step >= 4
    for _, seen, weights, state in (first, third, joined):
        assert seen == (came.step + 4, 3)
        assert np.array_equal(weights, first[2])
        assert same(state, first[3])


def leaving(job, place):
    model = small_model()
    changes = []
    world = job.world(on_change=changes.append)
    with pytest.raises(oktopk.UsageError, match="has no Reducer"):
        world.leave_after_next()
    reducer = Reducer(model.parameters(), communicator=world, **SPARSE)
    last = 2 if place == 1 else 5
    total = 0
    for step in range(last + 1):
        if step == last:
            world.leave_after_next()
        backward(model, step, place)
        reducer.reduce_gradients()
        total = total + torch.cat([p.grad.flatten() for p in model.parameters()])
    world.close()
    return total, changes


def test_a_member_leaves_in_good_order():
    (first, changes), (left, _), (third, _) = run_members(3, leaving)
    assert torch.equal(first, third) and not torch.equal(first, left)
    (change,) = changes
    assert change.lost == change.joined == change.losses == [] and len(change.left) == 1 and change.step == 3


def raising(job, place):
    """The hook of one member raises; the others repair the step without it."""

    def on_change(change):
        if place == 2 and len(change.lost) == 1:
            raise KeyError("no such thing")

    model = small_model()
    world = job.world(on_change=on_change)
    reducer = Reducer(model.parameters(), communicator=world, **SPARSE)
    for step in range(5):
        if (place, step) == (0, 2):
            world.close()
            return "left"
        backward(model, step, place)
        try:
            reducer.reduce_gradients()
        except KeyError as error:
            world.close()
            return str(error)
    size = world.size
    world.close()
    return size


def test_a_hook_that_raises_takes_only_its_member_out():
    assert run_members(4, raising) == ["left", 2, "'no such thing'", 2]


def test_the_world_of_a_dropped_reducer_is_freed():
    """Nothing keeps a closed world, its reducer and its optimiser alive."""
    import gc
    import weakref

    def body(job, place):
        model = small_model()
        world = job.world()
        reducer = Reducer(model.parameters(), communicator=world, **SPARSE)
        optimiser = SparseAdamW(model.parameters(), reducer, lr=0.1)
        world.share(optimizer=optimiser)
        return weakref.ref(world), weakref.ref(reducer)

    refs = run_members(1, body)[0]
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def test_steps_after_close_are_an_error():
    def body(job, place):
        model = small_model()
        world = job.world()
        reducer = Reducer(model.parameters(), communicator=world, **SPARSE)
        world.close()
        world.close()
        for call in (reducer.reduce_gradients, lambda: world.size, lambda: reducer.unsent_norm, reducer.state_dict):
            with pytest.raises(oktopk.CommError, match="closed"):
                call()

    run_members(1, body)
