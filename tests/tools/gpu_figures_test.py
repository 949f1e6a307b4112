# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu_figures.py reads what ncu writes."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/gpu_figures.py"
HEAD = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
KERNEL = "void oktopk::cuda::<unnamed>::read_kernel<(bool)1>(const float *, unsigned long)"


def run_on(text):
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write(text)
        file.flush()
        return subprocess.run([sys.executable, SCRIPT, "--csv", file.name], capture_output=True, text=True, check=False)


def launch(number, kernel, nanoseconds, registers):
    return [f'"{number}","7","{kernel}","gpu__time_duration.sum","ns","{nanoseconds}"',
            f'"{number}","7","{kernel}","launch__registers_per_thread","register/thread","{registers}"']


class GpuFigures(unittest.TestCase):
    def test_longest_launch_of_each_kernel_is_shown(self):
        lines = ["# oktopk kernels", "==PROF== Connected", HEAD, *launch(0, "small(int)", "900", 8),
                 *launch(1, "own_kernel(int)", "1,500", 48), *launch(2, "own_kernel(int)", "128,000", 48)]
        done = run_on("\n".join(lines))
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = done.stdout.splitlines()
        self.assertEqual(rows[2], "| `own_kernel` | 128.0 | - | - | 48.0 |")
        self.assertEqual(rows[3], "| `small` | 0.9 | - | - | 8.0 |")
        self.assertEqual(len(rows), 4)

    def test_template_arguments_stay_in_the_name(self):
        done = run_on("\n".join([HEAD, *launch(0, KERNEL, "10", 22)]))
        self.assertIn("`read_kernel<true>`", done.stdout)

    def test_output_without_a_table_is_refused(self):
        done = run_on("==ERROR== no counters")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("no table of ncu", done.stderr)


if __name__ == "__main__":
    unittest.main()
