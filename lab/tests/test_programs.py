# SPDX-License-Identifier: Apache-2.0
"""Programs that call the commands run, and print what they promise. Their times mean nothing here."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MISSING = [name for name in ("build/oktopk", "build/oktopk-lab") if not (ROOT / name).exists()]
if MISSING and os.environ.get("CI"):
    raise RuntimeError(f"{' and '.join(MISSING)} not built, but CI must run the tests that need them: make lab")
needs_commands = pytest.mark.skipif(bool(MISSING), reason=f"NOT RUN, not built: {', '.join(MISSING)}: make lab")


def run(script, *words):
    command = [sys.executable, ROOT / "lab" / script, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_commands
def test_performance_tables_are_made_of_what_both_commands_measure():
    pytest.importorskip("numpy")
    topk, wire, _ = run("bench/performance_tables.py", "--quick", "--only", "topk,wire").split("<!-- end -->")
    assert "<!-- table topk -->" in topk and "<!-- table wire -->" in wire
    for tool in ("oktopk | top-k", "oktopk | threshold", "std::nth_element | top-k", "numpy nonzero | threshold"):
        assert f"| {tool} |" in topk  # compare_topk.py made this table
    assert "| elias_fano+log8 | 2 |" in wire


@needs_commands
def test_transports_are_timed_in_turns():
    out = run("network/transports.py", "--network", "loopback", "--rounds", 1, "--bytes", 8, "--budget", 0.01)
    head, _, one, both = out.splitlines()
    assert "tcp (us)" in head and ("Gloo (us)" in head) == (find_spec("torch") is not None)
    assert one.startswith("| loopback | 8 | one way |") and both.startswith("| loopback | 8 | both ways |")


def test_plot_learning_draws_a_bar_per_recipe(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [{"name": f"{way}, dense 2%", "preset": "circulant", "recipe": {"optimiser": optimiser}, "gaps": gaps}
            for optimiser in ("sgd", "adam") for way, gaps in (("owner memory", [0.01]), ("sender keeps", [0.02, 0.2]))]
    (tmp_path / "study.json").write_text(json.dumps({"rows": rows}))
    run("study/plot_learning.py", tmp_path / "study.json", tmp_path / "learning.png")
    assert (tmp_path / "learning.png").read_bytes().startswith(b"\x89PNG")
