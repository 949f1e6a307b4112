# SPDX-License-Identifier: Apache-2.0
"""Elastic worlds in PyTorch: members that leave, die and join, the states that travel, the steps of a quiet run, and
bad use. With OKTOPK_TEST_DEVICE=cuda the parameters are on a GPU that all members share; gradients go through host
memory.

Gradients of most tests are multiples of 2^-10, and the learning rate is a power of two: every sum is exact, so a run on
a GPU has the bits of one on the CPU. Members are told apart by their number, which is 1, 2 and 3 in the first epoch,
whoever comes first."""

import gc
import threading
import weakref

import pytest
import torch
from elastic_ranks import SECONDS, SECRET, Job, Run, run_members
from models import DEVICE, same_bits, use_gpu
from ranks import in_processes, in_threads

import oktopk
from oktopk._core import tcp_available
from oktopk.torch import ElasticWorld, LocalSteps, Reducer, SparseAdamW

if not tcp_available():
    pytest.skip("this build has no transport tcp (OpenSSL was not found)", allow_module_level=True)

SPARSE = {"preset": "circulant", "density": 0.1}
CPU = torch.device("cpu")
ONE_AT_A_TIME = threading.Lock()  # torch has one generator for all threads


def on_device(work, *args):
    """work(device, *args), for a GPU in a process of its own, so that this one never uses CUDA."""
    if DEVICE.type == "cpu":
        work(CPU, *args)
    else:
        in_processes(1, _on_gpu, work, *args)


def _on_gpu(rank, P, work, *args):
    work(use_gpu(), *args)


def small_model(device=CPU):
    with ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 4)).to(device)


def set_gradients(model, step, member):
    """Exact ones, skewed so that few entries are large."""
    generator = torch.Generator().manual_seed(1000 * step + member)
    for parameter in model.parameters():
        whole = torch.randint(-1000, 1001, parameter.shape, generator=generator)
        large = torch.randint(0, 20, parameter.shape, generator=generator) == 0
        parameter.grad = (torch.where(large, 8 * whole, whole) / 1024).to(parameter.device)


def backward(model, step, member):
    """Skewed: the last input is large."""
    generator = torch.Generator().manual_seed(1000 * step + member)
    x = torch.randn(8, 20, generator=generator)
    x[:, -1] *= 10
    model.zero_grad()
    model(x.to(next(model.parameters()).device)).square().mean().backward()


def weights_of(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()


def fixed(comm, steps):
    model = small_model()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.25)
    reducer = Reducer(model.parameters(), communicator=comm, **SPARSE)
    for step in range(steps):
        set_gradients(model, step, comm.rank + 1)
        reducer.reduce_gradients()
        optimiser.step()
    return weights_of(model)


def exact_member(job, _, device, dies, steps):
    """Trains by exact gradients; member 2 goes without a word before step `dies`."""
    model = small_model(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.25)
    changes = []
    world = job.world(on_change=changes.append)
    number = world.members[world.rank]
    reducer = Reducer(model.parameters(), communicator=world, **SPARSE)
    while world.committed < steps:
        if (number, world.committed) == (2, dies):
            world.close()
            return number, None, []
        if world.committed == steps - 1:
            world.leave_after_next()
        set_gradients(model, world.committed, number)
        reducer.reduce_gradients()
        assert all(p.grad.device == device for p in model.parameters())
        optimiser.step()
    world.close()
    return number, weights_of(model), [(change.step, change.lost, change.members) for change in changes]


def quiet(device):
    for P in (1, 2, 3):
        expected = in_threads(P, fixed, 6)[0]
        for _, weights, changes in run_members(P, exact_member, device, None, 6):
            assert same_bits(weights, expected) and changes == []


def test_a_quiet_run_gives_the_bits_of_a_fixed_world_on_the_cpu():
    on_device(quiet)


def death(device, dies):
    expected = {number: weights for number, weights, _ in run_members(3, exact_member, CPU, dies, 10)}
    results = run_members(3, exact_member, device, dies, 10)
    assert sorted(number for number, _, _ in results) == [1, 2, 3]
    for number, weights, changes in results:
        if number != 2:
            assert changes == [(dies, [2], [1, 3])]
            assert same_bits(weights, expected[1]) and same_bits(weights, expected[3])


@pytest.mark.parametrize("dies", [0, 1, 5])
def test_survivors_go_on_with_the_bits_of_the_cpu(dies):
    on_device(death, dies)


def member(job, run, device, make):
    model = small_model(device)
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
    values = [value for state in optimiser.state.values() for value in state.values()]
    assert all(value.device == device for value in values if isinstance(value, torch.Tensor) and value.dim() > 0)
    return began, seen, weights_of(model), optimiser.state_dict()


def local_member(job, run, device, _):
    model = small_model(device)
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


