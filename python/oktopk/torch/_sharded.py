# SPDX-License-Identifier: Apache-2.0
"""group_size on GPUs: all that is of length n stays there (docs/hierarchy.md). A FlatReducer of the shard, over the
ranks with the same place in their nodes, does the sparse part, as it does for a unit of FSDP2.

    reduce_scatter   inside the node: this rank's shard of the node's mean, ceil(n / G) values
    FlatReducer      between the nodes: the shard becomes the mean over all ranks
    all_gather       inside the node: the mean, all n values

A row of n / G values has one more, the mark: NaN where some value of the gradient is not finite. So all shards of a
step are void, or none is. COST: 3 passes over n floats on the GPU; n floats of its memory during a step, n / G kept;
two process groups per rank and one communicator of the peers, made once for each communicator.
"""

from __future__ import annotations

import struct
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from oktopk._core import CommError, Communicator, PythonCommunicator, UsageError
from oktopk.torch._flat_reducer import FlatReducer
from oktopk.torch._gpu import all_gather, exchange, reduce_scatter, stays_on_gpu
from oktopk.torch._group import can_be_parted, count_groups, fill_groups, part_of
from oktopk.torch.coordinates import WHERE_NONZERO, Arrived
from oktopk.torch.process_group import communicator


class Node(NamedTuple):
    """The place of this rank in its node, the G ranks of a host, and the communicators there. Its peers have the same
    place in the other nodes."""

    inside: Any  # process group of the node
    size: int
    place: int
    peers: PythonCommunicator  # of the ranks with the same place
    device: torch.device


def wants_node(options: Mapping[str, Any], group: Optional[Any], device: torch.device) -> bool:
    """Whether steps with these options stay on the device, if all nodes have the same size."""
    if options.get("group_size") is None or not stays_on_gpu({**options, "group_size": None}, group, device):
        return False
    return can_be_parted(group)


def node_of(comm: Any, options: Mapping[str, Any], device: torch.device) -> Optional[Node]:
    """Collective: the node of this rank; None where the ranks of a node sum in host memory (docs/hierarchy.md)."""
    nodes = nodes_of(comm, options, device)
    if nodes is None:
        return None
    made: Dict[str, Node] = comm.python_transport.nodes
    key = str((nodes, device))
    if key not in made:
        made[key] = _make(comm, nodes, device)
    return made[key]


def nodes_of(comm: Any, options: Mapping[str, Any], device: torch.device) -> Optional[List[List[int]]]:
    """The ranks of each node, where nodes stay on the device: all have one size, above 1. Local, the same on all ranks;
    None: node_of() gives none."""
    transport = getattr(comm, "python_transport", None)
    group_for_sums = getattr(transport, "group_for_sums", None)
    if group_for_sums is None or not wants_node(options, group_for_sums(device), device):
        return None
    nodes = _members(getattr(transport, "hosts", []), comm.size, options["group_size"])
    sizes = {len(node) for node in nodes}
    return nodes if len(sizes) == 1 and sizes != {1} else None


def _members(hosts: List[Any], P: int, group_size: Any) -> List[List[int]]:
    """The ranks of each node, by the lowest rank of each."""
    if group_size != "host":
        return [list(range(first, min(first + group_size, P))) for first in range(0, P, group_size)]
    nodes: Dict[Any, List[int]] = {}
    for rank, host in enumerate(hosts):
        nodes.setdefault(host, []).append(rank)
    return list(nodes.values())


def _make(comm: Any, nodes: List[List[int]], device: torch.device) -> Node:
    transport = comm.python_transport
    group = transport.group_for_sums(device)
    everywhere = dist.get_process_group_ranks(group)
    inside = [[everywhere[rank] for rank in node] for node in nodes]
    across = [list(ranks) for ranks in zip(*inside)]
    counts: List[Any] = [None] * comm.size
    try:
        dist.all_gather_object(counts, count_groups(), group=transport.group)
        fill_groups(max(counts))
        own = part_of(group, inside, comm.timeout)
        peers = communicator(
            part_of(group, across, comm.timeout),
            comm.timeout,
            silence=transport.silence,
            secret_file=transport.secret_file,
            encrypt=transport.encrypts,
        )
    except RuntimeError as error:
        raise CommError(f"oktopk: the ranks could not make the groups of their nodes: {error}") from error
    return Node(own, len(nodes[0]), dist.get_rank(own), peers, device)


