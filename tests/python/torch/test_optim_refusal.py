# SPDX-License-Identifier: Apache-2.0
"""Wrong use of SparseAdamW and SparseSGD is named, before anything changes."""

from __future__ import annotations

import pytest
import torch
from optim_runs import Told, indices, parameter

from oktopk import UsageError
from oktopk.torch.optim import SparseAdamW, SparseSGD

WRONG = [
    (SparseAdamW, {"mode": "aware"}, "'aware'.*interval_aware, published"),
    (SparseSGD, {"mode": "aware"}, "interval_aware, published"),
    (SparseAdamW, {"lr": -1.0}, "lr = -1.0"),
    (SparseAdamW, {"betas": (0.9, 1.0)}, r"betas = \(0.9, 1.0\)"),
    (SparseAdamW, {"eps": 0.0}, "eps = 0.0"),
    (SparseAdamW, {"lr": 0.5, "weight_decay": 2.0}, "weight_decay = 2.0.*1 / lr"),
    (SparseSGD, {"momentum": 1.0}, "momentum = 1.0"),
    (SparseSGD, {"momentum": 0.0, "nesterov": True}, "nesterov"),
    (SparseSGD, {"source": 5}, r"int.*arrived\(param\)"),
]


@pytest.mark.parametrize("ours, options, words", WRONG)
def test_a_bad_option_is_named(ours, options, words):
    with pytest.raises(UsageError, match=words):
        ours([parameter(2)], **options)


@pytest.mark.parametrize("ours", [SparseAdamW, SparseSGD])
def test_options_of_torch_s_are_taken_where_they_change_nothing(ours):
    names = ("foreach", "fused", "maximize", "amsgrad", "differentiable", "dampening")
    for value in (None, False, 0):
        optimiser = ours([parameter(2)], **dict.fromkeys(names, value))
        assert not set(names) & set(optimiser.defaults)
    for name in names:
        words = f"{ours.__name__}: {name} = True, but it must be"
        with pytest.raises(UsageError, match=words):
            ours([parameter(2)], **{name: True})
        with pytest.raises(UsageError, match=words):
            optimiser.add_param_group({"params": [parameter(2)], name: True})
    with pytest.raises(TypeError, match="unexpected keyword argument 'beta'"):
        ours([parameter(2)], beta=0.9)


def test_a_rate_that_would_decay_weights_to_nothing_is_refused():
    source, weights = Told(), parameter(2)
    optimiser = SparseAdamW([weights], source, lr=0.1, weight_decay=2.0)
    optimiser.param_groups[0]["lr"] = 0.5
    source.tell(weights, indices(0))
    weights.grad = torch.ones(2)
    words = "weight_decay = 2.0, but it must be less than 1 / lr, and lr = 0.5"
    with pytest.raises(UsageError, match=words):
        optimiser.step()


@pytest.mark.parametrize("ours", [SparseAdamW, SparseSGD])
def test_a_parameter_with_gaps_in_memory_is_refused(ours):
    source, weights = Told(), torch.nn.Parameter(torch.zeros(3, 4)[:, :2])
    optimiser = ours([weights], source, lr=0.1)
    weights.grad = torch.ones(3, 2)
    source.tell(weights, indices(0))
    with pytest.raises(UsageError, match=r"\(3, 2\) and strides \(4, 1\)"):
        optimiser.step()
    source.tell(weights, None)
    optimiser.step()  # a dense step does not mind
    assert (weights < 0).all()
