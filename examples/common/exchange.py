# SPDX-License-Identifier: Apache-2.0
"""How DDP exchanges gradients for a recipe, and how many bytes that puts on the wire.

PyTorch's allreduce does not count its bytes, so dense, bf16 and powersgd are given what a ring
needs, 2 (P - 1) / P times the payload: the least any dense allreduce can send. oktopk counts the
bytes of every step, and those are shown.
"""

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from common.recipes import Recipe


class Exchange(Protocol):
    """state: what oktopk's optimisers need, or None."""

    state: Any

    def register(self, ddp: DistributedDataParallel) -> None: ...

    def wire_bytes(self, steps: int) -> float:
        """Bytes that this rank sent in the `steps` steps until now."""
        ...


def ring_bytes(payload: float, size: int) -> float:
    """Bytes that a rank sends when `size` ranks allreduce `payload` bytes along a ring."""
    return 2 * (size - 1) / size * payload


def _bfloat16_hook(
    group: dist.ProcessGroup, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """PyTorch's own, under another name: by its name, DDP refuses it over Gloo, which can do it."""
    return default_hooks.bf16_compress_hook(group, bucket)


class TorchAllreduce:
    """Every gradient every step: DDP without a hook, or in bfloat16."""

    state = None

    def __init__(self, numel: int, size: int, bf16: bool):
        self._per_step = ring_bytes(numel * (2 if bf16 else 4), size)
        self._bf16 = bf16

    def register(self, ddp: DistributedDataParallel) -> None:
        if self._bf16:
            ddp.register_comm_hook(dist.group.WORLD, _bfloat16_hook)

    def wire_bytes(self, steps: int) -> float:
        return steps * self._per_step


class PowerSgd:
    """PyTorch's PowerSGD (Vogels et al., 2019), after the recipe's dense steps."""

    state = None

    def __init__(self, numel: int, size: int, recipe: Recipe):
        self._start = max(
            2, recipe.warmup
        )  # it refuses less: DDP rebuilds its buckets after the first step
        self._size = size
        self._dense_step = ring_bytes(4 * numel, size)
        self._power = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=recipe.matrix_rank, start_powerSGD_iter=self._start
        )

    def register(self, ddp: DistributedDataParallel) -> None:
        ddp.register_comm_hook(self._power, powerSGD_hook.powerSGD_hook)

    def wire_bytes(self, steps: int) -> float:
        sent_elements = self._power.compression_stats()[2]
        return min(steps, self._start) * self._dense_step + ring_bytes(
            4 * sent_elements, self._size
        )


class OkTopk:
    """A sparse allreduce of oktopk."""

    def __init__(self, recipe: Recipe):
        import oktopk.torch

        self._hook = oktopk.torch.oktopk_hook
        self.state = oktopk.torch.OkTopkState(
            density=recipe.density,
            preset=recipe.method,
            codec=recipe.codec,
            start_iter=recipe.warmup,
            **recipe.extra,
        )

    def register(self, ddp: DistributedDataParallel) -> None:
        ddp.register_comm_hook(self.state, self._hook)

    def wire_bytes(self, steps: int) -> float:
        return self.state.compression_stats().wire_bytes


def check(recipe: Recipe) -> None:
    """Raises ValueError when oktopk would refuse the recipe: before anything is trained."""
    if not recipe.is_sparse:
        return
    try:
        OkTopk(recipe)
    except ModuleNotFoundError as error:
        raise ValueError(
            "needs the package oktopk: pip install . in the repository's root "
            "(dense, bf16 and powersgd do without)"
        ) from error
    except (TypeError, ValueError) as error:
        raise ValueError(str(error)) from error


def make_exchange(recipe: Recipe, numel: int, size: int) -> Exchange:
    if recipe.is_sparse:
        return OkTopk(recipe)
    if recipe.method == "powersgd":
        return PowerSgd(numel, size, recipe)
    return TorchAllreduce(numel, size, bf16=recipe.method == "bf16")


def bucket_mb(recipe: Recipe, wanted: float) -> float:
    """PowerSGD's callbacks start allreduces of their own; over Gloo, ranks agree on their order
    only when there is one bucket."""
    return 1 << 20 if recipe.method == "powersgd" else wanted
