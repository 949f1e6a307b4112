# SPDX-License-Identifier: Apache-2.0
"""The check-point script of docs/pytorch.md as it stands there: started again, it goes on, on other ranks, too."""

import re
from pathlib import Path

import pytest
from launched import run_ranks
from versions import TORCH, reason

ROOT = Path(__file__).resolve().parents[3]

if TORCH < (2, 4):
    pytest.skip(reason((2, 4), "DCP for values of one rank"), allow_module_level=True)


def blocks():
    """The script, and the functions that take the place of DCP in it."""
    section = (ROOT / "docs/pytorch.md").read_text().split("## Check-points")[1].split("## Restarts")[0]
    script, functions = re.findall(r"```python\n(.*?)```", section, re.S)
    return script, functions


def with_torch_save(script, functions):
    head, rest = script.split("if os.path.exists", 1)
    loop = rest[rest.index("torch.manual_seed") :].split("weights, moments = ")[0]
    last = script[script.index("if dist.get_rank() == 0:") :]
    resume = 'if "SAVED" in os.environ:\n    load(".", int(os.environ["SAVED"]))\n'
    return f'{head}\n{functions}\n{resume}\n{loop}\nsave(".")\n{last}'


def run(folder, ranks, **variables):
    done = run_ranks(ranks, folder / "train.py", folder=folder, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_script_goes_on_from_its_check_point_on_other_ranks(tmp_path):
    (tmp_path / "train.py").write_text(blocks()[0])
    assert run(tmp_path, 2) == "20 steps, the last ones on 2 ranks\n"
    assert run(tmp_path, 1) == "40 steps, the last ones on 1 ranks\n"


def test_the_functions_with_torch_save_take_the_place_of_dcp(tmp_path):
    (tmp_path / "train.py").write_text(with_torch_save(*blocks()))
    assert run(tmp_path, 2) == "20 steps, the last ones on 2 ranks\n"
    assert run(tmp_path, 1, SAVED="2") == "40 steps, the last ones on 1 ranks\n"
    assert run(tmp_path, 1, SAVED="1") == "60 steps, the last ones on 1 ranks\n"
