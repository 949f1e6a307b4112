# SPDX-License-Identifier: Apache-2.0
"""README's script as it stands there, started by examples/slurm/ddp.sbatch on two nodes. Both are this
machine: scontrol and srun are stand-ins, torchrun's rendezvous and the hook are real. The job for Kubernetes is read
as YAML, and its command by torchrun's own parser."""

import os
import re
import sys
from pathlib import Path

import pytest
from processes import printed_by
from torch.distributed.run import get_args_parser

ROOT = Path(__file__).resolve().parents[3]
SRUN = """#!/usr/bin/env bash
shift  # --kill-on-bad-exit: the first node that fails ends the other
"$@" &
"$@" &
wait -n && wait -n && exit
kill $(jobs -p)
wait
exit 1
"""


def executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_readme_script_trains_on_two_nodes(tmp_path):
    section = (ROOT / "README.md").read_text().split("in a PyTorch script")[1]
    script = tmp_path / "script.py"
    script.write_text(re.search(r"```python\n(.*?)```", section, re.S).group(1))
    executable(tmp_path / "srun", SRUN)
    executable(tmp_path / "scontrol", "#!/bin/sh\necho 127.0.0.1\necho 127.0.0.2\n")
    executable(tmp_path / "torchrun", f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n')
    printed = printed_by(
        ["bash", str(ROOT / "examples/slurm/ddp.sbatch"), str(script)],
        tmp_path,
        PATH=f"{tmp_path}:{os.environ['PATH']}",
        SLURM_JOB_ID=str(os.getpid()),
        SLURM_JOB_NODELIST="node[1-2]",
        SLURM_NNODES="2",
        SLURM_CPUS_PER_TASK="1",
    )
    # Two nodes with a rank each: rank 0 alone prints.
    assert re.fullmatch(r"loss 0\.\d+, compressed \d+\.\d+x\n", printed), printed


@pytest.fixture
def job():
    yaml = pytest.importorskip("yaml", reason="NOT RUN: the test of examples/kubernetes needs PyYAML")
    return yaml.safe_load((ROOT / "examples/kubernetes/pytorchjob.yaml").read_text())


def test_kubernetes_job_is_what_the_operator_reads(job):
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    assert isinstance(job["spec"]["nprocPerNode"], str)  # "auto" and "gpu" are legal, too
    kinds = job["spec"]["pytorchReplicaSpecs"]
    assert set(kinds) == {"Master", "Worker"} and kinds["Master"]["replicas"] == 1
    for kind in kinds.values():
        (container,) = kind["template"]["spec"]["containers"]
        assert container["name"] == "pytorch"  # any other is left alone by the operator
        assert all(isinstance(v["value"], str) for v in container["env"])
        assert {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"} <= {v["name"] for v in container["env"]}


def test_kubernetes_command_takes_the_nodes_from_the_operator(job, monkeypatch):
    nodes = sum(kind["replicas"] for kind in job["spec"]["pytorchReplicaSpecs"].values())
    told = {"NNODES": nodes, "NODE_RANK": 2, "NPROC_PER_NODE": job["spec"]["nprocPerNode"],
            "MASTER_ADDR": "oktopk-master-0", "MASTER_PORT": 23456}  # fmt: skip
    for name, value in told.items():
        monkeypatch.setenv(f"PET_{name}", str(value))
    command = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["command"]
    assert command[0] == "torchrun"
    args = get_args_parser().parse_args(command[1:])
    assert (args.nnodes, args.node_rank, args.nproc_per_node) == ("4", 2, "1")
    assert (args.master_addr, args.master_port) == ("oktopk-master-0", 23456)
    assert args.training_script == "/workspace/train.py"
