# SPDX-License-Identifier: Apache-2.0
"""Runs of SparseAdamW and SparseSGD that must end alike wherever they are made: for the tests of steps on a GPU."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import torch
from arrivals import Told, parameter
from torch import Tensor

from oktopk.torch.optim import WHERE_NONZERO, SparseAdamW, SparseSGD

CASES = [(SparseAdamW, {"mode": mode, "weight_decay": 0.1}) for mode in SparseAdamW.modes] + [
    (SparseSGD, {"mode": mode, "momentum": mu, "nesterov": mu > 0, "weight_decay": 0.1})
    for mode in SparseSGD.modes
    for mu in (0.0, 0.9)
]
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def many_parameters(device: str = "cpu") -> List[torch.nn.Parameter]:
    """Of all types, of several blocks, one value, none, and in another order of memory."""
    shapes = [(37, 3), (5001,), (1,), (0,), (191, 195)]
    params = [parameter(*shape, dtype=TYPES[i % 4]) for i, shape in enumerate(shapes)]
    params.append(torch.nn.Parameter(torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)))
    with torch.no_grad():
        params[-1].copy_(torch.arange(120.0).view(2, 3, 4, 5) / 120)
    return [torch.nn.Parameter(param.detach().to(device)) for param in params]


def gradients(params: List[Any], source: Told, step: int, answer: Any, dense_steps: Sequence[int] = (0, 1, 6)) -> None:
    """A fifth arrives; all in some steps. answer: "list", "nonzero", or "any" of them. Every fourth step one has no
    gradient."""
    random = torch.Generator().manual_seed(step)
    for i, param in enumerate(params):
        mean = torch.randn(param.shape, generator=random)
        drawn = torch.rand(param.shape, generator=random) < 0.2
        dense = step in dense_steps
        param.grad = torch.empty_like(param).copy_(mean if dense else mean * drawn)
        order = sorted(range(param.dim()), key=param.stride, reverse=True)
        listed = param.grad.permute(order).reshape(-1).nonzero().view(-1)
        nonzero = answer == "nonzero" or (answer == "any" and i % 2 == 0)
        source.tell(param, None if dense else WHERE_NONZERO if nonzero else listed)
        if i == 1 and step % 4 == 3:
            param.grad = None


def results(optimiser: Any, params: List[Any]) -> List[Tensor]:
    """Weights and state, as copies on the host."""
    found = [param.detach() for param in params]
    for param in params:
        found += [torch.as_tensor(value) for _, value in sorted(optimiser.state[param].items())]
    return [tensor.cpu().clone() for tensor in found]


def train(
    ours: Any, options: Dict[str, Any], answer: str, device: str = "cpu", dense_steps: Sequence[int] = (0, 1, 6)
) -> List[Tensor]:
    """14 steps. Weights, state, weights with all decay, and the clock."""
    source, params = Told(), many_parameters(device)
    optimiser = ours(params, source, lr=0.01, **options)
    for step in range(14):
        gradients(params, source, step, answer, dense_steps)
        optimiser.param_groups[0]["lr"] = 0.01 / (1 + step % 3)
        optimiser.step()
        if step == 8:
            optimiser.catch_up()
    with optimiser.caught_up():
        inside = [param.detach().cpu().clone() for param in params]
    runs = optimiser.state_dict()["param_groups"][0]["clock_runs"]
    return [*results(optimiser, params), *inside, torch.tensor(runs)]


def assert_same(found: List[Tensor], expected: List[Tensor]) -> None:
    """Up to the rounding of roots in dense steps, which native_step.py takes from torch."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        rtol = {torch.bfloat16: 1e-2, torch.float16: 2e-3}.get(b.dtype, 1e-5)
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol / 10, check_dtype=True)
