# SPDX-License-Identifier: Apache-2.0
"""Hybrid sharding with FSDP2: sharded densely within a replica, synchronised sparsely between them.

    mesh = init_device_mesh("cuda", (replicas, shards), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh["shard"])          # 1-D: FSDP itself does no all-reduce
    sync = oktopk.torch.register_fsdp(model, mesh["replicate"], total_steps=10_000)

FSDP calls a hook with each parameter group's reduce-scatter output: this rank's shard of the gradient, one flat tensor
in reduce_dtype, the mean over the shard ranks. The hook replaces it by the mean over the replicas, so p.grad becomes
what FSDP's own 2-D mesh gives: the mean over all ranks, or, after set_gradient_divide_factor(F), their sum divided by
F. The parameter groups and their fields are those of torch 2.13.
COST: one Reducer per parameter group: a float for each value of the shard, for what is unsent; with a GradScaler n more
floats, to undo a step that it leaves out.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple
from typing import Union

import torch
import torch.distributed as dist
from torch import nn

from oktopk import _core
from oktopk._core import UsageError, check_options
from oktopk.options import MoreOptions, active, count, require_known, show_options, truth, with_recipe
from oktopk.torch._choice import choice_of, with_choice
from oktopk.torch._gpu import require_reachable
from oktopk.torch._group import Timeout, as_group, compare_options
from oktopk.torch._scaler import Applied
from oktopk.torch._sharded import Span, arrived_of
from oktopk.torch._sockets import File
from oktopk.torch.checkpoint import Place, unwrap, wrap
from oktopk.torch.coordinates import WHERE_NONZERO, Arrived
from oktopk.torch.flat import FLOATS, Start, local, plain_name, refuse_mixed
from oktopk.torch.process_group import communicator
from oktopk.torch.reducer import Reducer

if TYPE_CHECKING:
    from typing_extensions import Unpack


try:
    from torch.distributed.fsdp import FSDPModule
except ImportError:  # older torch
    FSDPModule = None  # type: ignore[assignment,misc]


class Unit:
    """One parameter group: its hook, its Reducer, and where its parameters lie."""

    def __init__(self, owner: FsdpState, name: str, group: Any):
        self._owner = owner
        self.name = name
        self.group = group
        self.reducer: Optional[Reducer] = None
        self._trained: List[bool] = []  # which parameters are not frozen, when the Reducer was made
        self.partial: Optional[torch.Tensor] = None  # accumulated without all-reduce
        self._is_divided_later = False
        self._is_in_grad = False  # a mean that the optimiser has not cleared yet
        self.is_sum = False  # p.grad has the means of several exchanges
        self._scale: Optional[float] = None  # of a step that the GradScaler may still leave out

    def hook(self, gradient: torch.Tensor) -> None:
        if gradient.device.type == "cuda":
            # Allocated in the reduce-scatter stream, and read in this one until after we return.
            gradient.record_stream(torch.cuda.current_stream(gradient.device))
        if all(p.sharded_param.grad is None for p in self.group.fsdp_params):
            self._is_in_grad = False
        if not self.group.all_reduce_grads:
            # FSDP adds what is left in `gradient` to p.grad: it must not be added twice.
            self.partial = gradient.clone() if self.partial is None else self.partial.add_(gradient)
            gradient.zero_()
            return
        self._owner.compare_start()
        reducer = self.need_reducer(gradient.numel())
        self._is_divided_later = gradient.dtype == torch.float16 or bool(
            getattr(self.group, "force_sum_reduction_for_comms", False)
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
        is_mean = getattr(self.group, "gradient_divide_factor", None) is None
        copies = 1.0 if is_mean else float(self._owner.replicas)
        self._owner.share_profile(reducer)
        reducer.reduce(gradient, copies / (self._scale or 1.0), self._scale or 1.0)
        self._owner.note_profile(reducer)
        self.is_sum, self._is_in_grad = self._is_in_grad, True

    def settle(self) -> None:
        """Undoes the parts of the last step that the GradScaler skipped (_scaler.py)."""
        scale, self._scale = self._scale, None
        applied, reducer = self._owner.applied, self.reducer
        if scale is None or applied is None or reducer is None:
            return
        places = list(self.layout())
        ends = [begin for _, begin in places[1:]] + [reducer.n]  # padding counts to the one before
        spans = [(begin, end) for (_, begin), end in zip(places, ends)]
        reducer.undo(spans, [parameter in applied for parameter, _ in places])

    def need_reducer(self, n: int) -> Reducer:
        trained = [p.sharded_param.requires_grad for p in self.group.fsdp_params]
        if self.reducer is None:
            self.reducer, self._trained = self._owner.make_reducer(n), trained
        elif self.reducer.n != n or self._trained != trained:
            raise UsageError(
                f"oktopk: module '{self.name}': a gradient of {n} values, {self.reducer.n} before:"
                " all parameters must get one in every step (before torch 2.13 those that were not "
                "used get none), and none may be frozen or thawed after the first"
            )
        return self.reducer

    def state_dict(self) -> Dict[str, Any]:
        assert self.reducer is not None
        self.settle()
        return {"n": self.reducer.n, "place": self._place(), "reducer": self.reducer.state_dict()}

    def check_place(self, saved: Mapping[str, Any]) -> Mapping[str, Any]:
        if saved.get("place") != self._place():
            raise UsageError(
                f"oktopk: module '{self.name}': the state of another shard, (rank, ranks) = "
                f"{saved.get('place')}, but this is {self._place()}"
            )
        return saved

    def _place(self) -> Tuple[int, int]:
        mesh = self.group.mesh_info
        return mesh.shard_mesh_rank, mesh.shard_mesh_size

    def layout(self) -> Iterator[Tuple[torch.Tensor, int]]:
        """(parameter, where its shard begins in the gradient); shards are padded to equal sizes."""
        begin = 0
        for p in self.group.fsdp_params:
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
                f"oktopk: module '{self.name}': flush() does not work where FSDP divides after the "
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


@show_options
def register_fsdp(
    model: nn.Module,
    replicate_group: Any,
    *,
    density: Optional[float] = None,
    preset: str = "auto",
    start_iter: Optional[Union[int, float]] = None,
    min_numel: int = 4096,
    grad_scaler: Optional[Any] = None,
    host_staging: bool = False,
    timeout: Optional[Timeout] = None,
    silence: Optional[Timeout] = None,
    secret_file: Optional[File] = None,
    encrypt: Optional[bool] = None,
    total_steps: Optional[int] = None,
    codec: Optional[str] = None,
    decay: Optional[float] = None,
    **options: Unpack[MoreOptions],
) -> "FsdpState":
    """Synchronises the gradients of a model sharded by fully_shard over a 1-D mesh between the replicas of each shard.
    Collective over replicate_group.

    Keep the result: it has the state to save. Parameters that were not used in a step count as zero
    (set_reduce_scatter_unused_params), so that the layout stays. Arguments:

    replicate_group: the ranks that hold the same shard as this one: a process group, or the dimension of a DeviceMesh.
        Their weights must be equal at the start.
    density, preset, host_staging, timeout, silence, secret_file, encrypt, codec, decay: as in oktopk.torch.Reducer.
    start_iter, total_steps: as in OkTopkState: total_steps alone asks for the recipe (docs/learning.md).
    min_numel: parameter groups with fewer values in a shard are synchronised densely.
    grad_scaler: the GradScaler of mixed precision training. Unsent values are then kept unscaled, and a step that the
        GradScaler skips is undone; synchronise once per step.
    """
    if not hasattr(FSDPModule, "set_all_reduce_hook"):
        raise RuntimeError(
            "oktopk: register_fsdp() needs torch 2.7 or newer, for set_all_reduce_hook() of "
            f"fully_shard: this is torch {torch.__version__}"
        )
    require_known(register_fsdp, options)
    named_options = {"density": density, "preset": preset, "codec": codec, "decay": decay}
    dense_steps, given = with_recipe(named_options, options, start_iter, total_steps)
    group = as_group(replicate_group)
    named = list(parameter_groups(model))
    if not named:
        raise UsageError("oktopk: register_fsdp(): no module of the model was given to fully_shard")
    least = count("min_numel", min_numel, 0)
    for name, _, group_of_parameters in named:
        check_mesh(name, group_of_parameters, group)
        check_gradients(name, group_of_parameters, truth("host_staging", host_staging))
        if preset != "dense" and shard_values(group_of_parameters) >= least:
            own = f"modules of their own in fully_shard, of fewer than min_numel = {least} values, which are dense"
            refuse_mixed(names_of(name, group_of_parameters), own)
    if dense_steps > 0 and preset != "dense":  # which needs no warm-up
        given["warmup"] = [(dense_steps, 1.0), *(given.get("warmup") or [])]
    if active(grad_scaler) is not None:
        given["nan_policy"] = given.get("nan_policy") or "skip"
    check_options(given)
    comm = communicator(group, timeout, silence=silence, secret_file=secret_file, encrypt=encrypt)
    Reducer(max(given.get("k") or 1, 1024), communicator=comm, host_staging=host_staging, **given)  # do they fit?
    most = max(shard_values(g) for _, _, g in named)
    choice = None if host_staging else choice_of(comm, given, named[0][2].device, most)
    state = FsdpState(comm, least, active(grad_scaler), {**given, "host_staging": host_staging}, choice)
    for name, module, group_of_parameters in named:
        module.set_all_reduce_hook(state.add(name, group_of_parameters))
        if hasattr(module, "set_reduce_scatter_unused_params"):  # torch 2.13
            module.set_reduce_scatter_unused_params(True, recurse=False)
    return state


# The options that a Reducer of preset dense takes; it refuses the others, which mean nothing for a small group.
_OF_DENSE = ("host_staging", "density", "threads", "nan_policy", "check_every", "checked", "group_size", "trace")


class Spot(NamedTuple):
    """Where a parameter's shard lies: begin..end-1 of its unit's gradient."""

    parameter: torch.Tensor  # also keeps its id from being given to another
    unit: Unit
    begin: int
    end: int


class FsdpState:
    """One Reducer per parameter group of fully_shard, by the name of its module. Made by `register_fsdp`; the Reducers
    are made when their first gradient comes."""

    def __init__(self, comm: Any, min_numel: int, grad_scaler: Any, settings: Dict[str, Any], choice: Optional[str]):
        self._comm = comm
        self.replicas: int = comm.size
        self.grad_scaler = grad_scaler
        self._min_numel = min_numel
        self._settings = settings
        self._choice = choice  # of preset auto on GPUs (_choice.py)
        self.applied: Optional[Applied] = None if grad_scaler is None else Applied()
        self._units: Dict[str, Unit] = {}
        self._profile: Any = None  # of the network: measured once, used for all groups
        self._spots: Dict[int, Spot] = {}  # by the id of a parameter
        self._is_compared = False

    def arrived(self, parameter: torch.Tensor) -> Arrived:
        """Where the last mean arrived: int64 indices into the flattened local shard. None: everywhere, after a dense
        step. WHERE_NONZERO: where p.grad is not zero, if it is the sum of several exchanges."""
        return self.arrived_of([parameter])[0]

    def arrived_of(self, parameters: Sequence[torch.Tensor]) -> List[Arrived]:
        """The same for many parameters, in less time."""
        spots = self._spots
        if any(not _is_spot_of(spots, p) for p in parameters):
            spots = self._spots = {  # FSDP has made its parameters anew
                id(parameter): Spot(parameter, unit, begin, begin + local(parameter).numel())
                for unit in self._units.values()
                for parameter, begin in unit.layout()
            }
        lost = next((p for p in parameters if not _is_spot_of(spots, p)), None)
        if lost is not None:
            raise UsageError(
                f"oktopk: a parameter of shape {tuple(lost.shape)} that fully_shard was not given, or that was frozen"
            )
        found = [spots[id(p)] for p in parameters]
        answers = arrived_of([spot.unit.span(spot.begin, spot.end) for spot in found], parameters)
        sums = [spot.unit.is_sum and answer is not None for spot, answer in zip(found, answers)]
        return [WHERE_NONZERO if is_sum else answer for is_sum, answer in zip(sums, answers)]

    def flush(self) -> None:
        """Collective: puts the mean of everything that is unsent into each p.grad, in place of what is there; nothing
        is left. For a last optimizer.step()."""
        for unit in self._units.values():
            unit.flush()

    @property
    def stats(self) -> Dict[str, Dict[str, Any]]:
        """Numbers of the last step of each parameter group, by the name of its module."""
        return {name: u.reducer.stats for name, u in self._units.items() if u.reducer is not None}

    def state_dict(self) -> Dict[str, Any]:
        """This rank's state: every rank saves its own."""
        if any(unit.partial is not None for unit in self._units.values()):
            raise UsageError(
                "oktopk: state_dict() in the middle of an accumulation "
                "(set_requires_all_reduce(False)): save after a step that all-reduces"
            )
        made = {name: unit for name, unit in self._units.items() if unit.reducer is not None}
        groups = {name: unit.state_dict() for name, unit in made.items()}
        saved = {"version": 1, "groups": groups}
        return wrap(self.place(), saved if self._choice is None else {**saved, "choice": self._choice})

    def place(self) -> Place:
        """The place of this rank among the replicas of its shard."""
        return Place.of_communicator(self._comm)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Collective: continues from what this rank saved, bitwise as if never stopped."""
        (own,) = self._own_states([state])
        for name, unit in self._saved_units(own):
            saved = unit.check_place(own["groups"][name])
            unit.need_reducer(saved["n"]).load_state_dict(saved["reducer"])

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Collective: continues from the states of all replicas of this shard, whatever their number was; the number of
        shards must be the same."""
        own = self._own_states(states)
        for name, unit in self._saved_units(own[0]):
            saved = [unit.check_place(state["groups"][name]) for state in own]
            unit.need_reducer(saved[0]["n"]).load_state_dicts([s["reducer"] for s in saved])

    def _own_states(self, wrapped: Sequence[Mapping[str, Any]]) -> List[Mapping[str, Any]]:
        if not wrapped:
            raise UsageError("oktopk: no states to load")
        states = [unwrap(state) for state in wrapped]
        for state in states:
            if not isinstance(state, Mapping) or state.get("version") != 1 or "groups" not in state:
                raise UsageError("oktopk: not an FsdpState's state of version 1")
            odd = set(state["groups"]) ^ set(states[0]["groups"])
            odd |= set(state["groups"]) - set(self._units)
            if odd:
                raise UsageError(f"oktopk: a state with other modules than here: {sorted(odd)}")
        return states

    def _saved_units(self, state: Mapping[str, Any]) -> List[Tuple[str, Unit]]:
        """The units, in the same order on all ranks. Preset auto keeps the choice of the run that saved."""
        if state.get("choice") != self._choice and self._settings["preset"] == "auto":
            self._choice, self._spots = state.get("choice"), {}
            for unit in self._units.values():
                unit.reducer = None
        return [(name, unit) for name, unit in self._units.items() if name in state["groups"]]

    def add(self, name: str, group: Any) -> Callable[[torch.Tensor], None]:
        """The hook of one more parameter group."""
        unit = self._units[name] = Unit(self, name, group)
        return unit.hook

    def make_reducer(self, n: int) -> Reducer:
        self._spots = {}  # frozen parameters have none
        settings = {"host_staging": self._settings["host_staging"], **with_choice(self._settings, self._choice)}
        if n < self._min_numel or n <= (settings.get("k") or 0):
            settings = {"preset": "dense", **{name: settings[name] for name in _OF_DENSE if name in settings}}
        reducer = Reducer(n, communicator=self._comm, **settings)
        reducer.measure_for(sum(shard_values(unit.group) for unit in self._units.values()))
        return reducer

    def compare_start(self) -> None:
        """Collective, before the first exchange: options and shards must be the same in all replicas."""
        if not self._is_compared:
            compare_options(self._comm, f"min_numel {self._min_numel}, grad_scaler {self.grad_scaler is not None}")
            named = [pair for unit in self._units.values() for pair in names_of(unit.name, unit.group)]
            Start(named).compare(partial(_core.require_equal, self._comm))
            self._is_compared = True

    def share_profile(self, reducer: Reducer) -> None:
        """Before a step: all groups use the profile of the network that one of them measured."""
        is_open = self._settings["preset"] == "auto" and self._choice is None and reducer.n >= self._min_numel
        if self._profile is not None and is_open and reducer.profile is None:
            reducer.use_profile(self._profile)

    def note_profile(self, reducer: Reducer) -> None:
        if self._profile is None:
            self._profile = reducer.profile

    def settle(self) -> None:
        """A GradScaler skips the step of all groups, or of none."""
        for unit in self._units.values():
            unit.settle()


def _is_spot_of(spots: Dict[int, Spot], parameter: torch.Tensor) -> bool:
    spot = spots.get(id(parameter))
    return spot is not None and spot.parameter is parameter
