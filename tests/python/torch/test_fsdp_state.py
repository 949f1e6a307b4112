# SPDX-License-Identifier: Apache-2.0
"""register_fsdp with preset auto, other users of shards, bad use."""

from __future__ import annotations

import pytest
import torch
from ranks import all_equal, in_processes
from versions import TORCH, reason

import oktopk
import oktopk.torch

if TORCH < (2, 7):
    pytest.skip(reason((2, 7), "set_all_reduce_hook() of fully_shard"), allow_module_level=True)

from fsdp_models import (  # noqa: E402
    Net,
    backward,
    gradients,
    meshes,
    register,
    shard,
    weights,
)
from models import STAGING  # noqa: E402


def work_auto(rank, P):
    """Preset auto measures the network once for all modules; a state of it can be loaded."""
    _, replicate, shards = meshes(2, 1)
    options = {"preset": "auto", "density": 0.05, "start_iter": 0, "min_numel": 0}
    model, other = shard(shards), shard(shards)
    state = register(model, replicate, **options)
    for step in range(3):
        backward(model, rank, step)
    again = register(other, replicate, **options)
    again.load_state_dict(state.state_dict())
    state.flush()
    again.flush()
    assert torch.equal(gradients(model), gradients(other))


def test_a_state_of_preset_auto_can_be_loaded():
    in_processes(2, work_auto)


def work_others(rank, P):
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
    defaults = {"density": 0.05, "start_iter": 0, "min_numel": 0}  # and preset auto
    sync = register(chosen, replicate, **defaults)
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


def test_other_users_of_shards_and_errors():
    in_processes(4, work_others)
