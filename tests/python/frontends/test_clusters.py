# SPDX-License-Identifier: Apache-2.0
"""README's script as it stands there, started by examples/slurm/ddp.sbatch on two nodes. Both are this
machine: scontrol and srun are stand-ins, torchrun's rendezvous and the hook are real."""

import os
import re
import sys
from pathlib import Path

from processes import printed_by

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
