# SPDX-License-Identifier: Apache-2.0
"""What can be compared: how a name on the command line becomes a DDP communication hook.

none         no exchange: what the computation costs (its ranks drift apart; it is no training)
ddp          fp32, DistributedDataParallel as it is
bf16         torch's bf16_compress_hook
powersgd:R   torch's PowerSGD, rank R, after START_STEP dense steps; all gradients in one bucket
PRESET       oktopk.torch with this preset (circulant, oktopk, auto, ...), after as many
"""

from __future__ import annotations

import re
from typing import Any

START_STEP = 2  # both for PowerSGD and for oktopk: DDP settles its buckets in the first steps
PRESETS = [
    "auto",
    "circulant",
    "slots",
    "oktopk",
    "spardl",
    "topka",
    "gaussiank",
    "topkdsa",
    "gtopk",
    "topka2a",
    "dense",
]
DEFAULT = "none,ddp,bf16,powersgd:1,powersgd:4,circulant,oktopk,auto"


def check_method(name: str) -> str:
    """The name, or ValueError with what it may be."""
    if name in ("none", "ddp", "bf16", *PRESETS) or re.fullmatch(r"powersgd:[1-9]\d{0,2}", name):
        return name
    known = ", ".join(["none", "ddp", "bf16", "powersgd:R (R from 1 to 999)", *PRESETS])
    raise ValueError(f"method {name!r} is not known; known are {known}")


def needs_oktopk(name: str) -> bool:
    return name in PRESETS


def bucket_options(name: str, parameters: int) -> dict[str, int]:
    """DDP's own bucket size, but one bucket for PowerSGD: its hook waits for collectives inside the
    callbacks of others, and with two buckets in flight these take all of Gloo's threads and wait
    for each other for ever."""
    return {"bucket_cap_mb": parameters * 4 // 2**20 + 1} if name.startswith("powersgd:") else {}


def bf16_hook(group, bucket):  # DDP wants torch's own annotations here, or none
    """torch's hook. Under its own name DDP refuses it without NCCL, though Gloo sums bf16 too."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return default_hooks.bf16_compress_hook(group, bucket)


def register(ddp: Any, name: str, density: float, codec: str | None) -> Any:
    """Gives the DDP model the hook of this method and returns its state (None: it has none)."""
    if name == "bf16":
        ddp.register_comm_hook(None, bf16_hook)
    elif name.startswith("powersgd:"):
        return register_powersgd(ddp, int(name.partition(":")[2]))
    elif needs_oktopk(name):
        return register_oktopk(ddp, name, density, codec)
    return None


def register_powersgd(ddp: Any, rank: int) -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    state = power.PowerSGDState(
        process_group=None, matrix_approximation_rank=rank, start_powerSGD_iter=START_STEP
    )
    ddp.register_comm_hook(state, power.powerSGD_hook)
    return state


def register_oktopk(ddp: Any, preset: str, density: float, codec: str | None) -> Any:
    import oktopk.torch as sparse

    state = sparse.OkTopkState(
        process_group=None,
        density=density,
        preset=preset,
        codec=None if preset == "auto" else codec,  # auto chooses the coding itself
        start_iter=START_STEP,
    )
    ddp.register_comm_hook(state, sparse.oktopk_hook)
    return state


def counted_bytes(state: Any) -> int:
    """What oktopk says that this rank has sent so far; 0 for the others, which do not count."""
    stats = getattr(state, "compression_stats", None)
    return stats().wire_bytes if stats and hasattr(stats(), "wire_bytes") else 0
