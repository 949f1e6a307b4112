# SPDX-License-Identifier: Apache-2.0
"""Sparse steps under torchft's Manager: real processes, a real lighthouse, a replica that is killed in the middle of a
step, and a new one that heals from the others. Needs `pip install torchft`."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from launched import Watched
from ranks import in_threads

import oktopk
import oktopk.torch
from oktopk._core import tcp_available

if find_spec("torchft") is None:
    pytest.skip("NOT RUN: torchft is not installed (pip install torchft)", allow_module_level=True)
if not tcp_available():
    pytest.skip("this build has no transport tcp (OpenSSL was not found)", allow_module_level=True)

REPLICA = Path(__file__).with_name("torchft_replica.py")
STEPS = 40
SECONDS = 150.0  # a bound against hangs


@pytest.fixture
def lighthouse():
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(bind="[::]:0", min_replicas=2, join_timeout_ms=5000, heartbeat_timeout_ms=3000)
    yield server.address()
    server.shutdown()


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_replicas_go_on_without_one_that_dies_and_with_one_that_joins(lighthouse, mode, tmp_path):
    replicas = Watched(tmp_path, SECONDS)

    def start(number, *more):
        name = f"replica_{number}"
        replicas.start_command(name, REPLICA, lighthouse, name, STEPS, mode, tmp_path, *more)

    def result(name):
        assert replicas.end(name) == 0, replicas.log(name)[-3000:]
        return json.loads((tmp_path / f"{name}.json").read_text())

    try:
        start(0)
        start(1)
        start(2, 5)
        assert replicas.end("replica_2") == -9, replicas.log("replica_2")[-3000:]
        replicas.until(lambda: re.search(r"^replica_0 \d+ 2 True$", replicas.log("replica_0"), re.M))
        start(3)
        results = [result(f"replica_{number}") for number in (0, 1, 3)]
    finally:
        replicas.kill()
    for one in results:
        assert one["committed"] == one["reducer_steps"] == STEPS
        assert one["weights"] == results[0]["weights"]  # bit by bit
        assert one["momentum"] == results[0]["momentum"]
        assert one["distance"] < 0.5  # it was about 10; without steps it stays so
    sizes = results[0]["sizes"]
    assert (sizes[0], sizes[-1]) == (3, 3) and 2 in sizes
    if mode == "sync":  # the step of the death was taken back
        assert results[0]["tries"] > STEPS


def test_a_manager_with_another_process_group_is_refused():
    import torchft

    from oktopk.torch.torchft import ManagedWorld

    class Manager:
        _pg = torchft.ProcessGroupGloo()

    with pytest.raises(oktopk.UsageError, match="a Manager with a ProcessGroupGloo, but it needs"):
        ManagedWorld(Manager())


@pytest.mark.parametrize(
    "options, words",
    [
        ({"preset": "auto"}, "preset auto without a profile"),
        ({"preset": "circulant", "adaptive_share": 0.5}, "adaptive_share = 0.5"),
        ({"preset": "circulant", "group_size": 2}, "group_size = 2"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, words):
    from oktopk.torch.torchft import ManagedWorld, ProcessGroup

    class Manager:
        _pg = ProcessGroup()

    with pytest.raises(oktopk.UsageError, match=words):
        oktopk.torch.Reducer(10, communicator=ManagedWorld(Manager()), **options)


SECRET = "a secret of the tests"


def messages_of(P, path, secrecy_of):
    """What each of P replicas of a quorum gets, or the error; their store is a file that stays."""
    from torch.distributed import FileStore
    from oktopk.torch.torchft import _Messages

    def one(comm):
        try:
            messages = _Messages(FileStore(str(path), P + 1), comm.rank, P, 20.0, secrecy_of(comm.rank))
        except (oktopk.UsageError, oktopk.CommError) as error:
            return error
        reducer = oktopk.Reducer(oktopk.PythonCommunicator(messages, 20.0), 100, preset="circulant")
        update = np.zeros(100, np.float32)
        reducer.step(np.full(100, comm.rank, np.float32)).subtract_from(update, -1.0)
        messages.close()
        return update

    return in_threads(P, one)


@pytest.mark.parametrize("P", [2, 3])
def test_a_secret_from_outside_is_not_in_the_store(tmp_path, P):
    from oktopk.torch._sockets import Secrecy

    made = messages_of(P, tmp_path / "made", lambda rank: Secrecy())
    outside = messages_of(P, tmp_path / "outside", lambda rank: Secrecy(SECRET, True))
    for one, other in zip(made, outside):
        assert np.array_equal(one, other) and one.any()
    stored = (tmp_path / "outside").read_bytes()
    assert SECRET.encode() not in stored and b"secret from outside True" in stored
    (text,) = set(re.findall(rb"[0-9a-f]{64}\n[^\n]*outside False\n[0-9a-f]{64}", (tmp_path / "made").read_bytes()))
    job, _, secret = text.split(b"\n")
    assert job != secret and (tmp_path / "made").read_bytes().count(secret) == 1  # in no other key or value


def test_replicas_with_other_settings_are_refused(tmp_path):
    from oktopk.torch._sockets import Secrecy

    found = messages_of(3, tmp_path / "store", lambda rank: Secrecy(SECRET, rank == 0))
    for rank in (1, 2):
        assert isinstance(found[rank], oktopk.UsageError)
        assert f"replica {rank} has 'encrypt False, secret from outside True', replica 0 has 'encrypt True" in str(
            found[rank]
        )


class Quorum:
    """In the place of a Manager, all of whose replicas take part."""

    def __init__(self, comm):
        from oktopk.torch.torchft import ProcessGroup

        self._pg = ProcessGroup()
        self._pg.communicator = comm

    def register_state_dict_fn(self, *_):
        pass

    def errored(self):
        return None

    def is_participating(self):
        return True

    def num_participants(self):
        return self._pg.communicator.size

    def wait_quorum(self):
        pass


@pytest.mark.parametrize("P", [2, 3])
def test_a_quorum_compares_the_parameters(P):
    from torch import nn
    from oktopk.torch.torchft import ManagedWorld

    def work(comm):
        names = ["a", "b"] if comm.rank < P - 1 else ["b", "a"]
        named = [(name, nn.Parameter(torch.zeros(5, 4))) for name in names]
        for _, p in named:
            p.grad = torch.ones_like(p)
        world = ManagedWorld(Quorum(comm))
        reducer = oktopk.torch.Reducer(named, communicator=world, preset="circulant", density=0.1)
        with pytest.raises(oktopk.UsageError) as raised:
            reducer.reduce_gradients()
        return str(raised.value)

    texts = in_threads(P, work)
    assert texts == texts[:1] * P and f"rank {P - 1} has parameter 0 'b' float32 5x4 on cpu, rank 0 has" in texts[0]
