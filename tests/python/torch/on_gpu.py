# SPDX-License-Identifier: Apache-2.0
"""Steps that stay on the GPU, for tests that run on both devices. On the CPU, tensors pass for a GPU's: steps of the
library on the host take the place of the kernels, and Gloo that of NCCL."""

import torch
from models import DEVICE

from oktopk.torch import _flat_reducer, _sharded
from oktopk.torch import state as hook_state


class OnHost:
    """In the place of ResidentSteps."""

    def __init__(self, core, group, policy, look_every):
        self._core, self._kept = core, None

    def step(self, gradient, scale, out):
        self._core.step(gradient.clone(), scale)
        if self._core.skipped:
            out.fill_(float("nan"))
        else:
            mean = torch.empty(len(out))
            self._core.write_update(mean)
            out.copy_(mean)

    def keep(self, mean):
        self._kept = mean.clone()

    def give_back(self, spans, applied):
        mean = self._kept.nan_to_num(0.0)
        for (begin, end), is_applied in zip(spans, applied):
            mean[begin:end] *= not is_applied
        self._core.give_unsent(mean)


def pretend():
    """In a rank's process: from now on the steps of preset slots stay on the GPU, with group_size too."""

    def stays(options, group, device):
        return options.get("preset") == "slots"

    if DEVICE.type == "cpu":
        hook_state.stays_on_gpu = _flat_reducer.stays_on_gpu = _sharded.stays_on_gpu = stays
        _flat_reducer.ResidentSteps = OnHost
        _flat_reducer.FlatReducer._move_to = lambda self, gpu: None
