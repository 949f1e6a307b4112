# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors where the package cannot use their GPU: the error says both ways out. Needs no GPU."""

import pytest
import torch

import oktopk
from oktopk.torch import _gpu
from oktopk.torch._gpu import require_reachable

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
    import numpy as np

    for dtype in (np.int64, np.float32):
        values = np.arange(5, dtype=dtype)
        assert _gpu.upload(values, torch.device("cpu")).tolist() == values.tolist()
