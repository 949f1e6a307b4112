# SPDX-License-Identifier: Apache-2.0
"""The order of a step that stays on the GPU, with a stand-in for its kernels: CPU tensors, Gloo, and messages that hold
the whole gradient. test_gpu_resident.py has the kernels."""

import ctypes

import numpy as np
import pytest
import torch
import torch.distributed as dist
from gloo_ranks import all_equal, run_processes
from ranks import in_processes

import oktopk
from oktopk.torch import _choice, _resident
from oktopk.torch._dense_sum import zero_unless_finite
from oktopk.torch._group import sends_gpu_memory
from oktopk.torch._resident import ResidentSteps, stays_on_gpu
from oktopk.torch._worker import HookStream

N = 12


def floats(address, count):
    """The floats at an address."""
    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (count,))


class StandIn:
    """The kernels of a rank: owner q gets its N/P of the gradient, adds up, and shares the sum."""

    def __init__(self, P, words=None):
        self.P, self.each = P, N // P
        self.resident_words = words or self.each
        self.calls, self.void, self.is_dead, self.given = [], 0, False, None

    def resident_send(self, gradient, kind, scale, messages, stream):
        self.calls.append("send")
        for q in range(self.P):
            part = floats(gradient, N)[q * self.each : (q + 1) * self.each]
            floats(messages, self.P * self.resident_words)[q * self.resident_words :][: self.each] = scale * part

    def resident_own(self, arrived, share, stream):
        self.calls.append("own")
        words = floats(arrived, self.P * self.resident_words).reshape(self.P, -1)
        floats(share, self.resident_words)[: self.each] = words[:, : self.each].sum(0)

    def resident_apply(self, shares, messages, out, kind, stream):
        self.calls.append("apply")
        words = floats(shares, self.P * self.resident_words).reshape(self.P, -1)
        floats(out, N)[:] = words[:, : self.each].reshape(-1) / self.P

    def resident_state(self):
        return {"void_steps": self.void, "sent": 0, "applied": 0}

    def give_on_gpu(self, address, stream):
        self.given = floats(address, N).copy()

    def fail_external(self):
        self.is_dead = True


@pytest.fixture
def no_gpu(monkeypatch):
    """Lets CPU tensors pass for a GPU's, in a group of one rank."""
    pretend(monkeypatch.setattr)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 1)


def pretend(setattr_):
    setattr_(_resident, "stream_of", lambda device: 0)
    setattr_(torch.Tensor, "record_stream", lambda self, stream: None)
    setattr_(torch.cuda, "current_stream", lambda device=None: None)


def steps(rank, P):
    pretend(setattr)
    core = StandIn(P)
    resident = ResidentSteps(core, dist.group.WORLD, None)
    for step in range(3):
        core.resident_words = N // P + step  # k changes
        flat = torch.arange(N, dtype=torch.float32) * (rank + 1)
        out = flat if step else torch.empty(N)
        resident.step(flat, 0.5, out)
        want = torch.arange(N) * 0.5 * sum(r + 1 for r in range(P)) / P
        assert torch.equal(out, want) and all_equal(out)
    assert core.calls == ["send", "own", "apply"] * 3


@pytest.mark.parametrize("P", [1, 2, 3])
def test_messages_go_to_their_owners_and_shares_to_all(P, tmp_path):
    run_processes(P, steps, tmp_path)


def trouble(rank, P):
    pretend(setattr)
    core = StandIn(P)
    resident = ResidentSteps(core, dist.group.WORLD, "error", look_every=2)
    resident.step(torch.ones(N), 1.0, torch.empty(N))
    core.void = 1
    with pytest.raises(oktopk.UsageError, match="in 1 of the last 2 steps .* nan or inf"):
        resident.step(torch.ones(N), 1.0, torch.empty(N))
    for _ in range(2):
        resident.step(torch.ones(N), 1.0, torch.empty(N))  # known by now
    skips = ResidentSteps(core, dist.group.WORLD, "skip", look_every=1)
    skips.step(torch.ones(N), 1.0, torch.empty(N))
    return "ok"


