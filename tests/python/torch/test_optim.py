# SPDX-License-Identifier: Apache-2.0
"""What SparseAdamW and SparseSGD compute: torch's own when all arrive, the C++ reference's
otherwise, the same bits however many threads compute it; and what that is good for."""

from __future__ import annotations

from typing import Any, Dict

import pytest
import torch
from optim_runs import Everywhere, Feedback, Told, sparse_steps
from versions import TORCH

from oktopk.torch.optim import SparseAdamW, SparseSGD

SGD_OPTIONS = [
    {"lr": 0.1, "momentum": 0.9},
    {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.1},
]
CASES = [
    (SparseAdamW, torch.optim.AdamW, {"lr": 3e-3, "weight_decay": 0.05, "mode": mode})
    for mode in SparseAdamW.modes
] + [
    (SparseSGD, torch.optim.SGD, {**options, "mode": mode})
    for options in SGD_OPTIONS
    for mode in SparseSGD.modes
]


def distance_to_torch(ours: Any, theirs: Any, options: Dict[str, Any], source: Any) -> float:
    torch.manual_seed(0)
    start = torch.randn(7, 33)
    mine, other = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    optimiser = ours([mine], source, **options)
    plain = {name: value for name, value in options.items() if name != "mode"}
    reference = theirs([other], foreach=False, **plain)
    for step in range(100):
        for each in (optimiser, reference):
            each.param_groups[0]["lr"] = options["lr"] * (1 - step / 150)
        mine.grad = torch.randn(7, 33)
        other.grad = mine.grad.clone()
        optimiser.step()
        reference.step()
    return float((mine - other).detach().abs().max() / other.detach().abs().max())


@pytest.mark.parametrize("ours, theirs, options", CASES)
@pytest.mark.parametrize("source", [None, Everywhere(listed=False)])
def test_dense_steps_are_torch_bit_by_bit(ours, theirs, options, source):
    # AdamW of torch 2.0 rounds its first moment twice: it had no lerp there. And without AVX2 torch
    # fuses no multiplication and addition.
    twice = ours is SparseAdamW and TORCH < (2, 1)
    fused = TORCH < (2, 1) or torch.backends.cpu.get_cpu_capability() != "DEFAULT"
    rounding = 1e-6 if twice or not fused else 0
    assert distance_to_torch(ours, theirs, options, source) <= rounding


@pytest.mark.parametrize("ours, theirs, options", CASES)
def test_sparse_steps_in_which_all_arrive_are_torch_up_to_rounding(ours, theirs, options):
    assert distance_to_torch(ours, theirs, options, Everywhere(listed=True)) < 2e-6


# The weights that SparseAdamW and SparseSGD of the C++ library (apply(), catch_up() after steps 35
# and 60) make of the arrivals of reference_run(), in float.
REFERENCE = {
    ("adamw", "interval_aware"): """
        -1.09440911 -0.831888735 -0.575709105 -0.555855274 -0.293517888 -0.148783058
        -0.0491590053 0.119829975 0.260273695 0.519171238 0.63457948 0.885525465""",
    ("adamw", "published"): """
        -1.09440899 -0.81255132 -0.565636456 -0.530733883 -0.278081268 -0.114576779
        -0.0491589829 0.144958764 0.286753505 0.546511352 0.641467214 0.902155757""",
    ("slow adamw", "interval_aware"): """
        -1.09499419 -0.832666874 -0.583142102 -0.614989698 -0.305725068 -0.159824267
        -0.0510878973 0.105522782 0.259572953 0.518304348 0.63893491 0.880212903""",
    ("sgd", "interval_aware"): """
        -3.87146378 -2.31018448 -1.5495944 -1.68964195 -0.905261338 -0.637313187
        -2.09046793 -4.11762428 -0.361212939 0.463611871 0.482503712 1.07134187""",
    ("sgd", "published"): """
        -3.87146378 -2.2221508 -1.44197834 -1.65457082 -0.835349083 -0.469311029
        -2.09046793 -2.69963837 -0.272261232 0.53418833 0.484977007 1.16075313""",
    ("nesterov", "interval_aware"): """
        -3.91681695 -2.3291657 -1.56213474 -1.68317783 -0.909735441 -0.66108191
        -2.13142109 -4.58586168 -0.36759153 0.439750612 0.486753404 1.06420767""",
    ("nesterov", "published"): """
        -3.91681695 -2.24993587 -1.46528041 -1.65161419 -0.846814215 -0.509879947
        -2.13142109 -3.30967426 -0.287535101 0.503269494 0.48897922 1.14467812""",
}


def arrives(i: int, t: int) -> bool:
    return t % (i % 6 + 1) == 0 or (t > 40 and (t * 7 + i * 3) % 11 == 0)


def value(i: int, t: int) -> float:
    if (i, t) == (7, 58):
        return 40.0  # a surprise to a slow second moment
    return ((i * 7 + t * 13) % 17 - 6) / 8


