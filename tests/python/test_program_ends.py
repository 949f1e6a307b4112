# SPDX-License-Identifier: Apache-2.0
"""Programs of numpy alone, and how they end (docs/decisions/0030-the-end-of-a-process.md). Those of PyTorch:
ends.py."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from typing import Tuple

import pytest

from oktopk import _core

needs_tcp = pytest.mark.skipif(not _core.tcp_available(), reason="a build without OpenSSL")
INT = -signal.SIGINT
PROMPT = 15.0  # far below the timeouts of the programs
PATIENCE = 60.0

HEAD = """
    import multiprocessing, os, signal, socket, sys, threading, time
    import numpy as np
    import oktopk
    from oktopk import _core, _ends

    OPTIONS = {"preset": "circulant", "density": 0.1}
    SECRET = "a secret of the tests"

    class Store:
        def __init__(self):
            self.values = {}
        def set(self, key, value):
            self.values[key] = value
        def get(self, key, seconds):
            end = time.monotonic() + seconds
            while key not in self.values and time.monotonic() < end:
                time.sleep(0.01)
            return self.values.get(key)

    def join(rank, size, store):
        given = dict(secret=SECRET, job="job", interface="127.0.0.1", timeout=120.0, join_timeout=120.0)
        messages = _core.tcp_messages(rank, size, store.set, store.get, **given)
        _ends.own_world(messages)
        return messages

    def join_two():
        "The worlds of two ranks of this process."
        store, other = Store(), []
        peer = threading.Thread(target=lambda: other.append(join(1, 2, store)))
        peer.start()
        mine = join(0, 2, store)
        peer.join()
        return mine, other[0]

    class Messages:  # a transport
        name, size = "tcp", 2
        def __init__(self, rank, native):
            self.rank, self.native = rank, native

    class Thread:  # of the package's own, which the end stops and joins
        is_busy = False
        def __init__(self, number):
            self.number = number
            _ends.own_thread(self)
        def stop(self):
            pass
        def join(self, seconds):
            os.kill(os.getpid(), self.number)
            time.sleep(seconds if self.number == signal.SIGINT else 0)

    def soon(number):
        threading.Timer(0.5, os.kill, (os.getpid(), number)).start()

    def time_of_child(act):
        child, began = os.fork(), time.monotonic()
        if child == 0:
            signal.alarm(30)
            act()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        return time.monotonic() - began
