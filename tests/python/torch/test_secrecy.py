# SPDX-License-Identifier: Apache-2.0
"""The secret of the ranks, and encryption: from outside, agreed by all ranks, and not on the wire."""

import os
import pickle
import socket
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from models import flat, make_ddp, train
from ranks import in_processes, on_ranks

import oktopk
from oktopk._core import tcp_available
from oktopk.torch import ElasticWorld, Reducer, _sockets, communicator
from oktopk.torch._sockets import Secrecy, secrecy_of
from oktopk.torch._sockets import VARIABLE

if not tcp_available():
    pytest.skip("this build has no transport tcp (OpenSSL was not found)", allow_module_level=True)

SECRET = "0123456789abcdef of the tests"
SPARSE = {"preset": "circulant", "density": 0.05, "codec": "coo32+fp32"}
MARK = np.float32(1234.56789)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    return str(path)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("OKTOPK_SECRET", "OKTOPK_SECRET_FILE", "OKTOPK_ENCRYPT", VARIABLE):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def seen_on_loopback(*patterns):
    """Which of these bytes travel over loopback meanwhile: a set that is filled."""
    try:
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    except (PermissionError, AttributeError):
        pytest.skip("reading packets needs Linux and root")
    tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    tap.bind(("lo", 0))
    tap.settimeout(0.1)
    seen, is_over = set(), threading.Event()

    def read():
        while True:
            try:
                packet = tap.recv(1 << 17)
            except socket.timeout:
                if is_over.is_set():
                    return
                continue
            seen.update(pattern for pattern in patterns if pattern in packet)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()
        tap.close()


def one_sparse_and_one_dense_step(rank, P, settings, start_iter):
    """The largest entries are the mark, in both of them."""
    reducer = Reducer(3000, timeout=30, warmup=[(1, 1.0)], **SPARSE, **settings)
    assert reducer._comm.python_transport.native is not None
    for _ in range(2):
        gradient = torch.zeros(3000)
        gradient[::100] = float(MARK)
        reducer.reduce(gradient)
    model, state = make_ddp(start_iter=start_iter, codec="coo32+fp32", **settings)
    train(model, rank, 3)
    return gradient.numpy(), flat(model)


@pytest.mark.parametrize("P", [2, 3])
def test_neither_the_secret_nor_encrypted_gradients_are_on_the_wire(file, P):
    mark = (MARK * np.ones(1, np.float32)).tobytes()
    results = {}
    for encrypt in (False, True):
        with seen_on_loopback(SECRET.encode(), mark) as seen:
            results[encrypt] = in_processes(
                P, one_sparse_and_one_dense_step, {"secret_file": file, "encrypt": encrypt}, 1
            )
        assert seen == (set() if encrypt else {mark})
    for clear, hidden in zip(results[False], results[True]):
        assert np.array_equal(clear[0], hidden[0])
        np.testing.assert_allclose(clear[1], hidden[1], rtol=1e-5, atol=1e-6)
    assert all(np.array_equal(results[True][0][1], other[1]) for other in results[True])


def test_the_name_of_the_job_is_not_the_secret():
    in_processes(3, names_and_secrets)


def names_and_secrets(rank, P):
    """Without a secret from outside, which rank 0 then makes; and with one."""
    given, keys, native = [], [], _sockets.tcp_messages

    def watched(rank, size, set, get, **named):
        given.append(named)

        def set_watched(key, value):
            keys.append((key, value))
            set(key, value)

        return native(rank, size, set_watched, get, **named)

    _sockets.tcp_messages = watched
    communicator(timeout=30)
    os.environ["OKTOPK_SECRET"] = SECRET
    communicator(timeout=30)
    (made, outside) = given
    assert outside["secret"] == SECRET and len(made["secret"]) == 64
    for named in given:
        assert named["secret"] != named["job"] and len(named["job"]) == 64
        said = pickle.dumps((keys, named["job"]))
        assert named["secret"].encode() not in said
    assert made["job"] != outside["job"]


def with_variables(**of_ranks):
    """Calls communicator(**named) with these variables of the environment; each may depend on whether a rank is the
    last one."""

    def act(is_last, file):
        named = {"timeout": 30}
        for name, value in of_ranks.items():
            value = value(is_last, file) if callable(value) else value
            if value is None:
                continue
            if name.isupper():
                os.environ[VARIABLE if name == "MESSAGES" else f"OKTOPK_{name}"] = value
            else:
                named[name] = value
        communicator(**named)

    return act


def float64_under_encryption(is_last, file):
    os.environ["OKTOPK_SECRET"] = SECRET
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2).double())
    ddp.register_comm_hook(oktopk.torch.OkTopkState(encrypt=True), oktopk.torch.oktopk_hook)
    ddp(torch.ones(1, 3, dtype=torch.float64)).sum().backward()


def last(value, other=None):
    return lambda is_last, file: value if is_last else other


