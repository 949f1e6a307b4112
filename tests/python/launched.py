# SPDX-License-Identifier: Apache-2.0
"""Ranks as a launcher starts them: processes with torchrun's variables, in which the program itself initialises
torch.distributed. They are forked: imports, seconds of them, are paid once."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Callable, Dict, Sequence

import torch
import torch.multiprocessing
from ranks import import_for_ranks, wait_for

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TIMEOUT = 180.0
GRACE = 10.0  # for a rank that has not said yet why it ends


def run_launched(P: int, work: Callable[..., None], *args: Any) -> None:
    """work(rank, *args) in P processes; whatever one raises is raised here."""
    import_for_ranks()
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


class Program:
    """A Python program in a process that is forked from this one, so it has torch already. Its outputs go to files,
    and os._exit ends it: no handler of this process runs in it."""

    def __init__(self, main: Callable[[], int], folder: Any, outputs: Any, variables: Dict[str, str]):
        self.main, self.folder, self.outputs, self.variables = main, folder, outputs, variables
        self.process = multiprocessing.get_context("fork").Process(target=self._run, daemon=False)
        self.process.start()

    def _run(self) -> None:
        for number, file in enumerate(self.outputs, start=1):
            os.dup2(file.fileno(), number)
        sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))
        status = 1
        try:
            os.environ.update({"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **self.variables})
            os.chdir(self.folder)
            torch.set_num_threads(1)
            status = self.main()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


def run_main(words: Sequence[Any]) -> int:
    """The program words[0] with its arguments, or `-m module` with them; the status with which it ends."""
    is_module = words[0] == "-m"
    sys.argv = [str(word) for word in words[is_module:]]
    sys.path.insert(0, os.getcwd() if is_module else str(Path(words[0]).parent))
    try:
        if is_module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    if "oktopk._ends" in sys.modules:  # a goodbye, as at the end of a usual process
        sys.modules["oktopk._ends"].end_worlds()
    return 0


def run_programs(mains: Sequence[Any], folder: Any = ".") -> subprocess.CompletedProcess[str]:
    """Pairs of a function and its variables, at once, until all have ended or one has failed: the others are killed
    a while later. The status is that of the first that failed."""
    import_for_ranks()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        running = [Program(main, folder, (out, err), variables).process for main, variables in mains]
        deadline, status = time.monotonic() + TIMEOUT, 0
        try:
            while running and status == 0:
                ended = wait([one.sentinel for one in running], deadline - time.monotonic())
                assert ended, f"{len(running)} processes did not end within {TIMEOUT} s"
                codes = [one.exitcode for one in running]  # asked once: a process may end meanwhile
                status = next((code for code in codes if code), 0)
                running = [one for one, code in zip(running, codes) if code is None]
        finally:
            for one in running:
                one.join(GRACE if status != 0 else 0)
                one.kill()
                one.join()
        return subprocess.CompletedProcess([], status, *(file.seek(0) or file.read() for file in (out, err)))


def start_program(main: Callable[[], int], log: Path, **variables: str) -> Any:
    """A process of multiprocessing; both of its outputs go to the file log."""
    import_for_ranks()
    with open(log, "w") as file:
        return Program(main, ".", (file, file), variables).process


class Command(subprocess.Popen):  # type: ignore[type-arg]
    """With the names of multiprocessing. What has threads of another language cannot be forked."""

    exitcode = property(lambda self: self.poll())
    join = subprocess.Popen.wait


class Watched:
    """Processes with a log each, by their names, in a folder."""

    def __init__(self, folder: Path, seconds: float):
        self.folder, self.seconds = folder, seconds  # a bound against hangs
        self.processes: Dict[str, Any] = {}

    def start(self, name: str, main: Callable[[], int], **variables: str) -> None:
        self.processes[name] = start_program(main, self.folder / f"{name}.log", **variables)

    def start_command(self, name: str, *words: Any) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        with open(self.folder / f"{name}.log", "w") as log:
            command = [sys.executable, *map(str, words)]
            self.processes[name] = Command(command, stdout=log, stderr=subprocess.STDOUT, env=environment)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self.seconds
        while not condition():
            assert time.monotonic() < deadline, "\n".join(self.log(name)[-1500:] for name in self.processes)
            time.sleep(0.02)

    def end(self, name: str) -> int:
        """Its status; a negative one is a signal."""
        self.until(lambda: self.processes[name].exitcode is not None)
        return int(self.processes[name].exitcode)

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.join()


def run_program(*words: Any, folder: Any = ".", **variables: str) -> subprocess.CompletedProcess[str]:
    """A program that starts its ranks itself, or has one."""
    return run_programs([(lambda: run_main(words), variables)], folder)


def run_ranks(P: int, *words: Any, folder: Any = ".", **variables: str) -> subprocess.CompletedProcess[str]:
    """A program on P ranks, with torchrun's variables."""
    port = _free_port()
    own = [{**torchrun_variables(rank, P, port), **variables} for rank in range(P)]
    return run_programs([(lambda: run_main(words), one) for one in own], folder)


def run_torchrun(P: int, *words: Any, restarts: int = 0, folder: Any = ".", **variables: str) -> Any:
    """A program on P ranks under torchrun's own agent, which starts them again when one of them dies."""
    return run_programs([(lambda: _agent(P, words, restarts), variables)], folder)


def _agent(P: int, words: Sequence[Any], restarts: int) -> int:
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=P,
        run_id=str(os.getpid()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=restarts,
        monitor_interval=0.1,
        start_method="fork",
    )
    elastic_launch(config, _rank_of_agent)(words)
    return 0


def _rank_of_agent(words: Sequence[Any]) -> None:
    status = run_main(words)
    if status != 0:
        raise RuntimeError(f"{words[0]} ended with status {status}")


def check_example(name: str, folder: Path) -> None:
    """examples/<name> on two ranks, for a few steps on generated data: it learns and sends little."""
    run_launched(2, _run_example, name, folder)
    check_report((folder / "printed-0.txt").read_text())


def printed_by_example(P: int, name: str, folder: Path, *arguments: str) -> list[str]:
    """What each of P ranks of examples/<name> prints."""
    run_launched(P, _run_example, name, folder, *arguments)
    return [(folder / f"printed-{rank}.txt").read_text() for rank in range(P)]


def check_report(printed: str, least: float = 3.0) -> None:
    assert "stand-in for MNIST (generated)" in printed and "after 60 steps" in printed
    assert float(printed.split("accuracy ")[1].split()[0]) > 0.2  # chance is 0.1
    assert least == 0 or float(printed.split("compressed ")[1].split("x")[0]) > least


def _run_example(rank: int, name: str, folder: Path, *arguments: str) -> None:
    os.chdir(folder)
    sys.path.insert(0, str(EXAMPLES))
    sys.argv = [name, *(arguments or ("--steps", "60"))]
    with open(f"printed-{rank}.txt", "w") as file, contextlib.redirect_stdout(file):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