Spans = Sequence[Tuple[int, int]]


class Place(NamedTuple):
    """Of a saved state: n, ranks and place of its node, ranks and rank in the job."""

    n: int
    G: int
    place: int
    P: int
    rank: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.P} in nodes of {self.G}, n = {self.n}"


_MAGIC = b"oktopk shards 1\n"
_HEAD = struct.Struct("<16s5Q")


class _Shard(FlatReducer):
    """Names a value of the shard by its index in the whole gradient."""

    first = 0

    def _place_of(self, i: int) -> str:
        is_mark = i == self.core.n - 1
        return "in another shard of the node" if is_mark else f"at index {self.first + i}"


def _of_shard(name: str) -> Any:
    """An attribute of the shard's native Reducer."""
    return property(lambda self: getattr(self._core, name))


class ShardedCore:
    """What others ask the native Reducer, for all n values. Values that are unsent are those of the whole node: the
    Reducer of the shard holds their mean, so G times as much is unsent here."""

    def __init__(self, comm: Communicator, n: int, node: Node, shard: FlatReducer):
        self.n = n
        self._node = node
        self._here = Place(n, node.size, node.place, comm.size, comm.rank)
        self._core = shard.core
        self._each: int = self._core.n - 1
        self.first = node.place * self._each
        self.leaders: List[int] = []  # every rank has a part of its node's work

    # Equal for the shard.
    steps, skipped, is_warm, pace, begin_at, profile, use_profile, forget, has_unsent, ranks_led, resident_state = map(
        _of_shard,
        "steps skipped is_warm pace begin_at profile use_profile forget has_unsent ranks_led resident_state".split(),
    )

    @property
    def k(self) -> int:
        return min(self.n, int(self._core.k) * self._node.size)

    @property
    def stats(self) -> Dict[str, Any]:
        """Bytes are those that this rank sends to other nodes."""
        return {**self._core.stats, "n": self.n, "k": self.k}

    @property
    def unsent_norm(self) -> float:
        return self._node.size * float(self._core.unsent_norm)

    @property
    def residual(self) -> NDArray[np.float32]:
        shard: NDArray[np.float32] = self._core.residual
        first, memory = self._core.memory
        shard[first : first + len(memory)] += memory
        return self._placed(shard)

    @property
    def memory(self) -> Tuple[int, NDArray[np.float32]]:
        """The residual has it."""
        return 0, np.empty(0, np.float32)

    def take_unsent(self, out: torch.Tensor) -> None:
        shard = np.empty(self._core.n, np.float32)
        self._core.take_unsent(shard)
        out.copy_(torch.from_numpy(self._placed(shard)))

    def give_unsent(self, values: torch.Tensor) -> None:
        """Collective inside the node: each rank gets the values of its shard."""
        rows = self.rows_of(values, 1.0)
        shard = self.scatter(rows)
        self._core.give_unsent(shard.cpu())

    def rows_of(self, flat: torch.Tensor, scale: float) -> torch.Tensor:
        """scale * flat / G, one row per shard, the mark at its end. Does not wait for the device. A mean of the node
        does not overflow, as its sum might."""
        G, each = self._node.size, self._each
        rows = torch.zeros((G, each + 1), device=self._node.device)
        whole, rest = divmod(self.n, each)
        scaled = flat.to(self._node.device, torch.float32).mul(scale / G)
        rows[:whole, :each] = scaled[: whole * each].view(whole, each)
        if rest > 0:
            rows[whole, :rest] = scaled[whole * each :]
        rows[:, each] = torch.linalg.vector_norm(scaled, float("inf")) * 0
        return rows

    def scatter(self, rows: torch.Tensor) -> torch.Tensor:
        """Collective: this rank's row of the sum over the node."""
        shard = torch.empty(self._each + 1, device=rows.device)
        exchange(self._core, reduce_scatter, shard, rows.view(-1), self._node.inside)
        return shard

    def gather(self, shard: torch.Tensor) -> torch.Tensor:
        """Collective: all n values, from the shards of the node."""
        rows = torch.empty((self._node.size, self._each + 1), device=self._node.device)
        exchange(self._core, all_gather, rows.view(-1), shard.to(self._node.device), self._node.inside)
        return rows[:, : self._each].reshape(-1)[: self.n]

    def save(self) -> bytes:
        inner: bytes = self._core.save()
        return _HEAD.pack(_MAGIC, *self._here) + inner

    def load(self, state: bytes) -> None:
        place, inner = _opened(state)
        if place != self._here:
            raise UsageError(f"oktopk: the state of {place}, but this is {self._here}: load_all() takes those of all")
        self._core.load(inner)

    def load_all(self, states: Sequence[bytes]) -> None:
        """From any number of nodes of the same size."""
        opened = [_opened(state) for state in states]
        for rank, (place, _) in enumerate(opened):
            if (place.n, place.G) != (self.n, self._node.size):
                raise UsageError(
                    f"oktopk: the state of {place}, but here nodes have {self._node.size} ranks, and n = {self.n}: "
                    "shards of another size cannot be loaded"
                )
            if (place.rank, place.P) != (rank, len(opened)):
                raise UsageError(f"oktopk: state {rank} of {len(opened)} is that of {place}: give all, in rank order")
        self._core.load_all([inner for place, inner in opened if place.place == self._node.place])

    def _placed(self, shard: NDArray[np.float32]) -> NDArray[np.float32]:
        flat = np.zeros(self.n, np.float32)
        end = min(self.first + self._each, self.n)
        if end > self.first:
            flat[self.first : end] = shard[: end - self.first] * np.float32(self._node.size)
        return flat


