# SPDX-License-Identifier: Apache-2.0
"""For tests that need an NVIDIA GPU: they are skipped aloud where there is none. All ranks share the first GPU."""

import os

import pytest
import torch
import torch.distributed as dist

from oktopk.torch import _gpu


def why_not():
    """Why no test can use a GPU here; empty where one can. Does not begin to use CUDA in this process."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    if not torch.cuda.is_available():
        return "torch finds no NVIDIA GPU"
    return ""


needs_gpu = pytest.mark.skipif(why_not() != "", reason=f"NOT RUN: {why_not()}")


def use_gpu():
    """In a rank's process: the GPU, after a check that the package can use it."""
    trouble = _gpu.trouble(0)
    assert not trouble, trouble  # no skip: the package on a machine with a GPU must have its kernels
    torch.cuda.set_device(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    return torch.device("cuda", 0)


def several_on_one_gpu(rank):
    """Before NCCL connects: several ranks share a GPU when each says that it is another host."""
    os.environ.update(NCCL_HOSTID=f"rank{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")


def nccl_group(rank, P):
    """Collective: the same ranks over NCCL."""
    several_on_one_gpu(rank)
    return dist.new_group(list(range(P)), backend="nccl")


def same_bits(a, b):
    a, b = a.detach().cpu().contiguous(), b.detach().cpu().contiguous()
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))
