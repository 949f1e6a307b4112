# SPDX-License-Identifier: Apache-2.0
"""OkTopkState: the settings of the DDP hook, its state between steps, and its work on each bucket.

Per step and bucket: gradient -> residual += gradient -> exchange of the largest entries -> mean into the bucket.
Backward's thread decides which buckets are dense and starts their all-reduces, in DDP's order. All else happens in one
thread of ours, in the same order on all ranks. An error goes to the caller of backward() (_worker.py). Residuals belong
to parameters, so DDP's rebuilding of its buckets loses nothing (_channels.py).
Memory per rank: n floats of residual and n / P of owner memory, on the GPU where the gradients are; on the host n more
with a GradScaler, to be able to go back.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Union

import torch
import torch.distributed as dist
from types import MappingProxyType

from oktopk import _core, flight, metrics
from oktopk._core import CommError, DeviceError, UsageError
from oktopk.flight import Recorded
from oktopk.metrics import Metrics
from oktopk.options import MoreOptions, active, count, require_known, show_options, truth, with_recipe, without_coding
from oktopk.torch import _choice
from oktopk.torch._channels import Channel, Channels, HookScaler, Saved, Settings
from oktopk.torch._dense_sum import BucketMean, CompressionStats, Counters, EncryptedMean, dense_bytes, is_finite
from oktopk.torch._dense_sum import zero_unless_finite
from oktopk.torch._gpu import require_reachable, stays_on_gpu
from oktopk.torch._group import Timeout, as_group, check_waits, compare_options, options_of_nodes, require_equal
from oktopk.torch._levels import SecondMoments
from oktopk.torch._owner import Owner, Watch, find_owner
from oktopk.torch._sharded import nodes_of, wants_node
from oktopk.torch._sockets import File, wants_encryption
from oktopk.torch._worker import Failure, HookStream, HookThread, new_future
from oktopk.torch.checkpoint import Place, wrap
from oktopk.torch.coordinates import Arrived
from oktopk.torch.flat import FLOATS, Start
from oktopk.torch.process_group import communicator

if TYPE_CHECKING:
    from typing_extensions import Unpack

DenseMean = Union[BucketMean, EncryptedMean]

_SECRECY = ("secret_file", "encrypt")


class Bucket(NamedTuple):
    """A DDP bucket, read in the thread of backward(), so that the exchanging thread need not."""

    buffer: torch.Tensor
    parameters: List[torch.Tensor]
    number: int  # in DDP's order
    iteration: int


@show_options
class OkTopkState(Recorded):
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
    _has_begun = False  # the first step was made

    process_group: Any
    grad_scaler: Any
    callback: Optional[Callable[[Metrics], None]]
    preset: str
    start_iter: int
    min_numel: int
    host_staging: bool
    timeout: Any
    silence: Any
    options: Any
    levelled: bool
    secret_file: Any
    encrypt: Optional[bool]
    iteration: int

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
        self._scaling: Optional[HookScaler] = None  # with a GradScaler that does anything
        self._on_gpu = False  # sparse steps stay there, and nothing waits for it (_gpu.py)
        self._choice: Optional[str] = None  # of preset auto on GPUs (_choice.py)
        self._moments = SecondMoments()
        self._encrypted: Optional[Dict[int, Any]] = None  # Reducers of dense buckets, by size
        self._counters = Counters()
        self._watch = Watch()
        self._is_new_state = False  # loaded since the last step
        self._is_begun_elsewhere = False  # the run that saved had sparse steps: its dense start is over

    def __setattr__(self, name: str, value: Any) -> None:
        """An assignment takes effect or is an error. Names with an underscore are free."""
        kind = type(self).__name__
        if name in self.UNTIL_FIRST_STEP and self._has_begun:
            raise UsageError(f"oktopk: {name} of an {kind} cannot be changed after its first step: set it before")
        if not (name.startswith("_") or name in self.CHANGEABLE + self.UNTIL_FIRST_STEP):
            raise UsageError(
                f"oktopk: {name} of an {kind} cannot be changed: give it to {kind}(...) when you "
                f"make one. These can be set: {', '.join(self.CHANGEABLE + self.UNTIL_FIRST_STEP)}"
            )
        object.__setattr__(self, name, value)

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
        owner = self._owner or find_owner(self, None)
        return Place.of_group(owner.process_group(self.process_group) if owner else self.process_group)

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
        elif self._is_new_state:
            self._worker.drain()
            assert self._comm is not None
            compare_options(self._comm, self._place())
        self._is_new_state = False
        if not self._watch.is_over:
            self._watch.begin_iteration()
        if self._owner is not None:
            self._owner.refuse_join()
            self._owner.refuse_thawed()
        if self._scaling is not None:
            scaling, channels = self._scaling, self._channels
            assert channels is not None
            self._worker.submit(lambda: scaling.begin(channels), bucket.buffer)

    def _begin_life(self, bucket: Bucket) -> None:
        """Before the first step: checks everything that later steps need."""
        group = as_group(self.process_group)
        self._owner = find_owner(self, bucket.parameters[0])
        if self._owner is not None:
            group = self._owner.process_group(None if self.process_group is None else group)
        self._group = group = as_group(group)
        device = torch.device("cpu") if self.host_staging else bucket.buffer.device
        carrier = None if wants_encryption(self.encrypt) else group  # of tensors
        is_open = _choice.is_open(self.options, carrier, device)
        on_gpu = is_open or stays_on_gpu(self.options, carrier, device)
        is_shared = not (on_gpu or wants_node(self.options, carrier, device))  # other threads use the group, too
        self._comm = comm = self._comm or communicator(
            group,
            self.timeout,
            silence=self.silence,
            concurrent=is_shared,
            secret_file=self.secret_file,
            encrypt=self.encrypt,
        )
        transport: Any = comm.python_transport
        self._encrypted = {} if transport.encrypts else None
        self._on_gpu = on_gpu or nodes_of(comm, self.options, device) is not None
        if self._on_gpu:
            self._worker = HookStream("oktopk", self._stop)
        self._world = comm.size
        scaler = active(self.grad_scaler)
        self._moments.use_for(self._owner.parameters() if self.levelled and self._owner is not None else [])
        words = f"{self._description()}, levelled by an optimiser {self._moments.in_use}, {self._place()}"
        require_equal(comm, f"{words}, on GPUs {self._on_gpu}", self._trouble(bucket))
        named = self._owner.synchronised() if self._owner is not None else [("", p) for p in bucket.parameters]
        Start(named, with_frozen=False).compare(partial(_core.require_equal, comm))  # DDP copied frozen weights
        if is_open and self._choice is None:
            self._choice = (self._saved.choice if self._saved is not None else None) or self._choose(bucket)
        options, values = self._reducer_options(), sum(p.numel() for p in self._parameters(bucket))
        _core.Reducer(comm, max(options.get("k") or 1, 1024), {**options, "group_size": None})  # local: do they fit?
        if options.get("group_size") is not None and not self._on_gpu:
            before = comm.sent_bytes
            options = options_of_nodes(comm, options, values)
            self._counters.add_measured(comm.sent_bytes - before)
        self._scaling = None if scaler is None else HookScaler(scaler, self._on_gpu)
        names = self._owner.names if self._owner else None
        self._channels = Channels(comm, Settings(options, self.host_staging, device, values), names)
        self._has_begun = True

    def _place(self) -> str:
        """Words for where this rank is in the run, and what it has loaded."""
        saved = "nothing" if self._saved is None else f"{len(self._saved.parts)} buckets"
        return f"iteration {self.iteration}, loaded {saved}"

    def _parameters(self, bucket: Bucket) -> Sequence[torch.Tensor]:
        return self._owner.parameters() if self._owner is not None else bucket.parameters

    def _choose(self, bucket: Bucket) -> str:
        """Collective: preset auto, by steps of a bucket of the usual size."""
        n = min(sum(p.numel() for p in self._parameters(bucket)), _choice.MOST_VALUES)
        assert self._comm is not None
        sample, count = bucket.buffer.new_empty(n), self._counters.add_measured
        return _choice.choose(self._comm, self._group, sample, dict(self.options), _choice.ALL, count)

    def _nan_policy(self) -> str:
        """With a GradScaler "skip": the scaler must see values that are not finite, and then skips the step."""
        return self.options.get("nan_policy") or ("skip" if active(self.grad_scaler) else "error")

    def _reducer_options(self) -> Dict[str, Any]:
        options = {**self.options, "nan_policy": self._nan_policy()}
        return without_coding(options) if self._choice == "slots" else options

    def _description(self) -> str:
        """Words for all that ranks must have in common; UsageError where options are unfit."""
        words = f"density {self.options['density']}, start_iter {self.start_iter}, min_numel {self.min_numel}, "
        words += f"grad_scaler {active(self.grad_scaler) is not None}, levelled {self.levelled}, "
        return words + _core.check_options(self._reducer_options())

    def _trouble(self, bucket: Bucket) -> str:
        """Why this rank cannot go on; empty where it can."""
        if self.preset == "dense":
            return ""
        try:
            for device in {p.device for p in self._parameters(bucket)}:
                require_reachable(device, "the gradients are", self.host_staging)
        except (UsageError, DeviceError) as error:
            return str(error)
        return ""

    def _start(self, bucket: Bucket) -> torch.futures.Future[torch.Tensor]:
        if self._is_dense(bucket):
            return self._start_dense(bucket)
        if not self._watch.is_over:
            self._watch.add(bucket.parameters)
        return self._worker.submit(lambda: self._exchange(bucket), bucket.buffer)

    def _is_dense(self, bucket: Bucket) -> bool:
        buffer = bucket.buffer
        least = max(self.min_numel, (self.options.get("k") or 0) + 1, 1)
        return (
            self.preset == "dense"
            or self._choice in ("dense", "bf16")
            or self._is_start(bucket)
            or buffer.numel() < least
            or buffer.dtype not in FLOATS
            or buffer.layout != torch.strided
        )

    def _is_start(self, bucket: Bucket) -> bool:
        return bucket.iteration < self.start_iter and not self._is_begun_elsewhere

    def _start_dense(self, bucket: Bucket) -> torch.futures.Future[torch.Tensor]:
        assert self._channels is not None
        buffer, unsent = bucket.buffer, {}
        if not self._is_start(bucket) and self._channels.may_have_unsent(bucket.parameters):
            # Parameters whose new bucket is dense take along all that is unsent of them.
            self._worker.drain()
            unsent = self._channels.take_unsent(bucket.parameters)
            flat = torch.cat(list(unsent.values())).to(buffer.device)
            buffer += (flat * (1.0 if self._scaling is None else self._scaling.scale)).to(buffer.dtype)
        self._channels.note_dense(bucket.parameters)
        is_short = self._choice == "bf16" and buffer.dtype == torch.float32 and not self._is_start(bucket)
        mean: DenseMean
        if self._encrypted is None:
            mean = BucketMean(buffer, self._group, bucket.number, torch.bfloat16 if is_short else None)
        else:
            mean = EncryptedMean(self._comm, self._encrypted, buffer, bucket.number)
        return self._worker.submit(lambda: self._end_dense(bucket, mean, unsent), buffer)

    # In the exchanging thread.

    def _stop(self, error: BaseException) -> None:
        """Leaves out the rest of this iteration; all ranks do so if the error is one of all ranks."""
        self._is_stopped = True
        self._note(error)

    def _note(self, error: BaseException) -> None:
        if isinstance(error, CommError) and self._dead is None:
            self._dead = str(error)
            flight.dump_on_error(error)
        self._failure.note(error)

    def _end_dense(self, bucket: Bucket, mean: DenseMean, unsent: Dict[str, torch.Tensor]) -> None:
        mean.wait()
        n = bucket.buffer.numel()
        self._counters.add(bucket.buffer, dense_bytes(n, self._world, mean.itemsize), self._world)
        if self._scaling is not None:  # the GradScaler looks at the mean itself
            self._scaling.after_dense(bucket.parameters, unsent)
        elif self._on_gpu:
            self._leave_out(bucket)
        else:
            self._check_finite(bucket, unsent)

    def _leave_out(self, bucket: Bucket) -> None:
        """On GPUs a mean that is not finite stays as it is, unless such steps are to be left out."""
        if self._scaling is None and self._nan_policy() == "skip":
            zero_unless_finite(bucket.buffer)

    def _check_finite(self, bucket: Bucket, unsent: Dict[str, torch.Tensor]) -> None:
        policy = self._nan_policy()
        if policy == "local" or is_finite(bucket.buffer):
            return
        assert self._channels is not None
        self._channels.give_unsent(unsent)
        bucket.buffer.zero_()
        if policy == "error":
            raise UsageError(
                f"oktopk: the dense mean of bucket {bucket.number} in iteration {bucket.iteration} is not finite: some "
                "rank's gradient holds nan or inf, or the sum overflows (nan_policy='skip' leaves such steps out)"
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
        self._counters.add(bucket.buffer, stats["wire_bytes"] + stats["measured_bytes"], self._world)
        self._report(channel, stats, bucket)

    def _step(self, bucket: Bucket) -> Channel:
        assert self._channels is not None
        if self._saved is not None:
            self._channels.restore(self._saved)
            self._profile = self._profile or self._channels.profile
            self._saved = None
        self._channels.begin_step(bucket.iteration)
        channel = self._channels.of_bucket(bucket.parameters, self._moments)
        if self._profile is not None and channel.core.profile is None:
            channel.core.use_profile(self._profile)
        if self._scaling is not None:
            self._scaling.before_step(channel, bucket.parameters, bucket.buffer.device)
        is_made = channel.step(bucket.buffer, 1.0 if self._scaling is None else self._scaling.scale)
        self._profile = self._profile or channel.core.profile
        if not is_made:
            # The GradScaler of every rank is to see it; without one, the bucket stays as it is.
            bucket.buffer.fill_(float("nan") if self._scaling is not None else 0.0)
        elif self._on_gpu:
            self._leave_out(bucket)
        return channel

    def _report(self, channel: Channel, stats: Metrics, bucket: Bucket) -> None:
        """Calls the callback. Its error does not stop the other buckets."""
        try:
            if self.callback is not None and metrics.wants(self.callback, bucket.iteration):
                place = {"iteration": bucket.iteration, "bucket": bucket.number}
                self.callback({**stats, **place, "residual_norm": channel.residual_norm()})
        except BaseException as error:
            self._note(error)
