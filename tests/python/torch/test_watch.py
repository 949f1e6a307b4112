# SPDX-License-Identifier: Apache-2.0
"""Knowing what happened in PyTorch: weights that diverge are found and named, and records of the last operations."""

import json

import numpy as np
import pytest
import torch
from models import flat, make_ddp, train
from ranks import in_processes, on_ranks

import oktopk
import oktopk.torch

P = 3


def flip_a_weight(model, rank):
    if rank == 1:
        with torch.no_grad():
            next(model.parameters()).view(-1)[5] += 1.0


def diverging_hook(rank, P):
    """Weights of rank 1 change after iteration 5; the hook compares every 3 steps of its buckets."""
    model, state = make_ddp(start_iter=0, check_every=3, checked=lambda: flat(model))
    train(model, rank, 4)
    flip_a_weight(model, rank)
    try:
        train(model, rank, 4, first=4)
    except oktopk.UsageError as error:
        return str(error)
    return ""


def test_hook_names_the_rank_whose_weights_differ():
    errors = in_processes(P, diverging_hook)
    assert len(set(errors)) == 1
    assert "the update: rank 1 differs from the other 2 ranks in step 6" in errors[0]


def diverging_reducer(rank, P):
    weights = np.zeros(200, np.float32)
    reducer = oktopk.torch.Reducer(200, preset="circulant", check_every=2, checked=lambda: weights)
    found = []
    for step in range(6):
        try:
            reducer.reduce(torch.randn(200, generator=torch.Generator().manual_seed(10 * step + rank)))
        except oktopk.UsageError as error:
            found.append(f"{step}: {error}")
        if step == 2 and rank == 2:
            weights[7] = 1
    return found


def test_reducer_names_the_rank_and_goes_on():
    expected = ["4: the update: rank 2 differs from the other 2 ranks in step 4"]
    assert in_processes(P, diverging_reducer) == [expected] * P


def records(rank, P, folder):
    model, state = make_ddp(start_iter=0)
    with pytest.raises(oktopk.UsageError, match="no record before the first step"):
        state.flight()
    train(model, rank, 2)
    assert state.flight()["rank"] == rank
    reducer = oktopk.torch.Reducer(200, preset="circulant")
    reducer.reduce(torch.ones(200))
    assert reducer.flight()["step"] == 1
    file = reducer.dump_flight(folder)
    with open(file, encoding="utf-8") as text:
        return json.load(text)["size"]


def test_hook_and_reducer_show_their_records(tmp_path):
    assert in_processes(P, records, str(tmp_path)) == [P] * P
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"oktopk-flight-{rank}.json" for rank in range(P)]


@on_ranks(2)
def test_weights_that_are_none_are_refused_on_all_ranks(rank, P):
    reducer = oktopk.torch.Reducer(200, preset="circulant", check_every=1, checked=lambda: "weights")
    reducer.reduce(torch.ones(200))
    with pytest.raises(oktopk.UsageError, match="flat float32 array"):
        reducer.reduce(torch.ones(200))
    with pytest.raises(oktopk.UsageError, match="checked without check_every"):
        oktopk.torch.Reducer(200, preset="circulant", checked=lambda: None)
    with pytest.raises(oktopk.UsageError, match="checked = 7 is of the wrong type"):
        oktopk.torch.Reducer(200, preset="circulant", check_every=1, checked=7)
