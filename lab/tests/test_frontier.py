# SPDX-License-Identifier: Apache-2.0
"""lab/frontier: gradients of all ranks at once are those of P modules, every method learns, a run that was
interrupted ends with the same bits, and bytes are counted."""

import json
from pathlib import Path

import pytest
import torch
from frontier import __main__ as command, report
from frontier.coding import entry_bytes, in_four_bits, rounded
from frontier.data import Text
from frontier.models import SHAPES, Gpt
from frontier.race import Entry, Run
from frontier.schedule import Rules, density_at, in_steps
from frontier.tasks import Language, parts_of
from launched import run_program

LAB = Path(__file__).parents[1]
RIVALS = ["dense", "bf16", "powersgd:2", "onebit:50%", "dgc:5%", "ef21:5%", "demo:4", "diloco:3", "sparseloco:3:5%"]
OURS = ["published:5%:ramp", "circulant:5%:elias_fano+bf16:none", "slots:5%:dense10", "local:3:5%"]
IDEAS = ["owner:5%", "votes:5%:none", "sketch:5%:none", "owner:5%:scaled:most=10:share:none"]
IDEAS += ["owner:5%:dense10:low:muon", "meet:3:5%:log8:momentum=0.9", "meet:3:5%:none:decay=0.95"]
CPU = torch.device("cpu")
P = 3


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def entry_of(method, steps, lr=3e-3):
    return Entry(method, "tiny", "generated", 0, Rules(steps, P, 4, lr), False)


def result_of(entry, folder):
    return json.loads((folder / f"{entry.file_name()}.json").read_text())


def task_of(seed):
    return Language("tiny", Text(None, SHAPES["tiny"], CPU), seed, False, CPU)


def run(entry, folder, deadline=None):
    folder.mkdir(exist_ok=True)
    return Run(entry, task_of, folder).make(deadline)


@pytest.mark.parametrize("has_own_weights", [False, True])
def test_gradients_are_those_of_modules(has_own_weights):
    task = task_of(0)
    batch = task.batch(0, 5, P, 4)
    weights = task.weights * torch.tensor([[1.0], [1.1], [0.9]]) if has_own_weights else task.weights
    gradients = torch.zeros(P, task.n)
    total = task.gradients(weights, batch, gradients)
    losses = 0.0
    for rank in range(P):
        module = Gpt(SHAPES["tiny"])
        own = weights[rank] if has_own_weights else weights
        for parameter, part in zip(module.parameters(), parts_of(own, task.shapes)):
            parameter.data = part.clone()
        tokens = batch[0][rank]
        logits = module(tokens[:, :-1]).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
        loss.backward()
        losses += loss.item()
        expected = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
        torch.testing.assert_close(gradients[rank], expected, rtol=1e-4, atol=1e-6)
    assert total.item() == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize("method", RIVALS + OURS + IDEAS)
def test_a_run_learns_and_can_be_interrupted(method, tmp_path):
    entry = entry_of(method, 14, lr=0.3 if method.startswith("dgc") else 3e-3)
    assert run(entry, tmp_path / "whole")
    for _ in range(2):
        assert not run(entry, tmp_path / "pieces", deadline=0.0)  # one step, and saved
    assert run(entry, tmp_path / "pieces", deadline=None)
    whole, pieces = (result_of(entry, tmp_path / name) for name in ("whole", "pieces"))
    assert whole["held_out_loss"] == pieces["held_out_loss"]
    assert whole["bytes"] == pytest.approx(pieces["bytes"], abs=1000)  # ranks that begin compare their options
    task = task_of(0)
    assert 0 < whole["held_out_loss"] < task.judge(task.weights)["held_out_loss"] and whole["steps"] == 14
    assert 0 < whole["bytes"] <= 14 * 2 * (P - 1) / P * 4 * whole["parameters"]


