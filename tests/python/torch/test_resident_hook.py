# SPDX-License-Identifier: Apache-2.0
"""DDP's hook when its steps stay on the GPU, on the CPU: the steps of the stand-in are the library's own on the host.
So weights must have the bits of the hook's other way, by its thread. test_gpu_resident.py has the GPU."""

import numpy as np
import pytest
import torch
from models import DEVICE, flat, loss_of, make_ddp, train
from ranks import in_processes
from versions import needs_cpu_scaler, needs_torch

from oktopk.torch import Reducer, _choice, _flat_reducer, _steps
from oktopk.torch._worker import HookStream
from oktopk.torch.coordinates import WHERE_NONZERO

pytestmark = pytest.mark.skipif(DEVICE.type != "cpu", reason="pretends that CPU tensors are a GPU's")
SLOTS = {"preset": "slots", "start_iter": 2, "nan_policy": "skip"}


class OnHost:
    """Steps of the library on the host in the place of ResidentSteps."""

    def __init__(self, core, group, policy, look_every):
        self._core, self._kept = core, None

    def step(self, gradient, scale, out):
        self._core.step(gradient.clone(), scale)
        if self._core.skipped:
            out.fill_(float("nan"))
        else:
            mean = torch.empty(len(out))
            self._core.write_update(mean)
            out.copy_(mean)

    def keep(self, mean):
        self._kept = mean.clone()

    def give_back(self, spans, applied):
        mean = self._kept.nan_to_num(0.0)
        for (begin, end), is_applied in zip(spans, applied):
            mean[begin:end] *= not is_applied
        self._core.give_unsent(mean)


def pretend():
    def stays(options, group, device):
        return options.get("preset") == "slots"

    _steps.stays_on_gpu = _flat_reducer.stays_on_gpu = stays
    _flat_reducer.ResidentSteps = OnHost
    _flat_reducer.FlatReducer._move_to = lambda self, gpu: None


def weights(rank, P, is_resident, options):
    if is_resident:
        pretend()
    model, state = make_ddp(**{**SLOTS, **options})
    train(model, rank, 6)
    assert isinstance(state._worker, HookStream) == is_resident
    saved = state.state_dict()
    answers = state.arrived_of(list(model.parameters()))
    assert (WHERE_NONZERO in answers) == is_resident
    again, other = make_ddp(**{**SLOTS, **options, "start_iter": 0})
    again.module.load_state_dict(model.module.state_dict())
    other.load_state_dict(saved)
    train(again, rank, 3, first=6)
    return flat(model), flat(again), state.compression_stats().wire_bytes


@pytest.mark.parametrize("P", [1, 3])
def test_the_hook_s_stream_has_the_bits_of_its_thread(P):
    resident, thread = in_processes(P, weights, True, {}), in_processes(P, weights, False, {})
    for rank in range(P):
        for a, b in zip(resident[rank], thread[rank]):
            assert np.array_equal(a, b)
        assert np.array_equal(resident[rank][0], resident[0][0])


def skipped(rank, P):
    """A step that the GradScaler leaves out: its gradient leaves, and what had arrived becomes unsent again."""
    pretend()
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1000)
    model, state = make_ddp(**{**SLOTS, "start_iter": 0, "nan_policy": None, "grad_scaler": scaler})
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    sums, before = [], flat(model)
    for step in range(4):
        optimiser.zero_grad()
        loss = scaler.scale(loss_of(model, rank, step))
        loss.backward()
        if step == 2:
            next(model.parameters()).grad.fill_(float("inf"))  # the optimiser sees it, the exchange did not
        unsent = {name: x.double().sum().item() for name, x in state.unsent().items()}
        scaler.step(optimiser)
        scaler.update()
        state.state_dict()  # settles
        sums.append((unsent, {name: x.double().sum().item() for name, x in state.unsent().items()}))
    return before, flat(model), [sum(abs(a[n] - b[n]) for n in a) for a, b in sums]


