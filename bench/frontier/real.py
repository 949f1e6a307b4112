# SPDX-License-Identifier: Apache-2.0
"""A finalist with real ranks: DDP with the hook and SparseAdamW, or plain DDP; a process per rank; the race's batches.

The result lies beside those of simulated ranks, as `real-<method>`: both must agree up to the noise of a seed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))

import local_ranks  # noqa: E402
import oktopk.torch  # noqa: E402

from .data import Text  # noqa: E402
from .method import ring  # noqa: E402
from .models import SHAPES, Gpt  # noqa: E402
from .race import Entry  # noqa: E402
from .schedule import STARTS, Rules, in_steps  # noqa: E402
from .tasks import Language  # noqa: E402


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--method", default="circulant:1%:ramp", help="dense, or preset:density:start")
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


def main(options: argparse.Namespace) -> int:
    options.out.mkdir(parents=True, exist_ok=True)
    backend = "cpu:gloo,cuda:nccl" if options.device == "cuda" else "gloo"
    local_ranks.run(options.ranks, train, options, backend=backend)
    return 0


def device_of(options: argparse.Namespace, rank: int) -> torch.device:
    if options.device == "cpu":
        return torch.device("cpu")
    # Several ranks share a GPU when each says that it is another host.
    os.environ.update(NCCL_HOSTID=f"rank{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
    torch.cuda.set_device(rank % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


class Trainer:
    def __init__(self, options: argparse.Namespace, rules: Rules, device: torch.device):
        torch.manual_seed(options.seed)
        self.ddp = DistributedDataParallel(Gpt(SHAPES[options.model]).to(device))
        self.state: Any = None
        common: Dict[str, Any] = {"lr": rules.lr, "betas": (rules.beta1, rules.beta2)}
        common["weight_decay"] = rules.weight_decay
        if options.method == "dense":
            self.optimiser: Any = torch.optim.AdamW(self.ddp.parameters(), **common)
            return
        preset, density, start, *codec = options.method.split(":")
        self.state = oktopk.torch.OkTopkState(
            preset=preset,
            density=float(density.rstrip("%")) / 100,
            start_iter=0,
            warmup=in_steps(STARTS[start], rules.steps) or None,
            codec=codec[0] if codec else None,
        )
        self.ddp.register_comm_hook(self.state, oktopk.torch.oktopk_hook)
        self.optimiser = oktopk.torch.SparseAdamW(self.ddp.parameters(), self.state, **common)

    def step(self, tokens: torch.Tensor, rate: float, bf16: bool) -> None:
        self.optimiser.zero_grad()
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=bf16):
            logits = self.ddp(tokens[:, :-1])
        cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()

    def sent(self, steps: int, ranks: int) -> float:
        if self.state is None:
            return steps * ring(4 * sum(p.numel() for p in self.ddp.parameters()), ranks)
        self.optimiser.catch_up()
        return float(self.state.compression_stats().wire_bytes)


def train(rank: int, ranks: int, options: argparse.Namespace) -> None:
    device = device_of(options, rank)
    if rank == 0:
        Text(options.data, SHAPES[options.model], device, options.out)  # pieces of words are made once
    dist.barrier()
    text = Text(options.data, SHAPES[options.model], device, options.out)
    rules = Rules(options.steps, ranks, options.rows, options.lr)
    trainer = Trainer(options, rules, device)
    began = time.monotonic()
    for step in range(rules.steps):
        tokens = text.batch(options.seed, step, ranks, rules.rows)[0][rank]
        trainer.step(tokens, rules.rate(step), options.bf16)
    sent = trainer.sent(rules.steps, ranks)
    if rank != 0:
        return
    task = Language(options.model, text, options.seed, options.bf16, device)
    weights = torch.cat([parameter.detach().flatten() for parameter in trainer.ddp.parameters()])
    name = "generated" if options.data is None else options.data.name
    entry = Entry(f"real-{options.method}", options.model, name, options.seed, rules, options.bf16)
    result = {**asdict(entry), "steps": rules.steps, "bytes": sent, "seconds": time.monotonic() - began}
    result.update(task.judge(weights), parameters=task.n, task=task.name, train_loss=[])
    (options.out / f"{entry.file_name()}.json").write_text(json.dumps(result, indent=1))
    print(f"done: {entry.file_name()}", flush=True)
