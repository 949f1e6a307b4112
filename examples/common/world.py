# SPDX-License-Identifier: Apache-2.0
"""The process group and the device of this rank.

Started by torchrun, or alone: then the world has one rank. Several ranks may share one GPU,
which Gloo allows and NCCL does not; so NCCL is the default only where every local rank has a GPU of
its own.
"""

import datetime
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from common.data import DataError

TIMEOUT = datetime.timedelta(minutes=5)


@dataclass(frozen=True)
class World:
    rank: int
    size: int
    device: torch.device

    def say(self, text: str = "") -> None:
        """Prints on rank 0 only."""
        if self.rank == 0:
            print(text, flush=True)

    def once(self, load: Callable[[], Any]) -> Any:
        """Gives the result of `load` on rank 0 to every rank: files are read and decoded once.
        Collective."""
        box: list[Any] = [None]
        if self.rank == 0:
            try:
                box = [load()]
            except DataError as error:
                print(f"error: {error}", flush=True)
                box = [error]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        if isinstance(box[0], DataError):
            raise SystemExit(2)
        return box[0]

    def total(
        self, values: list[float], op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
    ) -> list[float]:
        """The values of all ranks, summed (or `op`), in double precision. Collective."""
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=op)
        return tensor.tolist()


def start_world(backend: str | None = None) -> World:
    """Joins the process group torchrun describes. Collective."""
    for name, alone in [
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("LOCAL_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "0"),
    ]:
        os.environ.setdefault(name, alone)
    gpus = torch.cuda.device_count()
    own_gpu = gpus >= int(os.environ["LOCAL_WORLD_SIZE"])
    # Gloo beside NCCL: the numbers of the report, and whatever works on host memory, need it.
    backend = backend or ("cpu:gloo,cuda:nccl" if own_gpu and gpus else "gloo")
    backend = "cpu:gloo,cuda:nccl" if backend == "nccl" else backend
    device = torch.device("cpu")
    if gpus:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % gpus)
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")
    else:
        torch.set_num_threads(1)  # the ranks of one machine share its cores
    dist.init_process_group(backend, timeout=TIMEOUT)
    return World(dist.get_rank(), dist.get_world_size(), device)
