# SPDX-License-Identifier: Apache-2.0
"""Tests of the numbers of bench/slow_network.py: what is counted, the table, and its page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ROOT / "bench/slow_network.py"
sys.path.insert(0, str(ROOT / "bench"))

from network import counters, table  # noqa: E402


def test_counters_take_the_root_queue_alone():
    inner = {"kind": "tbf", "parent": "1:1", "bytes": 7, "packets": 1}
    outer = {"kind": "netem", "root": True, "bytes": 9, "packets": 2, "drops": 1}
    assert counters.root_queue(json.dumps([inner, outer])) == outer
    with pytest.raises(ValueError, match="no counted queue"):
        counters.root_queue(json.dumps([inner]))
    assert counters.between({"wire": 5}, {"wire": 12}) == {"wire": 7}


def rank(ends, wire, start=0.0, same=True):
    return {
        "start": start,
        "ends": ends,
        "sent": {"wire": wire, "counted": 0},
        "loss": 1.0,
        "parameters": 1234567,
        "same_weights": same,
    }


def record():
    ddp = table.summary(
        "100mbit", "ddp", [rank([1, 2, 3], 3 * 2**20), rank([1, 2.5, 3], 6 * 2**20, start=0.5)]
    )
    sparse = table.summary(
        "100mbit", "circulant", [rank([0.1, 0.2, 0.3], 3 * 2048), rank([0.1, 0.2, 0.3], 3 * 1024)]
    )
    failed = {
        "network": "100mbit",
        "method": "auto",
        "error": "rank 1: exit code 1\n    first\n    words|more",
    }
    link = table.link_row(
        "100mbit", 1e8, [{"rate": 95e6, "round_trip": 1e-4}, {"rate": 94e6, "round_trip": 0.0}]
    )
    return {
        "tool": "slow_network",
        "links": [link],
        "rows": [ddp, sparse, failed],
        "conditions": {
            "ranks": 2,
            "cores": 2,
            "cpu": "x86",
            "kernel": "6",
            "torch": "2",
            "parameters": 1000,
            "batch": 4,
            "delay": 0.0,
            "density": 0.01,
            "codec": None,
            "warmup": 8,
        },
    }


def test_summary_ends_a_step_with_the_last_rank_and_counts_the_busiest():
    row = record()["rows"][0]
    assert row["times"] == [0.5, 1.5, 0.5]
    assert (row["median"], row["min"], row["max"], row["wire"]) == (0.5, 0.5, 1.5, 2 * 2**20)


def test_summary_with_different_weights_is_a_failure():
    row = table.summary("100mbit", "oktopk", [rank([1], 1), rank([1], 1, same=False)])
    assert "different weights" in row["error"]


def test_link_row_notices_a_link_that_is_not_as_asked():
    def link(rate):
        return table.link_row("1gbit", 1e9, [{"rate": rate, "round_trip": 0.0}])

    assert link(950e6)["as_asked"] and not link(400e6)["as_asked"] and not link(2e9)["as_asked"]
    assert "NOT 1gbit" in table.link_text(link(400e6))
    assert table.link_row("unlimited", None, [{"rate": 1.0, "round_trip": 0.0}])["as_asked"]


def test_markdown_has_a_link_row_ratios_and_failures():
    lines = table.markdown(record()).splitlines()
    assert len(lines) == 6 and len({len(line) for line in lines}) == 1
    assert "link: measured 94 Mbit/s, round trip 0.10 ms" in lines[2]
    assert [c.strip() for c in lines[4].split("|")[2:-1]] == [
        "circulant",
        "100.0 ms",
        "100.0 ms..100.0 ms",
        "3",
        "2.0 KiB",
        "1024.0x",
        "5.0x",
    ]
    assert "auto: FAILED, rank 1: exit code 1: words/more" in lines[5]


def test_markdown_without_ddp_has_no_ratio():
    less = record()
    less["rows"] = less["rows"][1:]
    assert "1024.0x" not in table.markdown(less)


def test_write_docs_replaces_between_the_markers_and_nothing_else(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.START}\nold\n{table.END}\nafter\n")
    for text in ("one\\1", "two"):
        table.write_docs(page, text)
        assert page.read_text() == f"before\n{table.START}\n\n{text}\n\n{table.END}\nafter\n"
    page.write_text("no markers")
    with pytest.raises(ValueError, match="slow_network"):
        table.write_docs(page, "x")


def test_the_docs_page_has_the_markers():
    text = (ROOT / "docs/slow_network.md").read_text()
    assert text.count(table.START) == 1 and table.END in text[text.index(table.START) :]


def read(file: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, str(COMMAND), "--read", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_command_reads_back_what_was_written(tmp_path):
    file = tmp_path / "slow.json"
    file.write_text(json.dumps(record()))
    done = read(file)
    assert done.returncode == 1, done.stderr  # the record has a failed row
    assert table.markdown(record()) in done.stdout and "1,234,567 parameters" in done.stdout


@pytest.mark.parametrize(
    "text, said", [("{}", "not written by"), ("[", "Expecting"), (None, "slow.json")]
)
def test_command_refuses_to_read_what_is_no_record(text, said, tmp_path):
    file = tmp_path / "slow.json"
    if text is not None:
        file.write_text(text)
    done = read(file)
    assert done.returncode == 2 and said in done.stderr and done.stdout == ""