REFUSED = {
    "rank 2 has another secret than rank 0": with_variables(SECRET=last(SECRET + "x", SECRET)),
    "rank 0 has 'secret from outside True', rank 2 has 'secret from outside False'": with_variables(
        SECRET=last(None, SECRET)
    ),
    "rank 0 has 'encrypt False', rank 2 has 'encrypt True'": with_variables(SECRET=SECRET, encrypt=last(True, False)),
    "rank 2: encryption needs a secret that all ranks have: give secret_file=, or set": with_variables(
        encrypt=last(True, False)
    ),
    "rank 2: encryption needs transport tcp, but OKTOPK_TORCH_MESSAGES = 'gloo'": with_variables(
        SECRET=SECRET, MESSAGES=last("gloo", "tcp"), encrypt=True
    ),
    "rank 2: OKTOPK_ENCRYPT = 'yes', but it must be 0 or 1": with_variables(ENCRYPT=last("yes", "0")),
    "rank 2: secret file": with_variables(secret_file=lambda is_last, file: file if is_last else None),
    "bucket 0 is of type torch.float64 and layout torch.strided, which cannot be encrypted": float64_under_encryption,
}


def texts(rank, P, file):
    """What each of the calls says; the variables are those of a new process each time."""
    said, fresh = [], dict(os.environ)
    for act in REFUSED.values():
        os.environ.clear()
        os.environ.update(fresh)
        with pytest.raises(oktopk.UsageError) as raised:
            act(rank == P - 1, file)
        said.append(str(raised.value))
    return said


def test_ranks_refuse_together(file):
    os.chmod(file, 0o644)
    for words, *said in zip(REFUSED, *in_processes(3, texts, file)):
        assert said == said[:1] * 3 and words in said[0], said
        assert words != "rank 2: secret file" or "mode is 0644" in said[0]


@on_ranks(2)
def test_ranks_with_a_secret_do_not_go_on_without_it(rank, P):
    """Gloo does not ask for the secret, so it is not used instead."""
    os.environ["OKTOPK_SECRET"] = SECRET
    if rank == 1:
        _sockets.interface = lambda: "no-such-interface"
    with pytest.raises(oktopk.CommError, match="could not connect by it: .*rank 1: .*no-such-interface"):
        communicator(timeout=10)


def test_arguments_and_variables(file, monkeypatch):
    assert secrecy_of() == Secrecy(None, False)
    assert secrecy_of(file, True) == Secrecy(SECRET, True)
    assert SECRET not in repr(secrecy_of(file)) and SECRET not in secrecy_of(file).words
    monkeypatch.setenv("OKTOPK_SECRET_FILE", file)
    assert secrecy_of() == Secrecy(SECRET, False)
    monkeypatch.setenv("OKTOPK_ENCRYPT", "1")
    assert secrecy_of() == Secrecy(SECRET, True) and secrecy_of(encrypt=False) == Secrecy(SECRET, False)
    monkeypatch.setenv("OKTOPK_SECRET", SECRET)
    assert secrecy_of().secret == SECRET
    monkeypatch.setenv("OKTOPK_SECRET", "another secret of 25 bytes")
    for given, words in (({}, "holds another secret than OKTOPK_SECRET"), ({"encrypt": 1}, "encrypt = 1")):
        with pytest.raises(oktopk.UsageError, match=words):
            secrecy_of(file if given else None, **given)
    monkeypatch.delenv("OKTOPK_SECRET_FILE")
    monkeypatch.setenv("OKTOPK_SECRET", "short")
    with pytest.raises(oktopk.UsageError, match="OKTOPK_SECRET has 5 bytes, but it must have at least 16"):
        secrecy_of()
    comm = oktopk.thread_world(1)[0]
    for given in ({"secret_file": file}, {"encrypt": False}):
        with pytest.raises(oktopk.UsageError, match=f"{next(iter(given))} = .* beside a communicator"):
            Reducer(10, communicator=comm, **given)


def test_a_pickled_state_keeps_both(file):
    state = oktopk.torch.OkTopkState(secret_file=file, encrypt=True)
    again = pickle.loads(pickle.dumps(state))
    assert (again.secret_file, again.encrypt) == (file, True)
    assert SECRET.encode() not in pickle.dumps(state)


def test_a_member_takes_the_secret_from_a_file(file, monkeypatch):
    server = oktopk.RendezvousServer(secret=SECRET, encrypt=True)
    with ElasticWorld(server.address, secret_file=file, encrypt=True) as world:
        assert world.size == 1
    monkeypatch.setenv("OKTOPK_SECRET_FILE", file)
    with ElasticWorld(server.address, encrypt=True) as world:
        assert world.size == 1
    server.close()
    with pytest.raises(oktopk.UsageError, match="both secret and secret_file"):
        ElasticWorld("127.0.0.1:1", SECRET, secret_file=file)


def split_waits_as_the_user_says(rank, P):
    """The parts' own process groups, which carry the messages over Gloo."""
    os.environ[VARIABLE] = "gloo"
    comm = communicator(timeout=7)
    part = comm.split(rank % 2, rank)
    group = part.python_transport.group
    return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()


def test_the_timeout_of_parts_is_the_users():
    assert in_processes(3, split_waits_as_the_user_says) == [7.0] * 3
