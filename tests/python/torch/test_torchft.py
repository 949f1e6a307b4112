# SPDX-License-Identifier: Apache-2.0
"""Sparse steps under torchft's Manager: real processes, a real lighthouse, a replica that is killed in the middle of a
step, and a new one that heals from the others. Needs `pip install torchft`."""

import json
import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

import oktopk
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


class Replicas:
    def __init__(self, address, mode, folder):
        self.arguments = [address, mode, folder]
        self.processes = {}

    def start(self, name, *more):
        address, mode, folder = self.arguments
        command = [sys.executable, str(REPLICA), address, name, str(STEPS), mode, str(folder), *map(str, more)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        with open(folder / f"{name}.log", "w") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)

    def log(self, name):
        return (self.arguments[2] / f"{name}.log").read_text()

    def wait_for(self, name, condition):
        deadline = time.monotonic() + SECONDS
        while not condition(self):
            assert time.monotonic() < deadline, f"{name}:\n{self.log(name)[-3000:]}"
            time.sleep(0.1)

    def end(self, name):
        self.processes[name].wait(SECONDS)
        return self.processes[name].returncode

    def result(self, name):
        assert self.end(name) == 0, self.log(name)[-3000:]
        return json.loads((self.arguments[2] / f"{name}.json").read_text())

    def kill(self):
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_replicas_go_on_without_one_that_dies_and_with_one_that_joins(lighthouse, mode, tmp_path):
    replicas = Replicas(lighthouse, mode, tmp_path)
    try:
        replicas.start("replica_0")
        replicas.start("replica_1")
        replicas.start("replica_2", 5)
        replicas.wait_for("replica_2", lambda r: r.processes["replica_2"].poll() is not None)
        assert replicas.end("replica_2") == -9, replicas.log("replica_2")[-3000:]
        replicas.wait_for("replica_0", lambda r: re.search(r"^replica_0 \d+ 2 True$", r.log("replica_0"), re.M))
        replicas.start("replica_3")
        results = [replicas.result(name) for name in ("replica_0", "replica_1", "replica_3")]
    finally:
        replicas.kill()
    for result in results:
        assert result["committed"] == result["reducer_steps"] == STEPS
        assert result["weights"] == results[0]["weights"]  # bit by bit
        assert result["momentum"] == results[0]["momentum"]
        assert result["distance"] < 0.5  # it was about 10; without steps it stays so
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
