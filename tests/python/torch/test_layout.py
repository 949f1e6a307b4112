# SPDX-License-Identifier: Apache-2.0
"""Ranks whose parameters or weights differ: each front-end refuses them before its first exchange, with the same text
on all ranks, or makes them right."""

from __future__ import annotations

import re
import threading

import pytest
import torch
import torch.distributed as dist
from elastic_ranks import SECONDS, Job, Run, run_members
from ranks import all_equal, in_processes, in_threads, on_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from versions import TORCH

import oktopk
from oktopk._core import tcp_available
from oktopk.torch import LocalSteps, OkTopkState, Reducer, oktopk_hook, register_fsdp
from oktopk.torch.flat import Start, hashes_of

SPARSE = {"preset": "circulant", "density": 0.1}


class Net(nn.Module):
    """Its first two layers have one shape."""

    def __init__(self, order=("a", "b", "last"), seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        for name in order:
            self.add_module(name, nn.Linear(6, 6 if name != "last" else 3))
        for name in ("a", "b", "last"):
            for p in getattr(self, name).parameters():
                p.data.uniform_(-1, 1, generator=generator)

    def forward(self, x):
        return self.last(torch.tanh(self.b(torch.tanh(self.a(x)))))


def backward(model, rank):
    dtype = next(model.parameters()).dtype
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(rank)).to(dtype)
    model(x).float().square().mean().backward()


def changed(change, **options):
    """A function that makes another model."""

    def make():
        net = Net(**options)
        return change(net) or net

    return make


def exchange_two_rows(net):
    net.a.weight.data = net.a.weight.data[[1, 0, 2, 3, 4, 5]]


frozen = changed(lambda net: setattr(net.b.weight, "requires_grad", False))
in_another_order = changed(lambda net: None, order=("b", "a", "last"))
with_another_seed = changed(lambda net: None, seed=1)
with_other_strides = changed(lambda net: setattr(net.a, "weight", nn.Parameter(net.a.weight.data.t().contiguous().t())))

# The odd rank has another model. By its name: the function that makes it, and a part of what the error then says.
LAYOUTS = {
    "another order": (in_another_order, "has parameter 0 'b.weight' float32 6x6 on cpu"),
    "bfloat16": (changed(lambda net: net.to(torch.bfloat16)), "has parameter 0 'a.weight' bfloat16 6x6 on cpu"),
    "frozen": (frozen, "has parameter 2 'b.weight' float32 6x6 on cpu (frozen)"),
    "other strides": (with_other_strides, "has parameter 0 'a.weight' float32 6x6 with strides 1 6 on cpu"),
}
WEIGHTS = {
    "another seed": (with_another_seed, "of parameter 0 'a.weight'"),
    "two rows exchanged": (changed(exchange_two_rows), "of parameter 0 'a.weight'"),
}
SHAPES = {
    "larger": (changed(lambda net: setattr(net, "last", nn.Linear(6, 4))), "has parameter 4 'last.weight' float32 4x6"),
    "tied": (
        changed(lambda net: setattr(net.b, "weight", net.a.weight)),
        "has parameter 2 'b.weight' which is parameter 0 'a.weight'",
    ),
}


# The front-ends: each makes one exchange with the model.


def by_reducer(model, rank):
    reducer = Reducer([*model.named_parameters(remove_duplicate=False)], **SPARSE)
    backward(model, rank)
    reducer.reduce_gradients()


def by_local_steps(model, rank):
    outer = LocalSteps([*model.named_parameters(remove_duplicate=False)], every=1)
    backward(model, rank)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    outer.step()


def hooked(model, **options):
    ddp = DistributedDataParallel(model)
    state = OkTopkState(**{"start_iter": 0, "min_numel": 0, **SPARSE, **options})
    ddp.register_comm_hook(state, oktopk_hook)
    return ddp, state


def by_hook(model, rank):
    """DDP copies rank 0's weights, and looks at the shapes itself."""
    backward(hooked(model)[0], rank)


def by_fsdp(model, rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh["shard"])
    register_fsdp(model, mesh["replicate"], start_iter=0, min_numel=0, **SPARSE)
    backward(model, rank)


CASES = {**LAYOUTS, **WEIGHTS, **SHAPES}
FRONT_ENDS = {
    by_reducer: list(CASES),
    by_local_steps: [*LAYOUTS, *SHAPES],  # the weights of the first rank are copied
    by_hook: ["another order"],
    by_fsdp: ["another order", "bfloat16", "frozen", *WEIGHTS, "larger"],
}


