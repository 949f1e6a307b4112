# SPDX-License-Identifier: Apache-2.0
"""group_size: the ranks of a node sum densely first, and one rank per node exchanges entries."""

import numpy as np
import pytest
import torch
from front_ends import Nodes
from models import DEVICE, loss_of, make_ddp, train
from ranks import in_processes
from test_ddp import weights_after
from test_laws import before, elsewhere

import oktopk
import oktopk.torch
from oktopk.torch import LocalSteps, Reducer
from oktopk.torch._group import new_group


@pytest.mark.parametrize("preset, group_size", [("oktopk", 3), ("auto", 2), ("topka", "host")])
def test_all_ranks_hold_equal_weights(preset, group_size):
    options = {"preset": preset, "group_size": group_size}
    results = in_processes(4, weights_after, "sparse", 30, options)
    assert all(np.array_equal(weights, results[0][0]) for weights, _, _ in results)
    assert all(np.isfinite(loss) for _, loss, _ in results)


def train_twice(rank, P):
    """Two states one after the other, then a group that the user makes."""
    for _ in range(2):
        model, _ = make_ddp(group_size=2)
        train(model, rank, 3)
    pair = [0, 1] if rank < 2 else [2, 3]
    group = new_group(pair, "gloo")
    total = torch.ones(1)
    torch.distributed.all_reduce(total, group=group)
    return total.item()


def test_a_second_state_and_a_group_of_the_user_find_each_other():
    assert in_processes(4, train_twice) == [2.0] * 4


def test_nodes_of_one_rank_train_as_without_nodes_bitwise():
    plain = in_processes(2, weights_after, "sparse", 12, {})
    nodes = in_processes(2, weights_after, "sparse", 12, {"group_size": 1})
    assert np.array_equal(plain[0][0], nodes[0][0])


class Single(Nodes):
    defaults = {**Nodes.defaults, "group_size": 1}


def test_nodes_of_one_rank_go_on_with_the_states_of_nodes_of_two():
    saved = in_processes(4, before, Nodes, None)
    assert all(in_processes(4, elsewhere, Single, None, saved))


def refused(rank, P):
    with pytest.raises(oktopk.UsageError, match="ranks have different options: rank 0 has 'group_size 2'"):
        model, _ = make_ddp(start_iter=0, group_size=2 if rank == 0 else 1)
        loss_of(model, rank, 0).backward()
    return True


def test_different_group_sizes_are_refused_on_all_ranks():
    assert all(in_processes(2, refused))
    with pytest.raises(oktopk.UsageError, match="group_size = 'node'"):
        oktopk.torch.OkTopkState(group_size="node")


def other_reducers(rank, P):
    """The same option of a Reducer of parameters and of LocalSteps."""
    weights = torch.nn.Parameter(torch.zeros(600, device=DEVICE))
    weights.grad = torch.arange(600.0, device=DEVICE) * (rank + 1)
    reducer = Reducer([weights], preset="circulant", k=60, group_size=2, host_staging=True)
    reducer.reduce_gradients()
    sent, left = weights.grad.double().cpu().numpy().copy(), reducer._core.residual.astype(float)
    first, memory = reducer._core.memory
    left[first : first + len(memory)] += memory
    outer = LocalSteps([weights], every=1, group_size=2, host_staging=True)
    weights.data += rank
    outer.step()
    return sent, left, weights.detach().cpu().numpy()


def test_other_reducers_take_it():
    results = in_processes(4, other_reducers)
    total = 10 * np.arange(600.0)
    assert np.allclose(4 * results[0][0] + sum(left for _, left, _ in results), total, rtol=1e-5)
    assert all(np.array_equal(r[2], results[0][2]) for r in results)