def reference_run(kind: str, mode: str, dtype: torch.dtype) -> torch.Tensor:
    n, source = 12, Told()
    param = torch.nn.Parameter(0.25 * (torch.arange(n, dtype=dtype) - 5))
    if "adamw" in kind:
        options = {"betas": (0.9, 0.95 if kind == "adamw" else 0.999), "weight_decay": 0.5}
        optimiser: Any = SparseAdamW([param], source, lr=0.02, mode=mode, **options)
    else:
        optimiser = SparseSGD([param], source, lr=0.02, nesterov=kind == "nesterov", mode=mode)
    for t in range(1, 61):
        indices = [i for i in range(n) if arrives(i, t)]
        source.tell(param, torch.tensor(indices, dtype=torch.int64))
        param.grad = torch.tensor([value(i, t) * arrives(i, t) for i in range(n)], dtype=dtype)
        if "adamw" in kind:
            optimiser.param_groups[0]["lr"] = 0.02 * (1 - t / 120)
        optimiser.step()
        if t == 35:
            optimiser.catch_up()
    optimiser.catch_up()
    return param.detach()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind, mode", list(REFERENCE))
def test_sparse_steps_are_those_of_the_library(kind, mode, dtype):
    expected = torch.tensor([float(x) for x in REFERENCE[kind, mode].split()], dtype=dtype)
    torch.testing.assert_close(reference_run(kind, mode, dtype), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rates", [(0.5, 0.25, 0.125), (0.125, 0.25, 0.5)])
def test_a_late_arrival_moves_by_the_rates_of_its_silent_steps(rates):
    source = Told()
    adam_param, sgd_param = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    adam = SparseAdamW([adam_param], source, weight_decay=0)
    sgd = SparseSGD([sgd_param], source, momentum=0)
    for rate, indices in zip(rates, ([], [], [1])):
        for optimiser, param in ((adam, adam_param), (sgd, sgd_param)):
            optimiser.param_groups[0]["lr"] = rate
            source.tell(param, torch.tensor(indices, dtype=torch.int64))
            param.grad = torch.tensor([0.0, 6.0 if indices else 0.0])
            optimiser.step()
    # m grows from 0 to (1 - beta1^3) S / 3 on the way and moves two steps ahead; vhat = S^2 / 3.
    grown = (0.1 + 0.19 + 0.271 + 0.271 * (0.9 + 0.81)) / 3 / 0.271
    expected = -sum(rates) * grown / 3**0.5
    torch.testing.assert_close(adam_param.data, torch.tensor([0.0, expected]))
    torch.testing.assert_close(sgd_param.data, torch.tensor([0.0, -sum(rates) / 3 * 6]))


def test_sgd_decays_a_weight_that_rested_for_each_step_of_its_rest():
    """A single rank that adds weight_decay * w to each gradient before the exchange sends it so."""
    source, before = Told(), Told()
    param, reference = (torch.nn.Parameter(torch.tensor([2.0, -3.0])) for _ in range(2))
    ours = SparseSGD([param], source, lr=0.1, weight_decay=0.25)
    theirs = SparseSGD([reference], before, lr=0.1)
    gathered = torch.zeros(2)
    for step in range(1, 13):
        gathered += 0.25 * reference.detach()
        here = torch.tensor([i for i in (0, 1) if step % (i + 3) == 0], dtype=torch.int64)
        param.grad, reference.grad = torch.zeros(2), torch.zeros(2)
        param.grad[here] = 1.0
        reference.grad[here] = 1.0 + gathered[here]
        gathered[here] = 0
        for optimiser, told, each in ((ours, source, param), (theirs, before, reference)):
            told.tell(each, here)
            optimiser.step()
    torch.testing.assert_close(param, reference)


@pytest.mark.parametrize("ours", [SparseAdamW, SparseSGD])
def test_weights_do_not_depend_on_the_number_of_threads(ours):
    def weights(threads: int) -> torch.Tensor:
        torch.set_num_threads(threads)
        source, param = Told(), torch.nn.Parameter(torch.linspace(-1, 1, 300_007))
        optimiser = ours([param], source, lr=0.1, weight_decay=0.1)
        sparse_steps(optimiser, source, [param], range(8), lambda step: 0.1 / (1 + step))
        optimiser.catch_up()
        return param.detach()

    threads = torch.get_num_threads()
    try:
        assert torch.equal(weights(1), weights(3))
    finally:
        torch.set_num_threads(threads)


def learnt(mode: str, steps: int = 400, n: int = 1000) -> torch.Tensor:
    """Weights drawn to 1 under noise that hides the way; mode "dense": AdamW sees every step."""
    random = torch.Generator().manual_seed(5)
    noise = 2 + 18 * torch.rand(n, generator=random)
    param = torch.nn.Parameter(torch.zeros(n))
    source = None if mode == "dense" else Feedback(param, density=0.05, seed=6)
    options = {"betas": (0.9, 0.95), "weight_decay": 0.0}
    optimiser = SparseAdamW(
        [param], source, mode="interval_aware" if mode == "dense" else mode, **options
    )
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = 0.05 * (1 - step / steps)
        param.grad = param.detach() - 1 + noise * torch.randn(n, generator=random)
        if source is not None:
            source.exchange(param)
        optimiser.step()
    return param.detach()


def test_interval_aware_comes_nearer_to_dense_adamw_than_published():
    dense, aware, published = (learnt(mode) for mode in ("dense", "interval_aware", "published"))

    def loss(weights: torch.Tensor) -> float:
        return float((weights - 1).square().mean())

    assert (aware - dense).norm() < 0.75 * (published - dense).norm()
    assert loss(aware) - loss(dense) < 0.5 * (loss(published) - loss(dense))
    assert loss(published) > loss(dense)
