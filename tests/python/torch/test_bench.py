# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of the PyTorch layer run, and print what they promise. Their times mean nothing here."""

from launched import EXAMPLES, run_program

ROOT = EXAMPLES.parent


def run(script, *words):
    done = run_program(ROOT / script, *words, folder=ROOT)
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
    status, out, err = run("bench/gpu_training.py", "--methods", "ddp-gloo,circulant,slots", "--phases", *sizes)
    assert status == 0, err
    head, *lines = out.splitlines()
    assert head.startswith("n 28032, ") and "P 2, device cpu" in head
    assert [line.split()[0] for line in lines] == ["ddp-gloo", "circulant", "slots"]
    assert "1.00 x ddp-gloo" in lines[0] and "x fewer bytes" in lines[2]
    status, _, err = run("bench/gpu_training.py", "--methods", "ddp-nccl")
    assert status == 2 and "ddp-nccl needs --device cuda" in err
