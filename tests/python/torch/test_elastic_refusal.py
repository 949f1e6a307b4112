# SPDX-License-Identifier: Apache-2.0
"""Elastic worlds refuse bad input in the first call, in words that name it."""

import threading

import pytest
import torch
from elastic_ranks import SECONDS, SECRET, Job, run_members

import oktopk
from oktopk._core import tcp_available
from oktopk.torch import ElasticWorld, Reducer

if not tcp_available():
    pytest.skip("this build has no transport tcp (OpenSSL was not found)", allow_module_level=True)

SPARSE = {"preset": "circulant", "density": 0.1}


def parameters(value=1.0):
    return [torch.nn.Parameter(torch.full((7, 3), value))]


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


def test_a_world_has_one_reducer_and_no_nodes():
    def body(job, place):
        world = job.world()
        for options, words in (
            ({**SPARSE, "group_size": 2}, "group_size"),
            ({"preset": "auto", "density": 0.1}, "preset auto without a profile"),
            ({"preset": "circulant", "density": 2.0}, "density"),
        ):
            with pytest.raises(oktopk.UsageError, match=words):
                Reducer(parameters(), communicator=world, **options)
        reducer = Reducer(parameters(), communicator=world, **SPARSE)
        with pytest.raises(oktopk.UsageError, match="has a reducer already"):
            Reducer(parameters(), communicator=world, **SPARSE)
        for call in (reducer.keep_snapshot, lambda: reducer.profile):
            with pytest.raises(oktopk.UsageError, match="not possible in an elastic world"):
                call()
        world.close()

    run_members(1, body)


def test_only_things_with_a_state_are_shared_and_once():
    def body(job, place):
        world = job.world()
        with pytest.raises(oktopk.UsageError, match="'weights' is a Tensor, which has no state_dict"):
            world.share(weights=torch.ones(3))
        world.share(model=torch.nn.Linear(2, 2))
        with pytest.raises(oktopk.UsageError, match="'model' is shared already"):
            world.share(model=torch.nn.Linear(2, 2))
        world.close()

    run_members(1, body)


def test_members_that_begin_with_other_weights_are_refused():
    def body(job, place):
        with job.world() as world:
            with pytest.raises(oktopk.UsageError, match="rank . has weights .* rank 0 has weights .* of parameter 0"):
                Reducer(parameters(2.0 if place == 1 else 1.0), communicator=world, **SPARSE)

    run_members(3, body)


def test_a_member_that_shares_something_else_is_refused_and_the_others_go_on():
    job = Job(2)
    begun = threading.Event()  # the first epoch has its two members

    def old(job):
        world = job.world()
        begun.set()
        own = parameters()
        reducer = Reducer(own, communicator=world, **SPARSE)
        world.share(optimizer=torch.optim.SGD(own, lr=0.1))
        # Both stop after the same step: the one in which they know that the stranger has gone.
        while world.epoch == 1 or world.size > 2:
            own[0].grad = torch.ones(7, 3)
            reducer.reduce_gradients()
        world.close()
        return "done"

    def stranger(job):
        with job.world() as world:
            world.share(scheduler=torch.nn.Linear(1, 1))
            with pytest.raises(oktopk.UsageError, match="shares 'scheduler', but the others share optimizer"):
                Reducer(parameters(), communicator=world, **SPARSE)
        return "refused"

    job.start(old)
    job.start(old)
    assert begun.wait(SECONDS)
    job.start(stranger)
    assert job.wait() == ["done", "done", "refused"]
