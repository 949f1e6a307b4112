# SPDX-License-Identifier: Apache-2.0
"""Nodes of GPUs, for group_size: the G ranks of a host, and the peers that have the same place in the other hosts. A
bucket is summed and cut into shards inside a node, and each shard is synchronised between its peers (_sharded.py).

COST: two new process groups per rank and one communicator of the peers, made once for each communicator.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional

import torch
import torch.distributed as dist

from oktopk._core import CommError, PythonCommunicator
from oktopk.torch._group import can_be_parted, count_groups, fill_groups, part_of
from oktopk.torch._resident import stays_on_gpu
from oktopk.torch.process_group import communicator


class Node(NamedTuple):
    """The place of this rank in its node, and the communicators there."""

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


def has_node(comm: Any, options: Mapping[str, Any], device: torch.device) -> bool:
    """Whether node_of() gives one. Local, the same on all ranks."""
    return _nodes_of(comm, options, device) is not None


def node_of(comm: Any, options: Mapping[str, Any], device: torch.device) -> Optional[Node]:
    """Collective: the node of this rank; None where the ranks of a node sum in host memory (docs/hierarchy.md)."""
    nodes = _nodes_of(comm, options, device)
    if nodes is None:
        return None
    made: Dict[str, Node] = comm.python_transport.nodes
    key = str((nodes, device))
    if key not in made:
        made[key] = _make(comm, nodes, device)
    return made[key]


def _nodes_of(comm: Any, options: Mapping[str, Any], device: torch.device) -> Optional[List[List[int]]]:
    """The ranks of each node, where nodes stay on the device: all have one size, above 1."""
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
