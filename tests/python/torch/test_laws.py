# SPDX-License-Identifier: Apache-2.0
"""The laws of all front-ends (front_ends.py). Each rank checks its own part, and that all ranks agree."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from front_ends import (
    ALL,
    IN_NODES,
    LEVELLED,
    ON_GPU,
    Explicit,
    Fsdp,
    Hook,
    Levelled,
    LevelledNodes,
    Local,
    N,
    Nodes,
    OnGpu,
    Resident,
    ResidentNodes,
    Sharded,
    gradient_of,
    over,
    same,
)
from models import DEVICE
from ranks import in_processes, on_ranks
from versions import TORCH, needs_cpu_scaler

import oktopk
from oktopk.torch.checkpoint import unwrap

HOOKS, REDUCERS, SHARDS = {Hook, Nodes, Fsdp, Sharded, Resident, ResidentNodes}, {Explicit, Local}, {Fsdp, Sharded}
CLOSE = {"rtol": 1e-5, "atol": 1e-4}


def given(replicas, *steps):
    return sum(gradient_of(place, step).double() for place in range(replicas) for step in steps)


def check_arrived(front):
    for p in front.model.parameters():
        arrived = front.state.arrived(p)
        gradient = getattr(p.grad, "_local_tensor", p.grad).reshape(-1)
        if isinstance(arrived, torch.Tensor):
            assert torch.equal(arrived, gradient.nonzero().reshape(-1))


def lose_nothing(front, steps=8):
    applied = torch.zeros(N, dtype=torch.float64)
    for step in range(steps):
        mean = front.step(gradient_of(front.place, step))
        applied += mean
        if not isinstance(front, Local):
            check_arrived(front)
    assert mean.count_nonzero() > 0
    rest = front.rest()
    torch.testing.assert_close((applied + rest) * front.replicas, given(front.replicas, *range(steps)), **CLOSE)
    return mean, applied, rest


@over(*ALL, *IN_NODES, *LEVELLED, *ON_GPU)
@on_ranks()
def test_ranks_agree_and_what_was_not_sent_waits(rank, P, kind):
    for preset in kind.presets:
        front = kind(preset=preset)
        mean, applied, rest = lose_nothing(front)
        same(mean, applied)
        assert not isinstance(front, Levelled) or all(float(factors.max()) > 1 for factors in front.levels())
        assert preset == "auto" or (mean.count_nonzero() < N / 2 and rest.count_nonzero() > 0), preset
    codecs = [] if kind.presets == ("slots",) else [{"codec": "elias_fano+bf16"}]
    for options in ({"warmup": [(2, 1.0), (3, 0.3)]}, *codecs):
        same(*lose_nothing(kind(**options)))


@over((Hook, 3), (Explicit, 3), (Local, 3))
@on_ranks()
def test_some_of_the_ranks_are_a_world_of_their_own(rank, P, kind):
    ends = dist.new_group([0, P - 1])
    if rank in (0, P - 1):
        lose_nothing(kind(ends, preset="auto"))
    elif kind is not Hook:  # DDP itself refuses it
        with pytest.raises(oktopk.UsageError, match="not a member"):
            kind(ends)
    dist.barrier()


ROUNDING = {torch.float32: 1e-5, torch.float16: 2e-3, **({torch.bfloat16: 2e-2} if TORCH >= (2, 2) else {})}


@over(*ALL, (Hook, 2), (Explicit, 1), (Local, 1))
@on_ranks()
def test_everything_sent_is_the_mean(rank, P, kind):
    more = {torch.float64: 1e-5} if kind is Hook else {}  # which is dense
    for dtype, rounding in {**ROUNDING, **more}.items():
        for options in ({"preset": "dense"}, {"density": 0.999999}):
            front = kind(dtype=dtype, **options)
            own = [gradient_of(place, 0).to(dtype).double() for place in range(front.replicas)]
            if kind is Local:  # weights of 1 move, and are rounded
                own = [1.0 - (1.0 - x.to(dtype)).double() for x in own]
            expected = sum(own) / front.replicas
            mean = front.step(gradient_of(front.place, 0))
            if "preset" in options and dtype == torch.float32 and front.replicas < 3:
                assert torch.equal(mean, expected)
            torch.testing.assert_close(mean, expected, rtol=rounding, atol=max(2e-3, 5 * rounding))
            same(mean)


def steps_of(front, *steps):
    return torch.stack([front.step(gradient_of(front.place, step)) for step in steps])


def stable(kind, **options):
    """To be compared bit by bit: DDP keeps its buckets."""
    return kind(**{"warmup": [(1, 1.0), (3, 0.5), (2, 0.3)], **kind.stable, **options})


def go_on_alike(front, twin, first=3):
    for step in range(first, first + 4):
        assert torch.equal(steps_of(front, step), steps_of(twin, step)), step
    assert torch.equal(front.rest(), twin.rest())


def continued(rank, P, kind, folder):
    start = ["file of a dense start"] if kind in HOOKS else []
    for how in ("file", *start, *(["check-point", "elastic check-point"] if kind.check_points else [])):
        first, again = (stable(kind, **({"start_iter": 5} if how in start else {})) for _ in range(2))
        steps_of(first, *range(3))  # the middle of the warm-up
        assert not isinstance(first, Levelled) or None not in first.levels()
        if "file" in how:
            again.load([first.saved()])
        else:
            path = f"{folder}/{how}"
            first.save_to(path)
            again.load_from(path, is_elastic=how.startswith("elastic"))
        go_on_alike(first, again)
    if "auto" in kind.presets and "group_size" not in kind.defaults:  # nodes choose by time before they load
        first, again = stable(kind, preset="auto"), stable(kind, preset="auto")
        steps_of(first, *range(8))
        again.load([first.saved()])
        go_on_alike(first, again, 8)


@over(*ALL, *IN_NODES, *LEVELLED, *ON_GPU)
def test_a_loaded_state_continues_bit_by_bit(kind, P, tmp_path):
    in_processes(P, continued, kind, str(tmp_path))


def before(rank, P, kind, folder):
    front = kind()
    steps_of(front, *range(3))
    if folder is not None and kind.check_points:
        front.save_to(folder)
    return front.saved(), front.rest().numpy()


def elsewhere(rank, P, kind, folder, saved):
    states, owed = [state for state, _ in saved], torch.from_numpy(saved[0][1])
    for how in ("files", *(["check-point"] if folder is not None and kind.check_points else [])):
        front = kind(**({"start_iter": 50} if kind in HOOKS else {}))  # a start that is over does not begin again
        if how == "check-point":
            front.load_from(folder, is_elastic=True)
        else:
            for _ in range(2):
                with pytest.raises(oktopk.UsageError, match="load_state_dicts"):
                    front.load([states[rank % front.shards]])
                    front.step(torch.zeros(N))
            if len(states) > 2 * front.shards:
                with pytest.raises(oktopk.UsageError, match="states of ranks .* all"):
                    front.load(states[: -front.shards])
            front.load(states)
        mean = front.step(torch.zeros(N))
        same(mean)
        assert mean.count_nonzero() < N / 2
        torch.testing.assert_close(mean + front.rest(), owed, **CLOSE)


@over(*ALL, *IN_NODES, *LEVELLED, *ON_GPU)
def test_on_another_number_of_ranks_the_weights_are_owed_the_same(kind, P, tmp_path):
    folder = str(tmp_path / "saved")
    saved = in_processes(P, before, kind, folder)
    in_processes({2: 3, 3: 2, 4: 6, 6: 3}[P], elsewhere, kind, folder, saved)


@over(*ALL, *LEVELLED, *(ON_GPU if DEVICE.type == "cpu" else []))  # the kernels keep the finite values of such a step
@on_ranks()
def test_a_value_that_is_not_finite_leaves_no_trace(rank, P, kind):
    # An error within backward is the end of FSDP's model. On a GPU it comes many steps later.
    policies = ("skip",) if kind in SHARDS or issubclass(kind, OnGpu) else ("error", "skip")
    starts = [{"start_iter": 9}] if kind in HOOKS else []
    for options in ({}, {"preset": "dense"}, *starts):
        for policy in policies:
            front, twin = (kind(nan_policy=policy, **options) for _ in range(2))
            for one in (front, twin):
                steps_of(one, *range(3))
            gradient = gradient_of(front.place, 3)
            if front.place == front.replicas - 1:
                # One value, or some of each bucket. After an error DDP's other buckets are left out.
                one = policy == "error" or issubclass(kind, Explicit)
                gradient[-1 if one else slice(None, None, 50)] = float("nan")
            if policy == "skip":
                found = front.step(gradient)
                assert found.isnan().any() or not found.any()
                assert kind is not Explicit or front.state.skipped
                assert kind is not Explicit or all(len(front.state.arrived(p)) == 0 for p in front.model.parameters())
            else:
                words = "nan" if options else rf"rank {P - 1}: gradient\[\d+\] = nan"
                with pytest.raises(oktopk.UsageError, match=words) as caught:
                    front.step(gradient)
                same(str(caught.value))
                front.adopt()
            go_on_alike(front, twin)


@over((Explicit, 3), (Local, 2), (Fsdp, 3))
@on_ranks()
def test_a_rank_that_stays_away_is_an_error_after_the_timeout(rank, P, kind):
    front = kind(timeout=1.5)
    steps_of(front, 0, 1)
    if rank < P - 1:
        with pytest.raises(oktopk.CommError, match=r"within 1.5 s|[Tt]imed? ?out"):
            front.step(gradient_of(rank, 2))
    dist.barrier()


# Each step and its trouble: one rank's first or last value is infinite, or nobody applies the mean.
TROUBLES = [(0, ""), (1, ""), (2, ""), (3, "first"), (3, "last"), (3, ""), (4, "not applied"), (4, ""), (5, "")]


@needs_cpu_scaler
@over((Hook, 2), (Hook, 3), (Nodes, 4), (Fsdp, 3), (Sharded, 4), (Levelled, 2), (LevelledNodes, 4))
@on_ranks()
def test_a_step_that_a_grad_scaler_skips_leaves_no_trace(rank, P, kind):
    for options in ({}, {"min_numel": 2600}):  # DDP's last parameters are dense, and after the rebuild the first ones
        scaler = torch.amp.GradScaler(DEVICE.type, init_scale=1024.0, growth_interval=2)
        twin, second_twin = kind(**options), kind(**options)
        front, second = (kind(grad_scaler=scaler, **options) for _ in range(2))  # second has no trouble
        fused = {"fused": True} if TORCH >= (2, 4) and kind in (Hook, Nodes) else {}
        if fused:
            second.optimiser = torch.optim.SGD(second.model.parameters(), lr=2**-8, **fused)
        other = torch.nn.Parameter(torch.zeros(1, device=DEVICE))
        its_own, scales = torch.optim.SGD([other], lr=0.05), set()
        for step, trouble in TROUBLES:
            scales.add(scaler.get_scale())
            gradient = gradient_of(front.place, step)
            if front.place == 0 and trouble in ("first", "last"):
                gradient[0 if trouble == "first" else -1] = float("inf")
            weights = front.weights()
            front.backward(gradient, scaler.scale)
            if trouble != "not applied":
                scaler.step(front.optimiser)
            other.grad = torch.full_like(other, float("inf") if step == 1 else 1.0)  # which skips that one alone
            second.backward(gradient_of(front.place, 10 + step), scaler.scale)
            scaler.step(second.optimiser)
            scaler.step(its_own)
            scaler.update()
            second_twin.train(gradient_of(front.place, 10 + step))
            torch.testing.assert_close(second.weights(), second_twin.weights(), rtol=0, atol=1e-6 * bool(fused))
            assert torch.equal(front.weights(), weights) == bool(trouble)
            if not trouble:
                twin.train(gradient)
                assert torch.equal(front.weights(), twin.weights()), step
        assert len(scales) > 2 and torch.equal(front.rest(), twin.rest())


# Refusals: what is arranged beside a front-end that runs, and called; a part of the error; where it applies.
# Each gives the same text on all ranks, and leaves the front-end that runs as it was.


def made(**options):
    return lambda front, rank, P: lambda: type(front)(front.group, **options)


def on_last(**options):
    """The last rank has other options. The first exchange compares them."""

    def arrange(front, rank, P):
        own = dict(options)
        if own.get("grad_scaler"):
            own["grad_scaler"] = torch.amp.GradScaler("cpu")
        own = own if front.place == front.replicas - 1 else {}
        return lambda: type(front)(nan_policy="skip", **own).step(torch.zeros(N))

    return arrange


def loads(change):
    """A state that is not this rank's own one."""
    return lambda front, rank, P: lambda: front.state.load_state_dict(change(unwrap(front.state.state_dict())))


