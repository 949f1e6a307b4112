# SPDX-License-Identifier: Apache-2.0
"""The warm-up and the adaptive density of the DDP hook: in step with the training, whichever
buckets DDP makes, and however often the run is stopped and resumed."""

import pytest
import torch
from front_ends import same
from models import make_ddp, train
from ranks import in_processes
from versions import needs_torch
from torch.nn.parallel import DistributedDataParallel

import oktopk.torch
from oktopk.torch._channels import mean_pace

WARMUP = {"start_iter": 5, "warmup": [(10, 0.25)]}


class Log:
    """A callback: of each iteration the (step, n, k) of its buckets, in DDP's order."""

    def __init__(self):
        self.steps = {}

    def __call__(self, metrics):
        entry = (metrics["step"], metrics["n"], metrics["k"])
        self.steps.setdefault(metrics["iteration"], []).append(entry)


def stages(log):
    """By iteration: how many sparse steps its buckets have made, and their densities in %."""
    return {
        iteration: ({step for step, _, _ in entries}, {round(100 * k / n) for _, n, k in entries})
        for iteration, entries in log.steps.items()
    }


def expected_stages(first, last):
    return {i: ({i - 4}, {25 if i < 15 else 5}) for i in range(max(first, 5), last)}


def interrupted(rank, P, folder):
    """20 steps at a stretch; the same again with a stop after 9."""
    whole, before, after = Log(), Log(), Log()
    train(make_ddp(callback=whole, **WARMUP)[0], rank, 20)
    model, state = make_ddp(callback=before, **WARMUP)
    train(model, rank, 9)
    saved = {"model": model.state_dict(), "hook": state.state_dict()}
    torch.save(saved, f"{folder}/{rank}.pt")
    model, state = make_ddp(callback=after, **WARMUP)
    model.load_state_dict(saved["model"])
    state.load_state_dict(saved["hook"])
    train(model, rank, 11, first=9)
    assert stages(whole) == expected_stages(5, 20)
    assert {**stages(before), **stages(after)} == stages(whole)
    # Once DDP has rebuilt its buckets, they are those of the run that was not stopped.
    assert len(whole.steps[10]) > 1
    assert all(after.steps[i] == whole.steps[i] for i in range(10, 20))


def with_other_ranks(rank, P, folder, saved_ranks):
    log = Log()
    model, state = make_ddp(callback=log, **WARMUP)
    saved = [torch.load(f"{folder}/{r}.pt", weights_only=True) for r in range(saved_ranks)]
    model.load_state_dict(saved[0]["model"])
    state.load_state_dicts([s["hook"] for s in saved])
    train(model, rank, 11, first=9)
    assert stages(log) == expected_stages(9, 20)


def test_a_resumed_run_goes_on_in_its_warm_up(tmp_path):
    in_processes(2, interrupted, str(tmp_path))
    in_processes(3, with_other_ranks, str(tmp_path), 2)


def rebuilt(rank, P):
    """Sparse from the first step on, so that DDP rebuilds its buckets within the warm-up; and once
    more in the middle of the run, as a DDP of other settings would have it."""
    log = Log()
    model, state = make_ddp(callback=log, start_iter=0, warmup=[(2, 1.0), (4, 0.25)])
    train(model, rank, 4)
    assert len(log.steps[1]) != len(log.steps[0])
    model = DistributedDataParallel(model.module, bucket_cap_mb=1)
    state._owner = None  # it is another DDP with the same parameters
    model.register_comm_hook(state, oktopk.torch.oktopk_hook)
    train(model, rank, 4, first=4)
    assert len(log.steps[5]) != len(log.steps[3])
    assert stages(log) == {i: ({i + 1}, {100 if i < 2 else 25 if i < 6 else 5}) for i in range(8)}


@needs_torch((2, 1), "a second DDP around the same parameters")
def test_buckets_that_are_rebuilt_go_on_in_the_warm_up():
    in_processes(2, rebuilt)


def adaptive(rank, P):
    """A stop in the middle of a run whose density follows a target."""
    options = {"start_iter": 0, "adaptive_share": 0.9, "adaptive_interval": 2, "density": 0.01}
    log, after = Log(), Log()
    model, state = make_ddp(callback=log, **options)
    train(model, rank, 24)
    saved = state.state_dict()
    other, again = make_ddp(callback=after, **options)
    other.load_state_dict(model.state_dict())
    again.load_state_dict(saved)
    train(other, rank, 2, first=24)
    sent = [sum(k for _, _, k in entries) for entries in (log.steps[0], log.steps[23])]
    resumed = [sum(k for _, _, k in after.steps[i]) for i in (24, 25)]
    assert sent[1] > 3 * sent[0]  # it has grown, and stays
    assert all(abs(k - sent[1]) < 0.3 * sent[1] for k in resumed), (sent, resumed)
    assert [step for step, _, _ in after.steps[25]] == [26] * len(after.steps[25])


def budgeted(rank, P):
    """The same on all ranks, and within its budget."""
    log = Log()
    options = {"adaptive_share": 0.9, "adaptive_budget": 0.06, "adaptive_interval": 4}
    train(make_ddp(callback=log, **options)[0], rank, 60)
    sent, allowed = {}, {}  # DDP built its buckets anew in the dense steps before
    for entries in log.steps.values():
        for bucket, (_, n, k) in enumerate(entries):
            sent[bucket] = sent.get(bucket, 0) + k
            allowed[bucket] = allowed.get(bucket, 0) + max(1, 0.06 * n)
            assert sent[bucket] <= allowed[bucket] + 1e-6  # rounding of this sum
    assert sum(sent.values()) > 0.95 * sum(allowed.values())
    same(str(log.steps))


@pytest.mark.parametrize("act", [adaptive, budgeted])
def test_an_adaptive_density_stays_where_it_was_and_within_its_budget(act):
    in_processes(2, act)


def test_parts_of_several_channels_keep_what_they_spent():
    assert mean_pace([], []) == (0, 0.0, 0.0)
    assert mean_pace([(8, 0.02, 0.5), (6, 0.04, 0.25)], [300, 100]) == (8, 0.025, 0.4375)
    assert mean_pace([(3, 1.0, 3.0)] * 3, [7, 11, 13]) == (3, 1.0, 3.0)
