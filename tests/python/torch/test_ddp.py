# SPDX-License-Identifier: Apache-2.0
"""The DDP hook: equal weights, the mass law through all that DDP does to its buckets, wrappers."""

import numpy as np
import pytest
import torch
from models import (
    DEVICE,
    STAGING,
    add,
    batch,
    flat,
    flat_gradients,
    loss_of,
    make_ddp,
    small_model,
    train,
    unsent_of,
)
from ranks import in_processes
from versions import needs_gloo_bf16

from oktopk.metrics import every
from oktopk.torch._channel import Channel

def weights_after(rank, P, hook, steps, options, ddp_options=None):
    model, state = make_ddp(hook, ddp_options=ddp_options, **options)
    loss = train(model, rank, steps)
    return flat(model), loss, state.compression_stats().rate if state else 1.0


@pytest.mark.parametrize("P", [1, 2, 3])
def test_dense_is_ddp_without_a_hook_bit_by_bit(P):
    plain = in_processes(P, weights_after, None, 20, {})
    hooked = in_processes(P, weights_after, "sparse", 20, {"preset": "dense"})
    assert np.array_equal(plain[0][0], hooked[0][0])


@pytest.mark.parametrize(
    "ddp_options",
    [
        {"static_graph": True},
        {"gradient_as_bucket_view": True},
        {"find_unused_parameters": True},
        {"bucket_cap_mb": 25},
        {"broadcast_buffers": False, "bucket_cap_mb": 0.001},
    ],
    ids=lambda o: next(iter(o)),
)
def test_ddp_options_change_nothing_for_the_ranks(ddp_options):
    results = in_processes(2, weights_after, "sparse", 20, {}, ddp_options)
    assert np.array_equal(results[0][0], results[1][0])


def accumulate(rank, P, model, state, steps):
    """Adds up what is given, what is applied, and what is left: the mass law's three terms."""
    own = small_model()
    given, applied = {}, {}
    for step in range(steps):
        model.zero_grad()
        loss_of(model, rank, step).backward()
        own.load_state_dict(model.module.state_dict())
        own.zero_grad()
        loss_of(own, rank, step).backward()
        add(given, flat_gradients(own))
        add(applied, flat_gradients(model))
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.05 * p.grad
    return given, applied, unsent_of(state), state.iteration


def check_mass(results, P):
    given, left = {}, {}
    for g, _, rest, _ in results:
        add(given, g)
        add(left, rest)
    applied = results[0][1]
    for name, total in given.items():
        found = P * applied[name] + left.get(name, 0.0)
        assert np.allclose(found, total, atol=1e-4 * max(np.abs(total).max(), 1e-3)), name
    return left


def into_dense_buckets(rank, P):
    """One sparse bucket at first; after the rebuild some buckets are below min_numel, and dense."""
    options = {"start_iter": 0, "min_numel": 2200, "density": 0.02}
    model, state = make_ddp(**options)
    given, applied, unsent, _ = accumulate(rank, P, model, state, 4)
    assert not state._channels._unsent  # nothing waits for a bucket that never comes
    dense = sum(state.arrived(p) is None for p in model.parameters())
    return given, applied, unsent, dense


def test_mass_goes_along_when_a_parameter_moves_to_a_dense_bucket():
    results = in_processes(2, into_dense_buckets)
    check_mass(results, 2)
    assert 0 < results[0][3] < 6


def with_no_sync(rank, P):
    model, state = make_ddp(start_iter=0)
    own = small_model()
    given, applied = {}, {}
    for step in range(5):
        model.zero_grad()
        own.load_state_dict(model.module.state_dict())
        own.zero_grad()
        with model.no_sync():
            for part in range(2):
                loss_of(model, rank, 10 * step + part).backward()
        loss_of(model, rank, 10 * step + 2).backward()
        for part in range(3):
            loss_of(own, rank, 10 * step + part).backward()
        add(given, flat_gradients(own))
        add(applied, flat_gradients(model))
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.02 * p.grad
    return given, applied, unsent_of(state), state.iteration


def test_mass_is_conserved_with_no_sync():
    results = in_processes(3, with_no_sync)
    check_mass(results, 3)
    assert results[0][3] == 5


class OneUnused(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.used, self.other = torch.nn.Linear(32, 10), torch.nn.Linear(32, 10)

    def forward(self, x, step):
        return self.used(x) if step % 2 else self.other(x)


def with_unused(rank, P):
    from torch.nn.parallel import DistributedDataParallel

    import oktopk.torch as ok

    model = DistributedDataParallel(OneUnused().to(DEVICE), find_unused_parameters=True)
    state = ok.OkTopkState(
        density=0.1, preset="circulant", start_iter=0, min_numel=10, timeout=30, **STAGING
    )
    model.register_comm_hook(state, ok.oktopk_hook)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(8):
        x, y = batch(rank, step)
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x, step), y).backward()
        optimiser.step()
    return flat(model)


def test_unused_parameters_take_part_with_zeros():
    results = in_processes(2, with_unused)
    assert np.array_equal(results[0], results[1])


def wrapped(rank, P, wrapper):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    def under_another_name(hook):  # torch refuses the name of its bf16 wrapper on a CPU
        inner = getattr(default_hooks, wrapper)(hook)

        def wrapped_hook(
            state: object, bucket: torch.distributed.GradBucket
        ) -> torch.futures.Future[torch.Tensor]:
            return inner(state, bucket)

        return wrapped_hook

    model, state = make_ddp(under_another_name)
    loss = train(model, rank, 10)
    return flat(model), loss, state.compression_stats().rate


@pytest.mark.parametrize(
    "wrapper",
    ["fp16_compress_wrapper", pytest.param("bf16_compress_wrapper", marks=needs_gloo_bf16)],
)
def test_wrappers_compose(wrapper):
    results = in_processes(2, wrapped, wrapper)
    assert np.array_equal(results[0][0], results[1][0])
    assert np.isfinite(results[0][1]) and results[0][2] > 1.5


def metrics(rank, P):
    seen, norms = [], []
    model, state = make_ddp(callback=every(2, seen.append))
    truth = Channel.residual_norm
    Channel.residual_norm = lambda self: norms.append(self) or truth(self)
    train(model, rank, 5)
    rows = [(m["iteration"], m["bucket"], m["n"], m["wire_bytes"], m["residual_norm"]) for m in seen]
    return rows, len(norms)


def test_the_callback_gets_every_sparse_bucket_of_the_steps_that_it_wants():
    rows, norms = in_processes(2, metrics)[0]
    assert {row[0] for row in rows} == {2, 4}
    assert all(n >= 100 and bytes_ > 0 and norm > 0 for _, _, n, bytes_, norm in rows)
    assert norms == len(rows)  # a pass over n values each: not for step 3
