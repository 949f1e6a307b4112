# SPDX-License-Identifier: Apache-2.0
"""lab/gpu/figures.py reads what ncu writes."""

import pytest
from gpu import figures

HEAD = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
KERNEL = "void oktopk::cuda::<unnamed>::read_kernel<(bool)1>(const float *, unsigned long)"


def launch(number, kernel, nanoseconds, registers):
    return [f'"{number}","7","{kernel}","gpu__time_duration.sum","ns","{nanoseconds}"',
            f'"{number}","7","{kernel}","launch__registers_per_thread","register/thread","{registers}"']


def test_longest_launch_of_each_kernel_is_shown(tmp_path, capsys):
    lines = ["# oktopk-lab kernels", "==PROF== Connected", HEAD, *launch(0, "small(int)", "900", 8),
             *launch(1, "own_kernel(int)", "1,500", 48), *launch(2, "own_kernel(int)", "128,000", 48)]
    file = tmp_path / "ncu.csv"
    file.write_text("\n".join(lines))
    assert figures.main(["--csv", str(file)]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[2:] == ["| `own_kernel` | 128.0 | - | - | 48.0 |", "| `small` | 0.9 | - | - | 8.0 |"]


def test_template_arguments_stay_in_the_name():
    assert list(figures.launches("\n".join([HEAD, *launch(0, KERNEL, "10", 22)]))) == ["read_kernel<true>"]


def test_output_without_a_table_is_refused():
    with pytest.raises(SystemExit, match="no table of ncu"):
        figures.launches("==ERROR== no counters")
