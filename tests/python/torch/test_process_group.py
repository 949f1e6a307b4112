# SPDX-License-Identifier: Apache-2.0
"""The communicator over torch.distributed (Gloo): messages of all sizes, order, errors, sub-groups."""

import numpy as np
import pytest
from ranks import in_processes

import oktopk

SIZES = [0, 1, 503, 504, 505, 512, 65_527, 65_528, 65_529, 200_000]


def pattern(sender, receiver, size):
    return ((np.arange(size) * 7 + 31 * sender + receiver) % 251).astype(np.uint8)


def exchange_all(rank, P):
    """Every rank sends messages of every size to every rank, itself too; waits out of order."""
    from oktopk.torch.process_group import communicator

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
    return True


@pytest.mark.parametrize("P", [1, 3])
def test_messages_of_all_sizes_arrive_whole_and_in_order(P):
    assert all(in_processes(P, exchange_all))


def send_too_much(rank, P):
    from oktopk.torch.process_group import communicator

    comm = communicator(timeout=5)
    transport = comm.python_transport
    peer = 1 - rank
    transport.begin(0, [(peer, np.zeros(2000, np.uint8))], [(peer, np.zeros(1999, np.uint8))])
    with pytest.raises(oktopk.CommError, match="a message of 2000 bytes from rank .*capacity 1999"):
        transport.finish(0, 5.0)
    return True


def test_a_message_above_its_capacity_is_an_error():
    assert all(in_processes(2, send_too_much))


def wait_for_nobody(rank, P):
    import time

    from oktopk.torch.process_group import communicator

    comm = communicator(timeout=1.0)
    if rank == 0:
        began = time.monotonic()
        with pytest.raises(oktopk.CommError):
            oktopk.Reducer(comm, 100, preset="circulant").step(np.ones(100, np.float32))
        return time.monotonic() - began < 15
    time.sleep(3)
    return True


def test_a_silent_peer_is_a_comm_error_after_the_timeout():
    assert all(in_processes(2, wait_for_nobody))


def all_presets(rank, P):
    from oktopk.torch.process_group import communicator

    comm = communicator(timeout=30)
    updates = []
    for preset in [name for name, _ in oktopk.presets()]:
        reducer = oktopk.Reducer(comm, 3000, preset=preset, density=0.02)
        rng = np.random.default_rng(rank)
        for _ in range(3):
            update = reducer.step(rng.standard_normal(3000).astype(np.float32))
        dense = np.zeros(3000, np.float32)
        update.subtract_from(dense, -1.0)
        updates.append(dense)
    return updates


@pytest.mark.parametrize("P", [2, 3])
def test_every_preset_gives_all_ranks_the_same(P):
    results = in_processes(P, all_presets)
    for other in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0], other))


def in_subgroups(rank, P):
    import torch.distributed as dist

    from oktopk.torch.process_group import communicator

    groups = [dist.new_group([0, 2]), dist.new_group([1])]
    comm = communicator(groups[rank % 2], timeout=20)
    reducer = oktopk.Reducer(comm, 10, preset="circulant", k=10)
    update = reducer.step(np.full(10, float(rank), np.float32))
    part = communicator(timeout=20).split(0, -rank)
    dense = np.zeros(10, np.float32)
    update.subtract_from(dense, -1.0)
    return comm.rank, comm.size, float(dense[3]), part.rank


def test_subgroups_and_splits_have_their_own_ranks():
    assert in_processes(3, in_subgroups) == [(0, 2, 1.0, 2), (0, 1, 1.0, 1), (1, 2, 1.0, 0)]


def test_without_a_process_group_it_says_what_to_do():
    from oktopk.torch import communicator

    with pytest.raises(oktopk.UsageError, match="init_process_group"):
        communicator()
