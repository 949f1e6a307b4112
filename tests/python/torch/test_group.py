# SPDX-License-Identifier: Apache-2.0
"""Which process group sums the tensors of dense steps."""

from types import SimpleNamespace

import pytest
import torch

from oktopk.torch import _group


@pytest.fixture
def world(monkeypatch):
    """Four ranks, a group of some of them, and a record of the groups that are made."""
    made = []
    fake = SimpleNamespace(
        group=SimpleNamespace(WORLD=SimpleNamespace(bound_device_id=None)),
        get_backend=lambda group: group.backend,
        get_backend_config=lambda group: f"cuda:{group.backend}",
        get_process_group_ranks=lambda group: group.ranks,
        get_world_size=lambda: 4,
    )
    monkeypatch.setattr(_group, "dist", fake)
    monkeypatch.setattr(_group, "new_group", lambda *args: made.append(args) or "a new one")
    return SimpleNamespace(fake=fake, made=made)


def group_of(backend, ranks=(0, 1, 2, 3)):
    return SimpleNamespace(backend=backend, ranks=list(ranks))


@pytest.mark.parametrize("concurrent", [False, True])
def test_groups_of_host_memory_sum_on_the_sibling(world, concurrent):
    for backend in ("gloo", "mpi", "ucc"):
        assert _group.sums_group(group_of(backend), "ours", 60.0, concurrent) == "ours"
    assert world.made == []


def test_a_group_of_nccl_sums_itself_unless_other_threads_use_it(world):
    nccl = group_of("nccl")
    assert _group.sums_group(nccl, "ours", 60.0, False) is nccl
    assert _group.sums_group(nccl, "ours", 60.0, True) == "a new one"
    assert world.made == [([0, 1, 2, 3], "cuda:nccl", 60.0)]


def test_some_ranks_of_a_world_bound_to_devices_cannot_make_a_new_group(world):
    world.fake.group.WORLD.bound_device_id = torch.device("cuda:0")
    assert _group.sums_group(group_of("nccl", [0, 2]), "ours", 60.0, True) is None
    assert _group.sums_group(group_of("nccl"), "ours", 60.0, True) == "a new one"
    assert _group.sibling(group_of("nccl", [0, 2]), 60.0) == "a new one"
    assert world.made[-1] == ([0, 2], "gloo", 60.0)


def test_a_transport_takes_a_group_that_serves_the_device():
    from oktopk.torch.process_group import ProcessGroupTransport

    class Serving:
        def __init__(self, *devices):
            self.devices = devices

        def _get_backend(self, device):
            if device.type not in self.devices:
                raise RuntimeError("No backend type associated with device type")

    transport = ProcessGroupTransport.__new__(ProcessGroupTransport)
    transport.group, transport._sums, transport.encrypts = Serving("cpu"), Serving("cuda"), False
    assert transport.group_for_sums(torch.device("cuda", 1)) is transport._sums
    assert transport.group_for_sums(torch.device("cpu")) is transport.group
    assert transport.group_for_sums(torch.device("meta")) is None
    transport._sums = None
    assert transport.group_for_sums(torch.device("cuda")) is None
