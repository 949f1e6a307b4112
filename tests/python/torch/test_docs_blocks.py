# SPDX-License-Identifier: Apache-2.0
"""The Python blocks of README and docs, run as they stand on one rank. Blocks that need more are listed with the reason
in scripts/docs_blocks.py, and the others find here the names that they use without making them."""

import contextlib
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

import oktopk
import oktopk.torch

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

from docs_blocks import python_to_run  # noqa: E402


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    file = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def names():
    """One rank of threads, a model with a gradient to come, and what else the pages speak of."""
    model = torch.nn.Linear(200, 40)
    state = oktopk.torch.OkTopkState(density=0.01, start_iter=1)
    loss = types.SimpleNamespace(backward=lambda: model(torch.ones(4, 200)).square().mean().backward())
    return {
        "torch": torch, "dist": dist, "oktopk": oktopk, "OkTopkState": oktopk.torch.OkTopkState,
        "comm": oktopk.thread_world(1)[0], "n": 1000, "step": 1, "weights": np.zeros(1000, np.float32),
        "model": model, "state": state, "group": None, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": loss, "evaluate": lambda model: model(torch.ones(1, 200)), "data": [torch.ones(4, 200)] * 2,
    }  # fmt: skip


def callable_loss(space):
    """docs/pytorch_local_steps.md calls loss(model, batch); the other pages have a tensor."""
    space["loss"] = lambda model, batch: model(batch).square().mean()


@pytest.mark.parametrize("block", python_to_run(), ids=str)
def test_block_runs(block, group, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = names()
    if "loss(model, batch)" in block.text:
        callable_loss(space)
    with contextlib.redirect_stdout(None):
        exec(compile(block.text, str(block), "exec"), space)


def test_the_list_of_blocks_is_not_empty():
    assert len(python_to_run()) >= 10
