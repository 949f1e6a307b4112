# SPDX-License-Identifier: Apache-2.0
"""The library's Reducer on flat tensors of any float type and on any device. A Reducer of parameters (reducer.py) and a
bucket of DDP (_channels.py) use it.

Sparse steps of CUDA tensors happen on their GPU, where the residual then lives, on the current stream; entries pass
through the host. All others happen in host memory: those of CPU tensors, with host_staging, and with group_size (but
see _sharded.py). Dense steps (auto's choice, a warm-up, flush) are the process group's own all_reduce on the device of
the tensor (_dense_sum.py), where the communicator has a process group and no group_size. Worlds whose members change
(elastic.py, torchft.py) make the native Reducer themselves.
COST: n floats where the step happens; n values of pinned host memory more for a tensor that is copied there.
"""

from __future__ import annotations

import math
import os
import time
from typing import Any, Dict, List, Optional, Protocol, Sequence, Tuple, Union

import numpy as np
import torch

from oktopk import _core
from oktopk._core import CommError, UsageError
from oktopk.torch import _dense_sum
from oktopk.torch._dense_sum import dense_bytes
from oktopk.torch._gpu import LOOK_EVERY, ResidentSteps, gpu_of, stays_on_gpu, stream_of, upload
from oktopk.torch._levels import Levels, SecondMoments, factors_of, next_time, require_equal_moments
from oktopk.torch.coordinates import WHERE_NONZERO, Arrived
from oktopk.torch.flat import FLOATS, Start

# How many threads share a rank's passes over its gradient, where the user does not say: the cores that this process may
# use, divided among the ranks of the host. Results do not depend on it.
MOST = 4  # memory bandwidth bounds the passes, and a few cores use all of it
VALUES_PER_THREAD = 1 << 18  # with fewer values a thread costs more time than it saves


