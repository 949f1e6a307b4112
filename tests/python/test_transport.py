# SPDX-License-Identifier: Apache-2.0
"""Communicators whose messages Python moves: a transport of queues, and mpi4py."""

import os
import queue
import shutil
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from ranks import in_threads

import oktopk

N = 1000


class QueueTransport:
    """The smallest transport there is: a queue for each pair of ranks."""

    name = "queues"

    def __init__(self, rank, queues):
        self.rank, self.size, self._queues, self._open = rank, len(queues), queues, {}

    def begin(self, ticket, sends, recvs):
        for peer, what in sends:
            self._queues[self.rank][peer].put(what.copy())
        self._open[ticket] = recvs

    def finish(self, ticket, timeout):
        sizes = []
        for peer, into in self._open.pop(ticket):
            what = self._queues[peer][self.rank].get(timeout=timeout)
            into[: len(what)] = what
            sizes.append(len(what))
        return sizes

    def abandon(self, ticket):
        self._open.pop(ticket, None)

    def split(self, color, key):
        raise NotImplementedError("this transport cannot split")


def world(P, kind=QueueTransport):
    queues = [[queue.Queue() for _ in range(P)] for _ in range(P)]
    return [oktopk.PythonCommunicator(kind(rank, queues), timeout=5.0) for rank in range(P)]


@pytest.mark.parametrize("preset", ["circulant", "oktopk", "topka", "dense"])
@pytest.mark.parametrize("P", [1, 2, 3, 5])
def test_a_transport_in_python_gives_what_threads_give(preset, P):
    def body(comm):
        reducer = oktopk.Reducer(comm, N, preset=preset, density=0.05)
        rng = np.random.default_rng(comm.rank)
        for _ in range(3):
            update = reducer.step(rng.standard_normal(N).astype(np.float32))
        return update

    ours = in_threads(P, body, world=world(P))
    native = in_threads(P, body)
    for a, b in zip(ours, native):
        assert np.array_equal(a.indices, b.indices) and np.array_equal(a.values, b.values)
        assert (a.dense is None) == (b.dense is None)
        assert a.dense is None or np.array_equal(a.dense, b.dense)


def test_what_python_raises_is_a_comm_error_and_the_end():
    class Broken(QueueTransport):
        def finish(self, ticket, timeout):
            raise OSError("the cable is cut")

    def body(comm):
        reducer = oktopk.Reducer(comm, N, preset="circulant")
        with pytest.raises(oktopk.CommError, match="OSError: the cable is cut"):
            reducer.step(np.ones(N, np.float32))
        with pytest.raises(oktopk.CommError, match="dead"):
            oktopk.Reducer(comm, N, preset="circulant").step(np.ones(N, np.float32))
        return True

    assert in_threads(2, body, world=world(2, Broken)) == [True, True]


@pytest.mark.parametrize("answer", [[1 << 40], [], "many", [-1]])
def test_sizes_that_cannot_be_are_a_comm_error(answer):
    class Liar(QueueTransport):
        def finish(self, ticket, timeout):
            super().finish(ticket, timeout)
            return answer

    def body(comm):
        with pytest.raises(oktopk.CommError):
            oktopk.Reducer(comm, N, preset="circulant").step(np.ones(N, np.float32))
        return True

    assert in_threads(2, body, world=world(2, Liar)) == [True, True]


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf")])
def test_a_timeout_must_be_positive(timeout):
    with pytest.raises(oktopk.UsageError, match="timeout"):
        oktopk.PythonCommunicator(QueueTransport(0, [[queue.Queue()]]), timeout)


MPI_PROGRAM = """
import numpy as np, oktopk, oktopk.mpi
from mpi4py import MPI
comm = oktopk.mpi.communicator(timeout=30)
for preset in ["circulant", "oktopk", "dense", "topka"]:
    reducer = oktopk.Reducer(comm, 1000, preset=preset, density=0.05)
    rng = np.random.default_rng(comm.rank)
    update = [reducer.step(rng.standard_normal(1000).astype(np.float32)) for _ in range(3)][-1]
    everyone = MPI.COMM_WORLD.allgather((update.indices.tobytes(), update.values.tobytes()))
    assert all(x == everyone[0] for x in everyone)
half = comm.split(comm.rank % 2, -comm.rank)
assert half.size == (comm.size + 1 - comm.rank % 2) // 2
print("rank", comm.rank, "ends well")
"""


