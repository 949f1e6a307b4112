#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of bench/compare.py: what counts as slower, and what it reads."""

import contextlib
import importlib.util
import io
import json
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "bench/compare.py"
spec = importlib.util.spec_from_file_location("compare", SOURCE)
compare = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compare)


def kernels(time, limit=1e-3, mad=1e-6):
    row = {"kernel": "scan", "simd": "avx2", "data": "gaussian", "n": 1024.0, "k": 10.0, "time": time, "time_mad": mad,
           "limit_time": limit}
    return {"tool": "oktopk kernels", "rows": [row]}


def bench(time, axpy):
    row = {"preset": "circulant", "n": 1e6, "k": 1e4, "ranks": 4, "time": time, "axpy_time": axpy}
    return {"tool": "oktopk bench", "rows": [row]}


class Compare(unittest.TestCase):
    def run_on(self, before, after, *options):
        with tempfile.TemporaryDirectory() as folder:
            files = [str(Path(folder) / name) for name in ("before.json", "after.json")]
            for file, result in zip(files, (before, after)):
                Path(file).write_text(result if isinstance(result, str) else json.dumps(result))
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                code = compare.main([*files, *options])
            return code, out.getvalue()

    def test_judge_needs_threshold_and_noise(self):
        self.assertEqual(compare.judge((100, 0), (104, 0), 0.05, 4), "same")
        self.assertEqual(compare.judge((100, 0), (106, 0), 0.05, 4), "slower")
        self.assertEqual(compare.judge((100, 2), (106, 2), 0.05, 4), "same")
        self.assertEqual(compare.judge((100, 2), (120, 2), 0.05, 4), "slower")
        self.assertEqual(compare.judge((100, 0), (90, 0), 0.05, 4), "faster")

    def test_slower_kernel_exits_with_1(self):
        code, text = self.run_on(kernels(1e-3), kernels(1.2e-3))
        self.assertEqual(code, 1)
        self.assertRegex(text, r"slower +1\.200x")
        self.assertIn("scan/avx2/gaussian/n=1024/k=10", text)

    def test_faster_kernel_exits_with_0(self):
        code, text = self.run_on(kernels(1.2e-3), kernels(1e-3))
        self.assertEqual(code, 0)
        self.assertIn("1 faster", text)

    def test_slower_machine_counts_in_absolute_times_only(self):
        before, after = kernels(1e-3, limit=1e-3), kernels(2e-3, limit=2e-3)
        self.assertEqual(self.run_on(before, after)[0], 0)
        self.assertEqual(self.run_on(before, after, "--absolute")[0], 1)

    def test_growth_within_the_noise_is_no_growth(self):
        self.assertEqual(self.run_on(kernels(1e-3, mad=1e-4), kernels(1.2e-3, mad=1e-4))[0], 0)

    def test_bench_is_compared_by_its_axpy(self):
        self.assertEqual(self.run_on(bench(2e-3, 1e-3), bench(4e-3, 2e-3))[0], 0)
        self.assertEqual(self.run_on(bench(2e-3, 1e-3), bench(4e-3, 1e-3))[0], 1)

    def test_bad_input_is_named_and_exits_with_2(self):
        for bad in ("not json", "{}", "[]", json.dumps({"tool": "oktopk kernels", "rows": []})):
            code, text = self.run_on(bad, kernels(1e-3))
            self.assertEqual(code, 2)
            self.assertIn("before.json", text)
        self.assertEqual(self.run_on(kernels(1e-3), bench(1, 1))[0], 2)  # nothing in common


if __name__ == "__main__":
    unittest.main()