"""


def run(program: str, first: str = "") -> Tuple[int, str]:
    """Its code and all that it printed. It must end soon. first: before the package is imported."""
    text = first + textwrap.dedent(HEAD) + textwrap.dedent(program)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE
    )
    assert time.monotonic() - began < PROMPT, done.stdout
    return done.returncode, done.stdout


def run_well(program: str) -> str:
    code, said = run(program)
    assert code == 0, said
    return said


def test_program_ends_beside_threads_that_train() -> None:
    program = """
        def train(comm):
            reducer = oktopk.Reducer(comm, 1 << 14, **OPTIONS)
            while True:
                reducer.step(np.ones(1 << 14, np.float32))

        for comm in oktopk.thread_world(2, 120.0):
            threading.Thread(target=train, args=(comm,), daemon=True).start()
        time.sleep(0.3)
    """
    run_well(program)


def test_thread_that_comes_after_the_end_holds_nobody_up() -> None:
    program = """
        ranks = _core.thread_world(2, 120.0)
        reducer = oktopk.Reducer(ranks[0], 100, **OPTIONS)

        def train():
            while not _ends._here.is_over:
                time.sleep(0.01)
            time.sleep(0.5)
            print("late", flush=True)
            reducer.step(np.ones(100, np.float32))

        threading.Thread(target=train, daemon=True).start()
    """
    code, said = run(program, "import atexit, time\natexit.register(time.sleep, 2)\n")
    assert (code, said) == (0, "late\n")


@needs_tcp
def test_second_ctrl_c_does_not_cut_the_end_short() -> None:
    program = """
        def train():
            try:
                while True:
                    reducer.step(np.ones(100, np.float32))
            except oktopk.CommError as error:
                print("thread:", error, flush=True)

        pair = [oktopk.PythonCommunicator(Messages(r, n), 120.0) for r, n in enumerate(join_two())]
        reducer = oktopk.Reducer(pair[0], 100, **OPTIONS)
        thread = Thread(signal.SIGINT)
        threading.Thread(target=train, daemon=True).start()
        time.sleep(0.3)
        sys.exit(3)
    """
    code, said = run(program)
    assert code == 3 and "thread: tcp: rank 0: the world is dead" in said, said


def test_signal_for_dumps_does_not_kill_a_program_that_ends() -> None:
    program = """
        oktopk.dump_flight_on_signal(".")
        thread = Thread(signal.SIGUSR1)
    """
    run_well(program)


@needs_tcp
@pytest.mark.parametrize("rank", [0, 1])
def test_ctrl_c_ends_the_wait_for_other_ranks(rank: int) -> None:
    code, said = run(f"soon(signal.SIGINT)\njoin({rank}, 2, Store())")
    assert code == INT and "KeyboardInterrupt" in said, said


@pytest.mark.parametrize("number, wanted", [("SIGINT", INT), ("SIGTERM", 143)])
def test_signal_inside_of_a_transport_of_python_ends_the_program(number: str, wanted: int) -> None:
    program = f"""
        class Slow:
            name, rank, size = "slow", 0, 2
            def begin(self, ticket, sends, recvs):
                pass
            def finish(self, ticket, seconds):
                time.sleep(30)
            def abandon(self, ticket):
                pass

        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        soon(signal.{number})
        oktopk.Reducer(oktopk.PythonCommunicator(Slow(), 60.0), 100, **OPTIONS).step(np.ones(100, np.float32))
    """
    code, said = run(program)
    assert code == wanted, said


@needs_tcp
def test_child_of_multiprocessing_ends_with_an_idle_thread_pool() -> None:
    program = """
        from concurrent.futures import ThreadPoolExecutor

        def train():
            global pool, world
            pool = ThreadPoolExecutor(1)
            pool.submit(int).result()
            world = join(0, 1, Store())

        child = multiprocessing.get_context("fork").Process(target=train)
        child.start()
        child.join(10)
        child.kill()
        child.join()
        sys.exit(child.exitcode)
    """
    run_well(program)


@needs_tcp
def test_child_of_a_server_keeps_its_address_from_nobody() -> None:
    program = """
        server = oktopk.RendezvousServer(secret=SECRET)
        address, (read, write) = server.address, os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, b"x")
            time.sleep(30)
            os._exit(0)
        os.read(read, 1)
        socket.create_connection(address.split(":")).close()  # it serves on
        server.close()
        try:
            oktopk.RendezvousServer(address, secret=SECRET).close()
        finally:
            os.kill(child, signal.SIGKILL)
    """
    run_well(program)


@needs_tcp
def test_close_in_a_child_waits_for_no_thread_of_the_parent() -> None:
    program = """
        messages, other = join_two()
        reducer = oktopk.Reducer(oktopk.PythonCommunicator(Messages(0, messages), 120.0), 100, **OPTIONS)
        threading.Thread(target=reducer.step, args=(np.ones(100, np.float32),), daemon=True).start()
        time.sleep(0.3)
        print(time_of_child(messages.close))
    """
    assert float(run_well(program).split()[0]) < 2


# One member's thread sends its state, in its step, for as long as the test wants; the other's waits for it.
ELASTIC = """
        def state():
            sends.set()
            goes_on.wait()
            return b""

        def member(worlds):
            world = _core.tcp_elastic_world(server.address, SECRET, timeout=120.0)
            worlds.append(world)
            try:
                hooks = state, lambda state: None, lambda *change: None
                reducer = _core.ElasticReducer(world, 100, OPTIONS, *hooks)
                while True:
                    reducer.step(np.ones(100, np.float32))
                    has_stepped.set()
            except oktopk.CommError as error:
                print("member:", error, flush=True)

        server = oktopk.RendezvousServer(secret=SECRET, grace=1.0)
        has_stepped, sends, goes_on = threading.Event(), threading.Event(), threading.Event()
        first, second = [], []
        threading.Thread(target=member, args=(first,), daemon=True).start()
        has_stepped.wait()
        thread = threading.Thread(target=member, args=(second,), daemon=True)
        thread.start()
        sends.wait()
        time.sleep(0.3)
"""


@needs_tcp
def test_close_ends_a_thread_that_makes_the_reducer_of_a_member() -> None:
    program = """
        second[0].close()
        thread.join(5)
        os._exit(thread.is_alive())
    """
    assert "member: " in run_well(ELASTIC + program)


@needs_tcp
def test_close_of_a_member_in_a_child_waits_for_no_thread_of_the_parent() -> None:
    program = """
        print(time_of_child(first[0].close), flush=True)
        os._exit(0)
    """
    assert float(run_well(ELASTIC + program).split()[0]) < 2
