# SPDX-License-Identifier: Apache-2.0
"""One rank of the link's own measurement: raw TCP, no torch. Started by launch.py.

Every rank sends to the next one as fast as it can while it receives from the one before, so that
all links carry both directions at once, which is the most an allreduce asks of them, and of the
processor that plays the network. Then rank 0 bounces single bytes off rank 1 for the round trip.
Counted by who receives, after the queues are full.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import threading
import time
from pathlib import Path

PORT = 29400
CHUNK = 1 << 18
PATIENCE = 20.0  # seconds for any single wait
BOUNCES = 50


def connect(address: str) -> socket.socket:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            made = socket.create_connection((address, PORT), timeout=PATIENCE)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made
        except OSError:  # the neighbour has not started yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def pour(out: socket.socket, until: float) -> None:
    while time.monotonic() < until:
        out.sendall(bytes(CHUNK))
    out.shutdown(socket.SHUT_WR)


def rate_of(source: socket.socket, begin: float, until: float) -> float:
    """Bits per second that arrived between two times; reads on until the sender is done."""
    room, counted, last = bytearray(CHUNK), 0, begin
    while size := source.recv_into(room):
        now = time.monotonic()
        if begin <= now <= until:
            counted, last = counted + size, now
    return 8 * counted / max(last - begin, 1e-9)


def round_trip(rank: int, ahead: socket.socket, behind: socket.socket) -> float:
    """Median seconds of a byte to rank 1 and back, as rank 0 sees it; 1 answers, others look on."""
    times = []
    for _ in range(BOUNCES):
        if rank == 0:
            start = time.monotonic()
            ahead.sendall(b".")
            ahead.recv(1)
            times.append(time.monotonic() - start)
        elif rank == 1:
            behind.sendall(behind.recv(1))
    return statistics.median(times) if times else 0.0


def start_together(rank: int, ahead: socket.socket, behind: socket.socket) -> None:
    """A byte once around the ring: nobody pours while others still bounce."""
    if rank == 0:
        ahead.sendall(b".")
    behind.recv(1)
    if rank != 0:
        ahead.sendall(b".")


def main() -> None:
    plan, out = json.loads(sys.argv[1]), Path(sys.argv[2])
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with socket.create_server(("", PORT)) as door:
        door.settimeout(PATIENCE)
        ahead = connect(plan["addresses"][(rank + 1) % ranks])
        behind, _ = door.accept()
    behind.settimeout(PATIENCE)
    behind.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    trip = round_trip(rank, ahead, behind)
    start_together(rank, ahead, behind)
    start = time.monotonic()
    until = start + plan["seconds"]
    sender = threading.Thread(target=pour, args=(ahead, until), daemon=True)
    sender.start()
    rate = rate_of(behind, start + plan["seconds"] / 4, until)
    sender.join(PATIENCE)
    out.write_text(json.dumps({"rate": rate, "round_trip": trip}))


if __name__ == "__main__":
    main()