def _opened(state: bytes) -> Tuple[Place, bytes]:
    if len(state) < _HEAD.size or state[: len(_MAGIC)] != _MAGIC:
        raise UsageError(
            "oktopk: not a state of group_size on GPUs: it was saved on the CPU, without group_size, or with nodes of "
            "different sizes"
        )
    return Place(*_HEAD.unpack_from(state)[1:]), state[_HEAD.size :]


class ShardedReducer:
    """A FlatReducer whose ranks of a node share the work. Belongs to one rank; all ranks make the same calls. Its
    selection is not levelled (_levels.py)."""

    may_level = False
    saved_levels = None

    def __init__(self, comm: Communicator, n: int, options: Dict[str, Any], node: Node):
        self._size = node.size
        values, k = -(-n // node.size) + 1, options.get("k")
        if k is not None:
            k = values if k >= n else -(-k // node.size)
        self._shard = _Shard(node.peers, values, {**options, "group_size": None, "k": k})
        self.core = ShardedCore(comm, n, node, self._shard)
        self._shard.first = self.core.first
        self._mean: Optional[torch.Tensor] = None

    @property
    def look_every(self) -> int:
        return self._shard.look_every

    @look_every.setter
    def look_every(self, steps: int) -> None:
        self._shard.look_every = steps

    def measure_for(self, step_values: int) -> None:
        self._shard.measure_for(-(-step_values // self._size))

    def makes_dense(self, device: torch.device) -> bool:
        return self._shard.makes_dense(device)

    def stays_on_gpu(self, device: torch.device) -> bool:
        return self._shard.stays_on_gpu(device)

    @torch.no_grad()
    def step(self, flat: torch.Tensor, scale: float) -> None:
        """Collective: adds scale * flat to what is unsent, and synchronises; write() then gives the mean."""
        self._mean = None
        shard = self.core.scatter(self.core.rows_of(flat.detach(), scale))
        self._shard.step(shard, 1.0)
        if not self._shard.core.skipped:
            self._gather(shard)

    def flush(self) -> None:
        """Collective: synchronises everything that is unsent, densely."""
        self._shard.flush()
        self._gather(torch.empty(self._shard.core.n))

    def _gather(self, shard: torch.Tensor) -> None:
        self._shard.write(shard)
        self._mean = self.core.gather(shard)

    @torch.no_grad()
    def write(self, flat: torch.Tensor, factor: float = 1.0) -> None:
        """The last mean times factor, as all n values. Once, and not after a skipped step."""
        mean, self._mean = self._mean, None
        assert mean is not None
        flat.copy_(mean if factor == 1.0 else mean.mul_(factor))

    @property
    def skipped(self) -> bool:
        return self._shard.skipped

    def arrived(self, bounds: Spans, device: torch.device) -> List[Arrived]:
        """None: everywhere, after a dense step."""
        return [None if self._shard.arrived([(0, 1)], device) == [None] else WHERE_NONZERO] * len(bounds)

    def level_by(self, moments: Any, parameters: Any) -> None:
        pass

    def load_levels(self, saved: Any) -> None:
        if saved is not None:
            raise UsageError("oktopk: the saved state has a levelled selection, which group_size on GPUs has not")

    def unsent_norm(self) -> float:
        return self.core.unsent_norm

    def take_unsent(self, out: torch.Tensor) -> None:
        self.core.take_unsent(out)

    def give_unsent(self, values: torch.Tensor) -> None:
        self.core.give_unsent(values)

    def unsent(self) -> torch.Tensor:
        return torch.from_numpy(self.core.residual)

    def keep_snapshot(self) -> None:
        self._shard.keep_snapshot()

    def go_back(self) -> None:
        self._shard.go_back()

    def keep_for_undo(self, device: torch.device) -> None:
        self._shard.keep_for_undo(device)

    def undo(self, spans: Spans, applied: Sequence[bool]) -> None:
        """After keep_for_undo() and a step: for each span, the part of it in this shard."""
        first, each = self.core.first, self._shard.core.n - 1
        cut = [(min(max(begin - first, 0), each), min(max(end - first, 0), each)) for begin, end in spans]
        self._shard.undo(cut, applied)


AnyReducer = Union[FlatReducer, ShardedReducer]


def make_reducer(
    comm: Communicator,
    n: int,
    options: Dict[str, Any],
    host_staging: bool = False,
    device: Optional[torch.device] = None,
) -> AnyReducer:
    """A Reducer of flat tensors; collective with group_size. device: of the tensors; None: not known yet."""
    node = None if host_staging or device is None else node_of(comm, options, device)
    if node is not None:
        return ShardedReducer(comm, n, options, node)
    return FlatReducer(comm, n, options, host_staging)


class Span(NamedTuple):
    """A parameter's place: begin..end-1 of the flat gradient of a reducer."""

    reducer: AnyReducer
    begin: int
    end: int


def arrived_of(spans: Sequence[Optional[Span]], parameters: Sequence[torch.Tensor]) -> List[Arrived]:
    """Where the last mean arrived in each of the parameters, on their devices; None: everywhere, as where there is no
    span. COST: a few microseconds per parameter, one copy to a device per reducer.
    """
    arrived: List[Arrived] = [None] * len(spans)
    together: Dict[Tuple[AnyReducer, torch.device], List[int]] = {}
    bounds: Dict[int, Tuple[int, int]] = {}
    for i, span in enumerate(spans):
        if span is not None:
            bounds[i] = (span.begin, span.end)
            together.setdefault((span.reducer, parameters[i].device), []).append(i)
    for (reducer, device), places in together.items():
        for i, indices in zip(places, reducer.arrived([bounds[i] for i in places], device)):
            arrived[i] = indices
    return arrived
