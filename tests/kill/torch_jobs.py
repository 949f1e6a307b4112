#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs of torchrun: three ranks of a small DDP training run with the hook. kill.py disturbs them and reads their lines.

    torch_jobs.py serve SOCKET                   imports torch once, and starts a job for each client
    torch_jobs.py run SOCKET STEPS SILENCE       one job: its lines are those of this program, and so is its status

Importing torch takes seconds of a core for each process. So the server forks a launcher for each job, and torchrun's
agent in it (elastic_launch, which the command torchrun calls) forks the ranks. `_rank` in the server's command line is
how kill.py knows its processes.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

RANKS = 3


def say(text: str) -> None:
    """One write: print() writes text and end of line apart, and lines of several ranks mix."""
    os.write(1, f"rank {os.environ['RANK']} {text}\n".encode())


def be_rank(steps: int, silence: float) -> None:
    say(f"start pid {os.getpid()}")
    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        train(steps, silence)
    except Exception as error:  # noqa: BLE001, all that a user would see
        say(f"error: {type(error).__name__}: {str(error).splitlines()[0]}")
        os._exit(3)
    dist.barrier()
    dist.destroy_process_group()


def train(steps: int, silence: float) -> None:
    import hashlib

    import torch
    import torch.distributed as dist

    import oktopk.torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    model = torch.nn.parallel.DistributedDataParallel(net)
    state = oktopk.torch.OkTopkState(preset="circulant", density=0.05, start_iter=2, silence=silence)
    model.register_comm_hook(state, oktopk.torch.oktopk_hook)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(steps):
        if step == 3:
            # torchrun ends the other ranks as soon as one has failed: let them have their say.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            say(f"ready pid {os.getpid()} member {dist.get_rank()}")
        optimiser.zero_grad()
        x = torch.randn(8, 64)
        torch.nn.functional.mse_loss(model(x), x[:, :4]).backward()
        optimiser.step()
        time.sleep(0.002)
    flat = torch.cat([p.detach().flatten() for p in net.parameters()])
    say(f"done loss 0 weights {hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:16]} messages 0")


def launch(steps: int, silence: float) -> int:
    """As `torchrun --standalone --nproc-per-node 3 --monitor-interval 0.1 --start-method fork`."""
    import uuid

    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=RANKS,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
        start_method="fork",
    )
    try:
        elastic_launch(config, be_rank)(steps, silence)
    except Exception as error:  # noqa: BLE001, a rank has failed
        print(f"launcher: {type(error).__name__}", flush=True)
        return 1
    return 0


def serve(path: str) -> None:
    import torch._dynamo  # the first step of an optimiser would do it
    import torch.distributed.launcher.api
    import torch.nn.parallel

    import oktopk.torch  # noqa: F401

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(16)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                answer(connection)
            connection.close()
            try:
                while os.waitpid(-1, os.WNOHANG)[0] != 0:  # launchers that have ended
                    pass
            except ChildProcessError:
                pass


def answer(connection: socket.socket) -> None:
    """In the launcher: runs the job of one client, with the client's output, and tells it the status."""
    status = 1
    try:
        os.setsid()
        words, (output,), _, _ = socket.recv_fds(connection, 100, 1)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        steps, silence = words.decode().split()
        status = launch(int(steps), float(silence))
    finally:
        connection.sendall(bytes([status]))
        os._exit(status)


def run(path: str, steps: str, silence: str) -> int:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        socket.send_fds(connection, [f"{steps} {silence}".encode()], [1])
        status = connection.recv(1)
        return status[0] if status else 1


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        sys.exit(run(*sys.argv[2:]))
