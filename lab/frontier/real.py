# SPDX-License-Identifier: Apache-2.0
"""A finalist with real ranks: a process per rank, the race's batches. Methods: dense, powersgd:R (torch's own hook),
PRESET:D[:codec][:start][:level], local:H:D[:codec][:start] and diloco:H, by the code that users run.

The result lies beside those of simulated ranks, as `real-<method>`: both must agree up to the noise of a seed. With
--rate and --delay each rank is in a network namespace of its own behind such a link (needs root), and the time that
the training loss takes to fall is the network's, too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, List, Tuple

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))

import local_ranks  # noqa: E402
import oktopk.torch  # noqa: E402
from network import arguments, launch, namespaces  # noqa: E402

from .data import Text  # noqa: E402
from .dense import compressed_values  # noqa: E402
from .method import ring  # noqa: E402
from .models import SHAPES, Gpt  # noqa: E402
from .race import Entry  # noqa: E402
from .registry import local_options, sparse_arguments  # noqa: E402
from .schedule import Rules, in_steps  # noqa: E402
from .tasks import Language  # noqa: E402

POINTS = 50  # of the training loss over time


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--method", default="circulant:2.5%:elias_fano+log4:nine10")
    parser.add_argument("--model", choices=list(SHAPES), default="1M")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("frontier-results"))
    parser.add_argument("--rate", type=arguments.rate, help="of each rank's link, such as 20mbit")
    parser.add_argument("--delay", type=arguments.delay, default="0", help="from rank to rank, such as 100ms")
    parser.add_argument("--timeout", type=float, default=7200, help="seconds for a run with --rate")


def main(options: argparse.Namespace, words: List[str]) -> int:
    options.out.mkdir(parents=True, exist_ok=True)
    if options.rate and "RANK" not in os.environ:
        return run_behind_links(options, words)
    backend = "cpu:gloo,cuda:nccl" if options.device == "cuda" else "gloo"
    local_ranks.run(options.ranks, train, options, backend=backend)
    return 0


def run_behind_links(options: argparse.Namespace, words: List[str]) -> int:
    if lacking := namespaces.missing_rights():
        raise SystemExit(f"frontier: --rate needs {', '.join(lacking)}")
    command = [sys.executable, "-m", "frontier", *words]
    with namespaces.Network(options.ranks, namespaces.Link(options.rate.bits, options.delay)) as network:
        launch.run_commands(network, [command] * options.ranks, options.timeout)
    return 0


def device_of(options: argparse.Namespace, rank: int) -> torch.device:
    if options.device == "cpu":
        return torch.device("cpu")
    # Several ranks share a GPU when each says that it is another host.
    os.environ.update(NCCL_HOSTID=f"rank{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
    torch.cuda.set_device(rank % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


class Trainer:
    """Plain DDP, and the base of the others: what the model is called by, the optimiser, and the bytes of a rank."""

    def __init__(self, gpt: Gpt, rules: Rules, method: List[str]):
        self.rules = rules
        self.common: Dict[str, Any] = {
            "lr": rules.lr,
            "betas": (rules.beta1, rules.beta2),
            "weight_decay": rules.weight_decay,
        }
        self.model, self.optimiser = self.make(gpt, method)

    def make(self, gpt: Gpt, method: List[str]) -> Tuple[Any, Any]:
        ddp = DistributedDataParallel(gpt)
        return ddp, torch.optim.AdamW(ddp.parameters(), **self.common)

    def step(self, tokens: torch.Tensor, rate: float, bf16: bool) -> torch.Tensor:
        self.optimiser.zero_grad()
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=bf16):
            logits = self.model(tokens[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        return loss.detach()

    def finish(self) -> float:
        """Whatever the weights are still owed; returns the bytes that this rank has sent."""
        n = sum(parameter.numel() for parameter in self.model.parameters())
        return self.rules.steps * ring(4 * n, self.rules.ranks)


class SparseTrainer(Trainer):
    """DDP with the hook and SparseAdamW."""

    def make(self, gpt: Gpt, method: List[str]) -> Tuple[Any, Any]:
        ddp = DistributedDataParallel(gpt)
        density, codec, start = sparse_arguments([word for word in method[1:] if word != "level"])
        self.state = oktopk.torch.OkTopkState(
            preset=method[0],
            density=density,
            start_iter=0,
            warmup=in_steps(start, self.rules.steps) or None,
            codec=codec,
            levelled="level" in method,
        )
        ddp.register_comm_hook(self.state, oktopk.torch.oktopk_hook)
        return ddp, oktopk.torch.SparseAdamW(ddp.parameters(), self.state, **self.common)

    def finish(self) -> float:
        self.optimiser.catch_up()
        return float(self.state.compression_stats().wire_bytes)


class PowerSgdTrainer(Trainer):
    """DDP with torch's PowerSGD hook, after a tenth of the steps without it. Bytes by dense.py's formula."""

    def make(self, gpt: Gpt, method: List[str]) -> Tuple[Any, Any]:
        self._rank, self._warm = int(method[1]), max(2, round(0.1 * self.rules.steps))
        ddp, optimiser = super().make(gpt, method)
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=self._rank, start_powerSGD_iter=self._warm, min_compression_rate=1
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return ddp, optimiser

    def finish(self) -> float:
        shapes = [parameter.shape for parameter in self.model.parameters()]
        whole = sum(shape.numel() for shape in shapes)
        values = self._warm * whole + (self.rules.steps - self._warm) * compressed_values(shapes, self._rank)
        return ring(4 * values, self.rules.ranks)


class LocalTrainer(Trainer):
    """LocalSteps; DiLoCo is LocalSteps with dense exchanges and an outer momentum."""

    def make(self, gpt: Gpt, method: List[str]) -> Tuple[Any, Any]:
        kind, every = method[0], int(method[1])
        options: Dict[str, Any] = {"preset": "dense", "codec": None, "decay": 1.0}
        options.update(outer_lr=0.7, outer_momentum=0.9)
        if kind == "local":
            options = local_options(method[1:], self.rules)
        self.outer = oktopk.torch.LocalSteps(gpt.parameters(), every=every, **options)
        self.sent = 0.0
        return gpt, torch.optim.AdamW(gpt.parameters(), **self.common)

    def step(self, tokens: torch.Tensor, rate: float, bf16: bool) -> torch.Tensor:
        loss = super().step(tokens, rate, bf16)
        if self.outer.step():
            self._count()
        return loss

    def finish(self) -> float:
        if self.outer.local_steps:
            self.outer.synchronise()
            self._count()
        return self.sent

    def _count(self) -> None:
        self.sent += float(self.outer.reducer.stats["wire_bytes"])


def trainer_of(gpt: Gpt, rules: Rules, name: str) -> Trainer:
    method = name.split(":")
    kinds = {"dense": Trainer, "powersgd": PowerSgdTrainer, "local": LocalTrainer, "diloco": LocalTrainer}
    return kinds.get(method[0], SparseTrainer)(gpt, rules, method)


class Curve:
    """The mean training loss of this rank over a share of the steps, and when each share ended."""

    def __init__(self, steps: int):
        self._every, self._sum = max(1, steps // POINTS), torch.zeros(())
        self.losses: List[Tuple[int, float]] = []
        self.seconds: List[float] = []
        self._began = time.monotonic()

    def add(self, step: int, loss: torch.Tensor) -> None:
        self._sum = self._sum + loss
        if (step + 1) % self._every == 0:
            self.losses.append((step, float(self._sum) / self._every))
            self.seconds.append(time.monotonic() - self._began)
            self._sum = torch.zeros(())


def train(rank: int, ranks: int, options: argparse.Namespace) -> None:
    device = device_of(options, rank)
    if rank == 0:
        Text(options.data, SHAPES[options.model], device, options.out)  # pieces of words are made once
    dist.barrier()
    text = Text(options.data, SHAPES[options.model], device, options.out)
    rules = Rules(options.steps, ranks, options.rows, options.lr)
    torch.manual_seed(options.seed)
    gpt = Gpt(SHAPES[options.model]).to(device)
    trainer = trainer_of(gpt, rules, options.method)
    dist.barrier()
    curve = Curve(rules.steps)
    for step in range(rules.steps):
        tokens = text.batch(options.seed, step, ranks, rules.rows)[0][rank]
        curve.add(step, trainer.step(tokens, rules.rate(step), options.bf16))
    sent = trainer.finish()
    if rank == 0:
        write(options, rules, Language(options.model, text, options.seed, options.bf16, device), gpt, sent, curve)


def write(
    options: argparse.Namespace, rules: Rules, task: Language, gpt: Gpt, sent: float, curve: Curve
) -> None:
    weights = torch.cat([parameter.detach().flatten() for parameter in gpt.parameters()])
    name = "generated" if options.data is None else options.data.name
    network = f"{options.rate.name} and {options.delay * 1e3:g} ms" if options.rate else ""
    suffix = f"@{options.rate.name}+{options.delay * 1e3:g}ms" if options.rate else ""
    entry = Entry(f"real-{options.method}{suffix}", options.model, name, options.seed, rules, options.bf16)
    result = {**asdict(entry), "steps": rules.steps, "bytes": sent, "seconds": curve.seconds[-1]}
    result.update(task.judge(weights), parameters=task.n, task=task.name)
    result.update(train_loss=curve.losses, clock=curve.seconds, **({"network": network} if network else {}))
    (options.out / f"{entry.file_name()}.json").write_text(json.dumps(result, indent=1))
    print(f"done: {entry.file_name()}", flush=True)
