# SPDX-License-Identifier: Apache-2.0
"""One parameter group of fully_shard: its all-reduce hook, its Reducer, where its parameters lie.

All that knows FSDP2 from the inside is here: the parameter groups and their fields, as in torch 2.13. COST: with a
GradScaler n more floats, to undo a step that it leaves out.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, Optional, Protocol, Tuple

import torch
import torch.distributed as dist
from torch import nn

from oktopk._core import UsageError
from oktopk.torch._applied import Applied
from oktopk.torch._spans import Span
from oktopk.torch._gpu import require_reachable
from oktopk.torch.flat import FLOATS, local, plain_name
from oktopk.torch.reducer import Reducer

try:
    from torch.distributed.fsdp import FSDPModule
except ImportError:  # older torch
    FSDPModule = None  # type: ignore[assignment,misc]


class Model(Protocol):
    """Settings that all units share."""

    grad_scaler: Any
    applied: Optional[Applied]  # with a GradScaler
    replicas: int

    def make_reducer(self, n: int) -> Reducer: ...

    def compare_start(self) -> None: ...

    def share_profile(self, reducer: Reducer) -> None: ...

    def note_profile(self, reducer: Reducer) -> None: ...

    def settle(self) -> None: ...


class Unit:
    """One parameter group: its hook, its Reducer, and where its parameters lie."""

    def __init__(self, owner: Model, name: str, group: Any):
        self._owner = owner
        self._name = name
        self._group = group
        self.reducer: Optional[Reducer] = None
        self._trained: List[bool] = []  # which parameters are not frozen, when the Reducer was made
        self.partial: Optional[torch.Tensor] = None  # accumulated without all-reduce
        self._is_divided_later = False
        self._is_in_grad = False  # a mean that the optimiser has not cleared yet
        self.is_sum = False  # p.grad has the means of several exchanges
        self._scale: Optional[float] = None  # of a step that the GradScaler may still leave out

    @property
    def values(self) -> int:
        """Of this rank's shards."""
        return shard_values(self._group)

    def hook(self, gradient: torch.Tensor) -> None:
        if gradient.device.type == "cuda":
            # Allocated in the reduce-scatter stream, and read in this one until after we return.
            gradient.record_stream(torch.cuda.current_stream(gradient.device))
        if all(p.sharded_param.grad is None for p in self._group.fsdp_params):
            self._is_in_grad = False
        if not self._group.all_reduce_grads:
            # FSDP adds what is left in `gradient` to p.grad: it must not be added twice.
            self.partial = gradient.clone() if self.partial is None else self.partial.add_(gradient)
            gradient.zero_()
            return
        self._owner.compare_start()
        reducer = self.need_reducer(gradient.numel())
        self._is_divided_later = gradient.dtype == torch.float16 or bool(
            getattr(self._group, "force_sum_reduction_for_comms", False)
        )
        if self.partial is not None:
            gradient += self.partial
            self.partial = None
        scaler = self._owner.grad_scaler
        if self._scale is not None:  # the first group of a step
            self._owner.settle()
        if scaler is not None and self._owner.applied is not None:
            self._scale = float(scaler.get_scale())
            self._owner.applied.watch([parameter for parameter, _ in self.layout()])
            reducer.keep_for_undo(gradient.device)
        # With a divide factor FSDP's own mesh gives the sum divided by it, not the mean.
        is_mean = getattr(self._group, "gradient_divide_factor", None) is None
        copies = 1.0 if is_mean else float(self._owner.replicas)
        self._owner.share_profile(reducer)
        reducer.reduce(gradient, copies / (self._scale or 1.0), self._scale or 1.0)
        self._owner.note_profile(reducer)
        self.is_sum, self._is_in_grad = self._is_in_grad, True

    def settle(self) -> None:
        """Undoes the parts of the last step that the GradScaler skipped (_applied.py)."""
        scale, self._scale = self._scale, None
        applied, reducer = self._owner.applied, self.reducer
        if scale is None or applied is None or reducer is None:
            return
        places = list(self.layout())
        ends = [begin for _, begin in places[1:]] + [reducer.n]  # padding counts to the one before
        spans = [(begin, end) for (_, begin), end in zip(places, ends)]
        reducer.undo(spans, [parameter in applied for parameter, _ in places])

    def need_reducer(self, n: int) -> Reducer:
        trained = [p.sharded_param.requires_grad for p in self._group.fsdp_params]
        if self.reducer is None:
            self.reducer, self._trained = self._owner.make_reducer(n), trained
        elif self.reducer.n != n or self._trained != trained:
            raise UsageError(
                f"oktopk: module '{self._name}': a gradient of {n} values, {self.reducer.n} before:"
                " all parameters must get one in every step (before torch 2.13 those that were not "
                "used get none), and none may be frozen or thawed after the first"
            )
        return self.reducer

    def named(self) -> List[Tuple[str, torch.Tensor]]:
        return names_of(self._name, self._group)

    def state_dict(self) -> Dict[str, Any]:
        assert self.reducer is not None
        self.settle()
        return {"n": self.reducer.n, "place": self._place(), "reducer": self.reducer.state_dict()}

    def check_place(self, saved: Mapping[str, Any]) -> Mapping[str, Any]:
        if saved.get("place") != self._place():
            raise UsageError(
                f"oktopk: module '{self._name}': the state of another shard, (rank, ranks) = "
                f"{saved.get('place')}, but this is {self._place()}"
            )
        return saved

    def _place(self) -> Tuple[int, int]:
        mesh = self._group.mesh_info
        return mesh.shard_mesh_rank, mesh.shard_mesh_size

    def layout(self) -> Iterator[Tuple[torch.Tensor, int]]:
        """(parameter, where its shard begins in the gradient); shards are padded to equal sizes."""
        begin = 0
        for p in self._group.fsdp_params:
            if p.sharded_param.requires_grad:
                yield p.sharded_param, begin
                begin += p.padded_sharded_param_size.numel()

    def span(self, begin: int, end: int) -> Optional[Span]:
        return None if self.reducer is None else self.reducer.span(begin, end)

    @torch.no_grad()
    def flush(self) -> None:
        if self.reducer is None:
            return
        if self._is_divided_later:
            raise UsageError(
                f"oktopk: module '{self._name}': flush() does not work where FSDP divides after the "
                "hook: with float16 as reduce_dtype, or with forced sums"
            )
        self.settle()
        mean = self.reducer.flush()
        assert mean is not None  # it was made with n
        for parameter, begin in self.layout():
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            part = local(parameter.grad)
            part.copy_(mean[begin : begin + part.numel()].view(part.shape))


