#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a sparse step of one small bucket costs over a Gloo process group, beside Gloo itself.

    PYTHONPATH=python python lab/bench/process_group_step.py --ranks 2,4 --values 65536

One line per number of ranks: microseconds of a step (median and least of the slowest rank), of that
per message that a rank sends, the processor's time of this rank's main thread, and a ring of Gloo's
own send and receive with messages of the mean size. Loopback; an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import List

import numpy as np
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import local_ranks  # noqa: E402


def ring(rank: int, P: int, size: int, rounds: int) -> List[float]:
    """Seconds of rounds in which each rank sends to the next one."""
    out, back = torch.zeros(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    times = []
    for tag in range(rounds):
        began = time.perf_counter()
        receive = dist.irecv(back, (rank - 1) % P, tag=tag)
        send = dist.isend(out, (rank + 1) % P, tag=tag)
        receive.wait()
        send.wait()
        times.append(time.perf_counter() - began)
    return times


def work(rank: int, P: int, options: argparse.Namespace) -> None:
    import oktopk
    from oktopk.torch import communicator

    torch.set_num_threads(1)
    n = options.values
    reducer = oktopk.Reducer(communicator(), n, preset=options.preset, density=options.density)
    noise = np.random.default_rng(rank)
    gradients = [noise.standard_normal(n).astype(np.float32) for _ in range(8)]
    for step in range(options.steps // 4):
        reducer.step(gradients[step % 8])
    times, messages, sent = [], 0, 0
    cpu = time.thread_time()
    for step in range(options.steps):
        began = time.perf_counter()
        reducer.step(gradients[step % 8])
        times.append(time.perf_counter() - began)
        messages += reducer.stats["messages"]
        sent += reducer.stats["wire_bytes"]
    cpu = (time.thread_time() - cpu) / options.steps
    size = int(local_ranks.slowest([sent / messages])[0])  # Gloo's own must be equal
    rounds = ring(rank, P, size, options.steps)
    median, least, gloo, gloo_least = local_ranks.slowest(
        [statistics.median(times), min(times), statistics.median(rounds), min(rounds)]
    )
    if rank == 0:
        per_step = messages / options.steps
        print(
            f"{P:5} {1e6 * median:9.0f} {1e6 * least:9.0f} {per_step:9.1f} {sent / messages:9.0f} "
            f"{1e6 * median / per_step:11.0f} {1e6 * cpu:9.0f} {1e6 * gloo:9.0f} "
            f"{1e6 * gloo_least:9.0f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--values", type=int, default=1 << 16)
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--preset", default="circulant")
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    print("ranks   step us  least us  messages    B each  us/message    CPU us   Gloo us  least us")
    for P in options.ranks.split(","):
        local_ranks.run(int(P), work, options)


if __name__ == "__main__":
    main()
