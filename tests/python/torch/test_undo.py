# SPDX-License-Identifier: Apache-2.0
"""A step that is taken back takes back all that it changed: levels, too, and unsent values that a dense step took."""

from types import SimpleNamespace

import pytest
import torch
from models import DEVICE

import oktopk
from oktopk.torch import Reducer
from oktopk.torch._channels import HookScaler
from oktopk.torch._flat_reducer import FlatReducer
from oktopk.torch._levels import SecondMoments
from oktopk.torch.checkpoint import unwrap

pytestmark = pytest.mark.skipif(DEVICE.type != "cpu", reason="nothing here has a device")
N = 200


class OneMoment:
    """An optimiser that knows one parameter."""

    def __init__(self, parameter):
        self.param_groups = [{"params": [parameter]}]
        self.state = {parameter: {"exp_avg_sq": torch.logspace(-9, 0, N)}}


def level(reducer):
    """Gives it the first levels."""
    parameter, moments = torch.nn.Parameter(torch.zeros(N)), SecondMoments()
    optimiser = OneMoment(parameter)
    moments.add(optimiser)
    reducer.level_by(moments, [parameter])
    assert float(reducer.levels.max()) > 8


def test_going_back_takes_new_levels_back():
    reducer = FlatReducer(oktopk.thread_world(1)[0], N, {"preset": "circulant", "density": 0.05})
    given = torch.randn(N)
    reducer.give_unsent(given)
    reducer.keep_snapshot()
    level(reducer)
    reducer.step(torch.randn(N), 1.0)
    reducer.go_back()
    assert reducer.levels is None and torch.equal(reducer.unsent(), given)


def test_a_state_with_levels_says_so_to_versions_that_know_none():
    reducer = Reducer(N, communicator=oktopk.thread_world(1)[0], preset="circulant")
    assert unwrap(reducer.state_dict())["version"] == 1
    given = torch.randn(N)
    reducer._flat_reducer.give_unsent(given)
    level(reducer._flat_reducer)
    assert unwrap(reducer.state_dict())["version"] == 2
    assert reducer.unsent_norm == pytest.approx(float(given.norm()))  # in the units of the gradient


def test_unsent_values_that_a_dense_step_took_come_back_where_it_was_not_applied():
    taken, left = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    optimisers = [torch.optim.SGD([parameter], lr=0.1) for parameter in (taken, left)]
    unsent = {"taken": torch.full((3,), 2.0), "left": torch.full((3,), 5.0)}
    back = {}
    hook_scaler = HookScaler(SimpleNamespace(get_scale=lambda: 1.0), is_on_gpu=False)
    hook_scaler.after_dense([taken, left], unsent)
    taken.grad = torch.ones(3)
    optimisers[0].step()
    hook_scaler.settle(SimpleNamespace(give_unsent=back.update))
    assert list(back) == ["left"] and torch.equal(back["left"], unsent["left"])
