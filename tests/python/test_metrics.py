# SPDX-License-Identifier: Apache-2.0
"""Writers of metrics."""

import json
import struct

import pytest

from oktopk import metrics

ROW = {"iteration": 4, "bucket": 1, "n": 10, "wire_bytes": 80, "preset": "circulant", "dense": False}
ROWS = [ROW, {**ROW, "iteration": 5, "wire_bytes": 90}]


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


def test_tensorboard_shows_numbers_by_bucket_and_step(tmp_path):
    pytest.importorskip("tensorboard", reason="NOT RUN: TensorBoardWriter needs tensorboard")
    torch_writer = pytest.importorskip("torch.utils.tensorboard", reason="NOT RUN: TensorBoardWriter needs torch")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with torch_writer.SummaryWriter(str(tmp_path)) as writer:
        callback = metrics.TensorBoardWriter(writer)
        for row in ROWS:
            callback(row)
    shown = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in shown.Scalars("oktopk/bucket1/wire_bytes")] == [(4, 80), (5, 90)]
    assert [(e.step, e.value) for e in shown.Scalars("oktopk/bucket1/dense")] == [(4, 0), (5, 0)]
    assert set(shown.Tags()["scalars"]) == {f"oktopk/bucket1/{name}" for name in ("n", "wire_bytes", "dense")}


def wandb_records(data):
    """Of an offline run's file: a head of 7 bytes, then records as in a log of LevelDB (checksum, length, kind; 1 is a
    whole record, 2 to 4 are the first, middle and last parts of one), in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    at, parts = 7, []
    while at + 7 <= len(data):
        if at % 32768 > 32768 - 7:
            at += 32768 - at % 32768
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):
            yield Record.FromString(b"".join(parts))
            parts = []


def test_wandb_keeps_a_row_per_step_and_the_rows_of_the_script(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="NOT RUN: WandbWriter needs wandb")

    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(mode="offline", dir=str(tmp_path), project="test") as run:
        callback = metrics.WandbWriter(run, prefix="sync")
        for row in ROWS:
            callback(row)
            run.log({"loss": 1.0})  # the script's own
    wandb.teardown()  # waits for the process that writes the file
    rows = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in wandb_records(next(tmp_path.rglob("*.wandb")).read_bytes())
    ]
    kept = [row for row in rows if "sync/iteration" in row]
    assert [(r["sync/iteration"], r["sync/bucket1/wire_bytes"]) for r in kept] == [(4, 80), (5, 90)]
    assert kept[0]["sync/bucket1/preset"] == "circulant"
    assert len([row for row in rows if "loss" in row]) == 2


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
