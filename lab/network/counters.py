# SPDX-License-Identifier: Apache-2.0
"""What a rank's interface has sent, read inside the rank's namespace.

`wire` is what the queueing discipline let out: every byte of every frame, with Ethernet, IP and TCP
headers, answers and repeated packets. `interface` is tx_bytes of /sys, which counts the headers of
a large packet once although they go out with every segment of it. `dropped` are packets that did
not fit the queue.
"""

from __future__ import annotations

import json
from pathlib import Path

from network.namespaces import run

STATISTICS = Path("/sys/class/net/eth0/statistics")


def root_queue(text: str) -> dict:
    """The counters of the outermost queue in `tc -s -j qdisc show`."""
    roots = [q for q in json.loads(text) if q.get("root")]
    if len(roots) != 1 or "bytes" not in roots[0]:
        raise ValueError(f"tc shows no counted queue at the root: {text.strip()[:200]}")
    return roots[0]


def read() -> dict[str, int]:
    """The counters of this namespace's eth0, now."""
    queue = root_queue(run(["tc", "-s", "-j", "qdisc", "show", "dev", "eth0"]))
    sent, received = [int((STATISTICS / f"{way}_bytes").read_text()) for way in ("tx", "rx")]
    return {
        "wire": queue["bytes"],
        "packets": queue["packets"],
        "dropped": queue.get("drops", 0),
        "interface": sent,
        "received": received,
    }


def between(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in before}
