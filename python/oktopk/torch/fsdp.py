# SPDX-License-Identifier: Apache-2.0
"""Hybrid sharding with FSDP2: sharded densely within a replica, synchronised sparsely between them.

    mesh = init_device_mesh("cuda", (replicas, shards), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh["shard"])          # 1-D: FSDP itself does no all-reduce
    sync = oktopk.torch.register_fsdp(model, mesh["replicate"], density=0.01, host_staging=True)

FSDP calls a hook with each parameter group's reduce-scatter output: this rank's shard of the
gradient, one flat tensor in reduce_dtype, the mean over the shard ranks. The hook replaces it by
the mean over the replicas, so p.grad becomes what FSDP's own 2-D mesh gives: the mean over all
ranks, or, after set_gradient_divide_factor(F), their sum divided by F.
COST: one Reducer per parameter group: n floats per value of the shard, unsent.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import nn

from oktopk._core import UsageError
from oktopk.torch.flat import local
from oktopk.torch.process_group import communicator
from oktopk.torch.reducer import Reducer

try:
    from torch.distributed.fsdp import FSDPModule
except ImportError:  # torch before 2.6
    FSDPModule = None  # type: ignore[assignment,misc]


def register_fsdp(
    model: nn.Module,
    replicate_group: Any,
    *,
    density: float = 0.01,
    preset: str = "auto",
    start_iter: int = 0,
    min_numel: int = 4096,
    host_staging: bool = False,
    timeout: Optional[float] = None,
    **options: Any,
) -> "FsdpState":
    """Synchronises the gradients of a model sharded by fully_shard over a 1-D mesh between the
    replicas of each shard. Collective over replicate_group.

    replicate_group: the ranks that hold the same shard as this one: a process group, or the
    dimension of a DeviceMesh. Their weights must be equal at the start.
    start_iter: so many dense steps first. min_numel: parameter groups with fewer values in a shard
    are synchronised densely. The other options are those of `oktopk.torch.Reducer`.

    Keep the result: it has the state to save. Parameters that were not used in a step count as
    zero (set_reduce_scatter_unused_params), so that the layout stays.
    """
    if FSDPModule is None:
        raise UsageError("oktopk: register_fsdp() needs fully_shard of torch 2.6 or newer")
    if start_iter < 0:
        raise UsageError(f"oktopk: start_iter = {start_iter}, but it must not be negative")
    get_group = getattr(replicate_group, "get_group", None)  # of a DeviceMesh
    group = get_group() if get_group is not None else replicate_group
    named = list(_parameter_groups(model))
    if not named:
        raise UsageError("oktopk: register_fsdp(): no module of the model was given to fully_shard")
    for name, _, group_of_parameters in named:
        _check_mesh(name, group_of_parameters, group)
    if start_iter > 0:
        options["warmup"] = [(start_iter, 1.0), *options.get("warmup", [])]
    settings = {"density": density, "preset": preset, "host_staging": host_staging, **options}
    state = FsdpState(communicator(group, timeout), min_numel, settings)
    for name, module, group_of_parameters in named:
        module.set_all_reduce_hook(state._add(name, group_of_parameters))
        if hasattr(module, "set_reduce_scatter_unused_params"):  # newer torch
            module.set_reduce_scatter_unused_params(True, recurse=False)
    return state


class FsdpState:
    """One Reducer per parameter group of fully_shard, by the name of its module. Made by
    `register_fsdp`; the Reducers are made when their first gradient comes."""

    def __init__(self, comm: Any, min_numel: int, settings: Dict[str, Any]):
        self._comm = comm
        self._min_numel = min_numel
        self._settings = settings
        self._units: Dict[str, _Unit] = {}
        self._profile: Any = None  # of the network: measured once, used for all groups

    def arrived(self, parameter: torch.Tensor) -> Optional[torch.Tensor]:
        """Where the last mean arrived: int64 indices into the flattened local shard. None:
        everywhere, after a dense step."""
        for unit in self._units.values():
            for candidate, begin in unit.layout():
                if candidate is parameter:
                    return unit.arrived(begin, local(parameter))
        raise UsageError("oktopk: a parameter that fully_shard was not given, or that was frozen")

    def flush(self) -> None:
        """Collective: puts the mean of everything that is unsent into each p.grad, in place of
        what is there; nothing is left. For a last optimizer.step()."""
        for unit in self._units.values():
            unit.flush()

    @property
    def stats(self) -> Dict[str, Dict[str, Any]]:
        """Of each group's last step, by the name of its module."""
        return {name: u.reducer.stats for name, u in self._units.items() if u.reducer is not None}

    def state_dict(self) -> Dict[str, Any]:
        """This rank's state: every rank saves its own."""
        if any(unit.partial is not None for unit in self._units.values()):
            raise UsageError(
                "oktopk: state_dict() in the middle of an accumulation "
                "(set_requires_all_reduce(False)): save after a step that all-reduces"
            )
        made = {name: u.reducer for name, u in self._units.items() if u.reducer is not None}
        return {"version": 1, "groups": {name: r.state_dict() for name, r in made.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Collective: continues from what this rank saved, bitwise as if never stopped."""
        for name in self._names([state]):
            saved = state["groups"][name]
            self._units[name].need_reducer(saved["n"]).load_state_dict(saved)

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Collective: continues from the states of all replicas of this shard, whatever their
        number was; the number of shards must be the same."""
        for name in self._names(states):
            saved = [state["groups"][name] for state in states]
            self._units[name].need_reducer(saved[0]["n"]).load_state_dicts(saved)

    def _names(self, states: Sequence[Mapping[str, Any]]) -> List[str]:
        if not states:
            raise UsageError("oktopk: no states to load")
        for state in states:
            if state.get("version") != 1 or "groups" not in state:
                raise UsageError("oktopk: not an FsdpState's state of version 1")
            odd = set(state["groups"]) ^ set(states[0]["groups"])
            odd |= set(state["groups"]) - set(self._units)
            if odd:
                raise UsageError(f"oktopk: a state with other modules than here: {sorted(odd)}")
        return [name for name in self._units if name in states[0]["groups"]]

    def _add(self, name: str, group: Any) -> Any:
        unit = self._units[name] = _Unit(self, name, group)
        return unit.hook

    def _make_reducer(self, n: int) -> Reducer:
        settings = dict(self._settings)
        if n < self._min_numel:
            settings["preset"] = "dense"
        elif settings["preset"] == "auto" and "profile" not in settings:
            settings["profile"] = self._profile
        return Reducer(n, communicator=self._comm, **settings)


class _Unit:
    """One parameter group: its hook, its Reducer, and where its parameters lie."""

    def __init__(self, state: FsdpState, name: str, group: Any):
        self._state = state
        self._name = name
        self._group = group
        self.reducer: Optional[Reducer] = None
        self.partial: Optional[torch.Tensor] = None  # accumulated without all-reduce

    def hook(self, gradient: torch.Tensor) -> None:
        if gradient.device.type == "cuda":
            # Allocated in the reduce-scatter stream, and read in this one until after we return.
            gradient.record_stream(torch.cuda.current_stream(gradient.device))
        if not self._group.all_reduce_grads:
            # FSDP adds what is left in `gradient` to p.grad: it must not be added twice.
            self.partial = gradient.clone() if self.partial is None else self.partial.add_(gradient)
            gradient.zero_()
            return
        reducer = self.need_reducer(gradient.numel())
        if self.partial is not None:
            gradient += self.partial
            self.partial = None
        factor = getattr(self._group, "gradient_divide_factor", None)
        # With a factor FSDP's own mesh gives the sum divided by it, not the mean.
        reducer.reduce(gradient, 1.0 if factor is None else float(self._state._comm.size))
        if self._state._profile is None:
            self._state._profile = reducer.profile

    def need_reducer(self, n: int) -> Reducer:
        if self.reducer is None:
            self.reducer = self._state._make_reducer(n)
        elif self.reducer.n != n:
            raise UsageError(
                f"oktopk: module '{self._name}': a gradient of {n} values, {self.reducer.n} before:"
                " all parameters must get one in every step (older torch: unused parameters), and "
                "none may be frozen or thawed after the first"
            )
        return self.reducer

    def layout(self) -> Iterator[Tuple[torch.Tensor, int]]:
        """(parameter, where its shard begins in the gradient); shards are padded to equal sizes."""
        begin = 0
        for p in self._group.fsdp_params:
            if p.sharded_param.requires_grad:
                yield p.sharded_param, begin
                begin += p.padded_sharded_param_size.numel()

    def arrived(self, begin: int, part: torch.Tensor) -> Optional[torch.Tensor]:
        if self.reducer is None:
            return None
        indices = self.reducer.arrived_between(begin, begin + part.numel())
        return None if indices is None else indices.to(part.device)

    @torch.no_grad()
    def flush(self) -> None:
        if self.reducer is None:
            return
        mean = self.reducer.flush()
        assert mean is not None  # it was made with n
        for parameter, begin in self.layout():
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            part = local(parameter.grad)
            part.copy_(mean[begin : begin + part.numel()].view(part.shape))


def _parameter_groups(model: nn.Module) -> Iterator[Tuple[str, Any, Any]]:
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
                f"oktopk: module '{name}' has parameters on {len(groups)} meshes, but "
                "set_all_reduce_hook() takes one"
            )
        for group in groups:
            if id(group) not in seen:  # one unit may have several modules
                seen.add(id(group))
                yield name, module, group


def _check_mesh(name: str, group: Any, replicas: Any) -> None:
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
