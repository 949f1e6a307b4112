# SPDX-License-Identifier: Apache-2.0
"""group_size: the ranks of a node sum densely first, and one rank per node exchanges entries."""

import numpy as np
import pytest
import torch
from models import DEVICE, flat, flat_gradients, loss_of, make_ddp, train, unsent_of
from ranks import in_processes
from test_ddp import accumulate_with, check_mass, weights_after
from test_ddp_state import read, save_and_go_on, with_scaler
from versions import needs_cpu_scaler

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


def test_mass_is_conserved_through_the_rebuilding_of_buckets():
    # warmup: the channels of the second layout go on where those of the first were.
    options = {"start_iter": 0, "group_size": 2, "warmup": [(2, 0.2), (2, 1.0)]}
    results = in_processes(4, accumulate_with, options, 6)
    left = check_mass(results, 4)
    assert sum(np.abs(x).sum() for x in left.values()) > 0
    for rank, (_, _, unsent, _) in enumerate(results):  # the leaders hold it
        assert any(x.any() for x in unsent.values()) == (rank % 2 == 0)


@needs_cpu_scaler
@pytest.mark.parametrize("min_numel, bad_layer", [(2000, 4)])
def test_steps_that_the_scaler_skips_leave_no_trace(min_numel, bad_layer):
    results = in_processes(4, with_scaler, min_numel, bad_layer, {"group_size": 2})
    assert [r[3] for r in results] == [7] * 4
    check_mass(results, 4)


def go_on(rank, P, folder, group_size):
    model, state = make_ddp(group_size=group_size)
    saved = [read(folder, r) for r in range(4)]
    model.load_state_dict(saved[0]["model"])
    if group_size == 2:
        state.load_state_dict(saved[rank]["hook"])
    else:  # the states of other nodes are taken together
        state.load_state_dict(saved[rank]["hook"])
        with pytest.raises(oktopk.UsageError, match="load_state_dicts"):
            loss_of(model, rank, 0).backward()
        state.load_state_dicts([s["hook"] for s in saved])
    model.zero_grad()
    (0.0 * loss_of(model, rank, 0)).backward()
    owed = {name: P * x for name, x in flat_gradients(model).items()} if rank == 0 else {}
    unsent = unsent_of(state)
    train(model, rank, 3, first=7)
    return owed, unsent, flat(model)


@pytest.mark.parametrize("group_size", [2, 1])
def test_a_restored_state_owes_what_the_saved_one_owed(group_size, tmp_path):
    before = in_processes(4, save_and_go_on, str(tmp_path), {"group_size": 2})
    after = in_processes(4, go_on, str(tmp_path), group_size)
    owed = {name: sum(unsent[name] for unsent, _ in before) for name in before[0][0]}
    for name, total in owed.items():
        found = after[0][0][name] + sum(unsent[name] for _, unsent, _ in after)
        assert np.allclose(found, total, atol=1e-5 * max(np.abs(total).max(), 1e-3)), name
    assert all(np.array_equal(r[2], after[0][2]) for r in after)


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
