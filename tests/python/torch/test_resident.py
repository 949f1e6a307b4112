# SPDX-License-Identifier: Apache-2.0
"""Steps that stay on the GPU, beside the laws (test_laws.py: Resident). On the CPU there are stand-ins for the kernels:
one whose messages hold the whole gradient, for the order of a step, and that of on_gpu.py, whose steps are the
library's own on the host. test_gpu_resident.py has what only a GPU shows."""

import ctypes

import numpy as np
import pytest
import torch
import torch.distributed as dist
from models import DEVICE, flat, loss_of, make_ddp, nccl_group, needs_cpu, train, use_gpu
from on_gpu import pretend
from ranks import all_equal, in_processes, on_ranks
from versions import needs_cpu_scaler, needs_torch

import oktopk
from oktopk.torch import Reducer, _choice, _gpu
from oktopk.torch._dense_sum import zero_unless_finite
from oktopk.torch._group import sends_gpu_memory
from oktopk.torch._gpu import ResidentSteps, stays_on_gpu
from oktopk.torch._worker import HookStream
from oktopk.torch.coordinates import WHERE_NONZERO

N = 12
SLOTS = {"preset": "slots", "start_iter": 0, "nan_policy": "skip"}


def floats(address, count):
    """The floats at an address."""
    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (count,))


class StandIn:
    """The kernels of a rank: owner q gets its N/P of the gradient, adds up, and shares the sum."""

    def __init__(self, P):
        self.P, self.each = P, N // P
        self.resident_words = self.each
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


def without_streams(setattr_=setattr):
    """Lets CPU tensors pass for a GPU's."""
    setattr_(_gpu, "stream_of", lambda device: 0)
    setattr_(torch.Tensor, "record_stream", lambda self, stream: None)
    setattr_(torch.cuda, "current_stream", lambda device=None: None)


@pytest.fixture
def alone(monkeypatch):
    """ResidentSteps of a group of one rank, and their stand-in."""
    without_streams(monkeypatch.setattr)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 1)
    core = StandIn(1)
    return ResidentSteps(core, None, "skip"), core


def steps(rank, P):
    without_streams()
    core = StandIn(P)
    resident = ResidentSteps(core, dist.group.WORLD, "error", look_every=2)
    for step in range(4):
        core.resident_words = N // P + step  # k changes
        flat = torch.arange(N, dtype=torch.float32) * (rank + 1)
        out = flat if step else torch.empty(N)
        resident.step(flat, 0.5, out)
        want = torch.arange(N) * 0.5 * sum(r + 1 for r in range(P)) / P
        assert torch.equal(out, want) and all_equal(out)
    assert core.calls == ["send", "own", "apply"] * 4
    resident.step(torch.ones(N), 1.0, torch.empty(N))
    core.void = 1
    with pytest.raises(oktopk.UsageError, match="in 1 of the last 2 steps .* nan or inf"):
        resident.step(torch.ones(N), 1.0, torch.empty(N))
    for _ in range(2):
        resident.step(torch.ones(N), 1.0, torch.empty(N))  # known by now
    ResidentSteps(core, dist.group.WORLD, "skip", look_every=1).step(torch.ones(N), 1.0, torch.empty(N))


@pytest.mark.parametrize("P", [1, 2, 3])
def test_messages_go_to_their_owners_and_shares_to_all_and_a_void_step_is_an_error_once(P):
    in_processes(P, steps)


def test_a_collective_that_fails_is_a_comm_error_and_the_reducer_is_dead(alone, monkeypatch):
    def refuse(*args, **options):
        raise RuntimeError("NCCL is tired")

    monkeypatch.setattr(dist, "all_to_all_single", refuse)
    resident, core = alone
    with pytest.raises(oktopk.CommError, match="an exchange between GPUs failed: NCCL is tired"):
        resident.step(torch.ones(N), 1.0, torch.empty(N))
    assert core.is_dead and core.calls == ["send"]


def test_means_that_were_not_applied_are_given_back(alone):
    resident, core = alone
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
    monkeypatch.setattr(_gpu, "sends_gpu_memory", lambda group: True)
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

    def fail():
        raise ValueError("in a job")

    listener, result = Listener(), torch.ones(3)
    stream = HookStream("test", listener.stop)
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


def by_thread_and_by_stream(rank, P):
    """The hook's thread over Gloo, then its stream, on a GPU over NCCL: the same bits, also after a resumption."""
    group, found = None, []
    # Dense sums of three have the bits of their order, which NCCL and Gloo choose.
    start = 0 if DEVICE.type == "cuda" and P > 2 else 2
    for is_resident in (False, True):
        if is_resident:
            pretend()
            group = None if DEVICE.type == "cpu" else (use_gpu(), nccl_group(rank, P))[1]
        options = {**SLOTS, "start_iter": start, "ddp_options": {"process_group": group}}
        model, state = make_ddp(**options)
        train(model, rank, 6)
        assert isinstance(state._worker, HookStream) == is_resident
        answers = state.arrived_of(list(model.parameters()))
        assert (WHERE_NONZERO in answers) == is_resident
        again, other = make_ddp(**{**options, "start_iter": 0})
        again.module.load_state_dict(model.module.state_dict())
        other.load_state_dict(state.state_dict())
        train(again, rank, 3, first=6)
        found.append((flat(model), flat(again), state.compression_stats().wire_bytes))
    for a, b in zip(*found):
        assert np.array_equal(a, b)
    return found[0][0]


