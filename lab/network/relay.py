# SPDX-License-Identifier: Apache-2.0
"""A switch that holds every frame for a while: the delay of a long line. Runs in the switch's namespace.

    python relay.py SECONDS port0 port1 ...

It takes the place of the bridge where links have a delay, because many kernels lack netem. It learns, as switches do,
which address is behind which port. Frames pass as the kernel hands them over, large ones uncut, with the header that
says how to cut them (PACKET_VNET_HDR): the processor then moves 64 KiB at a time. The token buckets at both ends of a
cable stay as they are. It ends when its standard input does.
"""

from __future__ import annotations

import collections
import contextlib
import select
import socket
import sys
import time
from typing import Any

SOL_PACKET = 263
PACKET_VNET_HDR = 15
PACKET_IGNORE_OUTGOING = 23
ALL_PROTOCOLS = 3
HEADER = 10  # struct virtio_net_hdr, before the frame
LARGEST = HEADER + 14 + 65536
BUFFER = 16 << 20
READY = "ready"


def open_port(name: str) -> socket.socket:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    port.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        port.setsockopt(socket.SOL_SOCKET, buffer, BUFFER)
    port.bind((name, ALL_PROTOCOLS))
    port.setblocking(False)
    return port


class Relay:
    def __init__(self, ports: list[socket.socket], delay: float):
        self._ports, self._delay = ports, delay
        self._held: collections.deque[tuple[float, socket.socket, bytes]] = collections.deque()
        self._behind: dict[bytes, socket.socket] = {}  # address: port

    def run(self) -> None:
        sources: list[Any] = [sys.stdin, *self._ports]
        while True:
            wait = max(0.0, self._held[0][0] - time.monotonic()) if self._held else None
            readable, _, _ = select.select(sources, [], [], wait)
            if sys.stdin in readable:  # whoever started this is gone
                return
            for port in readable:
                self._take(port)
            self._release()

    def _take(self, port: socket.socket) -> None:
        try:
            frame = port.recv(LARGEST)
        except OSError:  # nothing there after all, or the port is gone
            return
        self._behind[frame[HEADER + 6 : HEADER + 12]] = port
        self._held.append((time.monotonic() + self._delay, port, frame))

    def _release(self) -> None:
        while self._held and self._held[0][0] <= time.monotonic():
            _, source, frame = self._held.popleft()
            known = self._behind.get(frame[HEADER : HEADER + 6])
            for port in [known] if known else [port for port in self._ports if port is not source]:
                with contextlib.suppress(OSError):  # the port's queue is full: a switch drops the frame, too
                    port.send(frame)


def main() -> None:
    ports = [open_port(name) for name in sys.argv[2:]]
    print(READY, flush=True)
    Relay(ports, float(sys.argv[1])).run()


if __name__ == "__main__":
    main()
