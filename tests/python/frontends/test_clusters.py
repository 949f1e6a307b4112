# SPDX-License-Identifier: Apache-2.0
"""examples/slurm/ddp.sbatch with two nodes, both this machine: scontrol and srun are stand-ins, and
torchrun's rendezvous and the hook are real."""

import os
import subprocess
import sys
from pathlib import Path

import oktopk

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import os, torch, oktopk.torch
torch.distributed.init_process_group("gloo")
model = torch.nn.Linear(64, 64)
ddp = torch.nn.parallel.DistributedDataParallel(model)
state = oktopk.torch.OkTopkState(preset="circulant", density=0.05, start_iter=2, min_numel=100)
ddp.register_comm_hook(state, oktopk.torch.oktopk_hook)
optimiser = oktopk.torch.SparseAdamW(model.parameters(), state)
for step in range(6):
    ddp(torch.randn(4, 64)).square().mean().backward()
    optimiser.step()
arrived = state.arrived(model.weight).numel()
node, nodes = os.environ["GROUP_RANK"], os.environ["GROUP_WORLD_SIZE"]
print(f"node {node} of {nodes}: {state.iteration} steps, {0 < arrived < 4096}", flush=True)
torch.distributed.barrier()
os._exit(0)
"""
SRUN = """#!/usr/bin/env bash
shift  # its own option
"$@" & first=$!
"$@" & second=$!
wait $first && wait $second
"""


def executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_sbatch_trains_on_two_nodes(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    executable(tmp_path / "srun", SRUN)
    executable(tmp_path / "scontrol", "#!/bin/sh\necho 127.0.0.1\necho 127.0.0.2\n")
    executable(tmp_path / "torchrun", f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n')
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(oktopk.__file__).parents[1]),
        "CUDA_VISIBLE_DEVICES": "",
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_NNODES": "2",
        "SLURM_CPUS_PER_TASK": "1",
    }
    done = subprocess.run(
        ["bash", str(ROOT / "examples/slurm/ddp.sbatch"), str(tmp_path / "script.py")],
        capture_output=True,
        text=True,
        timeout=180,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "node 0 of 2: 6 steps, True",
        "node 1 of 2: 6 steps, True",
    ]
