# SPDX-License-Identifier: Apache-2.0
"""Ranks as a launcher starts them: processes with torchrun's variables, in which the front-end
itself initialises torch.distributed. They are forked: imports, seconds of them, are paid once."""

from __future__ import annotations

import contextlib
import os
import runpy
import socket
import sys
from pathlib import Path
from typing import Any, Callable, Dict

import torch
import torch.multiprocessing
from ranks import wait_for

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
TIMEOUT = 180.0


def run_launched(P: int, work: Callable[..., None], *args: Any) -> None:
    """work(rank, *args) in P processes; whatever one raises is raised here."""
    context = torch.multiprocessing.start_processes(
        _run, (P, _free_port(), work, args), P, join=False, start_method="fork"
    )
    wait_for(context, work.__name__, TIMEOUT)


def _run(rank: int, P: int, port: int, work: Callable[..., None], args: Any) -> None:
    torch.set_num_threads(1)
    os.environ.update(torchrun_variables(rank, P, port))
    work(rank, *args)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # nobody leaves while others still talk to it
    os._exit(0)  # threads of torch's own sometimes abort a process that ends in the usual way


def torchrun_variables(rank: int, P: int, port: int) -> Dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(P),
        "LOCAL_WORLD_SIZE": str(P),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "test",
        "CUDA_VISIBLE_DEVICES": "",
    }


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def check_example(name: str, folder: Path) -> None:
    """examples/<name> on two ranks, for a few steps on generated data: it learns and sends little."""
    run_launched(2, _run_example, name, folder)
    check_report((folder / "printed-0.txt").read_text())


def printed_by_example(P: int, name: str, folder: Path, *arguments: str) -> list[str]:
    """What each of P ranks of examples/<name> prints."""
    run_launched(P, _run_example, name, folder, *arguments)
    return [(folder / f"printed-{rank}.txt").read_text() for rank in range(P)]


def check_report(printed: str) -> None:
    assert "stand-in for MNIST (generated)" in printed and "after 60 steps" in printed
    assert float(printed.split("accuracy ")[1].split()[0]) > 0.2  # chance is 0.1
    assert float(printed.split("compressed ")[1].split("x")[0]) > 3


def _run_example(rank: int, name: str, folder: Path, *arguments: str) -> None:
    os.chdir(folder)
    sys.path.insert(0, str(EXAMPLES))
    sys.argv = [name, *(arguments or ("--steps", "60"))]
    with open(f"printed-{rank}.txt", "w") as file, contextlib.redirect_stdout(file):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
