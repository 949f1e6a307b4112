# SPDX-License-Identifier: Apache-2.0
"""States in torch.distributed.checkpoint beside the laws (test_laws.py): saved with the model, behind training, by
several groups; bad use."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from front_ends import Explicit, Local, gradient_of
from ranks import in_processes
from models import flat, make_ddp, train
from versions import TORCH, reason

import oktopk
import oktopk.torch
from oktopk.torch.checkpoint import Elastic, Place, unwrap, wrap

if TORCH < (2, 4):
    pytest.skip(reason((2, 4), "DCP for values of one rank"), allow_module_level=True)

import torch.distributed.checkpoint as dcp  # noqa: E402

STABLE = {"find_unused_parameters": True}  # the only DDP that keeps its first buckets


def work_ddp(rank, P, path):
    """The model and the hook's state, saved behind training; and a state of no steps."""
    model, state = make_ddp(ddp_options=STABLE)
    train(model, rank, 6)
    fresh = make_ddp(ddp_options=STABLE)[1]
    saved = {"model": model.module.state_dict(), "hook": state}
    dcp.async_save(saved, checkpoint_id=f"{path}/async").result()
    dcp.save({"hook": fresh}, checkpoint_id=f"{path}/fresh")
    train(model, rank, 4, first=6)
    other, again = make_ddp(ddp_options=STABLE)
    weights = other.module.state_dict()
    dcp.load({"model": weights, "hook": again}, checkpoint_id=f"{path}/async")
    other.module.load_state_dict(weights)
    assert again.iteration == 6
    train(other, rank, 4, first=6)
    assert (flat(other) == flat(model)).all()
    fresh.iteration = 3
    dcp.load({"hook": fresh}, checkpoint_id=f"{path}/fresh")
    assert fresh.iteration == 0


def work_ddp_elsewhere(rank, P, path):
    """On other ranks."""
    model, state = make_ddp(ddp_options=STABLE)
    with pytest.raises(dcp.CheckpointException, match=f"Missing key.*rank_{rank}_of_{P}"):
        dcp.load({"hook": state}, checkpoint_id=f"{path}/async")
    dcp.load({"hook": Elastic(make_ddp()[1], f"{path}/fresh")}, checkpoint_id=f"{path}/fresh")
    with pytest.raises(dcp.CheckpointException, match=r"UsageError.*is for dcp.load\(\)"):
        dcp.save({"hook": Elastic(state, f"{path}/async")}, checkpoint_id=f"{path}/wrong")
    dcp.save({"model": model.module.state_dict()}, checkpoint_id=f"{path}/without")
    with pytest.raises(oktopk.UsageError, match="rank 0 are needed.*states of nobody"):
        Elastic(state, f"{path}/without").state_dict()


def test_the_state_of_the_hook_goes_with_the_model(tmp_path):
    in_processes(2, work_ddp, str(tmp_path))
    in_processes(3, work_ddp_elsewhere, str(tmp_path))


def work_halves(rank, P, path):
    """Two groups that save under one name, beside LocalSteps of all ranks."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    (one, outer), (again, late) = ((Explicit(halves[rank // 2]), Local()) for _ in range(2))
    for step in range(3):
        one.step(gradient_of(rank, step))
        outer.step(gradient_of(rank, step))
    dcp.save({"reducer": one.state, "outer": outer.state}, checkpoint_id=path)
    late.step(gradient_of(rank, 0))
    dcp.load({"reducer": again.state, "outer": late.state}, checkpoint_id=path)
    assert torch.equal(one.step(gradient_of(rank, 3)), again.step(gradient_of(rank, 3)))
    assert late.state.reducer.steps == 3
    assert one.state.place() == Place(rank // 2 * 2, rank % 2, 2)


def test_several_groups_save_under_one_name(tmp_path):
    in_processes(4, work_halves, str(tmp_path / "saved"))


def test_names_and_wrappers():
    place = Place(4, 1, 3)
    assert place.name == "oktopk_group_4_rank_1_of_3"
    assert unwrap(wrap(place, {"a": 1})) == {"a": 1}
    assert unwrap({"a": 1}) == {"a": 1} and unwrap(3) == 3
    assert Place.of_group(None) == Place(0, 0, 1)  # no process group in this process
