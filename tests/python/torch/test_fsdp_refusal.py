# SPDX-License-Identifier: Apache-2.0
"""register_fsdp where torch has no hook for it: an error that says which version has."""

import pytest
import torch

from oktopk.torch import fsdp


def test_a_torch_without_the_hook_is_told_which_version_has_it(monkeypatch):
    monkeypatch.setattr(fsdp, "FSDPModule", None)
    with pytest.raises(RuntimeError, match=r"needs torch 2\.7 or newer.*this is torch \d"):
        fsdp.register_fsdp(torch.nn.Linear(2, 2), None)