def test_a_batch_does_not_depend_on_how_ranks_share_it():
    task = task_of(0)
    four, twelve = task.batch(1, 7, 4, 6), task.batch(1, 7, 12, 2)
    assert torch.equal(four[0].flatten(0, 1), twelve[0].flatten(0, 1))


def test_a_simulated_owner_learns_what_real_reducers_learn(tmp_path):
    losses, counts = [], []
    for method in ("owner:5%:bf16:ramp", "circulant:5%:elias_fano+bf16:ramp"):
        entry = entry_of(method, 60)
        run(entry, tmp_path)
        losses.append(result_of(entry, tmp_path)["held_out_loss"])
        counts.append(result_of(entry, tmp_path)["bytes"])
    assert losses[0] == pytest.approx(losses[1], rel=0.01)
    assert counts[0] == pytest.approx(counts[1], rel=0.2)  # heads of messages, and circulant's log-step schedule


def test_bytes_of_dense_sums_are_those_of_a_ring(tmp_path):
    for method, each in (("dense", 4), ("bf16", 2)):
        entry = entry_of(method, 3)
        run(entry, tmp_path)
        result = result_of(entry, tmp_path)
        assert result["bytes"] == pytest.approx(3 * 2 * (P - 1) / P * each * result["parameters"])


def test_stages_follow_each_other_and_are_never_sparser_than_the_rest():
    stages = in_steps([(0.02, 0.25), (0.08, 0.05)], 100)
    assert [density_at(step, stages, 0.01) for step in (0, 1, 2, 9, 10)] == [0.25, 0.25, 0.05, 0.05, 0.01]
    assert density_at(5, stages, 0.1) == 0.1


def test_codings_keep_zeros_and_signs_and_are_near():
    x = torch.randn(2, 1000, generator=torch.Generator().manual_seed(3))
    x[:, ::3] = 0
    for coding, error in (("fp32", 0.0), ("bf16", 0.004), ("log8", 0.06), ("log4", 1.0)):
        y = rounded(x, coding)
        is_kept = (x != 0) & (x.abs() > x.abs().max() / 1000)  # log4 may drop smaller ones
        assert (y[x == 0] == 0).all() and torch.equal(y.sign()[is_kept], x.sign()[is_kept])
        assert ((y - x).abs() <= error * x.abs() + 1e-12).all()
    y = in_four_bits(x)
    large = x.abs() > x.abs().max() / 32
    assert ((y - x).abs()[large] <= 0.42 * x.abs()[large]).all() and torch.equal(y[x == 0], x[x == 0])
    assert entry_bytes(0.01, 16) == pytest.approx((2 + 6.64 + 16) / 8, rel=1e-3)
    assert entry_bytes(0.5, 0) == 2 / 8


def test_the_report_takes_the_best_rate_and_all_seeds(tmp_path):
    for seed in range(2):
        for lr, loss in ((0.1, 2.0), (0.2, 1.0)):
            rules = {"steps": 10, "ranks": 4, "rows": 2, "lr": lr, "optimiser": "adam"}
            saved = {"method": "dense", "model": "1M", "data": "t", "seed": seed, "rules": rules}
            saved.update(bytes=60.0, parameters=1, held_out_loss=loss + seed)
            (tmp_path / f"{seed}_{lr}.json").write_text(json.dumps(saved))
    lucky = {**saved, "rules": {**rules, "lr": 0.4}, "seed": 0, "held_out_loss": 1.2}  # beside a mean of 1.5
    (tmp_path / "0_0.4.json").write_text(json.dumps(lucky))
    shown = report.write(tmp_path, plots=False)
    (group,) = json.loads((tmp_path / "frontier.json").read_text())
    (row,) = group["rows"]
    assert (row["lr"], row["seeds"], row["loss"], row["behind"], row["less"]) == (0.2, 2, 1.5, 0.0, 1.0)
    assert "| dense | 0.2 | 2 | 1.5000 ± 0.7071 | +0.00% | 6 | 1.0x |" in shown