def test_a_void_step_is_an_error_once_and_never_with_skip():
    assert in_processes(1, trouble) == ["ok"]


def test_a_collective_that_fails_is_a_comm_error_and_the_reducer_is_dead(no_gpu, monkeypatch):
    def refuse(*args, **options):
        raise RuntimeError("NCCL is tired")

    monkeypatch.setattr(dist, "all_to_all_single", refuse)
    core = StandIn(1)
    with pytest.raises(oktopk.CommError, match="an exchange between GPUs failed: NCCL is tired"):
        ResidentSteps(core, None, "skip").step(torch.ones(N), 1.0, torch.empty(N))
    assert core.is_dead and core.calls == ["send"]


def test_means_that_were_not_applied_are_given_back(no_gpu):
    core = StandIn(1)
    resident = ResidentSteps(core, None, "skip")
    spans = [(0, 5), (5, N)]
    resident.keep(torch.arange(N, dtype=torch.float32))
    resident.give_back(spans, [True, True])
    assert core.given is None
    resident.keep(torch.arange(N, dtype=torch.float16))
    resident.give_back(spans, [True, False])
    assert core.given.tolist() == [0.0] * 5 + list(range(5, N))
    resident.keep(torch.full((N,), float("nan")))  # a void step
    resident.give_back(spans, [False, False])
    assert core.given.tolist() == [0.0] * N


def choices(rank, P):
    assert not sends_gpu_memory(dist.group.WORLD)  # Gloo
    sample = torch.empty(1000)
    comm = oktopk.torch.communicator()
    found = _choice.choose(comm, dist.group.WORLD, sample, {"density": 0.01}, ("dense", "slots"))
    alone = _choice.choose(comm, dist.group.WORLD, sample, {"k": 5000}, ("bf16",))
    return found, alone


def test_all_ranks_choose_the_same():
    results = in_processes(2, choices)
    assert results[0] == results[1] and results[0][0] in ("dense", "slots") and results[0][1] == "bf16"


def test_only_cuda_tensors_of_preset_slots_over_nccl_stay_on_the_gpu(monkeypatch):
    gpu, cpu, group = torch.device("cuda", 0), torch.device("cpu"), object()
    assert not stays_on_gpu({"preset": "slots"}, group, gpu)
    monkeypatch.setattr(_resident, "sends_gpu_memory", lambda group: True)
    assert stays_on_gpu({"preset": "slots", "density": 0.1}, group, gpu)
    for more in ({"preset": "circulant"}, {"group_size": 2}, {"selector": "exact"}, {"adaptive_share": 0.5}):
        assert not stays_on_gpu({"preset": "slots", **more}, group, gpu), more
    assert not stays_on_gpu({"preset": "slots"}, group, cpu) and not stays_on_gpu({"preset": "slots"}, None, gpu)
    assert _choice.is_open({"preset": "auto", "density": 0.1, "codec": None}, group, gpu)
    for options in ({"preset": "slots"}, {"preset": "auto", "overrides": "dense:n<64K"}, {"preset": "auto", "tau": 3}):
        assert not _choice.is_open(options, group, gpu), options


def test_the_hook_s_stream_runs_jobs_at_once_and_passes_errors_on():
    class Listener:
        errors = []

        def stop(self, error):
            self.errors.append(str(error))

    listener, result = Listener(), torch.ones(3)
    stream = HookStream("test", listener.stop)

    def fail():
        raise ValueError("in a job")

    assert stream.submit(lambda: result.mul_(2), result).value().tolist() == [2.0] * 3
    assert stream.submit(fail, result).value() is result and listener.errors == ["in a job"]
    stream.drain()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None])
def test_a_mean_that_is_not_finite_becomes_zero(bad):
    mean = torch.ones(5, dtype=torch.bfloat16)
    if bad is not None:
        mean[3] = bad
    zero_unless_finite(mean)
    assert mean.tolist() == [1.0 if bad is None else 0.0] * 5
