# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of PyTorch run, and print what they promise. Their times mean nothing here."""

from pathlib import Path

import torch
from launched import run_program

LAB = Path(__file__).parents[1]


def run(script, *words):
    done = run_program(LAB / script, *words, folder=LAB)
    return done.returncode, done.stdout, done.stderr


def test_ddp_auto_compares_auto_with_plain_ddp():
    sizes = ["--parameters", "1M", "--warmup", "1", "--steps", "1", "--most", "1e-9"]
    status, out, err = run("bench/ddp_auto.py", "--methods", "ddp,auto", *sizes)
    assert status == 1 and "auto takes" in err, err
    lines = out.splitlines()
    assert lines[0] == "n = 1049600, P = 2, cpu, density 0.01"
    assert lines[1].startswith("ddp ") and lines[1].endswith("1.00 x ddp   all_reduce")
    assert lines[2].startswith("auto ") and "x ddp" in lines[2]


def test_process_group_step_prints_a_line_per_number_of_ranks():
    sizes = ["--values", "4096", "--steps", "8"]
    status, out, err = run("bench/process_group_step.py", "--ranks", "2", *sizes)
    assert status == 0, err
    head, line = out.splitlines()
    assert len(line.split()) == 9 and line.split()[0] == "2"


def test_gpu_training_prints_a_line_per_method_and_runs_on_the_cpu():
    sizes = ["--parameters", "tiny", "--steps", "2", "--warmup", "3", "--batch", "1"]
    status, out, err = run("gpu/training.py", "--methods", "ddp-gloo,circulant,slots", "--phases", *sizes)
    assert status == 0, err
    head, *lines = out.splitlines()
    assert head.startswith("n 28032, ") and "P 2, device cpu" in head
    assert [line.split()[0] for line in lines] == ["ddp-gloo", "circulant", "slots"]
    assert "1.00 x ddp-gloo" in lines[0] and "x fewer bytes" in lines[2]
    status, _, err = run("gpu/training.py", "--methods", "ddp-nccl")
    assert status == 2 and "ddp-nccl needs --device cuda" in err


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


def test_gpu_rivals_compare_topk_with_a_step_of_published_code():
    status, out, err = run("gpu/rivals.py", "--device", "cpu", "-n", "4096", "--density", "0.01", "-r", "2")
    assert status == 0, err
    assert "topk" in out and "step" in out
