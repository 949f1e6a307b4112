# SPDX-License-Identifier: Apache-2.0
"""SparseAdamW and SparseSGD in torch.distributed.checkpoint: a fresh optimiser takes over what another
saved, after more than a thousand steps too, plain and sharded; the next steps are bitwise those of the
run that was not interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List

import pytest
import torch
import torch.distributed as dist
from optim_runs import Told, indices, parameter, sparse_steps
from ranks import in_processes
from models import flat, make_ddp, train
from versions import needs_torch

from oktopk import UsageError
from oktopk.torch.optim import SparseAdamW, SparseSGD

STEPS = 1100


class Pair(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = parameter(4, 3), parameter(5)


def fields(optimiser: torch.optim.Optimizer) -> List[Any]:
    """All of the state, as it can be compared."""
    whole = optimiser.state_dict()
    found: List[Any] = []
    for state in whole["state"].values():
        for name, value in sorted(state.items()):
            value = getattr(value, "to_local", lambda value=value: value)()
            found.append((name, value.tolist() if torch.is_tensor(value) else value))
    for group in whole["param_groups"]:
        found += sorted((k, v) for k, v in group.items() if k not in ("params", "differentiable"))
    return found


def schedule(step: int) -> float:
    return 0.01 if step < 500 else 0.01 / (1 + step)


class Nothing:
    """A source before the first backward pass."""

    def arrived(self, param: torch.Tensor) -> None:
        raise UsageError("oktopk: no step was made yet")


def save_and_load(how: str, model: Any, optimiser: Any, other: Any, fresh: Any, path: Path) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import state_dict as by_name

    path.mkdir(exist_ok=True)
    if how == "plain":
        dcp.save({"optimiser": optimiser.state_dict()}, checkpoint_id=str(path))
        by_name._init_optim_state(fresh)  # as set_optimizer_state_dict() does
        loaded: Dict[str, Any] = {"optimiser": fresh.state_dict()}
        dcp.load(loaded, checkpoint_id=str(path))
        fresh.load_state_dict(loaded["optimiser"])
        return
    options = by_name.StateDictOptions(flatten_optimizer_state_dict=how == "flat")
    state = by_name.get_optimizer_state_dict(model, optimiser, options=options)
    dcp.save({"optimiser": state}, checkpoint_id=str(path))
    loaded = {"optimiser": by_name.get_optimizer_state_dict(other, fresh, options=options)}
    dcp.load(loaded, checkpoint_id=str(path))
    by_name.set_optimizer_state_dict(other, fresh, loaded["optimiser"], options=options)


@needs_torch((2, 5), "get_optimizer_state_dict() for one process, flat")
@pytest.mark.parametrize("ours", [SparseAdamW, SparseSGD])
@pytest.mark.parametrize("how", ["plain", "by name", "flat"])
def test_a_fresh_optimiser_takes_over_after_many_steps(ours, how, tmp_path):
    source, model, other = Told(), Pair(), Pair()
    optimiser = ours(model.parameters(), source, lr=0.01, weight_decay=0.1)
    sparse_steps(optimiser, source, list(model.parameters()), range(STEPS), schedule)
    other.load_state_dict(model.state_dict())
    fresh = ours(other.parameters(), Nothing(), lr=0.5, weight_decay=0.1)
    save_and_load(how, model, optimiser, other, fresh, tmp_path / how)
    assert fields(fresh) == fields(optimiser)
    fresh.source = source
    for each, params in ((optimiser, model), (fresh, other)):
        sparse_steps(each, source, list(params.parameters()), range(STEPS, STEPS + 5), schedule)
        each.catch_up()
    assert fields(fresh) == fields(optimiser)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))


def test_a_step_that_only_makes_state_leaves_no_trace():
    """What torch.distributed.checkpoint does to an optimiser that has no state yet."""
    weights, known = parameter(4), Told()
    optimiser = SparseAdamW([weights], Nothing(), lr=0.0)
    weights.grad = torch.zeros(4)
    optimiser.step()
    start = parameter(4)
    assert torch.equal(weights, start) and int(optimiser.state[weights]["step"]) == 0
    assert optimiser.state_dict()["param_groups"][0]["clock_runs"] == []
    optimiser.source = known
    reference = SparseAdamW([start], known, lr=0.1)
    for each, param in ((optimiser, weights), (reference, start)):
        each.param_groups[0]["lr"] = 0.1
        sparse_steps(each, known, [param], range(6))
    assert torch.equal(weights, start) and fields(optimiser) == fields(reference)
    # A step that is one is refused as ever.
    for rate, gradient in ((0.1, torch.zeros(4)), (0.0, torch.ones(4))):
        other = SparseAdamW([parameter(4)], Nothing(), lr=rate)
        other.param_groups[0]["params"][0].grad = gradient
        with pytest.raises(UsageError, match="no step was made yet"):
            other.step()


def taken_over(models, optimisers, syncs, path):
    """A fresh optimiser of the second model, after each way of saving that of the first."""
    for how in ("by name", "plain", "flat"):
        fresh = SparseAdamW(models[1].parameters(), syncs[1], lr=0.5)
        save_and_load(how, models[0], optimisers[0], models[1], fresh, path / how)
        assert fields(fresh) == fields(optimisers[0])
    return fresh


def take_over_in_ddp(rank: int, P: int, path: Path) -> None:
    (model, state), (other, silent) = make_ddp(), make_ddp()
    optimiser = SparseAdamW(model.parameters(), state, lr=0.01)
    train(model, rank, 6, optimiser=optimiser)
    other.module.load_state_dict(model.module.state_dict())
    fresh = taken_over((model, other), [optimiser], (state, silent), path)
    train(model, rank, 1, first=6, optimiser=optimiser)
    fresh.source = Told()  # so that both get the same mean
    for ours, theirs in zip(other.parameters(), model.parameters()):
        ours.grad = theirs.grad
        fresh.source.tell(ours, state.arrived(theirs))
    fresh.step()
    assert fields(fresh) == fields(optimiser)
    assert (flat(other) == flat(model)).all()


@needs_torch((2, 5), "flatten_optimizer_state_dict")
def test_ddp_ranks_take_over(tmp_path):
    in_processes(2, take_over_in_ddp, tmp_path)


def take_over_in_fsdp(rank: int, P: int, path: Path) -> None:
    from fsdp_models import backward, meshes, register, shard, weights

    _, replicate, sharding = meshes(1, P)
    models = [shard(sharding) for _ in range(2)]
    syncs = [register(m, replicate, density=0.1, start_iter=1, min_numel=1) for m in models]
    optimisers = [
        SparseAdamW(m.parameters(), sync, lr=0.01, weight_decay=0.1)
        for m, sync in zip(models, syncs)
    ]
    for step in range(4):
        optimisers[0].zero_grad()
        backward(models[0], rank, step)
        optimisers[0].step()
    silent = Told()
    for parameter in models[0].parameters():
        size = parameter.grad.to_local().numel()
        silent.tell(parameter, indices(*([0] if size else [])))
    optimisers[0].source = silent
    for _ in range(STEPS):  # no backward pass: the gradients of the last one, some of them
        optimisers[0].step()
    models[1].load_state_dict(models[0].state_dict())
    fresh = taken_over(models, optimisers, syncs, path)
    for old, new in zip(models[0].parameters(), models[1].parameters()):
        new.grad = old.grad
        silent.tell(new, silent.arrived(old))
    fresh.source = silent
    for each in (optimisers[0], fresh):
        each.step()
        each.catch_up()
    assert fields(fresh) == fields(optimisers[0])
    assert torch.equal(weights(models[0]), weights(models[1]))
    dist.barrier()


@needs_torch((2, 7), "register_fsdp")
def test_sharded_ranks_take_over(tmp_path):
    in_processes(2, take_over_in_fsdp, tmp_path)
