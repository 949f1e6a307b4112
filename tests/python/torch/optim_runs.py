# SPDX-License-Identifier: Apache-2.0
"""For the tests of the optimisers: sources, which say what a hook would say about where the mean arrived, and runs of
SparseAdamW and SparseSGD that must end alike wherever they are made."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence

import pytest
import torch
from torch import Tensor

from oktopk.torch.optim import WHERE_NONZERO, SparseAdamW, SparseSGD

BOTH = pytest.mark.parametrize("ours", [SparseAdamW, SparseSGD])


class Told:
    """Says what it was told; None: everything arrived."""

    def __init__(self) -> None:
        self.indices: Dict[Tensor, Optional[Tensor]] = {}

    def tell(self, param: Tensor, indices: Optional[Tensor]) -> None:
        self.indices[param] = indices

    def arrived(self, param: Tensor) -> Optional[Tensor]:
        return self.indices[param]


class Everywhere:
    """All arrive: as a dense step, or as a list of all indices."""

    def __init__(self, listed: bool) -> None:
        self.listed = listed

    def arrived(self, param: Tensor) -> Optional[Tensor]:
        return torch.arange(param.numel()) if self.listed else None


class Feedback:
    """One rank's error feedback: in each step a random part of what was gathered arrives."""

    def __init__(self, param: Tensor, density: float, seed: int) -> None:
        self._residual = torch.zeros(param.numel())
        self._density = density
        self._random = torch.Generator().manual_seed(seed)
        self._indices: Optional[Tensor] = None

    def exchange(self, param: Tensor) -> None:
        self._residual += param.grad.view(-1)
        drawn = torch.rand(param.numel(), generator=self._random) < self._density
        self._indices = drawn.nonzero().view(-1)
        param.grad = torch.where(drawn, self._residual, torch.zeros(())).view_as(param)
        self._residual[drawn] = 0

    def arrived(self, param: Tensor) -> Optional[Tensor]:
        return self._indices


def sparse_steps(
    optimiser: torch.optim.Optimizer,
    source: Told,
    params: List[Tensor],
    steps: range,
    schedule: Optional[Callable[[int], float]] = None,
) -> None:
    """Steps with gradients that depend on the step alone: about a fifth arrive, all in step 3."""
    for step in steps:
        random = torch.Generator().manual_seed(1000 + step)
        for param in params:
            mean = torch.randn(param.shape, generator=random)
            drawn = torch.rand(param.shape, generator=random) < (1.1 if step == 3 else 0.2)
            param.grad = (mean * drawn).to(param.dtype)
            source.tell(param, None if step == 3 else drawn.view(-1).nonzero().view(-1))
        if schedule is not None:
            for group in optimiser.param_groups:
                group["lr"] = schedule(step)
        optimiser.step()


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
    """A parameter whose values depend on its shape alone."""
    random = torch.Generator().manual_seed(sum(shape))
    return torch.nn.Parameter(torch.randn(*shape, generator=random).to(dtype))


def indices(*which: int) -> Tensor:
    return torch.tensor(which, dtype=torch.int64)


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


def assert_same(found: List[Tensor], expected: List[Tensor], is_exact: bool = False) -> None:
    """Up to the rounding of roots in dense steps, which host_step.py takes from torch."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        rtol = 0.0 if is_exact else {torch.bfloat16: 1e-2, torch.float16: 2e-3}.get(b.dtype, 2e-5)
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol / 10, check_dtype=True)