def default_threads(transport: Any, n: int) -> int:
    """For n values. 1 where the ranks of the host are not known. torchrun tells their number, ranks of other groups
    included; without torchrun those of the group count."""
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    ranks = int(said) if said.isdigit() and int(said) > 0 else getattr(transport, "ranks_of_host", None)
    if ranks is None:
        return 1
    return max(1, min(MOST, cores() // ranks, n // VALUES_PER_THREAD))


def cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


class World(Protocol):
    """The ranks of a job whose members change, in the place of a communicator. Its Reducer has no GPU: tensors of a GPU
    are copied to host memory for each step."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def make_core(self, n: int, options: Dict[str, Any]) -> Any:
        """In the place of a native Reducer; once for each world."""
        ...

    def check_start(self, start: Start) -> None:
        """After make_core(): compares the parameters now, or whenever members meet others."""
        ...

    def check_joined(self, shares_more: bool = False) -> None:
        """Before this member's first step: UsageError where it joined others that have other parameters, or share more
        than it does. shares_more: its user may call share() after this."""
        ...


AnyWorld = Union[_core.Communicator, World]


def changes(comm: Any) -> bool:
    """Whether its members change."""
    return hasattr(comm, "make_core")


class FlatReducer:
    """Belongs to one rank; all ranks make the same calls. `core` has the rest."""

    def __init__(self, comm: Any, n: int, options: Dict[str, Any], host_staging: bool = False):
        transport = getattr(comm, "python_transport", None)
        self._transport = transport
        self._group_for_sums: Any = getattr(transport, "group_for_sums", None)
        self._options = options
        # The ranks of a node sum on the host, and steps of members that change are made there.
        self._is_staged = host_staging or options.get("group_size") is not None or changes(comm)
        self._gpu: Optional[torch.device] = None  # where the residual is; None: on the host
        self._resident: Optional[ResidentSteps] = None  # of steps that stay on the GPU
        self.look_every = LOOK_EVERY
        self._step_values = 0
        self._is_nonzero = False  # the last mean arrived where it is not zero
        if options.get("threads") is None:
            options = {**options, "threads": default_threads(transport, n)}
        if options.get("group_size") is not None:
            self._group_for_sums = None  # nodes make their dense sums themselves
        self._comm = comm
        self.core: Any  # tensors and arrays
        if changes(comm):
            self.core = comm.make_core(n, options)
        else:
            self.core = _core.Reducer(comm, n, options, self._group_for_sums is not None)
        # The factors of a levelled selection (_levels.py), on the device of the gradients. Where ranks come and go
        # there are none, because those that join would lack them.
        self.levels: Optional[torch.Tensor] = None
        self._first_levels = sum(steps for steps, _ in options.get("warmup") or [])
        self._next_levels = self._first_levels  # steps, when new ones are made
        self.may_level = not changes(comm)
        self._kept_levels: Any = None  # at the last snapshot
        self._P = comm.size
        self._skips = options.get("nan_policy") == "skip"
        self._staging: Optional[torch.Tensor] = None
        self._indices: Optional[np.ndarray] = None  # of the last mean; None: all of them
        self._mean: Optional[torch.Tensor] = None  # of a step by the group's all_reduce
        self._factor = 1.0  # _mean * _factor is the mean
        self._keeps_mean = False  # keep a copy of a dense mean, because its tensor is the caller's
        self._kept_mean: Optional[torch.Tensor] = None

    def measure_for(self, step_values: int) -> None:
        """Preset auto: this Reducer has a part of a step of so many values, for which it measures."""
        self._step_values = step_values

    def makes_dense(self, device: torch.device) -> bool:
        """Collective, before a step: whether it will be a dense one on this device."""
        group = self._sums(device)
        if group is None:
            return False
        values = max(self.core.n, self._step_values)
        measured = _dense_sum.measure(group, device, values) if self.core.is_calibration_due else None
        return bool(self.core.prepare(measured, values))

    def step(self, flat: torch.Tensor, scale: float) -> None:
        """Collective: adds scale * flat to what is unsent, and synchronises; write() then gives the mean. A dense step
        works in `flat`."""
        self._indices = np.empty(0, np.int64)  # nothing has arrived, should the step fail
        self._mean = self._kept_mean = None
        self._is_nonzero = False
        if self.makes_dense(flat.device):
            self._dense_step(flat.detach(), scale)
            if self._keeps_mean and self._mean is not None:
                self._kept_mean = self._mean * self._factor
        elif self.stays_on_gpu(flat.device):
            self._resident_step(self._raised(flat.detach()), scale)
        else:
            self._sparse_step(self._raised(flat.detach()), scale)
            self._indices = None if self.core.is_dense else self.core.indices.astype(np.int64)
        self._keeps_mean = False

    @property
    def skipped(self) -> bool:
        """Whether the last step was left out. Waits for the GPU where the step stayed there: it is NaN everywhere."""
        is_void = self._is_nonzero and self._mean is not None and bool(self._mean[:1].isnan().any())
        return is_void or bool(self.core.skipped)

    def flush(self) -> None:
        """Collective: synchronises everything that is unsent, densely, in host memory, where it is: the same bits
        whatever device the steps were made on."""
        self._indices = None
        self._mean = None
        self._is_nonzero = False
        if self._sums(torch.device("cpu")) is None:
            self.core.flush()
            return
        self.core.prepare_flush()
        began = time.perf_counter()
        unsent = self._unsent_or_none()
        if unsent is None:
            self._mean, self._factor = torch.zeros(self.core.n), 1.0
            self.core.end_external(0.0, 0, is_flush=True)
            return
        self._average(unsent.clone(), 1.0 / self._P, 1.0)
        self._end(began, 4, unsent, is_flush=True)

    def keep_snapshot(self) -> None:
        """Remembers all that a step changes, a copy of n floats, for go_back(); the step after it keeps its mean for
        undo()."""
        self.core.keep_snapshot()
        self._kept_levels = self.levels, self._next_levels
        self._keeps_mean = True

    def _last_mean(self) -> torch.Tensor:
        """The mean of the step after keep_snapshot(), all n values in host memory."""
        if self._kept_mean is not None:
            return self._kept_mean.to("cpu", torch.float32)
        mean = torch.empty(self.core.n)
        self.core.write_update(mean)
        return self._lowered(mean)

    def keep_for_undo(self, device: torch.device) -> None:
        """Before a step with a tensor of this device: makes undo() possible. A copy of n floats, on the GPU where the
        step stays there."""
        self._keeps_mean = True
        if not self.stays_on_gpu(device):
            self.keep_snapshot()

    def undo(self, spans: Sequence[Tuple[int, int]], applied: Sequence[bool]) -> None:
        """After keep_for_undo() and a step; applied: for each span whether its parameter was applied (_scaler.py). A
        step of which nothing was applied leaves no trace. Otherwise the values that arrived and were not applied become
        unsent again: the mean, times the number of ranks whose unsent values this rank holds."""
        if self._is_nonzero and self._resident is not None:
            self._resident.give_back(spans, applied)
            return
        if all(applied):
            return
        if not any(applied):
            self.go_back()
            return
        if self.core.skipped:
            return  # nothing has changed
        mean = self._last_mean()
        for (begin, end), is_applied in zip(spans, applied):
            if is_applied:
                mean[begin:end] = 0
        self.give_unsent(mean.mul_(self.core.ranks_led))

    def go_back(self) -> None:
        """Undoes the steps since keep_snapshot(). All ranks must do it together."""
        self._is_nonzero = False
        self._indices = None
        self._mean = None
        self.core.go_back()
        self.levels, self._next_levels = self._kept_levels

    @torch.no_grad()
    def write(self, flat: torch.Tensor, factor: float = 1.0) -> None:
        """The last mean times factor, as all n values. Once, and not after a skipped step."""
        core = self.core
        if self._mean is not None:
            factor *= self._factor
            if flat.dtype != self._mean.dtype and factor != 1.0:
                flat.copy_(self._mean * factor)  # rounded once
                return
            if flat.data_ptr() != self._mean.data_ptr():
                flat.copy_(self._mean)
            if factor != 1.0:
                flat.mul_(factor)
        elif flat.device.type == "cpu" and flat.dtype == torch.float32 and self.levels is None:
            core.write_update(flat.detach(), factor)
        elif self._indices is None:
            flat.copy_(self._lowered(torch.from_numpy(core.dense).mul_(factor)))
        else:
            flat.zero_()  # and only what arrived goes to the device
            values = upload(core.values, flat.device).mul_(factor)
            places = upload(self._indices, flat.device)
            if self.levels is not None:
                values /= self.levels[places]
            flat.index_copy_(0, places, values.to(flat.dtype))

    def arrived(self, bounds: Sequence[Tuple[int, int]], device: torch.device) -> List[Arrived]:
        """For each (begin, end): where in begin..end-1 the last mean arrived, counted from begin; WHERE_NONZERO after a
        step that stayed on the GPU; None: everywhere. One copy to the device for all of them."""
        if self._is_nonzero:
            return [WHERE_NONZERO] * len(bounds)
        if self._indices is None:
            return [None] * len(bounds)
        places = np.searchsorted(self._indices, np.asarray(bounds, np.int64).reshape(-1))
        pairs = list(zip(places[0::2].tolist(), places[1::2].tolist()))
        found = [self._indices[i:j] - begin for (i, j), (begin, _) in zip(pairs, bounds)]
        return list(upload(np.concatenate(found), device).split([j - i for i, j in pairs]))

    @property
    def saved_levels(self) -> Optional[Levels]:
        """For a saved state."""
        return None if self.levels is None else Levels(self.levels.cpu(), self._next_levels)

    def load_levels(self, saved: Optional[Levels]) -> None:
        """Those that belong to the state that the core loads."""
        self.levels = None if saved is None else saved.factors
        self._next_levels = self._first_levels if saved is None else saved.next_time

    def level_by(self, moments: SecondMoments, parameters: Sequence[torch.Tensor]) -> None:
        """Before a step with the gradients of these parameters: makes new levels if it is time. Collective then: the
        moments must be equal on all ranks. A CUDA graph holds the levels that it was captured with, so there are no
        others from then on."""
        if any(p.is_cuda for p in parameters[:1]) and torch.cuda.is_current_stream_capturing():
            self.may_level = False
        steps = int(self.core.steps)
        if steps < self._next_levels or not self.may_level:
            return
        second = moments.of(parameters)
        if second is None:
            return
        require_equal_moments(self._comm, second)
        levels = factors_of(second)
        unsent = self._unsent_or_none() if self.core.ranks_led > 0 else None  # another rank may lead the node
        self.levels, self._next_levels = levels, next_time(steps)
        if unsent is not None:
            self.give_unsent(unsent)

    def take_unsent(self, out: torch.Tensor) -> None:
        """The unsent values of this rank, in host memory; nothing is unsent afterwards."""
        self.core.take_unsent(out)
        self._lowered(out)

    def _unsent_or_none(self) -> Optional[torch.Tensor]:
        """The same; None: no rank has any."""
        if not self.core.has_unsent:
            return None
        unsent = torch.empty(self.core.n, dtype=torch.float32)
        self.take_unsent(unsent)
        return unsent

    def give_unsent(self, values: torch.Tensor) -> None:
        self.core.give_unsent(values if self.levels is None else values * self.levels.cpu())

    def unsent(self) -> torch.Tensor:
        """A copy of residual and owner memory, in host memory."""
        flat = torch.from_numpy(self.core.residual)
        first, memory = self.core.memory
        flat[first : first + len(memory)] += torch.from_numpy(memory)
        return self._lowered(flat)

    def unsent_norm(self) -> float:
        """The norm of all that is unsent on this rank. COST: a pass over n values, with levels a few."""
        return float(self.core.unsent_norm if self.levels is None else self.unsent().norm())

    def _raised(self, flat: torch.Tensor) -> torch.Tensor:
        """A gradient in the units of the core; in place where it is of floats."""
        if self.levels is None:
            return flat
        if self.levels.device != flat.device:  # those of a loaded state
            self.levels = self.levels.to(flat.device)
        return flat.float().mul_(self.levels)

    def _lowered(self, flat: torch.Tensor) -> torch.Tensor:
        """Values of the core in the units of the gradient, in place."""
        return flat if self.levels is None else flat.div_(self.levels.to(flat.device))

    def _sums(self, device: torch.device) -> Optional[Any]:
        return self._group_for_sums(device) if self._group_for_sums is not None else None

    @torch.no_grad()
    def _dense_step(self, flat: torch.Tensor, scale: float) -> None:
        """As DDP without a hook does it, bit by bit, unless something is unsent: then the sum is one of floats. 16-bit
        gradients are not scaled before the sum, where they could vanish."""
        began = time.perf_counter()
        unsent = self._unsent_or_none()
        if unsent is None and _dense_sum.sums_in_its_type(flat.dtype):
            self._average(flat, 1.0 / self._P, scale)
        else:
            wide = flat.float().mul_(scale)
            if unsent is not None:
                wide.add_(unsent.to(flat.device))
            self._average(wide, 1.0 / self._P, 1.0)
        assert self._mean is not None
        self._end(began, self._mean.element_size(), unsent, is_flush=False)

    def _average(self, tensor: torch.Tensor, share: float, factor: float) -> None:
        """Collective: the sum over the ranks of share * tensor; times factor it is the mean."""
        if math.isfinite(factor):
            tensor.mul_(share)
        else:
            tensor.fill_(math.nan)  # every rank is to see it
        try:
            _dense_sum.all_reduce(tensor, self._sums(tensor.device))
        except CommError:
            self.core.fail_external()
            raise
        self._mean, self._factor = tensor, factor

    def _end(self, began: float, width: int, unsent: Optional[torch.Tensor], is_flush: bool) -> None:
        """Checks the sum, which is equal on all ranks, and ends the step."""
        mean = self._mean
        assert mean is not None
        good = _dense_sum.is_finite(mean)
        if not good:
            self._mean = None
            if unsent is not None:
                self.give_unsent(unsent)
        sent = round(dense_bytes(self.core.n, self._P, width))
        seconds = time.perf_counter() - began
        self.core.end_external(seconds, sent, skipped=not good, is_flush=is_flush)
        if good:
            self._indices = None
        elif not self._skips:
            i = int(mean.isfinite().logical_not_().nonzero()[0])
            raise UsageError(
                f"oktopk: a dense step: the mean over the ranks is {float(mean[i])} {self._place_of(i)}, so the "
                "gradient of some rank is not finite there, or the sum overflowed: no rank has taken it"
            )

    def _place_of(self, i: int) -> str:
        return f"at index {i}"

    def stays_on_gpu(self, device: torch.device) -> bool:
        """Whether a sparse step with a tensor of this device stays there (_gpu.py)."""
        if self._resident is not None and device == self._gpu:
            return True
        return not self._is_staged and stays_on_gpu(self._options, self._sums(device), device)

    def _resident_step(self, flat: torch.Tensor, scale: float) -> None:
        """16-bit gradients that are scaled get a wide mean: unscaled, it could vanish in their type."""
        self._move_to(flat.device)
        if self._resident is None:
            policy = self._options.get("nan_policy")
            self._resident = ResidentSteps(self.core, self._sums(flat.device), policy, self.look_every)
        is_wide = scale != 1.0 and flat.dtype != torch.float32
        mean = torch.empty(flat.shape, dtype=torch.float32, device=flat.device) if is_wide else flat
        self._resident.step(flat, scale, mean)
        self._mean, self._factor, self._indices, self._is_nonzero = mean, 1.0, None, True
        if self._keeps_mean:
            self._resident.keep(mean)  # as the core has it
        self._lowered(mean)

    def _sparse_step(self, flat: torch.Tensor, scale: float) -> None:
        if flat.device.type != "cuda" or self._is_staged:
            self.core.step(self._on_host(flat), scale)
            return
        self._move_to(flat.device)
        kind = FLOATS.index(flat.dtype)
        self.core.step_on_gpu(flat.data_ptr(), flat.numel(), kind, scale, stream_of(flat.device))

    def _move_to(self, gpu: torch.device) -> None:
        """The residual follows the first CUDA tensor to its GPU, and stays there."""
        if self._gpu is None:
            self.core.use_device(gpu_of(self._transport, gpu))
            self._gpu = gpu
        elif self._gpu != gpu:
            raise UsageError(
                f"oktopk: a gradient on {gpu}, but what is unsent of it lies on {self._gpu}: make one Reducer per GPU"
            )

    def _on_host(self, flat: torch.Tensor) -> torch.Tensor:
        if flat.device.type == "cpu":
            return flat
        if self._staging is None or self._staging.dtype != flat.dtype:
            pinned = flat.device.type == "cuda"
            self._staging = torch.empty(len(flat), dtype=flat.dtype, pin_memory=pinned)
        return self._staging.copy_(flat)