def parameter_groups(model: nn.Module) -> Iterator[Tuple[str, Any, Any]]:
    """(name, module, parameter group) of each unit of fully_shard that has parameters."""
    seen = set()
    for name, module in model.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:  # older torch has at most one
            groups = [g for g in [state._fsdp_param_group] if g is not None]
        if len(groups) > 1:
            raise UsageError(
                f"oktopk: module '{name}' has parameters on {len(groups)} meshes, but set_all_reduce_hook() takes one"
            )
        for group in groups:
            if id(group) not in seen:  # one unit may have several modules
                seen.add(id(group))
                yield plain_name(name), module, group


def names_of(module: str, group: Any) -> List[Tuple[str, torch.Tensor]]:
    """All parameters of a group, with the names that they have in the model, or the name of the module."""
    names = [getattr(p, "_param_fqn", None) or f"{module}.{i}" for i, p in enumerate(group.fsdp_params)]
    return [(plain_name(name), p.sharded_param) for name, p in zip(names, group.fsdp_params)]


def shard_values(group: Any) -> int:
    """The values of this rank's shards of a parameter group."""
    return sum(local(p.sharded_param).numel() for p in group.fsdp_params)


def check_gradients(name: str, group: Any, host_staging: bool) -> None:
    """UsageError unless the gradients of this parameter group will be of a kind that can be synchronised, and no one
    else does it."""
    if getattr(group, "_all_reduce_hook", None) is not None:
        raise UsageError(f"oktopk: module '{name}' has an all-reduce hook: call register_fsdp() once per model")
    require_reachable(group.device, f"module '{name}': its gradients are", host_staging)
    policy = group.mp_policy
    for p in group.fsdp_params:
        dtype = policy.reduce_dtype or policy.param_dtype or p.sharded_param.dtype
        if p.sharded_param.requires_grad and dtype not in FLOATS:
            raise UsageError(
                f"oktopk: module '{name}': gradients are reduced as {dtype}, but it must be float32, "
                "bfloat16 or float16: give fully_shard an mp_policy with one of them as reduce_dtype"
            )


def check_mesh(name: str, group: Any, replicas: Any) -> None:
    if not hasattr(group.mesh_info, "shard_process_group"):
        raise UsageError(
            f"oktopk: module '{name}' was given to replicate(), which shards nothing and all-reduces by itself: "
            "give the model to DistributedDataParallel and register oktopk_hook, or to fully_shard over a mesh of one "
            "dimension"
        )
    if hasattr(group.mesh_info, "replicate_process_group"):
        raise UsageError(
            f"oktopk: module '{name}' has replicas in its own mesh, and FSDP all-reduces itself: "
            "give fully_shard the shard dimension alone, mesh['shard']"
        )
    shards = set(dist.get_process_group_ranks(group.mesh_info.shard_process_group))
    shared = shards & set(dist.get_process_group_ranks(replicas))
    if shared != {dist.get_rank()}:
        raise UsageError(
            f"oktopk: module '{name}': the ranks of its shards and the replicate group share "
            f"{sorted(shared)}, but they must share this rank, {dist.get_rank()}, alone"
        )
