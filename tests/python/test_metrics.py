# SPDX-License-Identifier: Apache-2.0
"""Writers of metrics."""

import json

import pytest

from oktopk import metrics

ROW = {"iteration": 4, "bucket": 1, "n": 10, "wire_bytes": 80, "preset": "circulant", "dense": False}


def test_jsonl_has_one_object_per_line_and_a_file_per_rank(tmp_path):
    writer = metrics.JsonlWriter(tmp_path / "m-{rank}.jsonl", rank=3)
    writer(ROW)
    writer({**ROW, "iteration": 5})
    lines = (tmp_path / "m-3.jsonl").read_text().splitlines()  # before close(): nothing is held back
    writer.close()
    assert [json.loads(line) for line in lines] == [
        {"rank": 3, **ROW},
        {"rank": 3, **ROW, "iteration": 5},
    ]


def test_tensorboard_gets_numbers_by_bucket_and_step():
    class Writer:
        def __init__(self):
            self.rows = []

        def add_scalar(self, name, value, step):
            self.rows.append((name, value, step))

    writer = Writer()
    metrics.TensorBoardWriter(writer)(ROW)
    assert ("oktopk/bucket1/wire_bytes", 80, 4) in writer.rows
    assert not [row for row in writer.rows if "preset" in row[0]]


def test_every_passes_on_some_steps_and_all_of_calls_all():
    a, b = [], []
    thinned = metrics.all_of(metrics.every(2, a.append), b.append)
    for step in range(5):
        thinned({"iteration": step})
    assert ([m["iteration"] for m in a], len(b)) == ([0, 2, 4], 5)
    with pytest.raises(ValueError, match="steps = 0"):
        metrics.every(0, print)


def test_every_says_beforehand_which_steps_it_wants():
    thinned = metrics.all_of(metrics.every(4, print), metrics.every(6, print))
    assert [step for step in range(13) if metrics.wants(thinned, step)] == [0, 4, 6, 8, 12]
    assert metrics.wants(metrics.every(2, metrics.every(3, print)), 6)
    assert not metrics.wants(metrics.every(2, metrics.every(3, print)), 4)
    assert metrics.wants(print, 5)
