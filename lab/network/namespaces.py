# SPDX-License-Identifier: Apache-2.0
"""A private network of this machine: one namespace per rank, and one that is the switch.

    rank 0 [eth0] ---- [port0]
    rank 1 [eth0] ---- [port1]  bridge, in the switch's namespace; relay.py instead where links have a delay
    ...                         addresses 10.77.0.1, 10.77.0.2, ...

Both ends of every cable are limited on their way out by a token bucket (tc tbf): eth0 limits what
the rank sends, portR what it receives, as the two directions of a full-duplex link do. Everything
lives inside namespaces that are made here, the bridge too: nothing touches the network of the host,
and deleting the namespaces deletes all of it.

Segmentation offload stays on, as with network cards: without it the processor is the limit well
below 1 Gbit/s. tbf cuts a large packet itself where the bucket is smaller. The interface's tx_bytes
counts such a packet's headers once; the queueing discipline counts them for every segment, so the
wire bytes are read there, and every end has one.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PREFIX = "oktopk"
RELAY = Path(__file__).with_name("relay.py")
NAMES = Path("/run/netns")  # where `ip netns` keeps them
MTU = 1500
COMMAND_TIMEOUT = 20  # seconds that one ip or tc may take
BURST_SECONDS = 0.001  # what a link that was idle may send at once, in seconds of its rate
LEAST_BURST = 6 * MTU
QUEUE_SECONDS = 0.05  # what a port holds before it drops
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}


class NetworkError(Exception):
    """The network cannot be made as asked; the message says what is missing."""


@dataclass(frozen=True)
class Link:
    """What every link carries: bits per second (None: no limit) and seconds from rank to rank."""

    rate: float | None = None
    delay: float = 0.0


def missing_rights(status: str = "") -> list[str]:
    """What this process lacks to make namespaces, in words; nothing when it has all."""
    missing = [
        f"the program {name} (package iproute2)" for name in ("ip", "tc") if not shutil.which(name)
    ]
    try:
        status = status or Path("/proc/self/status").read_text()
    except OSError:
        return missing + ["Linux (/proc/self/status cannot be read)"]
    found = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", status, re.MULTILINE)
    held = int(found.group(1), 16) if found else 0
    return missing + [name for name, bit in CAPABILITIES.items() if not held >> bit & 1]


def burst_of(rate: float) -> int:
    """Bytes of the token bucket. Small: what an idle link saved up would carry sparse messages."""
    return max(LEAST_BURST, round(rate / 8 * BURST_SECONDS))


def shaping(namespace: str, device: str, rate: float | None) -> list[str]:
    """The tc command for one end of a cable. Without a limit, a plain queue that counts."""
    add = ["tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "handle", "1:"]
    if rate is None:
        return [*add, "pfifo", "limit", "10000"]
    bucket = ["rate", f"{rate:.0f}bit", "burst", str(burst_of(rate))]
    return [*add, "tbf", *bucket, "latency", f"{QUEUE_SECONDS * 1e3:.0f}ms"]


def run(command: list[str]) -> str:
    """The command's output; its own words as NetworkError when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NetworkError(f"`{' '.join(command)}`: {error}") from error
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise NetworkError(f"`{' '.join(command)}`: {said}")
    return done.stdout


def leftovers() -> list[str]:
    """Namespaces of runs whose process is gone (killed with SIGKILL: nothing could clean up)."""
    ours = re.compile(rf"{PREFIX}-(\d+)-(switch|rank\d+)$")
    found = [ours.match(path.name) for path in sorted(NAMES.glob(f"{PREFIX}-*"))]
    return [m.group(0) for m in found if m and not Path("/proc", m.group(1)).exists()]


@contextmanager
def undisturbed() -> Iterator[None]:
    """No Ctrl-C or SIGTERM here, nor in the commands started from here."""
    before = {s: signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Network:
    """Context: inside, the namespaces exist, limited as `link` says; afterwards they are gone."""

    def __init__(self, ranks: int, link: Link) -> None:
        self.link = link
        self._relay: subprocess.Popen[bytes] | None = None
        self.switch = f"{PREFIX}-{os.getpid()}-switch"
        self.ranks = [f"{PREFIX}-{os.getpid()}-rank{r}" for r in range(ranks)]

    def address(self, rank: int) -> str:
        return f"10.77.0.{rank + 1}"

    def enter(self, rank: int) -> list[str]:
        """The words before a command that make it run where this rank is."""
        return ["ip", "netns", "exec", self.ranks[rank]]

    def commands(self) -> list[list[str]]:
        """All that builds it. addrgenmode none: no address makes itself, nobody but ranks sends."""
        inside = ["ip", "-n", self.switch, "link"]
        bridge = ["br0", "mtu", str(MTU), "addrgenmode", "none"]
        made = [["ip", "netns", "add", self.switch]]
        if not self.link.delay:
            made += [[*inside, "add", "br0", "type", "bridge"], [*inside, "set", *bridge, "up"]]
        for rank in range(len(self.ranks)):
            made += self.cable(rank)
        return made

    def cable(self, rank: int) -> list[list[str]]:
        name, port = self.ranks[rank], f"port{rank}"
        inside, outside = ["ip", "-n", name], ["ip", "-n", self.switch]
        pair = [
            port,
            "mtu",
            str(MTU),
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "mtu",
            str(MTU),
            "netns",
            name,
        ]
        quiet = ["addrgenmode", "none", "up"]
        return [
            ["ip", "netns", "add", name],
            [*inside, "link", "set", "lo", "up"],
            [*outside, "link", "add", *pair],
            [*outside, "link", "set", port, *([] if self.link.delay else ["master", "br0"]), *quiet],
            [*inside, "link", "set", "eth0", *quiet],
            [*inside, "addr", "add", f"{self.address(rank)}/24", "dev", "eth0"],
            shaping(name, "eth0", self.link.rate),
            shaping(self.switch, port, self.link.rate),
        ]

    def __enter__(self) -> Network:
        try:
            for command in self.commands():
                run(command)
            if self.link.delay:
                self._start_relay()
        except BaseException:
            self.clean_up()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.clean_up()

    def _start_relay(self) -> None:
        ports = [f"port{rank}" for rank in range(len(self.ranks))]
        words = [sys.executable, str(RELAY), str(self.link.delay), *ports]
        self._relay = subprocess.Popen(
            ["ip", "netns", "exec", self.switch, *words],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,  # never written: its end says that this process is gone
            start_new_session=True,
        )
        if not self._relay.stdout or not self._relay.stdout.readline():  # its first line: it listens
            raise NetworkError(f"`{' '.join(words)}` ended with exit code {self._relay.wait(COMMAND_TIMEOUT)}")

    def clean_up(self) -> None:
        """Deletes what exists of it; cables and queues go with their ends."""
        with undisturbed():
            if self._relay:
                self._relay.kill()
                self._relay.wait(COMMAND_TIMEOUT)
            for name in [*self.ranks, self.switch]:
                if (NAMES / name).exists():
                    run(["ip", "netns", "del", name])
