# SPDX-License-Identifier: Apache-2.0
"""OkTopkState: what the DDP hook keeps between steps.

Per step and bucket: gradient -> residual += gradient -> exchange of the largest entries -> mean into
the bucket. Residuals belong to parameters, so DDP's rebuilding of its buckets loses nothing. One
thread exchanges the buckets in DDP's order while backward goes on.
Memory per rank: n floats of residual and n / P of owner memory; n more with a GradScaler, to be able
to go back.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence

import torch
import torch.distributed as dist

from oktopk import _core
from oktopk._core import UsageError
from oktopk.torch._agree import require_equal
from oktopk.torch._channel import Channel
from oktopk.torch._channels import Channels
from oktopk.torch._counters import CompressionStats, Counters, dense_bytes
from oktopk.torch._owner import Owner, find_owner, group_of
from oktopk.torch._saved import Saved
from oktopk.torch._worker import OrderedWorker
from oktopk.torch.checkpoint import Place, wrap
from oktopk.torch.flat import FLOATS
from oktopk.torch.process_group import communicator

Metrics = Dict[str, Any]


class OkTopkState:
    """State of `oktopk_hook`, one per DDP model.

        state = OkTopkState(density=0.01)
        ddp.register_comm_hook(state, oktopk_hook)

    process_group: the ranks that DDP synchronises (default: all).
    density: the share of each bucket's entries that is exchanged per step.
    preset: "auto" measures the network before the first sparse step and takes what is fastest,
        dense included; or the name of one (`oktopk.presets()`): "circulant" is ours, "oktopk" as
        published, "dense" is DDP's own allreduce.
    start_iter: steps that are synchronised densely at first. The single most useful setting for
        the final loss: a few percent of all steps (docs/learning.md).
    min_numel: smaller buckets, and those that are not fp32, bf16 or fp16, are always dense.
    codec: how entries are coded on the wire, such as "elias_fano+bf16"; None: the preset's own.
    grad_scaler: the GradScaler of mixed precision training. Residuals are then kept unscaled, and
        a step that it skips, because some rank's gradients overflowed, leaves no trace.
    host_staging: allow gradients on an accelerator, which are copied to the host and back.
    timeout: seconds after which a wait for another rank gives up (default: 30 minutes).
    callback: called after each bucket with a dict of metrics (see oktopk.metrics).
    options: further options of oktopk.Reducer, such as residual, selector, decay, threads, trace;
        adaptive_share and adaptive_budget let the density change (docs/adaptive_density.md).
    """

    def __init__(
        self,
        process_group: Optional[Any] = None,
        density: float = 0.01,
        preset: str = "auto",
        start_iter: int = 100,
        min_numel: int = 4096,
        codec: Optional[str] = None,
        grad_scaler: Optional[Any] = None,
        host_staging: bool = False,
        timeout: Optional[float] = None,
        callback: Optional[Callable[[Metrics], None]] = None,
        **options: Any,
    ):
        self.process_group = process_group
        self.preset = preset
        self.start_iter = _at_least("start_iter", start_iter, 0)
        self.min_numel = _at_least("min_numel", min_numel, 0)
        self.grad_scaler = grad_scaler
        self.host_staging = host_staging
        self.timeout = timeout
        self.callback = callback
        self.options = {"density": density, "preset": preset, "codec": codec, **options}
        if grad_scaler is not None:
            self.options.setdefault("nan_policy", "skip")
        # Words for all that ranks must have in common; unfit options are refused here.
        self._description = (
            f"{_core.check_options(self.options, 1 << 20)}, start_iter {self.start_iter}, "
            f"min_numel {self.min_numel}, grad_scaler {grad_scaler is not None}"
        )
        self.iteration = 0
        self._reset()

    def _reset(self) -> None:
        """All that is bound to this process."""
        self._owner: Optional[Owner] = None
        self._channels: Optional[Channels] = None
        self._saved: Optional[Saved] = None  # loaded, and not used yet
        self._worker = OrderedWorker("oktopk")
        self._profile: Optional[_core.Profile] = None  # measured by preset auto
        self._of_step: List[Channel] = []  # that made a step in this iteration, not yet settled
        self._gone_densely: Dict[str, torch.Tensor] = {}  # unsent before this iteration
        self._failure: Optional[str] = None  # of this iteration
        self._scale: Optional[float] = None  # the GradScaler's, in this iteration
        self._counters = Counters()

    # The hook's work.

    def synchronise(self, bucket: dist.GradBucket) -> "torch.futures.Future[torch.Tensor]":
        """The bucket's gradients become their mean over the ranks."""
        channels = self._channels or self._begin_life(bucket.parameters()[0])
        if bucket.index() == 0:
            self._begin_step()
        buffer, index, iteration = bucket.buffer(), bucket.index(), self.iteration
        if bucket.is_last():
            self.iteration += 1
        if self._is_dense(buffer, iteration):
            if iteration >= self.start_iter:
                self._add_unsent(buffer, channels.take_unsent(bucket.parameters()))
            channels.note_dense(bucket.parameters())
            return self._all_reduce(buffer)
        self._check_device(buffer)
        if self._saved is not None:
            channels.restore(self._saved)
            self._profile = self._profile or channels.profile
            self._saved = None
        channels.begin_step(iteration)
        channel = channels.of_bucket(bucket.parameters())
        is_ready = _record_event(buffer.device)

        def exchange() -> torch.Tensor:
            if is_ready is not None:
                torch.cuda.current_stream(buffer.device).wait_event(is_ready)
            return self._exchange(channel, buffer, index, iteration)

        return self._worker.submit(exchange, buffer.device)

    def _begin_life(self, parameter: torch.Tensor) -> Channels:
        self._owner = find_owner(self, parameter)
        if self._owner is not None:
            self.process_group = self._owner.process_group(self.process_group)
        comm = communicator(self.process_group, self.timeout)
        saved = "nothing" if self._saved is None else f"{len(self._saved.parts)} buckets"
        require_equal(comm, f"{self._description}, iteration {self.iteration}, loaded {saved}")
        self._channels = Channels(comm, self.options, self._owner.names if self._owner else None)
        self._world = comm.size
        return self._channels

    def _begin_step(self) -> None:
        if self._owner is not None:
            self._owner.refuse_join()
        self._settle_step()
        self._failure = None
        if self.grad_scaler is not None:
            self._scale = float(self.grad_scaler.get_scale())

    def _settle_step(self) -> None:
        """A step is all or nothing: when the GradScaler has left it out, because a bucket here or
        a dense one was not finite, all buckets go back to what they had before."""
        channels, self._of_step = self._of_step, []
        gone, self._gone_densely = self._gone_densely, {}
        if self.grad_scaler is None:
            return
        skipped = any(channel.core.skipped for channel in channels)
        if skipped or self.grad_scaler.get_scale() < (self._scale or 0.0):
            for channel in channels:
                channel.core.go_back()
            if self._channels is not None:
                self._channels.give_unsent(gone)

    def _is_dense(self, buffer: torch.Tensor, iteration: int) -> bool:
        return (
            self.preset == "dense"
            or iteration < self.start_iter
            or buffer.numel() < max(self.min_numel, 1)
            or buffer.dtype not in FLOATS
        )

    def _check_device(self, buffer: torch.Tensor) -> None:
        if buffer.device.type != "cpu" and not self.host_staging:
            raise UsageError(
                f"oktopk: the gradients are on {buffer.device}, but this build selects on the "
                "host: pass OkTopkState(..., host_staging=True) to have them copied there and "
                "back in each step, or move the model to the CPU"
            )

    def _add_unsent(self, buffer: torch.Tensor, unsent: Dict[str, torch.Tensor]) -> None:
        """What is unsent of parameters whose new bucket is dense goes along, all of it."""
        if unsent:
            flat = torch.cat(list(unsent.values())).to(buffer.device)
            buffer += (flat * (self._scale or 1.0)).to(buffer.dtype)
            self._gone_densely.update(unsent)

    def _all_reduce(self, buffer: torch.Tensor) -> "torch.futures.Future[torch.Tensor]":
        """As DDP without a hook does it, bit by bit."""
        group = self.process_group if self.process_group is not None else dist.group.WORLD
        sent = dense_bytes(buffer.numel(), self._world, buffer.element_size())
        self._counters.add(buffer.numel(), sent, self._world)
        buffer.mul_(1.0 / self._world)
        work = dist.all_reduce(buffer, group=group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    def _exchange(self, channel: Channel, buffer: torch.Tensor, index: int, iteration: int) -> Any:
        """In the worker's thread."""
        if self._failure is not None:
            raise UsageError(self._failure)
        if self._profile is not None and channel.core.profile is None:
            channel.core.use_profile(self._profile)
        if self.grad_scaler is not None:
            channel.core.keep_snapshot()
        self._of_step.append(channel)
        try:
            applied = channel.step(buffer, 1.0 if self._scale is None else 1.0 / self._scale)
        except Exception as error:
            self._failure = f"oktopk: bucket {index} of this step failed: {error}"
            raise
        self._profile = self._profile or channel.core.profile
        if not applied:
            # The GradScaler of every rank is to see it; without one, the bucket stays as it is.
            buffer.fill_(float("nan") if self.grad_scaler is not None else 0.0)
        stats = channel.core.stats
        self._counters.add(channel.n, stats["wire_bytes"], self._world)
        if self.callback is not None:
            self.callback(self._metrics(channel, stats, index, iteration))
        return buffer

    def _metrics(self, channel: Channel, stats: Metrics, index: int, iteration: int) -> Metrics:
        norm = channel.core.unsent_norm
        return {**stats, "iteration": iteration, "bucket": index, "residual_norm": norm}

    # What users ask.

    def arrived(self, parameter: torch.Tensor) -> Optional[torch.Tensor]:
        """Flat indices into the parameter where the last step's mean arrived, increasing; None:
        everywhere (a dense step). For optimisers; call it after backward."""
        return self.arrived_of([parameter])[0]

    def arrived_of(self, parameters: Sequence[torch.Tensor]) -> List[Optional[torch.Tensor]]:
        """The same for many parameters."""
        if self._channels is None:
            raise UsageError("oktopk: no step was made yet: call arrived() after backward()")
        return self._channels.arrived_of(parameters)

    def unsent(self) -> Dict[str, torch.Tensor]:
        """What of this rank's gradients was not applied yet, by parameter name, as flat tensors:
        its residual and what it remembers for the regions it owns. A copy of n values. A step that
        the GradScaler leaves out is undone when the next one begins, or by state_dict()."""
        return self._channels.unsent() if self._channels is not None else {}

    def compression_stats(self) -> CompressionStats:
        """How much less was sent than a dense fp32 allreduce would have, so far on this rank."""
        return self._counters.stats()

    # Saving.

    def state_dict(self) -> Dict[str, Any]:
        """This rank's state, for torch.save or DCP. After optimiser.step() and GradScaler.update."""
        self._settle_step()
        saved = self._saved
        if saved is None:
            saved = self._channels.save() if self._channels is not None else Saved(0, 0, [])
        return wrap(self.place(), saved.as_dict(self.iteration))

    def place(self) -> Place:
        """Whose state it is: this rank's in the group that DDP synchronises."""
        return Place.of_group(group_of(self))

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Continues from what this rank saved: in the next sparse step. All ranks together."""
        self.load_state_dicts([state])

    def load_state_dicts(self, states: List[Dict[str, Any]]) -> None:
        """The same from all ranks of an earlier run, in rank order, whatever their number was."""
        self._saved, self.iteration = Saved.read(states)
        self._of_step = []
        if self._channels is not None:
            self._channels.clear()

    def __getstate__(self) -> Dict[str, Any]:
        """Process group, GradScaler, callback and trace are not saved: set them after loading."""
        names = ("preset", "start_iter", "min_numel", "host_staging", "timeout")
        settings = {name: getattr(self, name) for name in names}
        settings["options"] = {k: v for k, v in self.options.items() if k != "trace"}
        return {**settings, "_description": self._description, "state": self.state_dict()}

    def __setstate__(self, pickled: Dict[str, Any]) -> None:
        state = pickled.pop("state")
        self.__dict__.update(pickled)
        self.process_group = self.grad_scaler = self.callback = None
        self._reset()
        self.load_state_dict(state)


def _record_event(device: torch.device) -> Optional[Any]:
    """Where backward's stream is now: the exchanging thread's own stream waits for it."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


def _at_least(name: str, value: int, least: int) -> int:
    if value < least:
        raise UsageError(f"oktopk: {name} = {value}, but it must be at least {least}")
    return int(value)