@needs_cpu_scaler
def test_a_step_that_the_scaler_skips_gives_its_mean_back():
    results = in_processes(2, skipped)
    assert np.array_equal(results[0][1], results[1][1])
    moved = results[0][2]
    assert moved[0] == moved[1] == moved[3] == 0 and moved[2] > 0


def void(rank, P, scaled):
    """A rank's gradient is not finite: with a scaler the mean is NaN; with "skip" alone it is zero."""
    pretend()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0) if scaled else None
    model, state = make_ddp(**{**SLOTS, "start_iter": 0, "grad_scaler": scaler})
    for bad in (False, True):
        model.zero_grad()
        loss = loss_of(model, rank, 0) * (float("nan") if bad and rank == 0 else 1.0)
        (scaler.scale(loss) if scaled else loss).backward()
    gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
    return bool(gradients.isnan().all()), bool((gradients == 0).all())


@needs_cpu_scaler
def test_a_void_step_is_nan_for_a_scaler_and_zero_with_skip():
    assert in_processes(2, void, True) == [(True, False)] * 2
    assert in_processes(2, void, False) == [(False, True)] * 2


def with_choice(rank, P, choice):
    """Preset auto where it chooses among NCCL's sums and slots. The second model takes the choice from the state."""
    pretend()
    asked = []

    def choose(comm, group, sample, options, *others):
        asked.append(sample.numel())
        return choice

    _steps._choice.is_open = lambda options, group, device: options.get("preset") == "auto"
    _steps._choice.choose = choose
    settings = {**SLOTS, "preset": "auto", "start_iter": 0}
    model, state = make_ddp(**settings)
    train(model, rank, 4)
    again, other = make_ddp(**settings)
    other.load_state_dict(state.state_dict())
    train(again, rank, 1)
    assert len(asked) == 1 and other._choice == choice
    return flat(model)


def by_name(rank, P, preset):
    pretend()
    model, _ = make_ddp(**{**SLOTS, "preset": preset, "start_iter": 0})
    train(model, rank, 4)
    return flat(model)


def test_preset_auto_makes_the_steps_of_its_choice():
    named = {preset: in_processes(2, by_name, preset)[0] for preset in ("slots", "dense")}
    for choice in ("slots", "dense"):
        for found in in_processes(2, with_choice, choice):
            assert np.array_equal(found, named[choice])
    (short, other) = in_processes(2, with_choice, "bf16")
    assert np.array_equal(short, other) and not np.array_equal(short, named["dense"])
    np.testing.assert_allclose(short, named["dense"], atol=1e-2)


def auto_that_chooses(*choices):
    """Preset auto chooses on CPU tensors, one of these after the other."""
    pretend()
    left = list(choices)
    _choice.is_open = lambda options, group, device: options.get("preset") == "auto"
    _choice.choose = lambda *arguments: left.pop(0)


def reducer_resumed(rank, P, first, second):
    """The choice of the run that saved holds, whatever the new one would choose."""
    auto_that_chooses(first, second)
    weights = [torch.nn.Parameter(torch.zeros(500)) for _ in range(2)]

    def step(reducer, parameter, number):
        parameter.grad = torch.randn(500, generator=torch.Generator().manual_seed(10 * number + rank))
        reducer.reduce_gradients()
        return parameter.grad.numpy().copy()

    one = Reducer(weights[:1], density=0.05)
    for number in range(3):
        step(one, weights[0], number)
    other = Reducer(weights[1:], density=0.05)
    assert other._choice == second
    other.load_state_dict(one.state_dict())
    assert other._choice == first
    assert np.array_equal(step(one, weights[0], 3), step(other, weights[1], 3))
    return True


@pytest.mark.parametrize("first, second", [("slots", "dense"), ("dense", "slots"), ("slots", "slots")])
def test_a_loaded_reducer_keeps_the_choice_of_auto(first, second):
    assert all(in_processes(2, reducer_resumed, first, second))


def fsdp_resumed(rank, P):
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
    return True


@needs_torch((2, 7), "set_all_reduce_hook() of fully_shard")
def test_a_loaded_fsdp_state_keeps_the_choice_of_auto():
    assert all(in_processes(2, fsdp_resumed))
