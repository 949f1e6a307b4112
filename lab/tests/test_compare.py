# SPDX-License-Identifier: Apache-2.0
"""Tests of lab/bench/compare.py: what counts as slower, and what it reads."""

import json

import pytest
from bench import compare


def kernels(time, limit=1e-3, mad=1e-6, tool="oktopk-lab kernels"):
    row = {"kernel": "scan", "simd": "avx2", "data": "gaussian", "n": 1024.0, "k": 10.0, "time": time, "time_mad": mad,
           "limit_time": limit}
    return {"tool": tool, "rows": [row]}


def bench(time, axpy):
    row = {"preset": "circulant", "n": 1e6, "k": 1e4, "ranks": 4, "time": time, "axpy_time": axpy}
    return {"tool": "oktopk bench", "rows": [row]}


@pytest.fixture
def run_on(tmp_path, capsys):
    def run(before, after, *options):
        files = [tmp_path / name for name in ("before.json", "after.json")]
        for file, result in zip(files, (before, after)):
            file.write_text(result if isinstance(result, str) else json.dumps(result))
        code = compare.main([*map(str, files), *options])
        return code, "".join(capsys.readouterr())

    return run


@pytest.mark.parametrize(
    "before, after, verdict",
    [
        ((100, 0), (104, 0), "same"),
        ((100, 0), (106, 0), "slower"),
        ((100, 2), (106, 2), "same"),
        ((100, 2), (120, 2), "slower"),
        ((100, 0), (90, 0), "faster"),
    ],
)
def test_judge_needs_threshold_and_noise(before, after, verdict):
    assert compare.judge(before, after, 0.05, 4) == verdict


def test_slower_kernel_exits_with_1_and_a_faster_one_with_0(run_on):
    code, text = run_on(kernels(1e-3, tool="oktopk kernels"), kernels(1.2e-3))  # a file of version 1.0
    assert code == 1 and "slower    1.200x" in text and "scan/avx2/gaussian/n=1024/k=10" in text
    code, text = run_on(kernels(1.2e-3), kernels(1e-3))
    assert code == 0 and "1 faster" in text


def test_slower_machine_counts_in_absolute_times_only(run_on):
    before, after = kernels(1e-3, limit=1e-3), kernels(2e-3, limit=2e-3)
    assert run_on(before, after)[0] == 0
    assert run_on(before, after, "--absolute")[0] == 1


def test_growth_within_the_noise_is_no_growth(run_on):
    assert run_on(kernels(1e-3, mad=1e-4), kernels(1.2e-3, mad=1e-4))[0] == 0


def test_bench_is_compared_by_its_axpy(run_on):
    assert run_on(bench(2e-3, 1e-3), bench(4e-3, 2e-3))[0] == 0
    assert run_on(bench(2e-3, 1e-3), bench(4e-3, 1e-3))[0] == 1


def test_bad_input_is_named_and_exits_with_2(run_on):
    for bad in ("not json", "{}", "[]", json.dumps({"tool": "oktopk bench", "rows": []})):
        code, text = run_on(bad, kernels(1e-3))
        assert code == 2 and "before.json" in text
    assert run_on(kernels(1e-3), bench(1, 1))[0] == 2  # nothing in common
