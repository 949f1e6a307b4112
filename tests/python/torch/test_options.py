# SPDX-License-Identifier: Apache-2.0
"""Options as users give them: every signature names them all, and unfit values are refused at once."""

import inspect
import re
from datetime import timedelta

import pytest
import torch
from models import flat, make_ddp, train
from ranks import in_processes
from versions import needs_torch

import oktopk
import oktopk.torch
from oktopk import _core
from oktopk.options import ReducerOptions
from oktopk.torch import LocalSteps, OkTopkState, Reducer, communicator, register_fsdp
from oktopk.options import count


TAKERS = [
    oktopk.Reducer, oktopk.NodeReducer, oktopk.BucketedReducer, Reducer, OkTopkState, LocalSteps, register_fsdp,
]


@pytest.mark.parametrize("taker", TAKERS)
def test_the_table_is_what_the_native_module_takes_and_every_signature_shows_it(taker):
    assert sorted(ReducerOptions.__annotations__) == sorted(_core.option_names())
    shown = inspect.signature(taker).parameters
    assert set(_core.option_names()) <= set(shown)
    assert all(p.kind is not p.VAR_KEYWORD for p in shown.values())


@pytest.mark.parametrize("taker", [Reducer, OkTopkState, LocalSteps, register_fsdp])
def test_the_docstring_lists_every_argument(taker):
    heads = re.findall(r"^([a-z_, ]+): ", inspect.getdoc(taker), re.MULTILINE)
    listed = {name for head in heads for name in head.split(", ")}
    assert set(inspect.signature(taker).parameters) - {"model"} <= listed


@pytest.mark.parametrize(
    "options, words",
    [
        ({"density": 1}, "density = 1, but it is the share of the values that a step sends"),
        ({"density": 1.0}, 'preset="dense" sends all'),
        ({"density": 30}, "0.01 is 1%"),
        ({"density": float("nan")}, "density = nan"),
        ({"density": True}, "density = True is of the wrong type"),
        ({"density": "0.01"}, "density = '0.01' is of the wrong type"),
        ({"threads": True}, "threads = True is of the wrong type"),
        ({"decay": float("inf")}, "decay = inf"),
        ({"start_iter": 0.05}, "start_iter=0.02, total_steps=20_000"),
        ({"start_iter": 100.0}, "it is a number of steps"),
        ({"start_iter": 1.5, "total_steps": 100}, "from 0 to below 1"),
        ({"start_iter": True}, "start_iter = True, but it must be an integer"),
        ({"start_iter": "100"}, "start_iter = '100', but it must be an integer"),
        ({"host_staging": "no"}, "host_staging = 'no'"),
        ({"timeout": True}, "timeout = True"),
        ({"timeout": timedelta(0)}, "must be positive"),
        ({"silence": "3"}, "silence = '3', but it must be positive: seconds or a datetime.timedelta"),
        ({"silence": float("inf")}, "silence = inf"),
        ({"silence": 0.05}, "silence = 0.05, but it must be at least 0.1 s"),
        ({"group_size": 0}, "group_size = 0, but it must be \"host\" or a number of ranks, at least 1"),
        ({"group_size": "node"}, "group_size = 'node'"),
        ({"grad_scaler": 1024.0}, "grad_scaler is a float"),
        ({"density": 0.02, "k": 7}, "k = 7 and density = 0.02, but only one of them"),
        ({"start_iter": 50, "total_steps": 900}, "start_iter = 50 steps, so total_steps = 900 is not used"),
        ({"adaptive_interval": 5}, "adaptive_interval = 5 without adaptive_share"),
        ({"codec": "elias_fano+fp32"}, "fp32 with preset auto"),
        ({"adaptive_share": 2.0}, "target share = 2"),
        ({"adaptive_budget": 0.1}, "without a target share"),
        ({"adaptive_share": 0.1, "preset": "dense"}, "preset dense"),
        ({"grad_scalar": None}, "unknown option 'grad_scalar': did you mean 'grad_scaler'?"),
    ],
)
def test_unfit_options_are_refused_in_words(options, words):
    with pytest.raises(oktopk.UsageError) as caught:
        OkTopkState(**options)
    assert words in str(caught.value)


def test_options_that_were_refused_for_no_reason():
    assert OkTopkState(k=2_000_000).options["k"] == 2_000_000  # compared with a bucket, not before
    assert OkTopkState(start_iter=0.05, total_steps=2_000).start_iter == 100
    assert OkTopkState(density=1.0, preset="dense").preset == "dense"
    assert count("steps", torch.tensor(3), 0) == 3


@pytest.mark.parametrize("name", ["start_iter", "density", "preset", "codec", "decay", "options"])
def test_a_setting_that_would_be_ignored_cannot_be_set(name):
    state = OkTopkState()
    with pytest.raises(oktopk.UsageError, match=f"{name} of an OkTopkState cannot be changed"):
        setattr(state, name, 3)
    state.callback = print
    with pytest.raises(TypeError):
        state.options["density"] = 0.5


def groups(rank, P):
    """Everything that takes a process group takes a DeviceMesh of one dimension."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh, square = init_device_mesh("cpu", (P,)), init_device_mesh("cpu", (P, 1))
    assert communicator(mesh, timedelta(seconds=20)).timeout == 20
    with pytest.raises(oktopk.UsageError, match="a DeviceMesh of 2 dimensions"):
        communicator(square)
    with pytest.raises(oktopk.UsageError, match=r"process_group = \[0, 1\]"):
        communicator([0, 1])
    weights = [torch.ones(300)]
    weights[0].requires_grad_()
    weights[0].grad = torch.full((300,), float(rank))
    reducer = Reducer(weights, mesh, preset="circulant")
    reducer.reduce_gradients()
    LocalSteps(weights, mesh).synchronise()
    model, state = make_ddp(start_iter=0, process_group=mesh, density=None, k=2_500)  # of some buckets all
    train(model, rank, 3)
    with pytest.raises(oktopk.UsageError, match="grad_scaler of an OkTopkState .* first step"):
        state.grad_scaler = None
    arrived = {p.numel(): state.arrived(p) is None for p in model.parameters()}
    rate, before, after = state.compression_stats()
    assert before == 3 * sum(p.numel() for p in model.parameters()) and rate > 0 and after > 0
    assert state.compression_stats().wire_bytes == int(4 * after)
    return arrived, flat(model)


@needs_torch((2, 2), "init_device_mesh")
def test_meshes_timeouts_and_a_k_beyond_a_bucket():
    (arrived, weights), (_, others) = in_processes(2, groups)
    assert set(arrived.values()) == {True, False}  # dense, and not
    assert (weights == others).all()
