# SPDX-License-Identifier: Apache-2.0
"""torch.compile around the model, within it and around DDP: the hooks give the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from optim_runs import Told, parameter
from ranks import on_ranks
from models import STAGING, flat, loss_of, make_ddp, small_model, train
from torch.nn.parallel import DistributedDataParallel
from versions import TORCH, needs_torch, reason

import oktopk.torch

if TORCH < (2, 3):
    pytest.skip(reason((2, 3), "torch.compile() of this kind"), allow_module_level=True)

BACKEND = "aot_eager"  # all of torch.compile but the making of kernels
OPTIONS = dict(density=0.05, preset="circulant", start_iter=2, min_numel=100, **STAGING)


@on_ranks(2)
def test_ddp_around_and_within_torch_compile(rank, P):
    plain, _ = make_ddp()
    train(plain, rank, 5)
    model, state = make_ddp()
    compiled = torch.compile(model, backend=BACKEND)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(5):
        optimiser.zero_grad()
        loss_of(compiled, rank, step).backward()
        optimiser.step()
    assert state.iteration == 5 and state.compression_stats().rate > 1
    assert np.array_equal(flat(model), flat(plain))

    # A state belongs to the model's own names: saved from a compiled one, loaded into a plain one.
    torch._dynamo.reset()
    within = DistributedDataParallel(torch.compile(small_model(), backend=BACKEND))
    state = oktopk.torch.OkTopkState(**OPTIONS)
    within.register_comm_hook(state, oktopk.torch.oktopk_hook)
    train(within, rank, 5)
    other, again = make_ddp()
    assert sorted(state.unsent()) == sorted(name for name, _ in other.module.named_parameters())
    again.load_state_dict(state.state_dict())
    train(other, rank, 2, first=5)


@needs_torch((2, 7), "set_all_reduce_hook() of fully_shard")
@on_ranks(2)
def test_fsdp_around_and_within_torch_compile(rank, P):
    from fsdp_models import backward, meshes, shard, weights

    _, replicate, shards = meshes(2, 1)

    def run(prepare):
        torch._dynamo.reset()
        model = shard(shards)
        called = prepare(model)
        state = oktopk.torch.register_fsdp(called, replicate, **OPTIONS)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(5):
            optimiser.zero_grad()
            backward(called, rank, step)
            optimiser.step()
        assert set(state.stats) == {"", "first"}
        return weights(model), state

    def by_parts(model):
        for part in (model.first, model.side):
            part.compile(backend=BACKEND)
        return model

    expected, state = run(lambda model: model)
    for prepare in (lambda model: torch.compile(model, backend=BACKEND), by_parts):
        found, compiled = run(prepare)
        assert torch.equal(found, expected)
        compiled.load_state_dict(state.state_dict())


@pytest.mark.parametrize("ours", [oktopk.torch.SparseAdamW, oktopk.torch.SparseSGD])
def test_a_compiled_step_of_an_optimiser_is_the_step(ours):
    torch._dynamo.reset()
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def run(compiles):
        source, weights = Told(), parameter(40)
        optimiser = ours([weights], source)
        step = torch.compile(optimiser.step, backend=count) if compiles else optimiser.step
        for number in range(6):
            source.tell(weights, torch.arange(number + 2))  # another number of arrivals each time
            weights.grad = torch.full((40,), 0.5 + number)
            step()
        return weights

    assert torch.equal(run(True), run(False)) and graphs == []
