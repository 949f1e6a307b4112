# SPDX-License-Identifier: Apache-2.0
"""Writers of step metrics: callbacks for `OkTopkState(callback=...)` and for your own loops.

A callback gets one dict per bucket and step:

    iteration, bucket       the numbers of the step and of the bucket
    n, k                    values of the bucket; entries that a step aims at
    selected, gathered      entries that this rank sent; entries of the result
    share                   the part of the unsent squared norm that the ranks sent; 0 unless adaptive_share is set and
                            the ranks compared it in this step
    local_threshold, global_threshold
                            smallest magnitude that this rank sent; smallest of the result
    wire_bytes, messages    bytes and messages that this rank sent, without the transport's own heads
    dense_bytes             bytes that a dense fp32 allreduce would have sent
    seconds_check, _select, _exchange, _settle
                            seconds of each phase; exchange includes the wait for slower ranks
    seconds_idle            seconds in which this rank waited for messages
    waited_for, seconds_longest_wait
                            the rank whose messages it waited for longest, -1: for none; and how long
    members, epoch          ranks of the step; the epoch of an elastic run, otherwise 0
    preset, codec           in force (auto may change them)
    dense, skipped, refreshed
                            whether the step was dense; was left out; evaluated thresholds anew
    residual_norm           the norm of all unsent values of this rank
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, IO, Optional, Union

Metrics = Dict[str, Any]
Callback = Callable[[Metrics], None]


def wants(callback: Callback, step: int) -> bool:
    """Whether to call a callback for a step: its method wants(step) decides, where it has one. Asked before the metrics
    are computed, because residual_norm costs a pass over n values."""
    ask: Any = getattr(callback, "wants", None)
    return ask is None or bool(ask(step))


class JsonlWriter:
    """One JSON object per line. "{rank}" in the path is replaced: each rank writes its own file.

        state = OkTopkState(callback=JsonlWriter("metrics-{rank}.jsonl"))
    """

    def __init__(self, path: Union[str, "os.PathLike[str]"], rank: Optional[int] = None):
        number = int(os.environ.get("RANK", "0")) if rank is None else rank
        self.path = os.fspath(path).replace("{rank}", str(number))
        self._rank = number
        self._file: IO[str] = open(self.path, "w", encoding="utf-8", buffering=1)

    def __call__(self, metrics: Metrics) -> None:
        self._file.write(json.dumps({"rank": self._rank, **metrics}) + "\n")

    def close(self) -> None:
        self._file.close()


class TensorBoardWriter:
    """Scalars by bucket, into a SummaryWriter of the user's (torch.utils.tensorboard or tensorboardX).

        state = OkTopkState(callback=TensorBoardWriter(SummaryWriter()))
    """

    def __init__(self, writer: Any, prefix: str = "oktopk"):
        self._writer = writer
        self._prefix = prefix

    def __call__(self, metrics: Metrics) -> None:
        for name, value in _by_bucket(metrics, self._prefix).items():
            if isinstance(value, (int, float)):
                self._writer.add_scalar(name, value, _step_of(metrics))


class WandbWriter:
    """One row of a Weights & Biases run per bucket and step, in all modes of wandb, offline included.

        run = wandb.init(project="sparse")
        state = OkTopkState(callback=WandbWriter(run))

    The row holds the step as <prefix>/iteration, and charts of <prefix>/... use it as their x axis. So the run's own
    step, and rows that the script logs itself, need not agree with it.
    """

    def __init__(self, run: Any, prefix: str = "oktopk"):
        self._run = run
        self._prefix = prefix
        run.define_metric(f"{prefix}/iteration")
        run.define_metric(f"{prefix}/*", step_metric=f"{prefix}/iteration")

    def __call__(self, metrics: Metrics) -> None:
        self._run.log({f"{self._prefix}/iteration": _step_of(metrics), **_by_bucket(metrics, self._prefix)})


def _by_bucket(metrics: Metrics, prefix: str) -> Metrics:
    """The same values under names with the bucket, without its number and the step's."""
    place = f"{prefix}/bucket{metrics.get('bucket', 0)}"
    return {f"{place}/{name}": value for name, value in metrics.items() if name not in ("bucket", "iteration", "step")}


def _step_of(metrics: Metrics) -> int:
    step: Any = metrics.get("iteration", metrics.get("step", 0))
    return int(step)


class every:
    """Passes on one step in `steps`; nothing is computed for the others."""

    def __init__(self, steps: int, callback: Callback):
        if steps < 1:
            raise ValueError(f"every: steps = {steps}, but it must be at least 1")
        self._steps = steps
        self._callback = callback

    def wants(self, step: int) -> bool:
        return step % self._steps == 0 and wants(self._callback, step)

    def __call__(self, metrics: Metrics) -> None:
        if self.wants(_step_of(metrics)):
            self._callback(metrics)


class all_of:
    """Calls each callback that wants the step, one after the other."""

    def __init__(self, *callbacks: Callback):
        self._callbacks = callbacks

    def wants(self, step: int) -> bool:
        return any(wants(callback, step) for callback in self._callbacks)

    def __call__(self, metrics: Metrics) -> None:
        for callback in self._callbacks:
            if wants(callback, _step_of(metrics)):
                callback(metrics)