@pytest.mark.parametrize("P", [1, 3] if DEVICE.type == "cpu" else [1, 2, 3])
def test_the_hook_s_stream_has_the_bits_of_its_thread(P):
    results = in_processes(P, by_thread_and_by_stream)
    assert all(np.array_equal(one, results[0]) for one in results)


def void(rank, P):
    """A rank's gradient is not finite: with a scaler the mean is NaN; with "skip" alone it is zero."""
    pretend()
    for scaler in (torch.amp.GradScaler("cpu", init_scale=4.0), None):
        model, state = make_ddp(**SLOTS, grad_scaler=scaler)
        for bad in (False, True):
            model.zero_grad()
            loss = loss_of(model, rank, 0) * (float("nan") if bad and rank == 0 else 1.0)
            (scaler.scale(loss) if scaler else loss).backward()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
        assert gradients.isnan().all() if scaler else not gradients.any()


@needs_cpu
@needs_cpu_scaler
def test_a_void_step_is_nan_for_a_scaler_and_zero_with_skip():
    in_processes(2, void)


def auto_that_chooses(*choices):
    """Preset auto chooses on CPU tensors, one of these after the other."""
    pretend()
    left = list(choices)
    _choice.is_open = lambda options, group, device: options.get("preset") == "auto"
    _choice.choose = lambda *arguments: left.pop(0)


def with_choice(rank, P):
    """Preset auto where it chooses among NCCL's sums and slots. The second model takes the choice from the state."""
    named, settings = {}, {**SLOTS, "preset": "auto"}
    pretend()
    for preset in ("slots", "dense"):
        model, _ = make_ddp(**{**SLOTS, "preset": preset})
        train(model, rank, 4)
        named[preset] = flat(model)
    for choice in ("slots", "dense", "bf16"):
        auto_that_chooses(choice)  # once
        model, state = make_ddp(**settings)
        train(model, rank, 4)
        again, other = make_ddp(**settings)
        other.load_state_dict(state.state_dict())
        train(again, rank, 1)
        assert other._choice == choice
        if choice != "bf16":
            assert np.array_equal(flat(model), named[choice])
    assert not np.array_equal(flat(model), named["dense"])
    np.testing.assert_allclose(flat(model), named["dense"], atol=1e-2)
    return flat(model)


@needs_cpu
def test_preset_auto_makes_the_steps_of_its_choice():
    short, other = in_processes(2, with_choice)
    assert np.array_equal(short, other)


@needs_cpu
@on_ranks(2)
def test_a_loaded_reducer_keeps_the_choice_of_auto(rank, P):
    """The choice of the run that saved holds, whatever the new one would choose."""
    weights = [torch.nn.Parameter(torch.zeros(500)) for _ in range(2)]

    def step(reducer, parameter, number):
        parameter.grad = torch.randn(500, generator=torch.Generator().manual_seed(10 * number + rank))
        reducer.reduce_gradients()
        return parameter.grad.clone()

    for first, second in (("slots", "dense"), ("dense", "slots"), ("slots", "slots")):
        auto_that_chooses(first, second)
        one = Reducer(weights[:1], density=0.05)
        for number in range(3):
            step(one, weights[0], number)
        other = Reducer(weights[1:], density=0.05)
        assert other._choice == second
        other.load_state_dict(one.state_dict())
        assert other._choice == first
        assert torch.equal(step(one, weights[0], 3), step(other, weights[1], 3))


@needs_cpu
@needs_torch((2, 7), "set_all_reduce_hook() of fully_shard")
@on_ranks(2)
def test_a_loaded_fsdp_state_keeps_the_choice_of_auto(rank, P):
    from fsdp_models import backward, gradients, meshes, register, shard

    auto_that_chooses("slots", "dense")
    _, replicate, shards = meshes(P, 1)
    settings = {"density": 0.05, "start_iter": 1, "min_numel": 0}
    models = [shard(shards), shard(shards)]
    one = register(models[0], replicate, **settings)
    for step in range(3):
        backward(models[0], rank, step)
    other = register(models[1], replicate, **settings)
    other.load_state_dict(one.state_dict())
    found = []
    for model in models:
        model.zero_grad()
        backward(model, rank, 3)
        found.append(gradients(model))
    assert torch.equal(*found) and other._choice == "slots"
    assert any(not stats["dense"] for stats in other.stats.values())
