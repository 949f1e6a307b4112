# SPDX-License-Identifier: Apache-2.0
"""bench/frontier: every method learns, a run that was interrupted ends with the same bits, and bytes are counted."""

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

from frontier import report  # noqa: E402
from frontier.data import Text  # noqa: E402
from frontier.models import SHAPES, FlatModel, Gpt  # noqa: E402
from frontier.race import Entry, Run  # noqa: E402
from frontier.schedule import Rules  # noqa: E402

RIVALS = ["dense", "bf16", "powersgd:2", "onebit", "dgc:5%", "ef21:5%", "demo:4", "diloco:3", "sparseloco:3:5%"]
OURS = ["published:5%", "topka:5%", "circulant:5%:elias_fano+bf16:none", "slots:5%:dense10", "local:3:5%"]
CPU = torch.device("cpu")
P = 3


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def entry_of(method, steps, lr=3e-3, size="tiny"):
    return Entry(method, size, "generated text", 0, Rules(steps, P, 4, lr), False)


def result_of(entry, folder):
    return json.loads((folder / f"{entry.file_name()}.json").read_text())


def run(entry, folder, deadline=None):
    folder.mkdir(exist_ok=True)
    text = Text(None, SHAPES[entry.size].context, CPU)
    return Run(entry, text, folder, CPU).make(deadline)


@pytest.mark.parametrize("method", RIVALS + OURS)
def test_a_run_learns_and_can_be_interrupted(method, tmp_path):
    entry = entry_of(method, 14, lr=0.3 if method.startswith("dgc") else 3e-3)
    assert run(entry, tmp_path / "whole")
    for _ in range(2):
        assert not run(entry, tmp_path / "pieces", deadline=0.0)  # one step, and saved
    assert run(entry, tmp_path / "pieces", deadline=None)
    whole, pieces = (result_of(entry, tmp_path / name) for name in ("whole", "pieces"))
    assert whole["held_out_loss"] == pieces["held_out_loss"]
    assert whole["bytes"] == pytest.approx(pieces["bytes"], abs=1000)  # ranks that begin compare their options
    first = FlatModel(Gpt(SHAPES["tiny"]), CPU).loss(next(Text(None, 32, CPU).held_out(16, 40)), False).item()
    assert 0 < whole["held_out_loss"] < first and whole["steps"] == 14
    n = whole["parameters"]
    assert 0 < whole["bytes"] <= 14 * 2 * (P - 1) / P * 4 * n


def test_bytes_of_dense_sums_are_those_of_a_ring(tmp_path):
    for method, each in (("dense", 4), ("bf16", 2)):
        entry = entry_of(method, 3)
        run(entry, tmp_path)
        result = result_of(entry, tmp_path)
        assert result["bytes"] == pytest.approx(3 * 2 * (P - 1) / P * each * result["parameters"])


def test_the_report_takes_the_best_rate_and_all_seeds(tmp_path):
    for seed in range(2):
        for lr, loss in ((0.1, 2.0), (0.2, 1.0)):
            rules = {"steps": 10, "ranks": 4, "lr": lr}
            saved = {"method": "dense", "size": "1M", "text": "t", "seed": seed, "rules": rules, "steps": 10}
            saved.update(bytes=60.0, parameters=1, held_out_loss=loss + seed)
            (tmp_path / f"{seed}_{lr}.json").write_text(json.dumps(saved))
    shown = report.write(tmp_path, plots=False)
    (group,) = json.loads((tmp_path / "frontier.json").read_text())
    (row,) = group["rows"]
    assert (row["lr"], row["seeds"], row["loss"], row["behind"], row["less"]) == (0.2, 2, 1.5, 0.0, 1.0)
    assert "| dense | 0.2 | 2 | 1.5000 ± 0.7071 | +0.00% | 6 | 1.0x |" in shown


@pytest.mark.parametrize("method", ["nothing:1%", "circulant", "powersgd:x", "powersgd"])
def test_a_method_that_does_not_exist_is_named(method, tmp_path):
    with pytest.raises((SystemExit, ValueError), match="(?s)nothing|missing|powersgd"):
        run(entry_of(method, 2), tmp_path)


def test_plots_are_written(tmp_path):
    pytest.importorskip("matplotlib")
    run(entry_of("dense", 2), tmp_path)
    report.write(tmp_path, plots=True)
    assert (tmp_path / "frontier_tiny_P3_T2.png").stat().st_size > 1000
