# SPDX-License-Identifier: Apache-2.0
"""Members that die and join while their parameters are on a GPU: gradients go through host memory, so the results are
those of a CPU. Needs a GPU; all members share it. Members are threads of a process of its own, so that this one never
uses CUDA, or processes.

Runs that are compared bit by bit have gradients made by hand, multiples of 2^-10, and a learning rate that is a power
of two: every sum is exact, whatever device makes it. Members are told apart by their number, which is 1, 2 and 3 in the
first epoch, whoever comes first.
"""

import hashlib
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from elastic_ranks import SECONDS, Job, run_members
from gloo_ranks import run_processes
from gpu import needs_gpu, same_bits, use_gpu

import oktopk
from oktopk._core import tcp_available
from oktopk.torch import LocalSteps, Reducer, SparseAdamW

pytestmark = needs_gpu
if not tcp_available():
    pytest.skip("this build has no transport tcp (OpenSSL was not found)", allow_module_level=True)

SPARSE = {"preset": "circulant", "density": 0.1}
CPU = torch.device("cpu")
ONE_AT_A_TIME = threading.Lock()  # torch has one generator for all threads


def small_model(device):
    with ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 4)).to(device)


def set_gradients(model, step, member):
    """Exact ones, skewed so that few entries are large."""
    generator = torch.Generator().manual_seed(1000 * step + member)
    for parameter in model.parameters():
        whole = torch.randint(-1000, 1001, parameter.shape, generator=generator)
        large = torch.randint(0, 20, parameter.shape, generator=generator) == 0
        parameter.grad = (torch.where(large, 8 * whole, whole) / 1024).to(parameter.device)


def backward(model, step, member):
    generator = torch.Generator().manual_seed(1000 * step + member)
    x = torch.randn(8, 20, generator=generator)
    x[:, -1] *= 10
    model.zero_grad()
    model(x.to(next(model.parameters()).device)).square().mean().backward()


