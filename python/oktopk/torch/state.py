# SPDX-License-Identifier: Apache-2.0
"""OkTopkState: the state of the DDP hook between steps.

Per step and bucket: gradient -> residual += gradient -> exchange of the largest entries -> mean into the bucket
(_steps.py). Residuals belong to parameters, so DDP's rebuilding of its buckets loses nothing. Here: the settings, what
users ask, and saving.
Memory per rank: n floats of residual and n / P of owner memory, on the GPU where the gradients are; on the host n more
with a GradScaler, to be able to go back.
"""

from __future__ import annotations

import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Union

import torch

from oktopk._core import UsageError
from oktopk.flight import Recorded
from oktopk.options import MoreOptions, require_known, show_options
from oktopk.torch._counters import CompressionStats
from oktopk.torch._group import Timeout, check_waits
from oktopk.torch._owner import group_of
from oktopk.torch._saved import Saved
from oktopk.torch._secrecy import File
from oktopk.torch._settings import active, count, truth, with_recipe
from oktopk.torch._steps import Metrics, Steps
from oktopk.torch.checkpoint import Place, wrap
from oktopk.torch.coordinates import Arrived

if TYPE_CHECKING:
    from typing_extensions import Unpack

_SECRECY = ("secret_file", "encrypt")


@show_options
class OkTopkState(Recorded, Steps):
    """State of `oktopk_hook`, one per DDP model.

        state = OkTopkState(total_steps=20_000)
        ddp.register_comm_hook(state, oktopk_hook)

    Settings are fixed when the state is made. callback may be set at any time, process_group and grad_scaler before the
    first step. Arguments:

    process_group: the ranks that DDP synchronises, as a process group or a DeviceMesh of one dimension (default: DDP's
        own).
    total_steps: the steps of the whole run. Whatever of density, codec and start is not given then follows from the
        recipe (docs/learning.md): 2.5% of the values in 4 bits; in the first tenth of the steps 90% of them.
    density: the share of each bucket's values that a step sends, above 0 and below 1 (default: the recipe's; without
        total_steps 0.01, which is 1%; none where k is given).
    preset: "auto" measures the network before the first sparse step and takes the fastest one, dense included; or a
        name of oktopk.presets(): "circulant" is ours, "oktopk" is Ok-Topk, "dense" is DDP's own allreduce.
    start_iter: the number of dense steps at the start; with total_steps, a share of all steps from 0 to below 1
        (default: the recipe's start; without total_steps 100).
    min_numel: buckets with fewer values are always dense. So are buckets of other types than fp32, bf16 and fp16.
    codec: the coding of entries on the wire, such as "elias_fano+bf16"; None: the preset's own.
    grad_scaler: the GradScaler of mixed precision training. Residuals are then kept unscaled, and a step that the
        GradScaler skips is undone.
    host_staging: True copies gradients of an accelerator to the host and back. CUDA gradients do not need it: without
        it their GPU selects, and keeps what is unsent.
    timeout: seconds, or a timedelta, after which a wait for another rank gives up (default: that of the process group).
    callback: called after each sparse bucket with a dict of metrics (oktopk.metrics).
    decay: multiplies the unsent values in each step; 1 (the default) forgets nothing.
    silence: seconds, or a timedelta, after which a rank without a sign of life is lost (default: 30 s); at least 0.1 s,
        the same on all ranks. A thread of its own shows them, also during long computations.
    levelled: whether the second moments v of SparseAdamW take part in the selection: it then compares |sum| / v^(1/4)
        instead of |sum| (default: with the recipe). No effect with other optimisers or mode "published", where they
        lack a parameter of the model (ZeroRedundancyOptimizer), and with group_size on GPUs.
    secret_file, encrypt: as in oktopk.torch.communicator(). Encryption protects what the hook sends; DDP's own messages
        (initial weights, buffers) are the process group's. Buckets of other types than fp32, bf16 and fp16, and
        gradients in sparse layout, are then refused.
    options: those of every Reducer, at the end of this text (oktopk/options.py). Density, k and budget hold for each
        bucket; a bucket of no more than k values is dense.
    """

    CHANGEABLE = ("callback", "iteration")
    UNTIL_FIRST_STEP = ("process_group", "grad_scaler")

    def __init__(
        self,
        process_group: Optional[Any] = None,
        density: Optional[float] = None,
        preset: str = "auto",
        start_iter: Optional[Union[int, float]] = None,
        min_numel: int = 4096,
        codec: Optional[str] = None,
        grad_scaler: Optional[Any] = None,
        host_staging: bool = False,
        timeout: Optional[Timeout] = None,
        callback: Optional[Callable[[Metrics], None]] = None,
        total_steps: Optional[int] = None,
        decay: Optional[float] = None,
        silence: Optional[Timeout] = None,
        levelled: Optional[bool] = None,
        secret_file: Optional[File] = None,
        encrypt: Optional[bool] = None,
        **options: Unpack[MoreOptions],
    ):
        require_known(OkTopkState.__init__, options)
        check_waits(timeout, silence)
        named = {"density": density, "preset": preset, "codec": codec, "decay": decay}
        dense_steps, given = with_recipe(named, options, start_iter, total_steps)
        has_recipe = start_iter is None and total_steps is not None
        vars(self).update(
            preset=preset,
            start_iter=dense_steps,
            min_numel=count("min_numel", min_numel, 0),
            host_staging=truth("host_staging", host_staging),
            timeout=timeout,
            silence=silence,
            secret_file=None if secret_file is None else os.fspath(secret_file),
            encrypt=None if encrypt is None else truth("encrypt", encrypt),
            levelled=has_recipe if levelled is None else truth("levelled", levelled),
            options=MappingProxyType(given),
        )
        self.process_group = process_group
        self.grad_scaler = grad_scaler
        self.callback = callback
        self.iteration = 0
        self._reset()
        active(grad_scaler)
        self._description()  # unfit options are refused here

    @property
    def density(self) -> Optional[float]:
        """None: k says how many entries are sent."""
        density: Optional[float] = self.options["density"]
        return density

    @property
    def codec(self) -> Optional[str]:
        """The codec as given; None: that of the preset."""
        codec: Optional[str] = self.options["codec"]
        return codec

    def use_second_moments(self, optimiser: torch.optim.Optimizer) -> None:
        """Called by SparseAdamW: with `levelled`, its `exp_avg_sq` takes part in the selection. It is equal on all
        ranks."""
        self._moments.add(optimiser)

    def trust_optimisers(self) -> None:
        """No warning about optimisers that do not know which coordinates arrived: front-ends look at them, or you know
        why yours is the right one."""
        self._watch.close()

    # The methods below answer users.

    def arrived(self, parameter: torch.Tensor) -> Arrived:
        """Flat indices into the parameter where the last step's mean arrived, increasing; None: everywhere (a dense
        step). For optimisers; call it after backward."""
        return self.arrived_of([parameter])[0]

    def arrived_of(self, parameters: Sequence[torch.Tensor]) -> List[Arrived]:
        """The same for many parameters."""
        if self._channels is None:
            raise UsageError(
                "oktopk: this state has seen no backward pass: was register_comm_hook(state, oktopk_hook) called, "
                "and backward() before the optimiser's step?"
            )
        return self._channels.arrived_of(parameters)

    def unsent(self) -> Dict[str, torch.Tensor]:
        """The gradients of this rank that were not applied yet, by parameter name, as flat tensors: its residual and
        what it remembers for the regions it owns. A copy of n values. A step that the GradScaler leaves out is undone
        when the next one begins, or by state_dict()."""
        return self._channels.unsent() if self._channels is not None else {}

    def compression_stats(self) -> CompressionStats:
        """How much less was sent than DDP would have sent without a hook, so far on this rank: (rate, numel_before,
        numel_after); wire_bytes and dense_bytes are attributes."""
        return self._counters.stats()

    # Saving.

    def state_dict(self) -> Dict[str, Any]:
        """This rank's state, for torch.save or DCP. After optimiser.step() and GradScaler.update."""
        if self._scaling is not None and self._channels is not None:
            self._scaling.settle(self._channels)
        saved = self._saved
        if saved is None:
            channels = self._channels.to_save() if self._channels is not None else []
            saved = Saved.of(channels, self._comm, self._choice)
        return wrap(self.place(), saved.as_dict(self.iteration))

    def place(self) -> Place:
        """The place of this rank in the group that DDP synchronises."""
        return Place.of_group(group_of(self))

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Continues from what this rank saved: in the next sparse step. All ranks together."""
        self.load_state_dicts([state])

    def load_state_dicts(self, states: List[Dict[str, Any]]) -> None:
        """The same from all ranks of an earlier run, in rank order, whatever their number was."""
        self._saved, self.iteration = Saved.read(states)
        self._is_begun_elsewhere = bool(self._saved.parts)
        self._is_new_state = True
        if self._scaling is not None:
            self._scaling.forget()
        self._dead = None
        if self._channels is not None:
            self._channels.clear()

    def __getstate__(self) -> Dict[str, Any]:
        """Process group, GradScaler, callback and trace are not saved: set them after loading."""
        names = ("preset", "start_iter", "min_numel", "host_staging", "timeout", "silence", "levelled", *_SECRECY)
        settings = {name: getattr(self, name) for name in names}
        settings["options"] = {k: v for k, v in self.options.items() if k != "trace"}
        return {**settings, "state": self.state_dict()}

    def __setstate__(self, pickled: Dict[str, Any]) -> None:
        state = pickled.pop("state")
        older = {"silence": None, "levelled": False, **dict.fromkeys(_SECRECY)}  # what earlier versions did not save
        vars(self).update({**older, **pickled, "options": MappingProxyType(pickled["options"])})
        self.process_group = self.grad_scaler = self.callback = None
        self._reset()
        self.load_state_dict(state)