def run_mpi(program, ranks, *words):
    """Every rank runs it and says at its end that it ends well. One way of Open MPI's, as over a network: the sender
    must push a large message."""
    if find_spec("mpi4py") is None or shutil.which("mpiexec") is None:
        pytest.skip("needs mpi4py and mpiexec")
    environment = dict(
        os.environ,
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        OMPI_MCA_rmaps_base_oversubscribe="1",
        OMPI_MCA_btl_vader_single_copy_mechanism="none",
    )
    done = subprocess.run(
        ["mpiexec", "-n", str(ranks), sys.executable, "-c", program, *words],
        capture_output=True, text=True, timeout=300, env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ends well") == ranks


def test_mpi4py_communicators_work_on_three_ranks():
    run_mpi(MPI_PROGRAM, 3)


# The memory behind the arrays is C++'s, and unmapped when the exchange has failed. Rank 1 waits for a file and not for
# a message: inside MPI it would push the rest of its own message meanwhile.
MPI_FAILURE = """
import ctypes, os, sys, time, mmap, numpy as np, oktopk, oktopk.mpi
from mpi4py import MPI
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
SIZE = 1 << 22
def pages(value):
    address = libc.mmap(None, ctypes.c_size_t(SIZE), mmap.PROT_READ | mmap.PROT_WRITE,
                        mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    array = np.ctypeslib.as_array((ctypes.c_uint8 * SIZE).from_address(address))
    array[:] = value
    return array, lambda: libc.munmap(address, SIZE)
world = MPI.COMM_WORLD
for sender in 0, 1:
    gave_up = os.path.join(sys.argv[1], str(sender))
    transport = oktopk.mpi.MpiTransport(world.Dup(), timeout=30)
    array, unmap = pages(7 if world.rank == sender else 0)
    send, recv = ([(1 - sender, array)], []) if world.rank == sender else ([], [(sender, array)])
    if world.rank == 0:
        transport.begin(0, send, recv)
        try:
            transport.finish(0, 0.2)
            assert False, "nobody answered, and it came to an end"
        except TimeoutError:
            unmap()
        open(gave_up, "x").close()
        del transport
        world.Ibarrier().Wait()
    else:
        if sender == 1:
            transport.begin(0, send, recv)  # rank 0 sees it coming, and waits for more in vain
        while not os.path.exists(gave_up):
            time.sleep(0.01)
        if sender == 0:
            transport.begin(0, send, recv)  # gets what rank 0 had
        barrier = world.Ibarrier()
        if sender == 0:
            assert transport.finish(0, 30) == [SIZE] and (array == 7).all()
        else:
            try:
                transport.finish(0, 5)
            except TimeoutError:
                pass
        barrier.Wait()
comm = oktopk.mpi.communicator(timeout=30)
update = oktopk.Reducer(comm, 1000, preset="dense").step(np.full(1000, comm.rank, np.float32))
assert (update.dense == 0.5).all()
print("rank", comm.rank, "ends well")
"""


def test_mpi4py_survives_peers_that_come_late(tmp_path):
    run_mpi(MPI_FAILURE, 2, str(tmp_path))


MPI_ABSENCE = """
import time, oktopk, oktopk.mpi
from mpi4py import MPI
for collective in "split", "host":
    transport = oktopk.mpi.MpiTransport(MPI.COMM_WORLD.Dup(), timeout=0.2)
    try:
        if transport.rank > 0:
            transport.split(0, 0) if collective == "split" else transport.host()
            assert False, "rank 0 did not come"
    except TimeoutError:
        pass
    MPI.COMM_WORLD.barrier()
whole = oktopk.mpi.MpiTransport(MPI.COMM_WORLD.Dup())
assert whole.host() == 0
part = whole.split(0, -whole.rank).split(whole.rank % 2, whole.rank)
assert part.host() == 0 and part.rank == whole.rank // 2
print("rank", whole.rank, "ends well")
"""


def test_mpi4py_split_and_host_have_a_timeout():
    run_mpi(MPI_ABSENCE, 3)