def texts_of(rank, P, front_end):
    """The error of each case on this rank; and equal models pass."""
    front_end(Net(), rank)
    texts = []
    for name in FRONT_ENDS[front_end]:
        with pytest.raises(oktopk.UsageError) as raised:
            front_end(CASES[name][0]() if rank == P - 1 else Net(), rank)
        texts.append(str(raised.value))
    return texts


@pytest.mark.parametrize("P", [2, 3])
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_ranks_that_differ_are_refused_with_one_text(front_end, P):
    if front_end is by_fsdp and TORCH < (2, 7):
        pytest.skip("register_fsdp needs torch 2.7")
    by_rank = in_processes(P, texts_of, front_end)
    for *said, name in zip(*by_rank, FRONT_ENDS[front_end]):
        assert said == said[:1] * P, name
        assert f"rank {P - 1} has " in said[0] and "rank 0 has " in said[0] and CASES[name][1] in said[0], said[0]
        advice = "begin with the same weights" if name in WEIGHTS else "the same parameters in the same order"
        assert advice in said[0], said[0]


def weights_that_are_copied_may_differ_before(rank, P):
    for front_end in (by_hook, by_local_steps):
        front_end(Net(seed=rank), rank)
    ddp, _ = hooked(Net())
    if rank == P - 1:
        ddp.module.b.bias.data += 1  # after DDP's copy, such as a check-point that one rank alone loads
    with pytest.raises(oktopk.UsageError, match=rf"rank {P - 1} has weights \w+ of parameter 3 'b.bias', rank 0 has"):
        backward(ddp, rank)


def frozen_weights_that_nobody_copies_are_compared(rank, P):
    """DDP copies those of rank 0. With the others, each rank would train another function."""
    for front_end in (by_hook, by_reducer, by_local_steps, *([by_fsdp] if TORCH >= (2, 7) else [])):
        model = frozen()
        if rank == P - 1:
            model.b.weight.data += 1
        if front_end is by_hook:
            front_end(model, rank)
            continue
        with pytest.raises(oktopk.UsageError, match=rf"rank {P - 1} has weights \w+ of parameter 2 'b.weight', rank 0"):
            front_end(model, rank)


def two_models_whose_first_steps_are_in_another_order(rank, P):
    models = [hooked(Net(seed=seed))[0] for seed in (1, 2)]
    with pytest.raises(oktopk.UsageError, match=rf"rank {P - 1} has weights .*, rank 0 has weights"):
        backward(models[1 if rank == P - 1 else 0], rank)


def states_of_different_moments(rank, P):
    """Loaded into hooks that run already: the ranks would end their dense start in different iterations."""
    ddp, state = hooked(Net(), start_iter=4, timeout=20.0)
    saved = []
    for step in range(6):
        saved.append(state.state_dict())
        backward(ddp, 10 * step + rank)
    for mine, others in ((1, 3), (5, 2)):
        state.load_state_dict(saved[mine if rank == P - 1 else others])
        words = f"rank {P - 1} has iteration {mine}, rank 0 has iteration {others}"
        with pytest.raises(oktopk.UsageError, match=words):
            backward(ddp, rank)
    state.load_state_dict(saved[2])
    for step in range(4):
        backward(ddp, 10 * step + rank)
    assert all_equal(gradients_of(ddp))


def a_parameter_that_is_thawed_under_the_hook(rank, P):
    net = frozen()
    ddp, _ = hooked(net)
    backward(ddp, rank)
    net.b.weight.requires_grad_(True)
    with pytest.raises(oktopk.UsageError, match="parameter 'b.weight' was frozen before, so DDP does not"):
        backward(ddp, rank)


def a_rank_that_accumulates_more(rank, P):
    """As DDP without a hook: the sums of each rank count."""
    gradients = []
    for ddp in (DistributedDataParallel(Net()), hooked(Net(), density=0.999999)[0]):
        if rank == P - 1:
            with ddp.no_sync():
                backward(ddp, 7)
        backward(ddp, rank)
        gradients.append(gradients_of(ddp))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)


def a_frozen_shard_that_takes_the_place_of_another(rank, P):
    """A gradient of the same length, but of other parameters."""
    if TORCH < (2, 7):
        return
    model = frozen()
    by_fsdp(model, rank)
    model.zero_grad()
    model.a.weight.requires_grad_(False)
    model.b.weight.requires_grad_(True)
    with pytest.raises(oktopk.UsageError, match="none may be frozen or thawed after the first"):
        backward(model, rank)


