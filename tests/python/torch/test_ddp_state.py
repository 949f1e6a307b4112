# SPDX-License-Identifier: Apache-2.0
"""OkTopkState between steps: pickled, and within another state."""

import pickle

import numpy as np
import torch
from models import STAGING, flat, make_ddp, small_model, train
from ranks import in_processes
from torch.nn.parallel import DistributedDataParallel

import oktopk.torch

def pickled(rank, P):
    model, state = make_ddp(callback=print)
    state.callback = None
    train(model, rank, 5)
    again = pickle.loads(pickle.dumps(state))
    assert again.process_group is None and again.iteration == 5 and again.options == state.options
    other, _ = make_ddp(state=again)
    other.load_state_dict(model.state_dict())
    train(other, rank, 3, first=5)
    return flat(other)


def test_a_pickled_state_goes_on():
    results = in_processes(2, pickled)
    assert np.array_equal(results[0], results[1])


def within_another(rank, P, wrapped_twice):
    """A hook of the user's own around ours: DDP knows its state, and not ours."""
    inner = oktopk.torch.OkTopkState(
        density=0.05, preset="circulant", start_iter=0, min_numel=100, timeout=30.0, **STAGING
    )

    def hook(
        outer: dict, bucket: torch.distributed.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        return oktopk.torch.oktopk_hook(outer["inner"], bucket)

    model, _ = make_ddp(hook=None)
    other = DistributedDataParallel(model.module) if wrapped_twice else None
    model.register_comm_hook({"inner": inner}, hook)
    train(model, rank, 3)
    del other
    names = list(inner.unsent())
    if not wrapped_twice:  # a state is loaded by its parameters' names
        inner.load_state_dict(inner.state_dict())
    train(model, rank, 3, first=3)
    return names, flat(model)


def test_a_state_within_another_finds_its_model():
    (names, weights), (_, others) = in_processes(2, within_another, False)
    assert sorted(names) == sorted(name for name, _ in small_model(device="cpu").named_parameters())
    assert np.array_equal(weights, others)


def test_a_state_within_another_does_without_the_names_of_its_model():
    (_, weights), (_, others) = in_processes(2, within_another, True)
    assert np.array_equal(weights, others)
