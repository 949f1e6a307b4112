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

    class Messages:  # a transport
        name, size = "tcp", 2
        def __init__(self, rank, native):
            self.rank, self.native = rank, native

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