def weights_of(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()


def exact_member(job, _, device, dies, steps):
    """Trains by exact gradients; member 2 goes without a word before step `dies`."""
    model = small_model(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.25)
    changes = []
    world = job.world(on_change=changes.append)
    number = world.members[world.rank]
    reducer = Reducer(model.parameters(), communicator=world, **SPARSE)
    while world.committed < steps:
        if (number, world.committed) == (2, dies):
            world.close()
            return number, None, []
        if world.committed == steps - 1:
            world.leave_after_next()
        set_gradients(model, world.committed, number)
        reducer.reduce_gradients()
        assert all(p.grad.device == device for p in model.parameters())
        optimiser.step()
    world.close()
    return number, weights_of(model), [(change.step, change.lost, change.members) for change in changes]


def work_quiet(rank, P):
    for members in (1, 2, 3):
        (_, expected, _), *_ = run_members(members, exact_member, CPU, None, 8)
        for _, weights, changes in run_members(members, exact_member, use_gpu(), None, 8):
            assert same_bits(weights, expected) and changes == []


def test_a_quiet_run_has_the_bits_of_the_cpu(tmp_path):
    run_processes(1, work_quiet, tmp_path)


def work_death(rank, P, dies):
    expected = {number: weights for number, weights, _ in run_members(3, exact_member, CPU, dies, 10)}
    results = run_members(3, exact_member, use_gpu(), dies, 10)
    assert sorted(number for number, _, _ in results) == [1, 2, 3]
    for number, weights, changes in results:
        if number != 2:
            assert changes == [(dies, [2], [1, 3])]
            assert same_bits(weights, expected[1]) and same_bits(weights, expected[3])


@pytest.mark.parametrize("dies", [0, 1, 5])
def test_survivors_go_on_with_the_bits_of_the_cpu(dies, tmp_path):
    run_processes(1, work_death, tmp_path, dies)


def joining_member(job, _, device, make, run):
    """Trains until four steps after somebody has joined."""
    model = small_model(device)
    world = job.world(on_change=run.note)
    reducer = Reducer(model.parameters(), communicator=world, **SPARSE)
    own = {"source": reducer} if make is SparseAdamW else {"momentum": 0.9}
    optimiser = make(model.parameters(), lr=0.01, **own)
    world.share(model=model, optimizer=optimiser)
    while run.goes_on(world):
        backward(model, world.committed, world.members[world.rank])
        reducer.reduce_gradients()
        optimiser.step()
    states = [value for state in optimiser.state.values() for value in state.values()]
    tensors = [value for value in states if isinstance(value, torch.Tensor) and value.dim() > 0]
    assert tensors and all(tensor.device == device for tensor in tensors)
    world.close()
    return weights_of(model), torch.cat([tensor.flatten().double() for tensor in tensors]).cpu()


def joining_with_local_steps(job, _, device, make, run):
    model = small_model(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    world = job.world(on_change=run.note)
    outer = LocalSteps(model.parameters(), every=2, density=0.1, outer_momentum=0.5, communicator=world)
    step = 0
    while run.goes_on(world):
        backward(model, step, world.members[world.rank])
        optimiser.step()
        step += 1
        outer.step()
    world.close()
    return weights_of(model), torch.zeros(0)


class Run:
    """How far one member is."""

    def __init__(self, dies=None, reached=None):
        self.dies, self.reached = dies, reached
        self.end = None

    def note(self, change):
        if change.joined:
            self.end = change.step + 4

    def goes_on(self, world):
        if self.reached is not None and world.committed >= 4:
            self.reached.set()
        assert world.committed < 100_000
        return world.committed not in (self.end, self.dies)


def work_join(rank, P, body, make):
    device, job, reached = use_gpu(), Job(3), threading.Event()
    for run in (Run(), Run(dies=2), Run(reached=reached)):
        job.start(body, None, device, make, run)
    assert reached.wait(SECONDS)
    job.start(body, None, device, make, Run())
    results = job.wait()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    (weights, state), _, third, joined = results
    for other_weights, other_state in (third, joined):
        assert same_bits(other_weights, weights) and same_bits(other_state, state)


@pytest.mark.parametrize(
    "body, make",
    [(joining_member, torch.optim.SGD), (joining_member, SparseAdamW), (joining_with_local_steps, None)],
    ids=["SGD", "SparseAdamW", "LocalSteps"],
)
def test_a_member_dies_another_joins_and_their_states_on_the_gpu_are_equal(body, make, tmp_path):
    run_processes(1, work_join, tmp_path, body, make)


# One member as a process. Member 2 kills itself; the others print the hash of their weights.
SCRIPT = """
import os, signal, sys
sys.path[:0] = {paths!r}
import torch
import test_gpu_elastic as tests
device = torch.device(sys.argv[1])
model = tests.small_model(device)
optimiser = torch.optim.SGD(model.parameters(), lr=0.25)
world = tests.oktopk.torch.ElasticWorld(timeout=60, silence=20)
number = world.members[world.rank]
reducer = tests.Reducer(model.parameters(), communicator=world, **tests.SPARSE)
while world.committed < 12:
    if (number, world.committed) == (2, 5):
        os.kill(os.getpid(), signal.SIGKILL)
    if world.committed == 11:
        world.leave_after_next()
    tests.set_gradients(model, world.committed, number)
    reducer.reduce_gradients()
    optimiser.step()
print("member", number, "weights", tests.hash_of(model), "members", world.members, flush=True)
"""


def hash_of(model):
    return hashlib.sha256(weights_of(model).numpy().tobytes()).hexdigest()


def run_members_on(device):
    """The lines of the survivors of three processes."""
    server = oktopk.RendezvousServer(secret="a secret of the tests", grace=20.0)
    own = {"RENDEZVOUS": server.address, "SECRET": "a secret of the tests", "SIZE": "3", "ENCRYPT": "0"}
    environment = {**os.environ, **{f"OKTOPK_{name}": value for name, value in own.items()}}
    folder = Path(__file__).resolve().parent
    script = SCRIPT.format(paths=[*sys.path, str(folder), str(folder.parent)])
    command = [sys.executable, "-c", script, device]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(3)]
    try:
        lines = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        server.close()
    assert sorted(process.returncode for process in processes) == [-9, 0, 0]
    return sorted(line for line in lines if line)


def test_survivors_of_a_killed_process_have_the_bits_of_the_cpu():
    on_gpu, on_cpu = run_members_on("cuda:0"), run_members_on("cpu")
    assert len(on_gpu) == 2 and on_gpu == on_cpu
    assert len({re.search(r"weights (\w+)", line)[1] for line in on_gpu}) == 1
