# SPDX-License-Identifier: Apache-2.0
"""Which process group sums the tensors of dense steps, and CUDA tensors where the package cannot use their GPU. Needs
no GPU."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import oktopk
from oktopk.torch import _gpu, _group
from oktopk.torch._gpu import require_reachable
from oktopk.torch.process_group import ProcessGroupTransport


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


GPU = torch.device("cuda", 3)


@pytest.fixture
def no_kernels(monkeypatch):
    def refuse(ordinal):
        raise oktopk.DeviceError(f"cuda device: GPU {ordinal} is on holiday")

    monkeypatch.setattr(_gpu, "CudaDevice", refuse)
    _gpu.trouble.cache_clear()
    yield
    _gpu.trouble.cache_clear()


def test_a_gpu_without_kernels_is_a_device_error_with_both_ways_out(no_kernels):
    with pytest.raises(oktopk.DeviceError) as caught:
        require_reachable(GPU, "parameter 0 is", host_staging=False)
    text = str(caught.value)
    assert text.startswith("oktopk: parameter 0 is on cuda:3, which this package cannot use: install it where nvcc")
    assert "host_staging=True" in text and text.endswith("The reason: cuda device: GPU 3 is on holiday")
    require_reachable(GPU, "parameter 0 is", host_staging=True)


def test_a_gpu_is_opened_once_for_all_reducers_of_a_communicator(monkeypatch):
    opened = []
    monkeypatch.setattr(_gpu, "CudaDevice", lambda ordinal: opened.append(ordinal) or object())

    class Transport:
        gpus = {}

    first = _gpu.gpu_of(Transport, GPU)
    assert _gpu.gpu_of(Transport, GPU) is first and _gpu.gpu_of(None, GPU) is not first
    assert opened == [3, 3]


def test_other_accelerators_and_cpu_tensors(no_kernels):
    require_reachable(torch.device("cpu"), "it is", host_staging=False)
    with pytest.raises(oktopk.UsageError, match="it is on meta, but messages leave from host memory: pass host_"):
        require_reachable(torch.device("meta"), "it is", host_staging=False)


def test_entries_reach_the_device_in_their_type():
    for dtype in (np.int64, np.float32):
        values = np.arange(5, dtype=dtype)
        assert _gpu.upload(values, torch.device("cpu")).tolist() == values.tolist()