def test_a_page_is_made_of_collected_results(tmp_path):
    pytest.importorskip("matplotlib")
    for method in ("dense", "owner:5%"):
        run(entry_of(method, 3), tmp_path / "runs")
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    (tmp_path / "figures").mkdir()
    assert command.main(["collect", str(tmp_path / "runs"), "--into", str(tmp_path / "all.json")]) == 0
    assert "train_loss" not in (tmp_path / "all.json").read_text()
    for _ in range(2):  # a page can be written again
        where = ["--into", str(page), "--figures", str(tmp_path / "figures")]
        assert command.main(["page", str(tmp_path / "all.json"), *where]) == 0
        text = page.read_text()
        assert text.startswith("before") and text.endswith("after\n") and "old" not in text
        assert text.count("| owner:5% | 0.003 | 1 |") == 1 and "figures/frontier_tiny_adam_P3_T3_generated.png" in text
    assert (tmp_path / "figures" / "frontier_tiny_adam_P3_T3_generated.png").exists()


@pytest.mark.parametrize("method", ["nothing:1%", "circulant", "powersgd:x", "powersgd", "owner:1%:loud"])
def test_a_method_that_does_not_exist_is_named(method, tmp_path):
    with pytest.raises((SystemExit, ValueError), match="(?s)nothing|missing|powersgd|loud"):
        run(entry_of(method, 2), tmp_path)


def test_the_command_makes_runs_side_by_side_and_plots(tmp_path):
    pytest.importorskip("matplotlib")
    options = ["--model", "tiny", "--ranks", "2", "--rows", "2", "--steps", "2", "--device", "cpu"]
    made = ["run", *options, "--out", str(tmp_path), "--methods", "dense,circulant:5%", "--jobs", "2"]
    done = run_program("-m", "frontier", *made, folder=LAB)
    assert done.returncode == 0, done.stderr
    assert command.main(["report", str(tmp_path)]) == 0
    assert len(list(tmp_path.glob("tiny_*.json"))) == 2 and not list(tmp_path.glob("*.claimed"))
    assert (tmp_path / "frontier_tiny_adam_P2_T2_generated.png").stat().st_size > 1000


def test_pictures_are_learnt_too(tmp_path):
    options = ["--model", "VGG16tiny", "--ranks", "2", "--rows", "4", "--steps", "3", "--device", "cpu"]
    assert command.main(["run", *options, "--lr", "0.02", "--methods", "circulant:5%", "--out", str(tmp_path)]) == 0
    (result,) = (json.loads(path.read_text()) for path in tmp_path.glob("VGG16tiny_*.json"))
    assert 0 <= result["accuracy"] <= 1 and result["held_out_loss"] < 5


def test_speech_is_learnt_too(tmp_path):
    options = ["--model", "LSTMtiny", "--ranks", "2", "--rows", "2", "--steps", "3", "--device", "cpu"]
    assert command.main(["run", *options, "--methods", "dense,circulant:5%", "--out", str(tmp_path)]) == 0
    results = [json.loads(path.read_text()) for path in tmp_path.glob("LSTMtiny_*.json")]
    assert len(results) == 2 and all(0 <= result["error_rate"] <= 1 for result in results)


def test_real_ranks_give_a_result_of_their_own(tmp_path):
    options = ["--model", "tiny", "--ranks", "2", "--rows", "4", "--steps", "6", "--device", "cpu"]
    made = ["real", *options, "--out", str(tmp_path), "--lr", "3e-3", "--method", "circulant:5%:half10"]
    done = run_program("-m", "frontier", *made, folder=LAB)
    assert done.returncode == 0, done.stderr
    (result,) = (json.loads(path.read_text()) for path in tmp_path.glob("*.json"))
    assert result["method"] == "real-circulant:5%:half10" and 0 < result["bytes"] < 6 * 4 * result["parameters"]
