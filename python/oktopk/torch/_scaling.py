# SPDX-License-Identifier: Apache-2.0
"""The hook with a GradScaler: the scale of an iteration, and steps that the scaler may still leave out (_applied.py).
They are settled when the next iteration begins, or when the state is saved."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple, Union

import torch

from oktopk.torch._applied import Applied
from oktopk.torch._channel import Channel
from oktopk.torch._channels import Channels

Parameters = Sequence[torch.Tensor]
Scale = Union[float, torch.Tensor]  # a tensor: the host need not know it


class Scaling:
    """Belongs to the steps of one state."""

    def __init__(self, scaler: Any, is_on_gpu: bool):
        """is_on_gpu: nothing is to wait for the GPU."""
        self._scaler = scaler
        self._is_on_gpu = is_on_gpu
        self._applied = Applied()
        self.scale: Scale = 1.0
        self.forget()

    def forget(self) -> None:
        """Steps so far stay as they are."""
        self._steps: List[Tuple[Channel, Parameters]] = []
        # Unsent values of parameters whose bucket is dense now.
        self._gone: List[Tuple[Parameters, Dict[str, torch.Tensor]]] = []

    def begin(self, channels: Channels) -> None:
        """The first of an iteration."""
        self.settle(channels)
        on_gpu = getattr(self._scaler, "_get_scale_async", None) if self._is_on_gpu else None
        scale = on_gpu() if on_gpu is not None else None
        self.scale = float(self._scaler.get_scale()) if scale is None else scale

    def before_step(self, channel: Channel, parameters: Parameters, device: torch.device) -> None:
        channel.keep_for_undo(device)
        self._applied.watch(parameters)
        self._steps.append((channel, parameters))

    def after_dense(self, parameters: Parameters, unsent: Dict[str, torch.Tensor]) -> None:
        """A dense step took `unsent` along."""
        if unsent:
            self._applied.watch(parameters)
            self._gone.append((parameters, unsent))

    def settle(self, channels: Channels) -> None:
        """Undoes the step of each parameter that the GradScaler skipped."""
        steps, gone = self._steps, self._gone
        self.forget()
        for channel, parameters in steps:
            channel.undo([p in self._applied for p in parameters])
        for parameters, unsent in gone:
            pairs = zip(parameters, unsent.items())
            channels.give_unsent(dict(u for p, u in pairs if p not in self._applied))
