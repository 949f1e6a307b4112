# SPDX-License-Identifier: Apache-2.0
"""Bad use of the DDP hook: an error on every rank that says what to do, and never a hang."""

import numpy as np
import pytest
from models import flat, loss_of, make_ddp, train
from ranks import in_processes
from versions import TORCH

import oktopk
import oktopk.torch


def backward_raises(rank, P, words, options, act=None):
    model, state = make_ddp(**(options(rank) if callable(options) else options))
    with pytest.raises(oktopk.UsageError, match=words):
        if act is None:
            loss_of(model, rank, 0).backward()
        else:
            act(model, state, rank)
    return True


def loaded_on_one(rank, P):
    model, state = make_ddp()
    if rank == 0:
        saved = {"oktopk": 1, "world": 2, "rank": 0, "iteration": 50, "buckets": []}
        state.load_state_dict(saved)
    with pytest.raises(oktopk.UsageError, match="iteration 50"):
        loss_of(model, rank, 0).backward()
    return True


def test_a_state_loaded_on_one_rank_only_is_refused_on_all():
    assert all(in_processes(2, loaded_on_one))


def in_subgroups(rank, P):
    """Two models side by side, each on half of the ranks: DDP's group is the state's."""
    import torch.distributed as dist

    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = groups[rank // 2]
    model, state = make_ddp(ddp_options={"process_group": mine}, start_iter=0)
    train(model, rank, 5)
    other, _ = make_ddp(
        ddp_options={"process_group": mine}, process_group=dist.group.WORLD, start_iter=0
    )
    with pytest.raises(oktopk.UsageError, match="process group of ranks"):
        loss_of(other, rank, 0).backward()
    return flat(model)


def test_the_state_takes_the_process_group_of_its_model():
    a, b, c, d = in_processes(4, in_subgroups)
    assert np.array_equal(a, b) and np.array_equal(c, d) and not np.array_equal(a, c)


def join_in(model, state, rank):
    with model.join():
        for step in range(1 + rank):
            loss_of(model, rank, step).backward()


def test_join_is_refused():
    assert all(in_processes(2, backward_raises, "join", {}, join_in))


def on_two_models(model, state, rank):
    second, _ = make_ddp(state=state)
    loss_of(model, rank, 0).backward()
    if TORCH < (2, 1):  # it does not tell before
        loss_of(second, rank, 0).backward()


def test_one_state_on_two_models_is_refused():
    options, words = {"start_iter": 0}, "one per model|one state per model"
    assert all(in_processes(2, backward_raises, words, options, on_two_models))


def registers_twice(rank, P):
    model, state = make_ddp()
    with pytest.raises(RuntimeError, match="once"):
        model.register_comm_hook(state, oktopk.torch.oktopk_hook)
    return True


def test_a_second_hook_is_refused():
    assert all(in_processes(1, registers_twice))
