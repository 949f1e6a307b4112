# SPDX-License-Identifier: Apache-2.0
"""Messages between the ranks of a process group: over Gloo, or over our own sockets where all ranks have them. Sizes,
order, sub-groups, errors; a rank that dies or is stopped is named at once."""

import os
import pickle
import signal
import subprocess
import time
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import in_processes, on_ranks

import oktopk
import oktopk.torch
from oktopk import _ends
from oktopk._core import tcp_available
from oktopk.torch import _sockets, communicator
from oktopk.torch._sockets import VARIABLE

needs_tcp = pytest.mark.skipif(not tcp_available(), reason="this build has no transport tcp (OpenSSL was not found)")
SIZES = [0, 1, 503, 504, 505, 512, 65_527, 65_528, 65_529, 200_000]


def pattern(sender, receiver, size):
    return ((np.arange(size) * 7 + 31 * sender + receiver) % 251).astype(np.uint8)


@on_ranks(1, 3)
def test_messages_of_all_sizes_arrive_whole_and_in_order(rank, P):
    """Every rank sends messages of every size to every rank, itself too; waits out of order."""
    transport = communicator(timeout=20).python_transport
    buffers = []
    for ticket, size in enumerate(SIZES):
        recvs = [(peer, np.zeros(size + 5, np.uint8)) for peer in range(P)]
        transport.begin(ticket, [(p, pattern(rank, p, size)) for p in range(P)], recvs)
        buffers.append(recvs)
    for ticket in reversed(range(len(SIZES))):
        assert transport.finish(ticket, 20.0) == [SIZES[ticket]] * P
        for peer, got in buffers[ticket]:
            size = SIZES[ticket]
            assert np.array_equal(got[:size], pattern(peer, rank, size))
            assert not got[size:].any()


@on_ranks(2)
def test_a_message_above_its_capacity_is_an_error(rank, P):
    transport = communicator(timeout=5).python_transport
    peer = 1 - rank
    transport.begin(0, [(peer, np.zeros(2000, np.uint8))], [(peer, np.zeros(1999, np.uint8))])
    with pytest.raises(oktopk.CommError, match="a message of 2000 bytes from rank .*capacity 1999"):
        transport.finish(0, 5.0)


@on_ranks(2)
def test_a_silent_peer_is_a_comm_error_after_the_timeout(rank, P):
    comm = communicator(timeout=1.0)
    if rank == 0:
        began = time.monotonic()
        with pytest.raises(oktopk.CommError):
            oktopk.Reducer(comm, 100, preset="circulant").step(np.ones(100, np.float32))
        assert time.monotonic() - began < 15
    else:
        time.sleep(3)


def dense(update, n):
    values = np.zeros(n, np.float32)
    update.subtract_from(values, -1.0)
    return values


def updates(rank, P, messages):
    """Steps of all presets, and of parts, as one vector."""
    os.environ[VARIABLE] = messages
    comm = communicator(timeout=30)
    assert (comm.python_transport.native is not None) == (messages == "tcp" and P > 1)
    got = []
    for preset in (name for name, _ in oktopk.presets()):
        density = {} if preset == "dense" else {"density": 0.05}
        reducer = oktopk.Reducer(comm, 5000, preset=preset, **density)
        for step in range(4):
            gradient = np.random.default_rng(100 * step + rank).standard_normal(5000).astype(np.float32)
            got.append(dense(reducer.step(gradient), 5000))
    whole = np.concatenate(got)
    part = comm.split(rank % 2, rank)
    return whole, dense(oktopk.Reducer(part, 100, preset="dense").step(np.full(100, rank, np.float32)), 100)


@needs_tcp
@pytest.mark.parametrize("P", [1, 2, 5])
def test_sockets_and_gloo_give_the_same_bits_to_all_ranks(P):
    over_tcp = in_processes(P, updates, "tcp")
    over_gloo = in_processes(P, updates, "gloo")
    for one, other in zip(over_tcp, over_gloo):
        for mine, theirs in zip(one, other):
            assert np.array_equal(mine.view(np.uint32), theirs.view(np.uint32))
        assert np.array_equal(one[0], over_tcp[0][0])


def in_subgroups(rank, P):
    groups = [dist.new_group([0, 2]), dist.new_group([1])]
    comm = communicator(groups[rank % 2], timeout=20)
    update = oktopk.Reducer(comm, 10, preset="circulant", k=10).step(np.full(10, float(rank), np.float32))
    part = communicator(timeout=20).split(0, -rank)
    return comm.rank, comm.size, float(dense(update, 10)[3]), part.rank


def test_subgroups_and_splits_have_their_own_ranks():
    assert in_processes(3, in_subgroups) == [(0, 2, 1.0, 2), (0, 1, 1.0, 1), (1, 2, 1.0, 0)]


def test_without_a_process_group_it_says_what_to_do():
    with pytest.raises(oktopk.UsageError, match="init_process_group"):
        communicator()


@needs_tcp
@on_ranks(2, 3)
def test_all_ranks_stay_with_gloo_where_one_has_no_sockets(rank, P):
    """All stay with Gloo, whether one wants it or cannot connect. An unknown choice is refused."""
    os.environ[VARIABLE] = "pigeons"
    with pytest.raises(oktopk.UsageError, match="'pigeons', but it must be one of tcp, gloo"):
        communicator(timeout=10)
    interface = _sockets.interface
    for variable, own in (("gloo", interface), ("tcp", lambda: "no-such-interface")):
        os.environ[VARIABLE] = variable if rank == 1 else "tcp"
        _sockets.interface = own if rank == 1 else interface
        comm = communicator(timeout=10)
        oktopk.Reducer(comm, 100, preset="circulant").step(np.ones(100, np.float32))
        assert comm.python_transport.native is None


ALIVE = []  # what a rank must not close before its process ends


def rank_two_dies(rank, P):
    """Its process ends without a goodbye, as one that is killed."""
    os.environ[VARIABLE] = "tcp"
    reducer = oktopk.Reducer(communicator(timeout=80), 1000, preset="circulant")
    reducer.step(np.ones(1000, np.float32))
    dist.barrier()
    if rank == 2:
        ALIVE.append(reducer)
        _ends._here.worlds.clear()
        return
    with pytest.raises(oktopk.CommError, match="rank 2 .*it died or was killed"):
        for _ in range(10):
            reducer.step(np.ones(1000, np.float32))


@needs_tcp
def test_a_rank_that_dies_is_named_before_the_timeout():
    in_processes(4, rank_two_dies, timeout=60)


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


@needs_tcp
def test_a_rank_that_is_stopped_is_named_after_the_silence():
    in_processes(3, rank_one_is_stopped, timeout=60)


@needs_tcp
@on_ranks(3)
def test_a_silence_that_ranks_do_not_share_or_that_has_no_effect_is_refused(rank, P):
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


def test_a_pickled_state_keeps_its_silence():
    state = oktopk.torch.OkTopkState(silence=5)
    assert pickle.loads(pickle.dumps(state)).silence == 5
    saved = state.__getstate__()
    del saved["silence"]  # of a version without it
    state.__setstate__(saved)
    assert state.silence is None
