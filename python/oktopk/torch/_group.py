# SPDX-License-Identifier: Apache-2.0
"""Process groups: which objects users may give as one, their timeouts, and new groups that only their own ranks make,
in every version of torch: one moves host memory for our messages, one sums tensors where they live. Before the first
exchange the ranks of a group compare their options here."""

from __future__ import annotations

import inspect
import math
from datetime import timedelta
from typing import Any, Dict, List, Optional, Union

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d

from oktopk import _core
from oktopk._core import CommError, PythonCommunicator, UsageError, calibrate

Timeout = Union[float, timedelta]
DEFAULT_SECONDS = 1800.0  # torch.distributed's own
DEFAULT_SILENCE = 30.0  # a rank that shows no sign of life for so long is lost; a thread of its own shows them
LEAST_SILENCE = 0.1  # that of transport tcp
HOST_BACKENDS = ("gloo", "mpi", "ucc")


def as_group(given: Optional[Any]) -> Any:
    """A process group of one, of a DeviceMesh of one dimension, or of None: all ranks."""
    if given is None:
        return dist.group.WORLD
    if not hasattr(given, "get_group"):
        is_number = isinstance(given, int) and given != dist.GroupMember.NON_GROUP_MEMBER
        if is_number or isinstance(given, (list, tuple, str)):
            raise UsageError(
                f"oktopk: process_group = {given!r}, but it must be a process group "
                "(torch.distributed.new_group(ranks)), a DeviceMesh of one dimension, or None"
            )
        return given
    if given.ndim != 1:
        raise UsageError(
            f"oktopk: a DeviceMesh of {given.ndim} dimensions, {given.mesh_dim_names}, as process "
            "group: give one of them, such as mesh['replicate']"
        )
    return given.get_group()


def check_waits(timeout: Optional[Timeout], silence: Optional[Timeout]) -> None:
    """UsageError unless both are times: seconds, a timedelta, or None."""
    _seconds("timeout", timeout)
    silence_of(silence)


def refuse_beside_communicator(**given: Any) -> None:
    """UsageError where one of them is given beside a communicator, which has its own."""
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"oktopk: {name} = {value!r} beside a communicator: give it to the communicator")


def seconds_of(timeout: Optional[Timeout], group: Any) -> float:
    """The timeout in seconds; None: the one that the process group was made with."""
    seconds = _seconds("timeout", timeout)
    if seconds is not None:
        return seconds
    # Asks its backend for host memory where there is one. torch has no public name for it.
    for device in ("cpu", "cuda"):
        try:
            backend = group._get_backend(torch.device(device))
            return float(backend.options._timeout.total_seconds())
        except (AttributeError, RuntimeError):  # it has none for this device
            continue
    return DEFAULT_SECONDS


def silence_of(silence: Optional[Timeout]) -> float:
    """The silence in seconds; None: the default."""
    seconds = _seconds("silence", silence)
    if seconds is None:
        return DEFAULT_SILENCE
    if seconds < LEAST_SILENCE:
        raise UsageError(f"oktopk: silence = {silence!r}, but it must be at least {LEAST_SILENCE} s")
    return seconds


def _seconds(name: str, value: Optional[Timeout]) -> Optional[float]:
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not (is_number and math.isfinite(seconds) and seconds > 0):
        raise UsageError(f"oktopk: {name} = {value!r}, but it must be positive: seconds or a datetime.timedelta")
    return float(seconds)


def sibling(group: Any, seconds: float) -> Any:
    """Collective: a new group over the same ranks that moves host memory."""
    backend = str(dist.get_backend(group)).lower()
    if backend not in HOST_BACKENDS:
        backend = "gloo"
    try:
        return new_group(dist.get_process_group_ranks(group), backend, seconds)
    except RuntimeError as error:
        raise CommError(f"oktopk: the ranks could not make a group of their own: {error}") from error


def sums_group(group: Any, ours: Any, seconds: float, concurrent: bool) -> Optional[Any]:
    """Collective: the group for dense sums of tensors. `ours`, the sibling, where it has the same backend; else the
    group itself, unless other threads use it at the same time; then a new one. A new group of NCCL takes GPU memory
    only when it is used."""
    backend = str(dist.get_backend(group)).lower()
    if backend in HOST_BACKENDS:
        return ours
    if not concurrent:
        return group
    if not can_be_parted(group):
        return None
    ranks = dist.get_process_group_ranks(group)
    config = getattr(dist, "get_backend_config", None)
    return new_group(ranks, config(group) if config is not None else backend, seconds)


def can_be_parted(group: Any) -> bool:
    """Whether its ranks can make new groups for GPUs. In a world that is bound to devices torch would split the
    communicator of the world, and wait for ranks that are not of this group."""
    is_bound = getattr(dist.group.WORLD, "bound_device_id", None) is not None
    return not is_bound or len(dist.get_process_group_ranks(group)) == dist.get_world_size()