def leave_and_join(device, body, make):
    job, reached = Job(3), threading.Event()
    runs = [Run(), Run(leaves=2), Run(reached=reached), Run()]
    for run in runs[:3]:
        job.start(body, run, device, make)
    assert reached.wait(SECONDS)
    job.start(body, runs[3], device, make)
    first, left, third, joined = job.wait()
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
        assert same_bits(weights, first[2])
        assert same(state, first[3])


@pytest.mark.parametrize(
    "body, make", [(member, torch.optim.SGD), (member, SparseAdamW), (local_member, None)], ids=["SGD", "Adam", "local"]
)
def test_members_leave_and_join_and_their_states_stay_equal(body, make):
    on_device(leave_and_join, body, make)


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
    world.close()
    for call in (reducer.reduce_gradients, lambda: world.size, lambda: reducer.unsent_norm, reducer.state_dict):
        with pytest.raises(oktopk.CommError, match="closed"):
            call()
    return total, changes


def test_a_member_leaves_in_good_order_and_makes_no_more_steps():
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
    with job.world(on_change=on_change) as world:
        reducer = Reducer(model.parameters(), communicator=world, **SPARSE)
        for step in range(5):
            if (place, step) == (0, 2):
                return "left"
            backward(model, step, place)
            try:
                reducer.reduce_gradients()
            except KeyError as error:
                return str(error)
        return world.size


def test_a_hook_that_raises_takes_only_its_member_out():
    assert run_members(4, raising) == ["left", 2, "'no such thing'", 2]


def test_the_world_of_a_dropped_reducer_is_freed():
    """Nothing keeps a world, its reducer and its optimiser alive."""

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


@pytest.mark.parametrize(
    "arguments, environment, words",
    [
        ({}, {}, "needs rendezvous, or the environment variable OKTOPK_RENDEZVOUS"),
        ({"rendezvous": "127.0.0.1:1"}, {}, "needs secret, or the environment variable OKTOPK_SECRET"),
        ({"rendezvous": "127.0.0.1:1", "secret": SECRET}, {"OKTOPK_SIZE": "many"}, "OKTOPK_SIZE = 'many'"),
        ({"rendezvous": "127.0.0.1:1", "secret": "short"}, {}, "a secret of 5 bytes"),
        ({"rendezvous": "127.0.0.1:1", "secret": SECRET, "timeout": 0.0}, {}, "timeout = 0 s"),
        ({"rendezvous": "127.0.0.1:1", "secret": SECRET, "join_timeout": -1.0}, {}, "timeout = -1 s"),
        ({"rendezvous": "file:/tmp", "secret": SECRET}, {}, "file:/tmp"),
    ],
)
def test_a_world_names_what_is_missing(arguments, environment, words, monkeypatch):
    for name in ("RENDEZVOUS", "SECRET", "SIZE", "ENCRYPT", "INTERFACE"):
        monkeypatch.delenv(f"OKTOPK_{name}", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(oktopk.UsageError, match=words):
        ElasticWorld(**arguments)


def test_the_variables_of_the_launcher_are_enough(monkeypatch):
    server = oktopk.RendezvousServer(secret=SECRET)
    for name, value in {"RENDEZVOUS": server.address, "SECRET": SECRET, "SIZE": "1", "ENCRYPT": "0"}.items():
        monkeypatch.setenv(f"OKTOPK_{name}", value)
    with ElasticWorld() as world:
        assert (world.rank, world.size, world.epoch, world.committed, len(world.members)) == (0, 1, 1, 0, 1)
        assert not world.has_joined
    server.close()
    with pytest.raises(oktopk.CommError, match="closed"):
        server.address


def refused(job, place):
    world, model = job.world(), small_model()

    def make(**options):
        return lambda: Reducer(model.parameters(), communicator=world, **options)

    def refuse(calls):
        for call, words in calls:
            with pytest.raises(oktopk.UsageError, match=words):
                call()

    refuse(
        [
            (lambda: world.share(weights=torch.ones(3)), "'weights' is a Tensor, which has no state_dict"),
            (make(**SPARSE, group_size=2), "group_size"),
            (make(preset="auto", density=0.1), "preset auto without a profile"),
            (make(preset="circulant", density=2.0), "density"),
        ]
    )
    reducer = make(**SPARSE)()
    world.share(model=model)
    refuse(
        [
            (make(**SPARSE), "has a reducer already"),
            (reducer.keep_snapshot, "not possible in an elastic world"),
            (lambda: reducer.profile, "not possible in an elastic world"),
            (lambda: world.share(model=model), "'model' is shared already"),
        ]
    )
    world.close()


def test_a_world_has_one_reducer_no_nodes_and_shares_things_with_a_state_once():
    run_members(1, refused)
