# SPDX-License-Identifier: Apache-2.0
"""The sparse optimisers behind the DDP hook: weights move where a mean arrived; others get a warning."""

import gc
import re
import warnings
import weakref

import numpy as np
import pytest
import torch
from models import DEVICE, STAGING, flat, loss_of, make_ddp
from ranks import in_processes
from torch.optim import SGD, AdamW
from torch.optim import optimizer as torch_optimizer

from oktopk.torch import SparseAdamW, SparseSGD


def with_sparse_optimiser(rank, P, name, channels_last):
    import oktopk.torch as ok
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(512, 10),
    ).to(DEVICE)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.001)
    state = ok.OkTopkState(
        density=0.05, preset="circulant", start_iter=3, min_numel=10, timeout=30, **STAGING
    )
    ddp.register_comm_hook(state, ok.oktopk_hook)
    optimiser = getattr(ok, name)(model.parameters(), state, lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(40):
        x = torch.randn(16, 3, 8, 8, generator=generator).to(DEVICE)
        y = x.flatten(1)[:, :10].argmax(1)
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(x), y)
        loss.backward()
        before = [p.detach().clone() for p in model.parameters()]
        optimiser.step()
        for p, old in zip(model.parameters(), before):
            moved = (p.detach() != old) & (p.grad == 0)
            # Only where a mean arrived, in the parameter's own places, does a weight move.
            assert name == "SparseSGD" or state.arrived(p) is None or not moved.any()
        losses.append(float(loss.detach()))
    return flat(ddp), losses


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", ["SparseAdamW", "SparseSGD"])
def test_sparse_optimisers_learn_from_the_hook_what_arrived(name, channels_last):
    results = in_processes(2, with_sparse_optimiser, name, channels_last)
    assert np.array_equal(results[0][0], results[1][0])
    assert np.mean(results[0][1][-10:]) < np.mean(results[0][1][:5])


USE, GIVE = "in its place", "give it the state of the hook, Sparse"
OPTIMISERS = [  # and the end of the warning, where there is one
    (lambda params, state: AdamW(params), "AdamW .* use oktopk.torch.SparseAdamW " + USE),
    (lambda params, state: SGD(params, lr=0.1, momentum=0.9), "SGD .* use oktopk.torch.SparseSGD " + USE),
    (lambda params, state: SparseAdamW(params), "SparseAdamW without a source .*" + GIVE),
    (lambda params, state: SparseSGD(params), "SparseSGD without a source .*" + GIVE),
    (lambda params, state: zero_of(params, AdamW), "AdamW .* use oktopk.torch.SparseAdamW " + USE),
    (lambda params, state: zero_of(params, SparseAdamW, source=state), None),
    (lambda params, state: SGD(params, lr=0.1), None),
    (lambda params, state: SparseSGD(params, momentum=0), None),
    (lambda params, state: SparseAdamW(params, state), None),
    (lambda params, state: SparseSGD(params, state), None),
    (lambda params, state: SparseAdamW(params, mode="published"), None),
    (lambda params, state: (state.trust_optimisers(), AdamW(params))[1], None),
]


def zero_of(params, kind, **options):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(params, kind, lr=0.01, **options)


def warnings_of(make, **options):
    """Of seven steps, two of them dense; how many hooks torch has before, in and after them; who is left afterwards."""
    model, state = make_ddp(**options)
    optimiser = make(list(model.parameters()), state)
    hooks = torch_optimizer._global_optimizer_post_hooks
    other, counts = AdamW([torch.nn.Parameter(torch.zeros(2))]), [len(hooks)]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for step in range(7):
            other.step()  # not of this model
            optimiser.zero_grad()
            loss_of(model, 0, step).backward()
            counts.append(len(hooks))
            optimiser.step()
    left = weakref.ref(state)
    del model, state, optimiser
    gc.collect()
    found = [w for w in seen if "oktopk:" in str(w.message)]
    assert all(w.filename == __file__ or "zero_redundancy" in w.filename for w in found), found
    return [str(w.message) for w in found], counts, left() is None


def look_for_warnings(rank, P):
    results = [warnings_of(make) for make, _ in OPTIMISERS]
    dense = warnings_of(OPTIMISERS[0][0], preset="dense")
    warnings_of(lambda params, state: AdamW(params[:0] or [torch.nn.Parameter(torch.zeros(1))]))  # never steps
    return results, dense, len(torch_optimizer._global_optimizer_post_hooks)


def test_an_optimiser_that_does_not_know_what_arrived_is_named_once():
    ((results, dense, hooks_left),) = in_processes(1, look_for_warnings)
    for (_, words), (texts, counts, is_gone) in zip(OPTIMISERS, results):
        assert len(texts) == (words is not None), (words, texts)
        assert all(re.search(words, text) for text in texts), (words, texts)
        assert counts[:3] == [0, 0, 0] and max(counts) <= 1 and counts[5:] == [0, 0, 0] and is_gone
    assert dense[0] == [] and set(dense[1]) == {0} and hooks_left == 0
