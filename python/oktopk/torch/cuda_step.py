# SPDX-License-Identifier: Apache-2.0
"""The steps of SparseAdamW and SparseSGD over parameters in the memory of an NVIDIA GPU: two kernels for all of a group
(oktopk/gpu/kernels/optim.cu), by the rules of host_step.py. A plan is the kernels' table of tensors; it lives as long
as parameters and state stay where they are. Only a new plan waits for the GPU.
COST: 1 to 2 us per parameter here; 31 KB go to the GPU where gradients of 300 parameters moved.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from operator import is_
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Protocol, Sequence, Tuple

import torch
from torch import Tensor

from oktopk import _core
from oktopk._core import DeviceError, UsageError
from oktopk.torch._gpu import stream_of
from oktopk.torch._scaler import Scaling
from oktopk.torch.coordinates import WEIGHT_TYPES, WHERE_NONZERO, Arrived, Layout, checked_state
from oktopk.torch.flat import inner
from oktopk.torch.interval_clock import CudaClock, powers_of

_BLOCK = 16384  # coordinates of a thread block: kSpan of oktopk/gpu/kernels/optim.cu
_LIST_BLOCK = 4096  # indices of a thread block
# The fields of OktopkCudaTensor (oktopk/gpu/kernels/cuda_api.h), in their order.
_FIELDS = (
    "size", "weights", "mean", "first", "second", "last", "arrivals", "indices", "count", "steps", "caught_up",
    "type", "where",
)  # fmt: skip
_MEAN, _INDICES, _COUNT, _CAUGHT_UP, _TYPE, _WHERE = 2, 7, 8, 10, 11, 12  # places of some of them
_DENSE, _ALL, _LISTED, _NONZERO = range(4)  # OKTOPK_CUDA_DENSE, ...

# Fields of OktopkCudaOptim that not every rule has.
NO_RULE: Dict[str, Any] = {
    **dict.fromkeys(("is_sgd", "nesterov"), False),
    **dict.fromkeys(("second_beta", "epsilon", "coupled_decay", "decoupled_decay"), 0.0),
    **dict.fromkeys(("second_powers", "second_size"), 0),
}

_address_of = torch.Tensor.data_ptr


class Kernels(Protocol):
    """_core.CudaSteps."""

    def step(self, fields: Dict[str, Any], stream: int) -> None: ...


@lru_cache(maxsize=None)
def kernels_of(device: torch.device) -> Optional[Kernels]:
    """None where steps are made in another way: not an NVIDIA GPU, or liboktopk_cuda.so is missing."""
    if device.type != "cuda":
        return None
    try:
        return _core.CudaSteps(device.index)
    except DeviceError:
        return None


def is_capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def kernels_for(group: Dict[str, Any], params: List[Tensor], layouts: Callable[[Tensor], Layout]) -> Optional[Kernels]:
    """Where all parameters are on one GPU, without gaps, and of types that the kernels have."""
    device = inner(params[0]).device if params else None
    kernels = None if device is None else kernels_of(device)
    for param in params if kernels is not None else ():
        grad, layout = param.grad, layouts(param)
        is_plain = grad is not None and grad.dtype == layout.dtype and layout.dtype in WEIGHT_TYPES
        if not (is_plain and layout.is_gapless and inner(param).device == device):
            kernels = None
    if kernels is None and params and group.get("capturable", False):
        raise UsageError(
            "oktopk: capturable = True, but a CUDA graph can only hold steps over parameters without gaps on one "
            "NVIDIA GPU, by an oktopk that was built where nvcc is (liboktopk_cuda.so)"
        )
    return kernels


def check_capture(group: Dict[str, Any], has_plan: bool) -> None:
    """UsageError where a CUDA graph is captured that cannot hold this step."""
    if not is_capturing():
        return
    if not group.get("capturable", False):
        raise UsageError("oktopk: step() while a CUDA graph is captured, but the optimiser has capturable = False")
    if not has_plan:
        raise UsageError(
            "oktopk: step() while a CUDA graph is captured, but parameters or state are new or moved: make a step with "
            "them before"
        )


def rate_on_gpu(group: Dict[str, Any]) -> Optional[Tensor]:
    """The learning rate where the host does not read it: a CUDA graph may follow its changes."""
    rate = group["lr"]
    on_gpu = isinstance(rate, Tensor) and rate.device.type != "cpu" and group.get("capturable", False)
    return rate if on_gpu else None


def rate_of(group: Dict[str, Any]) -> float:
    """The learning rate; 0 where the host does not read it."""
    return 0.0 if rate_on_gpu(group) is not None else float(group["lr"])


def rate_fields(group: Dict[str, Any]) -> Dict[str, Any]:
    on_gpu = rate_on_gpu(group)
    return {"rate": rate_of(group), "rate_on_gpu": 0 if on_gpu is None else on_gpu.data_ptr()}


class Key(NamedTuple):
    """What a plan depends on, besides its parameters."""

    is_lazy: bool  # coordinates may be silent
    is_fixed: bool  # a CUDA graph may hold the tables
    names: Tuple[str, ...]  # of tensors in the state with an element per coordinate


class Request(NamedTuple):
    """A group that shall make a step by kernels. answers: where the mean of each parameter arrived; None: everywhere,
    for all."""

    kernels: Kernels
    params: List[Tensor]
    answers: Optional[List[Arrived]]


class Plan:
    """Parameters of a group with a gradient, their state and the group's clock, as tables in the memory of a GPU."""

    def __init__(
        self, key: Key, request: Request, states: List[Dict[str, Any]], layouts: List[Layout], clock: CudaClock
    ):
        """The states are complete."""
        self._key, self.kernels, self.clock, self.params = key, request.kernels, clock, request.params
        self._layouts, self._states = layouts, states
        self.device = inner(self.params[0]).device
        _steps_to(self.device, states)
        self._objects = self._seen()
        tensors = [state[name] for state in states for name in (*key.names, "step") if name in state]
        self._inners = [*map(inner, self.params), *map(inner, tensors)]
        self._addresses = [*map(_address_of, self._inners)]
        self._kinds = [(layout.stride, layout.dtype) for layout in layouts]
        self._whole = [not key.is_lazy or bool(state["whole"]) for state in states]
        self._host = torch.tensor([self._row(i) for i in range(len(states))])
        self._sizes, types = self._host[:, 0], self._host[:, _TYPE]
        self._order = torch.argsort(types, stable=True)
        self._of_type = [types == number for number in range(len(WEIGHT_TYPES))]
        self._now: Tuple[List[int], ...] = ()
        self._answers: List[Arrived] = []
        self._block_counts = (0, 0, 0, 0)
        self._table = torch.empty_like(self._host, device=self.device)
        self._blocks = torch.empty(0, dtype=torch.int64, device=self.device)

    def _row(self, i: int) -> List[int]:
        state, layout, own = self._states[i], self._layouts[i], inner(self.params[i])

        def address(*names: str) -> int:
            found = [name for name in names if name in self._key.names]
            return checked_state(state, found[0], own, layout).data_ptr() if found else 0

        steps = state["step"].data_ptr() if "step" in state else 0
        first, second = address("exp_avg", "momentum_buffer"), address("exp_avg_sq")
        head = [layout.size, own.data_ptr(), 0, first, second, address("last"), address("arrivals")]
        return [*head, 0, 0, steps, self._caught_up(state), WEIGHT_TYPES[layout.dtype], 0]

    def _caught_up(self, state: Dict[str, Any]) -> int:
        return int(state.get("caught_up", 0)) if self._key.is_lazy else 0

    def tell_caught_up(self) -> None:
        """After the states' numbers of this name changed."""
        self._host[:, _CAUGHT_UP] = torch.tensor([self._caught_up(state) for state in self._states])
        self._table.copy_(self._host, non_blocking=True)

    def fits(self, key: Key, params: List[Tensor], states: Iterable[Optional[Dict[str, Any]]]) -> bool:
        """Whether these are the parameters and states of the plan, where they were."""
        if key != self._key or len(params) != len(self.params) or not all(map(is_, params, self.params)):
            return False
        if any(param.grad.layout is not torch.strided for param in params):  # type: ignore[union-attr]
            return False
        if not all(map(is_, states, self._states)) or not all(map(is_, self._seen(), self._objects)):
            return False
        return [*map(_address_of, self._inners)] == self._addresses

    def _seen(self) -> List[Tensor]:
        return [*chain.from_iterable(state.values() for state in self._states)]

    # A step

    def run(self, answers: Optional[List[Arrived]], rule: Dict[str, Any], scaling: Scaling) -> None:
        """Queues a step. rule: what OktopkCudaOptim has of the group's options."""
        means = self._means()
        self._tell(means, *self._wheres(answers))
        self.clock.make_room()
        found_inf, grad_scale = scaling.on(self.device)
        fields = {
            **rule,
            **self.clock.fields(),
            "tensors": self._table.data_ptr(),
            "tensor_count": len(self.params),
            "blocks": self._blocks.data_ptr(),
            "block_counts": self._block_counts,
            "found_inf": 0 if found_inf is None else found_inf.data_ptr(),
            "grad_scale": 0 if grad_scale is None else grad_scale.data_ptr(),
        }
        self.kernels.step(fields, stream_of(self.device))

    def _means(self) -> List[Tensor]:
        """The gradients, laid out as the parameters."""
        grads = [inner(param.grad) for param in self.params]  # type: ignore[arg-type]
        if [(grad.stride(), grad.dtype) for grad in grads] == self._kinds:
            return grads
        return [torch.empty_like(inner(param)).copy_(grad) for param, grad in zip(self.params, grads)]

    def _wheres(self, answers: Optional[List[Arrived]]) -> Tuple[List[int], List[int], List[int]]:
        """How each mean arrived; addresses and lengths of the lists of indices, none where there is no list."""
        if answers is None:
            answers = [None] * len(self.params)
        if self._now and all(map(is_, answers, self._answers)) and not any(self._now[2]):
            return self._now[1], self._now[2], self._now[3]
        for i, answer in enumerate(answers):
            if answer is not None and self._whole[i]:
                self._end_whole(i)
        self._answers = [None if isinstance(answer, Tensor) else answer for answer in answers]
        lists = [answer if isinstance(answer, Tensor) else None for answer in answers]
        wheres = [_where(answer, whole) for answer, whole in zip(answers, self._whole)]
        return wheres, [0 if x is None else x.data_ptr() for x in lists], [0 if x is None else len(x) for x in lists]

    def _end_whole(self, i: int) -> None:
        """From this step on the parameter needs the clocks of its coordinates: so far, all arrived in every step."""
        state = self._states[i]
        self._whole[i] = False
        state["whole"].zero_()
        inner(state["last"]).copy_(self.clock.now)
        if "arrivals" in state:
            inner(state["arrivals"]).copy_(state["step"])

    def _tell(self, means: List[Tensor], wheres: List[int], indices: List[int], counts: List[int]) -> None:
        """Brings the tables on the GPU up to date."""
        now = ([*map(_address_of, means)], wheres, indices, counts)
        if now == self._now:
            return
        if is_capturing():
            raise UsageError(
                "oktopk: gradients or arrivals moved before a step that a CUDA graph captures: make a step before it "
                "with the same gradients (zero_grad(set_to_none=False)), and a source that gives no lists of indices"
            )
        for column, values in zip((_MEAN, _WHERE, _INDICES, _COUNT), now):
            self._host[:, column] = torch.tensor(values)
        self._table.copy_(self._host, non_blocking=True)
        if not self._now or (wheres, counts) != (self._now[1], self._now[3]):
            self._tell_blocks()
        self._now = now

    def _tell_blocks(self) -> None:
        lists = (self._host[:, _COUNT] + _LIST_BLOCK - 1) // _LIST_BLOCK
        blocks = torch.where(self._host[:, _WHERE] == _LISTED, lists, (self._sizes + _BLOCK - 1) // _BLOCK)
        of_type = [int(blocks[chosen].sum()) for chosen in self._of_type]
        self._block_counts = (of_type[0], of_type[1], of_type[2], of_type[3])
        blocks = blocks[self._order]
        first = torch.repeat_interleave(torch.cumsum(blocks, 0) - blocks, blocks)
        within = torch.arange(len(first)) - first
        packed = torch.repeat_interleave(self._order, blocks) * (1 << 32) + within
        self._blocks = packed.to(self.device, non_blocking=True)


def _where(answer: Arrived, is_whole: bool) -> int:
    if isinstance(answer, Tensor):
        return _LISTED
    if answer is WHERE_NONZERO:
        return _NONZERO
    return _DENSE if is_whole else _ALL


def _steps_to(device: torch.device, states: Sequence[Dict[str, Any]]) -> None:
    """Moves step counts to the GPU: the kernels count them, since a GradScaler may leave out a step there."""
    counted = [state for state in states if "step" in state and state["step"].device != device]
    if counted:
        steps = torch.tensor([float(state["step"]) for state in counted], dtype=torch.float32).to(device)
        for state, step in zip(counted, steps.unbind()):
            state["step"] = step


def powers(name: str, beta: float, clock: CudaClock) -> Dict[str, Any]:
    """The fields of a table of powers."""
    table = powers_of(float(beta), 1 << clock.limit.bit_length(), str(clock.device))
    clock.tables[name] = table  # stays alive
    return {f"{name}_beta": beta, f"{name}_powers": table.data_ptr(), f"{name}_size": len(table)}
