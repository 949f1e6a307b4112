# SPDX-License-Identifier: Apache-2.0
"""group_size on GPUs, by the hook of DDP, on the CPU (test_sharded.py has the stand-in)."""

import numpy as np
import pytest
import torch
from front_ends import Hook, same
from models import DEVICE, flat, flat_gradients, loss_of, make_ddp, train, unsent_of
from ranks import in_processes
from test_laws import lose_nothing
from test_sharded import SHAPES, pretend
from versions import needs_cpu_scaler

import oktopk
from oktopk.torch._sharded import ShardedReducer
from oktopk.torch._worker import HookStream
from oktopk.torch.coordinates import WHERE_NONZERO

pytestmark = pytest.mark.skipif(DEVICE.type != "cpu", reason="pretends that CPU tensors are a GPU's")
HOOK = {"preset": "slots", "start_iter": 0}


def mass(rank, P, G):
    pretend()
    same(*lose_nothing(Hook(preset="slots", group_size=G, warmup=[(2, 0.2), (2, 1.0)])))
    return True


@pytest.mark.parametrize("P, G", SHAPES)
def test_mass_is_conserved_through_the_rebuilding_of_buckets(P, G):
    assert all(in_processes(P, mass, G))


def hooked(rank, P, G):
    pretend()
    options = {**HOOK, "start_iter": 1, "group_size": G, "ddp_options": {"find_unused_parameters": True}}
    model, state = make_ddp(**options)
    train(model, rank, 5)
    assert isinstance(state._worker, HookStream)
    assert all(isinstance(c._reducer, ShardedReducer) for c in state._channels._channels.values())
    assert WHERE_NONZERO in state.arrived_of(list(model.parameters()))
    again, other = make_ddp(**options)
    again.module.load_state_dict(model.module.state_dict())
    other.load_state_dict(state.state_dict())
    for m in (model, again):
        train(m, rank, 3, first=5)
    assert state.compression_stats().wire_bytes > 0
    return flat(model), flat(again)


@pytest.mark.parametrize("P, G", SHAPES)
def test_the_hook_trains_equal_weights_and_resumes_bit_by_bit(P, G):
    results = in_processes(P, hooked, G)
    for found, again in results:
        assert np.array_equal(found, results[0][0]) and np.array_equal(again, found)


def scaled(rank, P, G):
    """A step that the scaler leaves out, after an exchange that was good."""
    pretend()
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1000)
    model, state = make_ddp(**HOOK, group_size=G, grad_scaler=scaler)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(3):
        optimiser.zero_grad()
        scaler.scale(loss_of(model, rank, step)).backward()
        if step == 2:
            means = {name: x / 256.0 for name, x in flat_gradients(model).items()}
            next(model.parameters()).grad.fill_(float("inf"))  # the optimiser sees it, the exchange did not
        before, weights = unsent_of(state), flat(model)
        scaler.step(optimiser)
        scaler.update()
    state.state_dict()  # settles
    assert np.array_equal(weights, flat(model))
    return means, before, unsent_of(state)


@needs_cpu_scaler
@pytest.mark.parametrize("P, G", SHAPES)
def test_a_step_that_the_scaler_skips_gives_its_mean_back(P, G):
    results = in_processes(P, scaled, G)
    for name, mean in results[0][0].items():
        if name in results[0][1]:
            back = sum(after[name] - before[name] for _, before, after in results)
            np.testing.assert_allclose(back, P * mean, atol=1e-4)
    assert any(mean.any() for mean in results[0][0].values())


def different(rank, P):
    pretend()
    with pytest.raises(oktopk.UsageError, match="ranks have different options: rank 0 has 'group_size 2'"):
        model, _ = make_ddp(**HOOK, group_size=2 if rank == 0 else 4)
        loss_of(model, rank, 0).backward()
    return True


def test_different_group_sizes_are_refused_on_all_ranks():
    assert all(in_processes(4, different))
