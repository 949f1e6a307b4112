# SPDX-License-Identifier: Apache-2.0
"""States in torch.distributed.checkpoint: saved beside the model, on the same and on other ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import in_processes
from models import DEVICE, flat, loss_of, make_ddp, small_model, train, unsent_of
from versions import TORCH, reason

import oktopk
import oktopk.torch
from oktopk.torch.checkpoint import Elastic, Place, unwrap, wrap

if TORCH < (2, 4):
    pytest.skip(reason((2, 4), "DCP for values of one rank"), allow_module_level=True)

import torch.distributed.checkpoint as dcp  # noqa: E402

STABLE = {"find_unused_parameters": True}  # the only DDP that keeps its first buckets


def work_ddp(rank, P, path):
    """The model, the optimiser and the hook's state: bitwise as without the interruption."""
    model, state = make_ddp(ddp_options=STABLE)
    train(model, rank, 6)
    fresh = make_ddp(ddp_options=STABLE)[1]
    dcp.save({"model": model.module.state_dict(), "hook": state}, checkpoint_id=f"{path}/plain")
    dcp.async_save(
        {"model": model.module.state_dict(), "hook": state}, checkpoint_id=f"{path}/async"
    ).result()
    dcp.save({"hook": fresh}, checkpoint_id=f"{path}/fresh")
    train(model, rank, 4, first=6)
    other, again = make_ddp(ddp_options=STABLE)
    weights = other.module.state_dict()
    dcp.load({"model": weights, "hook": again}, checkpoint_id=f"{path}/async")
    other.module.load_state_dict(weights)
    assert again.iteration == 6
    train(other, rank, 4, first=6)
    assert (flat(other) == flat(model)).all()
    mine, theirs = unsent_of(again), unsent_of(state)
    assert all((mine[name] == theirs[name]).all() for name in theirs)
    fresh.iteration = 3
    dcp.load({"hook": fresh}, checkpoint_id=f"{path}/fresh")
    assert fresh.iteration == 0


def work_ddp_elsewhere(rank, P, path):
    """On other ranks."""
    model, state = make_ddp(ddp_options=STABLE)
    with pytest.raises(dcp.CheckpointException, match=f"Missing key.*rank_{rank}_of_{P}"):
        dcp.load({"hook": state}, checkpoint_id=f"{path}/plain")
    weights = model.module.state_dict()
    loaded = {"model": weights, "hook": Elastic(state, f"{path}/plain")}
    dcp.load(loaded, checkpoint_id=f"{path}/plain")
    model.module.load_state_dict(weights)
    assert state.iteration == 6
    dcp.load({"hook": Elastic(make_ddp()[1], f"{path}/fresh")}, checkpoint_id=f"{path}/fresh")

    with pytest.raises(dcp.CheckpointException, match=r"UsageError.*is for dcp.load\(\)"):
        dcp.save({"hook": Elastic(state, f"{path}/plain")}, checkpoint_id=f"{path}/wrong")
    dcp.save({"model": weights}, checkpoint_id=f"{path}/without")
    with pytest.raises(oktopk.UsageError, match="rank 0 are needed.*states of nobody"):
        Elastic(state, f"{path}/without").state_dict()


def test_the_state_of_the_hook_goes_with_the_model(tmp_path):
    in_processes(2, work_ddp, str(tmp_path))
    in_processes(3, work_ddp_elsewhere, str(tmp_path))


def work_others(rank, P, path):
    """Reducer and LocalSteps, and two groups that save under one name."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    options = {"preset": "circulant", "density": 0.05, "host_staging": DEVICE.type != "cpu"}

    def make():
        model = small_model()
        reducer = oktopk.torch.Reducer(model.parameters(), halves[rank // 2], **options)
        outer = oktopk.torch.LocalSteps(small_model().parameters(), every=1, **options)
        return model, reducer, outer

    def step(model, reducer, number):
        model.zero_grad()
        loss_of(model, rank, number).backward()
        reducer.reduce_gradients()

    model, reducer, outer = make()
    for number in range(3):
        step(model, reducer, number)
        outer.step()
    dcp.save({"reducer": reducer, "outer": outer}, checkpoint_id=path)
    step(model, reducer, 3)
    other, again, late = make()
    late.step()
    dcp.load({"reducer": again, "outer": late}, checkpoint_id=path)
    step(other, again, 3)
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), other.parameters()))
    assert late.reducer.steps == 3
    assert reducer.place() == Place(rank // 2 * 2, rank % 2, 2)


def test_reducers_and_local_steps_of_several_groups_go_with_the_model(tmp_path):
    in_processes(4, work_others, str(tmp_path / "saved"))


def test_names_and_wrappers():
    place = Place(4, 1, 3)
    assert place.name == "oktopk_group_4_rank_1_of_3"
    assert unwrap(wrap(place, {"a": 1})) == {"a": 1}
    assert unwrap({"a": 1}) == {"a": 1} and unwrap(3) == 3
    assert Place.of_group(None) == Place(0, 0, 1)  # no process group in this process
