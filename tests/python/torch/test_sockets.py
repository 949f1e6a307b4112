# SPDX-License-Identifier: Apache-2.0
"""Messages of a process group over our own sockets: chosen by all ranks together, the same results as over Gloo, and a
rank that dies is named at once."""

import os
import pickle
import signal
import subprocess
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import in_processes

import oktopk
import oktopk.torch
from oktopk._core import tcp_available
from oktopk.torch import communicator
from oktopk.torch._sockets import VARIABLE

if not tcp_available():
    pytest.skip("this build has no transport tcp (OpenSSL was not found)", allow_module_level=True)


def dense(update, n):
    values = np.zeros(n, np.float32)
    update.subtract_from(values, -1.0)
    return values


def updates(rank, P, messages):
    """Steps of three presets, and of nodes of two ranks, as one vector."""
    os.environ[VARIABLE] = messages
    comm = communicator(timeout=30)
    assert (comm.python_transport.native is not None) == (messages == "tcp" and P > 1)
    got = []
    for preset in ("circulant", "oktopk", "dense"):
        density = {} if preset == "dense" else {"density": 0.05}
        reducer = oktopk.Reducer(comm, 5000, preset=preset, **density)
        for step in range(4):
            gradient = np.random.default_rng(100 * step + rank).standard_normal(5000).astype(np.float32)
            got.append(dense(reducer.step(gradient), 5000))
    part = comm.split(rank % 2, rank)
    got.append(dense(oktopk.Reducer(part, 100, preset="dense").step(np.full(100, rank, np.float32)), 100))
    return np.concatenate(got)


@pytest.mark.parametrize("P", [1, 2, 5])
def test_sockets_and_gloo_give_the_same_bits(P):
    over_tcp = in_processes(P, updates, "tcp")
    over_gloo = in_processes(P, updates, "gloo")
    for one, other in zip(over_tcp, over_gloo):
        assert np.array_equal(one.view(np.uint32), other.view(np.uint32))


def one_rank_has_no_sockets(rank, P, why):
    from oktopk.torch import _sockets
    os.environ[VARIABLE] = "gloo" if rank == 1 and why == "wants gloo" else "tcp"
    if rank == 1 and why == "cannot connect":
        _sockets.interface = lambda: "no-such-interface"
    comm = communicator(timeout=10)
    oktopk.Reducer(comm, 100, preset="circulant").step(np.ones(100, np.float32))
    return comm.python_transport.native is None


@pytest.mark.parametrize(("P", "why"), [(3, "wants gloo"), (2, "cannot connect")])
def test_all_ranks_stay_with_gloo_where_one_has_no_sockets(P, why):
    assert all(in_processes(P, one_rank_has_no_sockets, why))


def bad_variable(rank, P):
    os.environ[VARIABLE] = "pigeons"
    with pytest.raises(oktopk.UsageError, match="'pigeons', but it must be one of tcp, gloo"):
        communicator(timeout=10)
    return True


def test_an_unknown_choice_is_refused():
    assert all(in_processes(1, bad_variable))


ALIVE = []  # what a rank must not close before its process ends


def rank_two_dies(rank, P):
    """Its process ends without a goodbye, as one that is killed."""
    from oktopk import _ends
    os.environ[VARIABLE] = "tcp"
    reducer = oktopk.Reducer(communicator(timeout=80), 1000, preset="circulant")
    reducer.step(np.ones(1000, np.float32))
    dist.barrier()
    if rank == 2:
        ALIVE.append(reducer)
        _ends._here.worlds.clear()
        return True
    with pytest.raises(oktopk.CommError, match="rank 2 .*it died or was killed"):
        for _ in range(10):
            reducer.step(np.ones(1000, np.float32))
    return True


def test_a_rank_that_dies_is_named_before_the_timeout():
    assert all(in_processes(4, rank_two_dies, timeout=60))


def rank_one_is_stopped(rank, P):
    """It continues when the others have given it up."""
    os.environ[VARIABLE] = "tcp"
    reducer = oktopk.torch.Reducer(1000, preset="circulant", timeout=80, silence=timedelta(seconds=1))
    reducer.reduce(torch.ones(1000))
    dist.barrier()
    if rank == 1:
        subprocess.Popen(["sh", "-c", f"sleep 4; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    words = "" if rank == 1 else r"rank 1 \(.*\) has been silent for 1 s"
    with pytest.raises(oktopk.CommError, match=words):
        for _ in range(10):
            reducer.reduce(torch.ones(1000))
    return True


def test_a_rank_that_is_stopped_is_named_after_the_silence():
    assert all(in_processes(3, rank_one_is_stopped, timeout=60))


def odd_silences(rank, P):
    """UsageErrors of all ranks, before anything is connected."""
    words = "rank 0 has 'silence 3.0 s', rank 2 has 'silence 30.0 s': give all ranks the same"
    with pytest.raises(oktopk.UsageError, match=words):
        communicator(timeout=20, silence=None if rank == 2 else 3)
    with pytest.raises(oktopk.UsageError, match="silence = -1, but it must be positive"):
        oktopk.torch.Reducer(10, silence=-1)
    comm = communicator(timeout=20, silence=3)
    for waits, words in (({"silence": 2.0}, "silence = 2.0"), ({"timeout": 1}, "timeout = 1")):
        with pytest.raises(oktopk.UsageError, match=f"{words} beside a communicator"):
            oktopk.torch.Reducer(10, communicator=comm, **waits)
    return True


def test_a_silence_that_ranks_do_not_share_or_that_has_no_effect_is_refused():
    assert all(in_processes(3, odd_silences))


def test_a_pickled_state_keeps_its_silence():
    state = oktopk.torch.OkTopkState(silence=5)
    assert pickle.loads(pickle.dumps(state)).silence == 5
    saved = state.__getstate__()
    del saved["silence"]  # of a version without it
    state.__setstate__(saved)
    assert state.silence is None