def twice(front, rank, P):
    return lambda: front.state.load_state_dicts([front.state.state_dict()] * 2)


EVERY = HOOKS | REDUCERS
REFUSALS = [
    (made(density=0), "density = 0", EVERY),
    (made(density=2.0), "density = 2", EVERY),
    (made(density="x"), "density = 'x'", EVERY),
    (made(density=None, k=0), "k = 0", EVERY),
    (made(preset="best"), "unknown preset 'best'", EVERY),
    (made(codec="zip"), "zip", EVERY),
    (made(decay=2.0), "decay = 2", EVERY),
    (made(wramup=3), "unknown option 'wramup': did you mean 'warmup'", EVERY),
    (made(nan_policy="no"), "unknown NaN policy 'no'", EVERY),
    (made(timeout=-1.0), "timeout", EVERY),
    (made(dtype=torch.float64), "torch.float64", EVERY - {Hook}),  # whose buckets of other types are dense
    (made(start_iter=-1), "start_iter = -1", HOOKS),
    (made(start_iter=0.05), "start_iter = 0.05", HOOKS),
    (made(min_numel=-1), "min_numel = -1", HOOKS),
    (made(every=0), "every = 0", {Local}),
    (made(outer_lr=0), "outer_lr = 0", {Local}),
    (made(outer_momentum=1), "outer_momentum = 1", {Local}),
    (on_last(density=0.1), "density 0.1", EVERY),
    (on_last(preset="auto"), "preset auto", EVERY),
    (on_last(levelled=True), "levelled True", {Hook, Explicit}),
    (on_last(min_numel=7), "min_numel 7", HOOKS),
    (on_last(grad_scaler=True), "grad_scaler True", HOOKS if TORCH >= (2, 3) else set()),
    (on_last(start_iter=2), "start_iter 2", {Hook}),
    (on_last(group_size=2), "group_size 2", {Hook}),
    (on_last(outer_lr=0.5), "outer_lr 0.5", {Local}),
    (on_last(outer_momentum=0.5), "outer_momentum 0.5", {Local}),
    (on_last(nesterov=False), "nesterov False", {Local}),
    (on_last(every=2), "every 2", {Local}),
    (loads(lambda own: {"weights": 1}), "not an? .*state|not a state_dict", EVERY),
    (loads(lambda own: {**own, "version": 99, "oktopk": 99}), "version", EVERY),
    (twice, "states of ranks", EVERY),
    (loads(lambda own: {**own, "rank": own["rank"] + 1}), "this is rank", {Explicit}),
    (loads(lambda own: {**own, "n": 7}), "n = 7", {Explicit}),
    (loads(lambda own: {**own, "parameters": own["parameters"][::-1]}), "was saved with .* as parameter 0", REDUCERS),
    (loads(lambda own: {**own, "weights": torch.zeros(3)}), "3 weights", {Local}),
    (loads(lambda own: {**own, "velocity": None}), "without outer momentum", {Local}),
    (loads(lambda own: {**own, "groups": {"nobody": {}}}), "other modules", SHARDS),
    (
        loads(lambda own: {**own, "groups": {name: {**one, "place": (5, 6)} for name, one in own["groups"].items()}}),
        r"another shard.*\(5, 6\)",
        SHARDS,
    ),
]


@over(*ALL)
@on_ranks()
def test_bad_use_is_refused_and_changes_nothing(rank, P, kind):
    front, twin = stable(kind), stable(kind)
    for one in (front, twin):
        steps_of(one, *range(3))
    for arrange, words, kinds in REFUSALS:
        if kind in kinds:
            call = arrange(front, rank, P)
            with pytest.raises(oktopk.UsageError, match=words) as caught:
                call()
            text = str(caught.value)
            same(text if "rank" not in text or "rank 0 has" in text else "")  # others name this rank
    go_on_alike(front, twin)