@on_ranks(2, 3)
def test_weights_frozen_parameters_moments_and_accumulation(rank, P):
    """In one start of the ranks; the traceback has the name of what failed."""
    weights_that_are_copied_may_differ_before(rank, P)
    frozen_weights_that_nobody_copies_are_compared(rank, P)
    two_models_whose_first_steps_are_in_another_order(rank, P)
    states_of_different_moments(rank, P)
    a_parameter_that_is_thawed_under_the_hook(rank, P)
    a_rank_that_accumulates_more(rank, P)
    a_frozen_shard_that_takes_the_place_of_another(rank, P)


def gradients_of(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("P", [2, 3])
def test_parameters_frozen_later_on_one_rank_count_as_zero_and_thawed_ones_are_refused(P):
    def work(comm):
        net = frozen()
        reducer = Reducer(net.named_parameters(), communicator=comm, **SPARSE)
        backward(net, comm.rank)
        reducer.reduce_gradients()
        net.zero_grad()
        net.a.bias.requires_grad_(comm.rank > 0)
        net.a.bias.grad = None
        backward(net, comm.rank)
        reducer.reduce_gradients()
        everywhere = torch.cat([p.grad.flatten() for p in net.parameters() if p is not net.b.weight])
        net.b.weight.requires_grad_(True)
        with pytest.raises(oktopk.UsageError, match="parameter 2 'b.weight' was frozen before"):
            reducer.reduce_gradients()
        return everywhere

    results = in_threads(P, work)
    assert all(torch.equal(results[0], other) for other in results)


@pytest.mark.parametrize("make", [Reducer, LocalSteps])
def test_a_state_of_other_parameters_is_refused(make):
    """They have as many values, so that what is unsent would go to others."""

    def work(comm):
        net, options = Net(), {**SPARSE, "communicator": comm}
        state = make(net.named_parameters(), **options).state_dict()
        for odd, words in (
            (in_another_order(), "with 'a.weight' of shape (6, 6) as parameter 0, but here it is 'b.weight' of shape"),
            (with_other_strides(), "but here it is 'a.weight' of shape (6, 6) with dimensions in the order [1, 0]"),
        ):
            with pytest.raises(oktopk.UsageError, match=re.escape(words)):
                make(odd.named_parameters(), **options).load_state_dict(state)
        other = make(reversed(list(net.parameters())), **options)
        with pytest.raises(oktopk.UsageError, match=r"of shape \(6, 6\) as parameter 0, but here it is of shape"):
            other.load_state_dicts([state] * comm.size)
        make(net.parameters(), **options).load_state_dict(state)  # names are compared where both have them

    in_threads(2, work)


@pytest.mark.parametrize("odd", [False, True])
def test_a_memory_format_that_changes_between_steps(odd):
    """On all ranks or on the last one: each value keeps its place among those that are unsent."""

    def work(comm):
        net = nn.Conv2d(3, 4, 3)
        for p in net.parameters():  # threads share the generator of random numbers
            p.data.zero_()
        reducer = Reducer(net.named_parameters(), communicator=comm, **SPARSE)
        given, applied = torch.zeros(4, 3, 3, 3), torch.zeros(4, 3, 3, 3)
        for step in range(4):
            if step == 2 and (not odd or comm.rank == 2):
                net.to(memory_format=torch.channels_last)
            gradient = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(10 * step + comm.rank))
            net.weight.grad = gradient.clone(memory_format=torch.preserve_format)
            given += gradient
            reducer.reduce_gradients()
            applied += net.weight.grad
        reducer.flush()
        return given, applied + net.weight.grad

    results = in_threads(3, work)
    total = sum(given for given, _ in results) / 3
    for _, applied in results:
        torch.testing.assert_close(applied, total, rtol=1e-4, atol=1e-5)


def test_the_comparison_may_be_repeated_after_an_error():
    def work(comm):
        net = with_another_seed() if comm.rank == 1 else Net()
        reducer = Reducer(net.parameters(), communicator=comm, **SPARSE)
        backward(net, comm.rank)
        with pytest.raises(oktopk.UsageError, match="rank 1 has weights"):
            reducer.reduce_gradients()
        net.load_state_dict(Net().state_dict())
        reducer.reduce_gradients()
        return gradients_of(net)

    results = in_threads(3, work)
    assert all(torch.equal(results[0], other) for other in results)


def test_local_steps_over_threads_compare_the_global_weights():
    def work(comm):
        net = with_another_seed() if comm.rank == 2 else Net()
        outer = LocalSteps(net.named_parameters(), every=1, communicator=comm)
        with pytest.raises(oktopk.UsageError, match="rank 2 has weights .* of parameter 0 'a.weight', rank 0 has"):
            outer.step()

    in_threads(3, work)


needs_tcp = pytest.mark.skipif(not tcp_available(), reason="this build has no transport tcp")


