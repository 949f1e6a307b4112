# SPDX-License-Identifier: Apache-2.0
"""register_fsdp: replicas of fully_shard models over Gloo, against FSDP's own 2-D mesh."""

from __future__ import annotations

import pytest
import torch
from ranks import all_equal, in_processes
from versions import TORCH, needs_torch, reason

import oktopk

if TORCH < (2, 7):
    pytest.skip(reason((2, 7), "set_all_reduce_hook() of fully_shard"), allow_module_level=True)

from fsdp_models import backward, gradients, meshes, register, shard, weights  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy  # noqa: E402

needs_native = needs_torch((2, 8), "fully_shard's own all-reduce over Gloo")

EXACT = (  # and by how much: at density 1 a threshold may keep the smallest entries back, up to 2e-5
    ({"preset": "dense"}, 1e-7),
    ({"preset": "circulant", "density": 0.999999, "start_iter": 0, "min_numel": 0}, 5e-5),
    ({"preset": "circulant", "density": 0.999999, "start_iter": 0, "min_numel": 0, "group_size": 2}, 5e-5),
    ({"preset": "circulant", "density": 0.01, "start_iter": 10, "min_numel": 0}, 1e-7),
    # Small groups are dense, whatever the options say about sparse steps.
    ({"preset": "circulant", "start_iter": 10, "min_numel": 10_000, "codec": "elias_fano+bf16", "decay": 0.9}, 1e-7),
)


def work_like_native(rank, P):
    """What sends everything gives FSDP's own hybrid sharding, to rounding."""
    mesh, replicate, shards = meshes(2, P // 2)
    bf16 = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
    for policy, rounding in (({}, 1e-5), ({"mp_policy": bf16}, 2e-2)):
        for options, absolute in EXACT:
            tolerance = {"rtol": rounding, "atol": absolute * rounding / 1e-5}
            native, ours = shard(mesh, **policy), shard(shards, **policy)
            register(ours, replicate, **options)
            optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (native, ours)]
            for step in range(3):
                for model, optimizer in zip((native, ours), optimizers):
                    optimizer.zero_grad()
                    backward(model, rank, step)
                torch.testing.assert_close(gradients(ours), gradients(native), **tolerance)
                for optimizer in optimizers:
                    optimizer.step()
            torch.testing.assert_close(weights(ours), weights(native), **tolerance)


@needs_native
def test_what_sends_everything_equals_native_hsdp():
    in_processes(4, work_like_native)


def work_accumulation(rank, P):
    """Three ways to accumulate, and a divide factor."""
    mesh, replicate, shards = meshes(2, P // 2)

    def compare(do, prepare=lambda model: None):
        native, ours = shard(mesh), shard(shards)
        state = register(ours, replicate.get_group(), preset="dense")
        for model in (native, ours):
            prepare(model)
            do(model)
        torch.testing.assert_close(gradients(ours), gradients(native), rtol=1e-5, atol=1e-7)
        return state

    def without(setter):
        def do(model):
            for step in range(3):
                if setter:
                    getattr(model, setter)(step == 2)
                backward(model, rank, step)

        return do

    for setter in (None, "set_requires_gradient_sync", "set_requires_all_reduce"):
        compare(without(setter))

    def divide(model):
        for module in (model.first, model):
            module.set_gradient_divide_factor(6.0)
            module.set_force_sum_reduction_for_comms(True)  # Gloo has no PREMUL_SUM

    compare(lambda model: backward(model, rank, 0), divide)


@needs_native
def test_accumulation_and_divide_factors_equal_native_hsdp():
    in_processes(4, work_accumulation)


def work_unused(rank, P):
    """A branch that was not used counts as zero, so that the layout stays, or is refused."""
    _, replicate, shards = meshes(2, P // 2)
    model, other = shard(shards), shard(shards)
    state = register(model, replicate, preset="dense")
    backward(model, rank, 0)
    model.set_requires_all_reduce(False)
    backward(model, rank, 1)
    with pytest.raises(oktopk.UsageError, match="middle of an accumulation"):
        state.state_dict()

    register(other, replicate, preset="dense")
    backward(other, rank, 0, with_side=False)
    if TORCH < (2, 13):
        with pytest.raises(oktopk.UsageError, match="before torch 2.13"):
            backward(other, rank, 1)
    else:
        backward(other, rank, 1)


def test_branches_that_are_not_used_keep_the_layout_or_are_refused():
    in_processes(4, work_unused)


def work_several_exchanges(rank, P):
    """p.grad is the sum of the means of two backward passes: a sparse optimiser applies all of it."""
    _, replicate, shards = meshes(P, 1)
    model = shard(shards)
    state = register(model, replicate, preset="circulant", density=0.05, start_iter=0, min_numel=0)
    optimizer = oktopk.torch.SparseSGD(model.parameters(), state, lr=1.0, momentum=0.0)
    for step in range(4):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        before = weights(model).clone()
        backward(model, rank, 2 * step)
        model.set_requires_all_reduce(step < 3)
        backward(model, rank, 2 * step + 1)
        optimizer.step()
        torch.testing.assert_close(before - weights(model), gradients(model), rtol=1e-4, atol=1e-6)
    model.set_requires_all_reduce(True)
    optimizer.zero_grad()
    backward(model, rank, 9)
    assert isinstance(state.arrived(next(model.parameters())), torch.Tensor), "one exchange: the indices are known"
    assert all_equal(weights(model), replicate.get_group())


def test_a_sparse_optimiser_applies_all_exchanges_of_a_step():
    in_processes(2, work_several_exchanges)
