# SPDX-License-Identifier: Apache-2.0
"""Trains a task with a recipe, and measures what that costs and reaches.

Every run starts from the same weights and sees the same samples, augmentation and dropout in the
same order, so that only the exchange of gradients differs. Held-out loss is summed over all ranks,
each with its part of the samples.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from common.exchange import Exchange, bucket_mb, make_exchange, ring_bytes
from common.options import Settings
from common.order import Order
from common.recipes import Recipe
from common.world import World

BETAS = (0.9, 0.99)
MOMENTUM = 0.9


@dataclass
class Task:
    """The parts of an example.

    loss(model, indices): the training loss of these samples, augmentation and all; PyTorch's
    default generators are seeded per step.
    evaluate(model, indices): sums over these held-out samples, {"loss": (sum, count), metric: (sum,
    count)}.
    """

    title: str
    stand_in: bool
    train_count: int
    test_count: int
    make_model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, torch.Tensor], torch.Tensor]
    evaluate: Callable[[nn.Module, torch.Tensor], dict[str, tuple[float, float]]]
    metric: str


@dataclass
class Run:
    """The result of a recipe. Bytes are the busiest rank's; dense_bytes is what dense would have
    sent. A point of the curve has the steps and the seconds of training until then."""

    recipe: Recipe
    optimiser: str
    parameters: int = 0
    loss: float = 0.0
    metric: float = 0.0
    train_loss: float = 0.0
    wire_bytes: float = 0.0
    dense_bytes: float = 0.0
    ms_per_step: float = 0.0
    replicas_equal: bool = False
    curve: list[dict[str, float]] = field(default_factory=list)

    @property
    def label(self) -> str:
        return self.recipe.label


def train(task: Task, recipe: Recipe, settings: Settings, world: World) -> Run:
    """The task from the start, with one recipe. Collective."""
    return _Trainer(task, recipe, settings, world).train()


class _Trainer:
    def __init__(self, task: Task, recipe: Recipe, settings: Settings, world: World):
        self._task, self._recipe, self._settings, self._world = task, recipe, settings, world
        torch.manual_seed(settings.seed)
        model = task.make_model().to(world.device)
        self._numel = sum(p.numel() for p in model.parameters())
        self._exchange = make_exchange(recipe, self._numel, world.size)
        # Batch norm's buffers are averaged before an evaluation instead of being sent every step.
        warnings.filterwarnings("ignore", message=".*broadcast_buffers")  # renamed in new PyTorch
        self._ddp = DistributedDataParallel(
            model, broadcast_buffers=False, bucket_cap_mb=bucket_mb(recipe, settings.bucket_mb)
        )
        self._exchange.register(self._ddp)
        self._optimiser = _make_optimiser(settings, recipe, self._exchange, model.parameters())
        self._order = Order(task.train_count, settings.batch, world.rank, world.size, settings.seed)
        self._held_out = self._shard()
        self._run = Run(recipe, type(self._optimiser).__name__, self._numel)
        self._seconds = 0.0

    def train(self) -> Run:
        steps, every = self._settings.steps, self._settings.eval_every
        self._evaluate(0)
        for first in range(0, steps, every):
            end = min(first + every, steps)
            train_loss = self._train_span(first, end)
            self._world.say(self._line(self._evaluate(end, train_loss)))
        return self._finish()

    def _train_span(self, first: int, end: int) -> float:
        """Steps [first, end); their mean training loss over all ranks."""
        self._ddp.train()
        dist.barrier()
        started = time.perf_counter()
        total = torch.zeros((), device=self._world.device)
        for step in range(first, end):
            _set_learning_rate(self._optimiser, self._settings, step)
            torch.manual_seed(self._seed_of(step))
            self._optimiser.zero_grad()
            loss = self._task.loss(self._ddp, self._order.indices(step))
            loss.backward()
            self._optimiser.step()
            total += loss.detach()
        mean = total.item() / (end - first)  # waits for the device
        self._seconds += time.perf_counter() - started
        return self._world.total([mean])[0] / self._world.size

    def _seed_of(self, step: int) -> int:
        """Another one for each step and rank, and the same for each recipe."""
        steps = self._settings.seed * self._settings.steps + step
        return steps * self._world.size + self._world.rank

    def _evaluate(self, step: int, train_loss: float | None = None) -> dict[str, float]:
        for buffer in self._ddp.module.buffers():
            if buffer.is_floating_point():
                dist.all_reduce(buffer)
                buffer /= self._world.size
        if hasattr(self._optimiser, "catch_up"):  # the weight decay that is still owed
            self._optimiser.catch_up()
        self._ddp.eval()
        with torch.no_grad():
            sums = self._task.evaluate(self._ddp.module, self._held_out)
        flat = self._world.total(
            [value for name in ("loss", self._task.metric) for value in sums[name]]
        )
        sent = self._world.total([self._exchange.wire_bytes(step)], dist.ReduceOp.MAX)[0]
        point = {
            "step": step,
            "seconds": self._seconds,
            "wire_bytes": sent,
            "loss": flat[0] / flat[1],
            self._task.metric: flat[2] / flat[3],
        }
        if train_loss is not None:
            point["train_loss"] = train_loss
        self._run.curve.append(point)
        return point

    def _shard(self) -> torch.Tensor:
        """The held-out samples of this rank; the sample of samples is the same for every recipe."""
        wanted = min(self._settings.eval_samples or self._task.test_count, self._task.test_count)
        rng = torch.Generator().manual_seed(1)
        chosen = torch.randperm(self._task.test_count, generator=rng)[:wanted]
        return chosen[self._world.rank :: self._world.size]

    def _finish(self) -> Run:
        run, last = self._run, self._run.curve[-1]
        run.loss, run.metric = last["loss"], last[self._task.metric]
        run.train_loss = last["train_loss"]
        run.wire_bytes = last["wire_bytes"]
        run.dense_bytes = self._settings.steps * ring_bytes(4 * self._numel, self._world.size)
        run.ms_per_step = (
            1000 * self._world.total([self._seconds], dist.ReduceOp.MAX)[0] / self._settings.steps
        )
        run.replicas_equal = self._replicas_equal()
        return run

    def _replicas_equal(self) -> bool:
        """Whether all ranks hold the same weights, bit by bit: what every exchange must keep."""
        weights = torch.cat([p.detach().flatten() for p in self._ddp.module.parameters()])
        bits = weights.cpu().view(torch.int32)
        reference = bits.clone()
        dist.broadcast(reference, src=0)
        return self._world.total([float(not torch.equal(bits, reference))])[0] == 0

    def _line(self, point: dict[str, float]) -> str:
        return (
            f"{self._recipe.label:<26} step {point['step']:>6}/{self._settings.steps}  "
            f"train {point['train_loss']:.4f}  "
            f"held-out {point['loss']:.4f}  {self._task.metric} {point[self._task.metric]:.4f}  "
            f"{point['wire_bytes'] / 2**20:9.2f} MiB sent"
        )


def _make_optimiser(
    settings: Settings, recipe: Recipe, exchange: Exchange, parameters: Iterable[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """PyTorch's, or oktopk's that know how long each coordinate has waited."""
    lr, decay = settings.lr, settings.weight_decay
    if recipe.is_sparse and not recipe.plain_optimiser:
        import oktopk.torch as sparse

        if settings.optimiser == "adam":
            return sparse.SparseAdamW(
                parameters, exchange.state, lr=lr, betas=BETAS, weight_decay=decay
            )
        momentum = MOMENTUM if settings.optimiser == "momentum" else 0.0
        return sparse.SparseSGD(
            parameters, exchange.state, lr=lr, momentum=momentum, weight_decay=decay
        )
    if settings.optimiser == "adam":
        return torch.optim.AdamW(parameters, lr=lr, betas=BETAS, weight_decay=decay)
    momentum = MOMENTUM if settings.optimiser == "momentum" else 0.0
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=decay)


def _set_learning_rate(optimiser: torch.optim.Optimizer, settings: Settings, step: int) -> None:
    """Rises over the first twentieth of the steps, then falls along a cosine to a hundredth; or
    stays."""
    rate = settings.lr
    if settings.schedule == "cosine":
        rise = max(1, settings.steps // 20)
        fall = 0.01 + 0.99 * (1 + math.cos(math.pi * step / settings.steps)) / 2
        rate *= min(1.0, (step + 1) / rise) * fall
    for group in optimiser.param_groups:
        group["lr"] = rate
