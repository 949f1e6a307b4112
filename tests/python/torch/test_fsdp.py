# SPDX-License-Identifier: Apache-2.0
"""register_fsdp beside the laws (test_laws.py: Fsdp, Sharded): replicas of fully_shard models over Gloo, against FSDP's
own 2-D mesh; accumulation, frozen parameters, and bad use, from the first call that can know it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from models import STAGING
from ranks import all_equal, on_ranks
from versions import TORCH, needs_torch, reason

import oktopk
import oktopk.torch
from oktopk.torch import fsdp
from oktopk.torch.fsdp import Unit, check_gradients


def test_a_torch_without_the_hook_is_told_which_version_has_it(monkeypatch):
    monkeypatch.setattr(fsdp, "FSDPModule", None)
    with pytest.raises(RuntimeError, match=r"needs torch 2\.7 or newer.*this is torch \d"):
        fsdp.register_fsdp(torch.nn.Linear(2, 2), None)


if TORCH < (2, 7):
    pytest.skip(reason((2, 7), "set_all_reduce_hook() of fully_shard"), allow_module_level=True)

from fsdp_models import Net, backward, gradients, meshes, register, shard, weights  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402

try:
    from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_module
except ImportError:  # older torch
    replicate_module = None

needs_native = needs_torch((2, 8), "fully_shard's own all-reduce over Gloo")
SPARSE = {"preset": "circulant", "density": 0.05, "start_iter": 0, "min_numel": 0}
ALL_SENT = {**SPARSE, "density": 0.999999}

EXACT = (  # and by how much: at density 1 a threshold may keep the smallest entries back, up to 2e-5
    ({"preset": "dense"}, 1e-7),
    (ALL_SENT, 5e-5),
    ({**ALL_SENT, "group_size": 2}, 5e-5),
    ({**SPARSE, "start_iter": 10}, 1e-7),
    # Small groups are dense, whatever the options say about sparse steps.
    ({"preset": "circulant", "start_iter": 10, "min_numel": 10_000, "codec": "elias_fano+bf16", "decay": 0.9}, 1e-7),
)


@needs_native
@on_ranks(4)
def test_what_sends_everything_equals_native_hsdp(rank, P):
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
@on_ranks(4)
def test_accumulation_and_divide_factors_equal_native_hsdp(rank, P):
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


@on_ranks(4)
def test_branches_that_are_not_used_keep_the_layout_or_are_refused(rank, P):
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


@on_ranks(2)
def test_a_sparse_optimiser_applies_all_exchanges_of_a_step(rank, P):
    """p.grad is the sum of the means of two backward passes: a sparse optimiser applies all of it."""
    _, replicate, shards = meshes(P, 1)
    model = shard(shards)
    state = register(model, replicate, **SPARSE)
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


def work_register(rank, P):
    """All that register_fsdp() can see."""
    mesh, replicate, shards = meshes(2, 1)
    model = shard(shards)
    with pytest.raises(oktopk.UsageError, match=r"DeviceMesh of 2 dimensions.*mesh\['replicate'\]"):
        register(model, mesh)
    replicated = Net()
    if replicate_module is not None:
        replicate_module(replicated, mesh=replicate)
        with pytest.raises(oktopk.UsageError, match=r"'' was given to replicate\(\).*DistributedDataParallel and reg"):
            register(replicated, replicate)
    with pytest.raises(oktopk.UsageError, match=r"_group = \[0, 1\], but it must be a process"):
        register(model, [0, 1])
    register(model, replicate)  # none of them has left a hook behind
    with pytest.raises(oktopk.UsageError, match="'' has an all-reduce hook.*once per model"):
        register(model, replicate)
    double = Net().double()
    fully_shard(double, mesh=shards)
    with pytest.raises(oktopk.UsageError, match="reduced as torch.float64.*as reduce_dtype"):
        register(double, replicate)
    double = Net().double()
    fully_shard(double, mesh=shards, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))
    register(double, replicate)


def work_frozen(rank, P):
    """Frozen from the start: they do not count. Groups of other types side by side."""
    _, replicate, shards = meshes(2, 1)
    torch.manual_seed(0)
    model = Net()
    model.first.bfloat16()
    model.first.register_forward_pre_hook(lambda module, given: given[0].bfloat16())
    model.first.register_forward_hook(lambda module, given, result: result.float())
    for frozen in (model.first.weight, model.last.weight, model.last.bias):
        frozen.requires_grad_(False)
    for module in (model.first, model.last, model):
        fully_shard(module, mesh=shards)
    state = register(model, replicate, **SPARSE)
    for step in range(3):
        model.zero_grad()
        backward(model, rank, step)
    assert set(state.stats) == {"", "first"}
    trained = [p for p in model.parameters() if p.requires_grad]
    assert trained[0].grad.dtype == torch.bfloat16 and trained[1].grad.dtype == torch.float32
    for p, arrived in zip(trained, state.arrived_of(trained)):
        assert torch.equal(arrived, p.grad.to_local().reshape(-1).nonzero().reshape(-1))
    with pytest.raises(oktopk.UsageError, match=r"shape \(33, 9\).*was not given, or that was froz"):
        state.arrived(model.first.weight)
    state.load_state_dict(state.state_dict())
    model.first.weight.requires_grad_(True)
    with pytest.raises(oktopk.UsageError, match="'first': a gradient of 330 values, 33 before"):
        backward(model, rank, 3)


def work_many(rank, P):
    """Asking for all parameters looks through them once; an error comes out of backward() whole."""
    _, replicate, shards = meshes(2, 1)
    model = shard(shards)
    state = register(model, replicate, **SPARSE)
    backward(model, rank, 0)
    looks, layout = [], Unit.layout
    Unit.layout = lambda unit: looks.append(unit) or layout(unit)
    for _ in range(3):
        for p in model.parameters():
            state.arrived(p)
    Unit.layout = layout
    assert len(looks) == 2  # one per unit
    with pytest.raises(oktopk.UsageError, match=r"rank 1: gradient\[0\] = nan"):  # only a step shows it
        backward(model, rank, 0, lambda loss: loss * float("nan") if rank == 1 else loss)


@on_ranks(2)
def test_bad_use_is_refused_and_frozen_parameters_are_not(rank, P):
    """In one start of the ranks; the traceback has the name of what failed."""
    for work in (work_register, work_frozen, work_many):
        work(rank, P)


@on_ranks(4)
def test_other_users_of_shards_and_errors(rank, P):
    """Shards in the explicit Reducer and in local steps; errors."""
    mesh, replicate, shards = meshes(2, 2)
    both = [shard(shards, seed=1), shard(shards, seed=1)]
    sync = register(both[0], replicate, preset="dense")
    reducer = oktopk.torch.Reducer(both[1].parameters(), replicate.get_group(), preset="dense", **STAGING)
    for module in both:
        backward(module, rank, 1)
    reducer.reduce_gradients()
    assert torch.equal(gradients(both[0]), gradients(both[1]))
    assert sync.stats["first"]["preset"] == "dense"

    torch.manual_seed(rank)
    outer = oktopk.torch.LocalSteps(both[0].parameters(), replicate.get_group(), every=1, **STAGING)
    with torch.no_grad():
        for p in both[0].parameters():
            p.to_local().add_(torch.randn_like(p.to_local()))
    assert not all_equal(weights(both[0]), replicate.get_group())
    assert outer.step() and all_equal(weights(both[0]), replicate.get_group())

    chosen = shard(shards)
    sync = register(chosen, replicate, **{**SPARSE, "preset": "auto"})
    adam = oktopk.torch.SparseAdamW(chosen.parameters(), source=sync, lr=0.01)
    for step in range(3):
        before = weights(chosen)
        adam.zero_grad()
        backward(chosen, rank, step)
        adam.step()
        assert all_equal(weights(chosen), replicate.get_group())
        assert not torch.equal(weights(chosen), before)
    assert all(s["preset"] != "auto" for s in sync.stats.values())

    with pytest.raises(oktopk.UsageError, match="replicas in its own mesh"):
        register(shard(mesh), replicate)
    with pytest.raises(oktopk.UsageError, match="must share this rank"):
        register(shard(shards), shards)
    with pytest.raises(oktopk.UsageError, match="no module"):
        register(Net(), replicate)


def test_gradients_on_a_device_need_staging():
    group = SimpleNamespace(device=torch.device("cuda", 1), fsdp_params=[], mp_policy=None)
    check_gradients("net", group, host_staging=True)
    group.device = torch.device("meta")
    with pytest.raises(oktopk.UsageError, match="'net'.* are on meta.*host_staging=True"):
        check_gradients("net", group, host_staging=False)
