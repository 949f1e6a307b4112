# SPDX-License-Identifier: Apache-2.0
"""register_fsdp in torch.distributed.checkpoint: after many steps, on other numbers of replicas.

OKTOPK_TEST_STEPS=5000 makes the long run longer; more than 1,024 are needed, where clocks grew."""

from __future__ import annotations

import os

import gloo_ranks
import pytest
import torch
import torch.distributed as dist
from gloo_ranks import all_equal, run_processes
from versions import TORCH, reason

import oktopk
import oktopk.torch
from oktopk.torch.checkpoint import Elastic

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


def momentum(parameters, sync):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


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
    [(momentum, 4, 20), (sparse_momentum, 2, 20), (sparse_adam, 2, STEPS)],
)
def test_a_check_point_goes_on_bitwise(tmp_path, monkeypatch, optimiser, P, steps):
    monkeypatch.setattr(gloo_ranks, "TIMEOUT", max(gloo_ranks.TIMEOUT, steps / 5))
    run_processes(P, work_round_trip, tmp_path, str(tmp_path / "saved"), optimiser, steps)


def work_save(rank, P, path):
    _, replicate, shards = meshes(2, 2)
    run = Run(momentum, replicate, shards)
    run.train(rank, 0, 15)
    dcp.save({"hook": run.sync}, checkpoint_id=path)
    run.sync.flush()
    dcp.save({"owed": [p.grad for p in run.model.parameters()]}, checkpoint_id=f"{path}_owed")


def work_elastic(rank, P, path):
    """Three replicas take over from two: the weights are owed what they were owed."""
    _, replicate, shards = meshes(3, 2)
    run = Run(momentum, replicate, shards)
    dcp.load({"hook": Elastic(run.sync, path)}, checkpoint_id=path)
    run.sync.flush()
    owed = {"owed": [torch.zeros_like(p) for p in run.model.parameters()]}
    dcp.load(owed, checkpoint_id=f"{path}_owed")
    rest = torch.cat([g.to_local().reshape(-1) for g in owed["owed"]])
    assert rest.count_nonzero() > 0
    torch.testing.assert_close(gradients(run.model), rest, rtol=1e-5, atol=1e-6)

    _, replicate, shards = meshes(6, 1)
    other = Run(momentum, replicate, shards)
    with pytest.raises(oktopk.UsageError, match=r"another shard, \(rank, ranks\) = \(0, 2\), but"):
        dcp.load({"hook": Elastic(other.sync, path)}, checkpoint_id=path)


def test_another_number_of_replicas_goes_on(tmp_path):
    run_processes(4, work_save, tmp_path, str(tmp_path / "saved"))
    run_processes(6, work_elastic, tmp_path, str(tmp_path / "saved"))
