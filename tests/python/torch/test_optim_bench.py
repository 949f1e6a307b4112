# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the optimisers runs, and prints what it promises. Its times mean nothing here."""

import torch
from test_bench import run


def test_optimiser_step_prints_a_row_for_each_way():
    status, out, err = run("bench/optimiser_step.py", "--model", "gpt", "--scale", "0.0005", "--steps", "1")
    assert status == 0, err
    head, columns, *rows = out.splitlines()
    assert head.startswith("gpt: 76 tensors, 0.0M elements, ") and head.endswith(f"torch {torch.__version__}")
    assert columns.split() == ["median,", "ms", "step", "host", "x", "step"]
    ours = [row for row in rows if row.startswith("SparseAdamW")]
    assert [row[13:28].strip() for row in ours] == ["densely", "all as a list", "1% as a list", "1% not zero"]
    assert all(len(row[28:].split()) == 3 for row in ours)


def test_optimiser_step_names_what_it_cannot_do():
    status, _, err = run("bench/optimiser_step.py", "--model", "gpt,gpt5")
    assert status == 2 and "--model gpt5, but it must be one of bert, gpt, gpt-medium" in err
    if not torch.cuda.is_available():
        status, _, err = run("bench/optimiser_step.py", "--device", "cuda")
        assert status == 2 and "torch finds no GPU" in err
