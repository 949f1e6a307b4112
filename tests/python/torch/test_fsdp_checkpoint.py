# SPDX-License-Identifier: Apache-2.0
"""register_fsdp in torch.distributed.checkpoint: with the optimiser, after many steps.

OKTOPK_TEST_STEPS=5000 makes the long run longer; more than 1,024 are needed, where clocks grew."""

from __future__ import annotations

import os

import gloo_ranks
import pytest
import torch
from ranks import all_equal, in_processes
from versions import TORCH, reason

import oktopk.torch

if TORCH < (2, 7):
    pytest.skip(reason((2, 7), "set_all_reduce_hook() of fully_shard"), allow_module_level=True)

import torch.distributed.checkpoint as dcp  # noqa: E402
from fsdp_models import backward, gradients, meshes, register, shard, weights  # noqa: E402
from torch.distributed.checkpoint.state_dict import (  # noqa: E402
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

OPTIONS = {"preset": "circulant", "density": 0.05, "start_iter": 10, "min_numel": 0}
STEPS = int(os.environ.get("OKTOPK_TEST_STEPS", "1100"))


class Run:
    """A model with its hook and its optimiser, as one value for DCP."""

    def __init__(self, optimiser, replicate, shards, seed=0):
        self.model = shard(shards, seed=seed)
        self.sync = register(self.model, replicate, **OPTIONS)
        self.optimiser = optimiser(self.model.parameters(), self.sync)

    def train(self, rank, first, steps):
        for step in range(first, first + steps):
            self.optimiser.zero_grad()
            backward(self.model, rank, step)
            self.optimiser.step()

    def state_dict(self):
        return {
            "model": get_model_state_dict(self.model),
            "optimiser": get_optimizer_state_dict(self.model, self.optimiser),
            "hook": self.sync.state_dict(),
        }

    def load_state_dict(self, state):
        set_model_state_dict(self.model, state["model"])
        set_optimizer_state_dict(self.model, self.optimiser, state["optimiser"])
        self.sync.load_state_dict(state["hook"])


def sparse_momentum(parameters, sync):
    return oktopk.torch.SparseSGD(parameters, sync, lr=0.05, momentum=0.9)


def sparse_adam(parameters, sync):
    return oktopk.torch.SparseAdamW(parameters, sync, lr=0.001)


def work_round_trip(rank, P, path, optimiser, steps):
    """Bitwise the same next steps as without the interruption."""
    _, replicate, shards = meshes(2, P // 2)
    run = Run(optimiser, replicate, shards)
    run.train(rank, 0, steps)
    dcp.save({"app": run}, checkpoint_id=path)
    run.train(rank, steps, 3)
    again = Run(optimiser, replicate, shards, seed=1)
    dcp.load({"app": again}, checkpoint_id=path)
    again.train(rank, steps, 3)
    assert torch.equal(weights(again.model), weights(run.model))
    assert all(s["step"] == steps + 3 and not s["dense"] for s in again.sync.stats.values())
    for model in (run, again):
        model.sync.flush()
    assert torch.equal(gradients(again.model), gradients(run.model))
    assert all_equal(weights(again.model), replicate.get_group())


@pytest.mark.parametrize(
    "optimiser, P, steps",
    [(sparse_momentum, 4, 20), (sparse_adam, 2, STEPS)],
)
def test_a_check_point_goes_on_bitwise(tmp_path, monkeypatch, optimiser, P, steps):
    monkeypatch.setattr(gloo_ranks, "TIMEOUT", max(gloo_ranks.TIMEOUT, steps / 5))
    in_processes(P, work_round_trip, str(tmp_path / "saved"), optimiser, steps)
