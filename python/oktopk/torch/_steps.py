# SPDX-License-Identifier: Apache-2.0
"""The steps of an OkTopkState: the work of the hook on each bucket that DDP hands over.

Backward's thread decides which buckets are dense and starts their all-reduces, in DDP's order. All else happens in one
thread of ours, in the same order on all ranks: channels are made, entries exchanged, results checked. An error goes to
the caller of backward() (_worker.py).
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from oktopk import _core, metrics
from oktopk._core import CommError, UsageError
from oktopk.torch._applied import Applied
from oktopk.torch._channels import Channel, Channels
from oktopk.torch._counters import Counters, dense_bytes
from oktopk.torch._dense_sum import BucketMean, is_finite
from oktopk.torch._group import as_group, options_of_nodes, require_equal
from oktopk.torch._owner import Owner, find_owner
from oktopk.torch._saved import Saved
from oktopk.torch._settings import Guarded, active
from oktopk.torch._worker import Failure, HookThread, new_future
from oktopk.torch.flat import FLOATS
from oktopk.torch.process_group import communicator

Parameters = Sequence[torch.Tensor]
Metrics = Dict[str, Any]


class Bucket(NamedTuple):
    """A DDP bucket, read in the thread of backward(), so that the exchanging thread need not."""

    buffer: torch.Tensor
    parameters: List[torch.Tensor]
    number: int  # in DDP's order
    iteration: int


class Steps(Guarded):
    """Belongs to one state, which has the settings (state.py)."""

    process_group: Any
    grad_scaler: Any
    callback: Optional[Callable[[Metrics], None]]
    preset: str
    start_iter: int
    min_numel: int
    host_staging: bool
    timeout: Any
    options: Any
    iteration: int

    def _reset(self) -> None:
        """Sets everything that is bound to this process."""
        self._has_begun = False
        self._owner: Optional[Owner] = None
        self._comm: Optional[_core.PythonCommunicator] = None
        self._channels: Optional[Channels] = None
        self._saved: Optional[Saved] = None  # loaded, and not used yet
        self._failure = Failure()
        self._is_refused = False  # this iteration, known before anything was exchanged
        self._is_stopped = False  # this iteration, by the exchanging thread
        self._dead: Optional[str] = None  # since a CommError
        self._worker = HookThread("oktopk", self._stop)
        self._profile: Optional[_core.Profile] = None  # measured by preset auto
        self._scaler: Any = None  # the GradScaler, where it does anything
        self._applied: Optional[Applied] = None  # with a GradScaler
        self._scale: Optional[float] = None  # the GradScaler's, in this iteration
        # Not yet settled: channels that made a step in this iteration, and what was unsent before it of parameters
        # whose bucket is dense now.
        self._of_step: List[Tuple[Channel, Parameters]] = []
        self._gone_densely: List[Tuple[Parameters, Dict[str, torch.Tensor]]] = []
        self._counters = Counters()

    # In backward's thread.

    def synchronise(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The bucket's gradients become their mean over the ranks."""
        work = Bucket(bucket.buffer(), bucket.parameters(), bucket.index(), self.iteration)
        try:
            if work.number == 0:
                self._begin_step(work)
            if not self._is_refused:
                return self._start(work)
        except BaseException as error:
            self._is_refused = True
            self._note(error)
        finally:
            if bucket.is_last():
                self.iteration += 1
                self._failure.raise_after_backward()
        future = new_future(work.buffer.device)
        future.set_result(work.buffer.zero_())
        return future

    def _begin_step(self, bucket: Bucket) -> None:
        self._failure.clear()
        self._is_refused = self._is_stopped = False
        if self._dead is not None:
            raise CommError(
                "oktopk: an earlier step failed, and the ranks are no longer in step: start again "
                f"from the last check-point. The error was: {self._dead}"
            )
        if self._channels is None:
            self._begin_life(bucket)
        if self._owner is not None:
            self._owner.refuse_join()
        if self._scaler is not None:
            self._submit(bucket, self._begin_scaled_step)

    def _begin_life(self, bucket: Bucket) -> None:
        """Before the first step: checks everything that later steps need."""
        group = as_group(self.process_group)
        self._owner = find_owner(self, bucket.parameters[0])
        if self._owner is not None:
            group = self._owner.process_group(None if self.process_group is None else group)
        self._comm = comm = self._comm or communicator(group, self.timeout, concurrent=True)
        self._group = as_group(group)
        self._world = comm.size
        self._scaler = active(self.grad_scaler)
        options = self._reducer_options()
        saved = "nothing" if self._saved is None else f"{len(self._saved.parts)} buckets"
        words = f"{self._description()}, iteration {self.iteration}, loaded {saved}"
        require_equal(comm, words, self._trouble(bucket))
        check = {**options, "group_size": None}  # its constructor is then local
        _core.Reducer(comm, max(options.get("k") or 1, 1024), check)  # do the options fit P ranks?
        if options.get("group_size") is not None:
            options = options_of_nodes(comm, options)
        self._applied = Applied() if self._scaler is not None else None
        self._channels = Channels(comm, options, self._owner.names if self._owner else None)
        self._has_begun = True

    def _nan_policy(self) -> str:
        """With a GradScaler "skip": the scaler must see values that are not finite, and then skips the step."""
        return self.options.get("nan_policy") or ("skip" if active(self.grad_scaler) else "error")

    def _reducer_options(self) -> Dict[str, Any]:
        return {**self.options, "nan_policy": self._nan_policy()}

    def _description(self) -> str:
        """Words for all that ranks must have in common; UsageError where options are unfit."""
        return (
            f"density {self.options['density']}, start_iter {self.start_iter}, min_numel {self.min_numel}, "
            f"grad_scaler {active(self.grad_scaler) is not None}, {_core.check_options(self._reducer_options())}"
        )

    def _trouble(self, bucket: Bucket) -> str:
        """Why this rank cannot go on; empty where it can."""
        if self.preset == "dense" or self.host_staging:
            return ""
        parameters = self._owner.parameters() if self._owner is not None else bucket.parameters
        away = [p.device for p in parameters if p.device.type != "cpu"]
        if not away:
            return ""
        return (
            f"the gradients are on {away[0]}, but this build selects on the host: pass OkTopkState(..., "
            "host_staging=True) to have them copied there and back in each step, or move the model to the CPU"
        )

    def _start(self, bucket: Bucket) -> torch.futures.Future[torch.Tensor]:
        if self._is_dense(bucket):
            return self._start_dense(bucket)
        return self._submit(bucket, lambda: self._exchange(bucket))

    def _is_dense(self, bucket: Bucket) -> bool:
        buffer = bucket.buffer
        least = max(self.min_numel, (self.options.get("k") or 0) + 1, 1)
        return (
            self.preset == "dense"
            or bucket.iteration < self.start_iter
            or buffer.numel() < least
            or buffer.dtype not in FLOATS
            or buffer.layout != torch.strided
        )

    def _start_dense(self, bucket: Bucket) -> torch.futures.Future[torch.Tensor]:
        assert self._channels is not None
        buffer, unsent = bucket.buffer, {}
        if bucket.iteration >= self.start_iter and self._channels.may_have_unsent(bucket.parameters):
            # Parameters whose new bucket is dense take along all that is unsent of them.
            self._worker.drain()
            unsent = self._channels.take_unsent(bucket.parameters)
            flat = torch.cat(list(unsent.values())).to(buffer.device)
            buffer += (flat * (self._scale or 1.0)).to(buffer.dtype)
        self._channels.note_dense(bucket.parameters)
        mean = BucketMean(buffer, self._group, bucket.number)
        return self._submit(bucket, lambda: self._end_dense(bucket, mean, unsent))

    def _submit(self, bucket: Bucket, job: Callable[[], None]) -> torch.futures.Future[torch.Tensor]:
        return self._worker.submit(job, bucket.buffer)

    # In the exchanging thread.

    def _stop(self, error: BaseException) -> None:
        """Leaves out the rest of this iteration; all ranks do so if the error is one of all ranks."""
        self._is_stopped = True
        self._note(error)

    def _note(self, error: BaseException) -> None:
        if isinstance(error, CommError) and self._dead is None:
            self._dead = str(error)
        self._failure.note(error)

    def _begin_scaled_step(self) -> None:
        self._settle_step()
        self._scale = float(self._scaler.get_scale())

    def _settle_step(self) -> None:
        """Undoes the step of each parameter that the GradScaler skipped (_applied.py)."""
        steps, self._of_step = self._of_step, []
        gone, self._gone_densely = self._gone_densely, []
        if self._applied is None or self._channels is None:
            return
        for channel, parameters in steps:
            channel.undo([p in self._applied for p in parameters])
        for parameters, unsent in gone:
            pairs = zip(parameters, unsent.items())
            self._channels.give_unsent(dict(u for p, u in pairs if p not in self._applied))

    def _end_dense(self, bucket: Bucket, mean: BucketMean, unsent: Dict[str, torch.Tensor]) -> None:
        mean.wait()
        buffer = bucket.buffer
        sent = dense_bytes(buffer.numel(), self._world, buffer.element_size())
        self._counters.add(buffer.numel(), sent, self._world)
        if self._applied is None:
            self._check_finite(bucket, unsent)
        elif unsent:  # the GradScaler looks at the mean itself
            self._applied.watch(bucket.parameters)
            self._gone_densely.append((bucket.parameters, unsent))

    def _check_finite(self, bucket: Bucket, unsent: Dict[str, torch.Tensor]) -> None:
        policy = self._nan_policy()
        if policy == "local" or is_finite(bucket.buffer):
            return
        assert self._channels is not None
        self._channels.give_unsent(unsent)
        bucket.buffer.zero_()
        if policy == "error":
            raise UsageError(
                f"oktopk: the dense mean of bucket {bucket.number} in iteration {bucket.iteration} "
                "is not finite: some rank's gradient holds nan or inf, or the sum overflows "
                "(nan_policy='skip' leaves such steps out)"
            )

    def _exchange(self, bucket: Bucket) -> None:
        if self._is_stopped:
            bucket.buffer.zero_()
            return
        try:
            channel = self._step(bucket)
        except BaseException:
            bucket.buffer.zero_()
            raise
        stats = channel.core.stats
        self._counters.add(channel.n, stats["wire_bytes"], self._world)
        self._report(channel, stats, bucket)

    def _step(self, bucket: Bucket) -> Channel:
        assert self._channels is not None
        if self._saved is not None:
            self._channels.restore(self._saved)
            self._profile = self._profile or self._channels.profile
            self._saved = None
        self._channels.begin_step(bucket.iteration)
        channel = self._channels.of_bucket(bucket.parameters)
        if self._profile is not None and channel.core.profile is None:
            channel.core.use_profile(self._profile)
        if self._applied is not None:
            channel.keep_snapshot()
            self._applied.watch(bucket.parameters)
            self._of_step.append((channel, bucket.parameters))
        is_made = channel.step(bucket.buffer, 1.0 / (self._scale or 1.0))
        self._profile = self._profile or channel.core.profile
        if not is_made:
            # The GradScaler of every rank is to see it; without one, the bucket stays as it is.
            bucket.buffer.fill_(float("nan") if self._scaler is not None else 0.0)
        return channel

    def _report(self, channel: Channel, stats: Metrics, bucket: Bucket) -> None:
        """Calls the callback. Its error does not stop the other buckets."""
        try:
            if self.callback is not None and metrics.wants(self.callback, bucket.iteration):
                place = {"iteration": bucket.iteration, "bucket": bucket.number}
                self.callback({**stats, **place, "residual_norm": channel.residual_norm()})
        except BaseException as error:
            self._note(error)
