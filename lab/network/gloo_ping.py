# SPDX-License-Identifier: Apache-2.0
"""The measurement of `oktopk tune --links` over Gloo, for transports.py.

    gloo_ping.py BUDGET BYTES...

Rank 0 prints one line per size: the bytes, the seconds of a message one way, and of two that cross.
The time of torch's Python calls, some microseconds per message, is in it: programs pay it, too.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

BATCHES = 9


def make_once(size: int, both_ways: bool) -> Callable[[], None]:
    rank, peer = dist.get_rank(), 1 - dist.get_rank()
    out, room = torch.zeros(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)

    def cross() -> None:
        work = [dist.isend(out, peer), dist.irecv(room, peer)]
        for one in work:
            assert one is not None
            one.wait()

    def there_and_back() -> None:
        if rank == 0:
            dist.send(out, peer)
            dist.recv(room, peer)
        else:
            dist.recv(room, peer)
            dist.send(out, peer)

    return cross if both_ways else there_and_back


def mean_of(count: int, once: Callable[[], None]) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        once()
    return (time.perf_counter() - begin) / count


def measure(size: int, both_ways: bool, budget: float) -> float:
    once = make_once(size, both_ways)
    dist.barrier()
    once()
    fits = torch.tensor([max(1, min(1_000_000, int(budget / mean_of(1, once))))])
    dist.broadcast(fits, 0)
    count = int(fits.item())
    means = [mean_of(max(1, count // BATCHES), once) for _ in range(min(count, BATCHES))]
    return statistics.median(means) / (1 if both_ways else 2)


def main() -> None:
    budget, sizes = float(sys.argv[1]), [int(word) for word in sys.argv[2:]]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    for size in sizes:
        one, both = measure(size, False, budget), measure(size, True, budget)
        if dist.get_rank() == 0:
            print(size, f"{one:.9f} {both:.9f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