def part_of(group: Any, parts: List[List[int]], seconds: float) -> Any:
    """Collective over the group: a new group of the part that has this rank, with the backends of the whole. parts:
    the ranks of the job that each has."""
    config = getattr(dist, "get_backend_config", None)
    backend = config(group) if config is not None else str(dist.get_backend(group))
    if dist.get_world_size(group) < dist.get_world_size():
        return new_group(next(part for part in parts if dist.get_rank() in part), backend, seconds)
    made = [dist.new_group(part, timedelta(seconds=seconds), backend) for part in parts]  # all ranks make all of them
    return next(new for new, part in zip(made, parts) if dist.get_rank() in part)


def serves(group: Any, device: torch.device) -> bool:
    """Whether the group has a backend for tensors of this device."""
    try:
        group._get_backend(torch.device(device.type))
    except (RuntimeError, AttributeError):
        return False
    return True


def sends_gpu_memory(group: Any) -> bool:
    """Whether the group moves tensors between NVIDIA GPUs by itself, behind the work on the current stream."""
    try:
        return str(group._get_backend(torch.device("cuda")).name()).lower() == "nccl"
    except (RuntimeError, AttributeError):
        return False


def new_group(ranks: List[int], backend: str, seconds: float = DEFAULT_SECONDS) -> Any:
    """Collective over these ranks, which need not be all. They are numbered as they are sorted."""
    everyone = len(ranks) == dist.get_world_size()
    options: Dict[str, Any] = {} if everyone else {"use_local_synchronization": True}
    timeout = timedelta(seconds=seconds)
    if options.keys() <= inspect.signature(dist.new_group).parameters.keys():
        return dist.new_group(ranks, timeout, backend, **options)
    return _as_in_torch_2_0(sorted(ranks), timeout, backend)


def count_groups() -> int:
    """Groups that this process has made. Torch names a group of some ranks by this number on each of them."""
    return len(dist.distributed_c10d._world.pg_names)


def fill_groups(count: int) -> None:
    """Makes groups of this rank alone until there are `count`: ranks that made fewer would wait under another name."""
    while count_groups() < count:
        new_group([dist.get_rank()], "gloo")


def _as_in_torch_2_0(ranks: List[int], timeout: timedelta, backend: str) -> Any:
    """Its new_group() without what needs all ranks of the job: the count of groups as the name, and the barrier."""
    c10d: Any = dist.distributed_c10d  # Any: newer versions differ
    name = "oktopk_" + "_".join(str(rank) for rank in ranks)
    while name in c10d._world.pg_names.values():  # on all members alike
        name += "_"
    group = c10d._new_process_group_helper(
        len(ranks),
        ranks.index(dist.get_rank()),
        ranks,
        dist.Backend(backend),
        c10d._get_default_store(),
        group_name=name,
        timeout=timeout,
    )
    c10d._world.pg_group_ranks[group] = {rank: place for place, rank in enumerate(ranks)}
    return group


def require_equal(comm: PythonCommunicator, description: str, trouble: str = "") -> None:
    """Collective: as agree(), for the ranks of a communicator."""
    transport: Any = comm.python_transport
    agree(transport.group, description, trouble)


def compare_options(comm: Any, description: str) -> None:
    """The same over the messages of any communicator, which need not have a process group."""
    try:
        _core.require_equal(comm, "oktopk: the options", description)
    except UsageError as error:
        raise UsageError(f"{error}: give all ranks the same") from None


def agree(group: Any, description: str, trouble: str = "", more: Any = None) -> List[Any]:
    """Collective: UsageError on every rank, with what differs, unless all say the same. trouble: why this rank cannot
    go on; then no rank does. Gives the `more` of all ranks, which may differ."""
    said: List[Any] = [None] * dist.get_world_size(group)
    try:
        dist.all_gather_object(said, (description, trouble.replace("oktopk: ", "", 1), more), group=group)
    except RuntimeError as error:
        raise CommError(f"oktopk: the ranks could not compare their options: {error}") from error
    for rank, (_, other, _) in enumerate(said):
        if other:
            raise UsageError(f"oktopk: rank {rank}: {other}")
    for rank, (other, _, _) in enumerate(said):
        if other != said[0][0]:
            pairs = zip(said[0][0].split(", ") + [""], other.split(", ") + [""])
            here, there = next(((x, y) for x, y in pairs if x != y), (said[0][0], other))
            raise UsageError(
                f"oktopk: ranks have different options: rank 0 has '{here}', rank {rank} has "
                f"'{there}': give all ranks the same"
            )
    return [last for _, _, last in said]


def options_of_nodes(comm: PythonCommunicator, options: Dict[str, Any], n: int) -> Dict[str, Any]:
    """Collective, with group_size: all buckets share the communicators of their nodes, and one measured profile.
    n: values of all buckets."""
    transport: Any = comm.python_transport
    transport.shares_parts = True
    if options["preset"] != "auto" or options.get("profile") is not None:
        return options
    size = options["group_size"]
    return {**options, "profile": calibrate(comm, ranks_per_host=1 if size == "host" else size, n=n)}