@needs_tcp
@pytest.mark.parametrize(
    "make, odd, words",
    [
        (Reducer, in_another_order, "parameter 0 'b.weight' .*parameter 0 'a.weight'|'a.weight' .*'b.weight'"),
        (LocalSteps, in_another_order, "parameter 0 'b.weight' .*parameter 0 'a.weight'|'a.weight' .*'b.weight'"),
        (Reducer, with_another_seed, "rank . has weights .* rank 0 has weights .* of parameter 0"),
    ],
)
def test_members_that_begin_with_other_parameters_are_refused(make, odd, words):
    def body(job, place):
        with job.world() as world:
            net = odd() if place == 1 else Net()
            with pytest.raises(oktopk.UsageError) as raised:
                make(net.named_parameters(), communicator=world, **SPARSE)
            return str(raised.value)

    texts = run_members(3, body)
    assert texts == texts[:1] * 3 and re.search(words, texts[0]), texts


def member(job, run, make, shares):
    net = make()
    with job.world(on_change=run.note) as world:
        optimiser = torch.optim.SGD(net.parameters(), lr=0.01)
        world.share(**{name: net if name == "model" else optimiser for name in shares})
        reducer = Reducer(net.named_parameters(), communicator=world, **SPARSE)
        while run.goes_on(world):
            optimiser.zero_grad()
            backward(net, world.rank)
            reducer.reduce_gradients()
            optimiser.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


OTHERS = "the others have"


@needs_tcp
@pytest.mark.parametrize(
    "make, shares, of_newcomer, words",
    [
        (with_another_seed, [], [], rf"this rank has weights \w+ of parameter 0 'a.weight', {OTHERS} weights"),
        (in_another_order, ["model"], ["model"], f"this rank has parameter 0 'b.weight' .*, {OTHERS} parameter 0"),
        (Net, ["model", "optimizer"], ["model"], "the other members share 'optimizer', but this member does not"),
        (Net, ["optimizer"], ["scheduler"], "shares 'scheduler', but the others share optimizer"),
        (with_another_seed, ["model"], ["model"], None),
    ],
)
def test_a_member_that_joins_is_compared_with_what_it_got(make, shares, of_newcomer, words):
    job, reached = Job(2), threading.Event()
    for _ in range(2):  # these end after any change, and repair the step in which a newcomer gave up
        job.start(member, Run(reached=reached, ends_with="change"), Net, shares)
    assert reached.wait(SECONDS)
    job.start(member, Run(ends_with="change"), make, of_newcomer)
    first, second, newcomer = job.wait(raises=False)
    assert torch.equal(first, second), (first, second)
    if words is None:
        assert torch.equal(first, newcomer), newcomer
    else:
        assert isinstance(newcomer, oktopk.UsageError) and re.search(words, str(newcomer)), repr(newcomer)


def bits(*tensors):
    return hashes_of(tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64])
def test_hashes_see_each_bit_each_place_and_each_chunk(dtype):
    x = torch.randn((1 << 20) + 77, generator=torch.Generator().manual_seed(3)).to(dtype)
    changed = []
    for i in (0, 1, 12345, (1 << 20) - 1, 1 << 20, (1 << 20) + 76):
        y = x.clone()
        y[i] = y[i] * 2 + 1
        changed.append(y)
    moved = x.roll(1)
    exchanged = torch.cat([x[1 << 20 :], x[77 : 1 << 20], x[:77]])
    all_hashes = bits(x, *changed, moved, exchanged, x[:-1])
    assert len(set(all_hashes)) == len(all_hashes)
    assert bits(x.clone()) == bits(x) == all_hashes[:1]
    assert torch.equal(x, x.clone()), "the pass only reads"


def test_hashes_are_of_the_memory_and_change_no_value():
    x = torch.randn(5, 3, dtype=torch.float64)
    kept = x.clone()
    assert bits(x) == bits(x.flatten()) == bits(x.t()) != bits(x.t().contiguous())
    assert torch.equal(x, kept)
    assert bits() == [] and bits(torch.empty(0)) == [0]


def test_words_name_every_kind_of_parameter():
    a = nn.Parameter(torch.zeros(2, 3))
    named = [("x, y", a), ("", nn.Parameter(torch.zeros(()), requires_grad=False)), ("again", a)]
    assert Start(named).words(with_weights=False) == (
        "parameter 0 'x,y' float32 2x3 on cpu, parameter 1 float32 scalar on cpu (frozen), "
        "parameter 2 'again' which is parameter 0 'x,y', 3 parameters"
    )
    assert [Start(named, with_frozen=frozen).words().count("weights") for frozen in (True, False)] == [2, 1]
