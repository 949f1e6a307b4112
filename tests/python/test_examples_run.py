# SPDX-License-Identifier: Apache-2.0
"""Every example, with the variables of torchrun, on generated data for a few steps, and with oktopk where it is
installed."""

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from launched import EXAMPLES, check_report, run_ranks  # noqa: E402
from versions import needs_gloo_bf16  # noqa: E402

RUN_KEYS = set(
    "label recipe parameters optimiser loss metric train_loss wire_bytes dense_bytes ms_per_step replicas_equal curve "
    "vs_dense".split()
)
SMALL = {
    "mlp_mnist": ["--steps", "40", "--batch", "8"],
    "vgg_cifar": ["--steps", "24", "--batch", "8", "--width", "0.05", "--lr", "0.01"],
    "lstm_an4": ["--steps", "12", "--batch", "4", "--hidden", "16", "--layers", "1"],
    "bert_mlm": ["--steps", "16", "--batch", "4", "--length", "32"],
}


def torchrun(ranks: int, example: str, *options: str) -> Any:
    return run_ranks(ranks, EXAMPLES / f"{example}.py", *options)


def results(path: Path, ranks: int, example: str, *options: str) -> dict[str, Any]:
    """The JSON an example writes, checked for being complete."""
    more = ["--eval-samples", "64", "--json", str(path)]
    done = torchrun(ranks, example, *SMALL[example], *more, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "GENERATED STAND-IN DATA" in done.stdout.split("| compress")[0]
    document = json.loads(path.read_text())
    assert document["stand_in"] and "stand-in" in document["title"] and document["ranks"] == ranks
    for run in document["runs"]:
        assert set(run) == RUN_KEYS
        assert run["replicas_equal"] and run["parameters"] > 1000
        assert run["recipe"]["label"] == run["label"]
        assert all(math.isfinite(point["loss"]) for point in run["curve"])
        assert [point["step"] for point in run["curve"]] == sorted(p["step"] for p in run["curve"])
        assert run["curve"][-1]["step"] == int(SMALL[example][1])
    return document


@pytest.mark.parametrize("example", SMALL)
def test_example_learns(tmp_path, example):
    document = results(tmp_path / "r.json", 2, example, "--compress", "dense")
    (run,) = document["runs"]
    assert run["curve"][-1]["train_loss"] < run["curve"][1]["train_loss"]
    assert run["wire_bytes"] == run["dense_bytes"] > 0


@needs_gloo_bf16
def test_compressors_see_the_same_samples(tmp_path):
    """bf16 rounds, so it stays near dense; PowerSGD is dense at first, so it starts like it."""
    plot = tmp_path / "p.png"
    options = ["--compress", "dense,bf16,powersgd", "--warmup-steps", "4"]
    if importlib.util.find_spec("matplotlib"):
        options += ["--plot", str(plot)]
    document = results(tmp_path / "r.json", 3, "mlp_mnist", *options)
    dense, bf16, power = document["runs"]
    assert dense["curve"][0]["loss"] == bf16["curve"][0]["loss"] == power["curve"][0]["loss"]
    assert dense["curve"][1]["loss"] == pytest.approx(power["curve"][1]["loss"], rel=1e-5)
    assert bf16["loss"] == pytest.approx(dense["loss"], rel=0.02)
    assert bf16["wire_bytes"] == dense["wire_bytes"] / 2
    assert power["wire_bytes"] < dense["wire_bytes"] / 3
    assert not importlib.util.find_spec("matplotlib") or plot.read_bytes().startswith(b"\x89PNG")


def test_bad_options_are_refused_once(tmp_path):
    done = torchrun(2, "mlp_mnist", "--compress", "dense", "--data", str(tmp_path / "nowhere"))
    assert done.returncode != 0
    assert (done.stdout + done.stderr).count(
        "error: "
    ) == 1 and "train-images-idx3-ubyte" in done.stdout
    done = torchrun(2, "mlp_mnist", "--compress", "dense", "--eval-every", "0")
    assert done.returncode != 0 and done.stderr.count("--eval-every 0: must be positive") == 1
    done = torchrun(2, "mlp_mnist", "--compress", "circulant:density=7")
    assert done.returncode != 0 and done.stderr.count("density 7.0 is not in (0, 1]") == 1


def test_sparse_recipes_train(tmp_path):
    pytest.importorskip("oktopk.torch")
    recipes = "dense,circulant,oktopk:optimiser=plain"
    options = ["--compress", recipes, "--density", "0.05", "--warmup-steps", "8"]
    document = results(tmp_path / "r.json", 3, "mlp_mnist", *options)
    dense, *sparse = document["runs"]
    for run in sparse:
        assert run["curve"][2]["loss"] == pytest.approx(dense["curve"][2]["loss"], rel=1e-4)
        assert run["wire_bytes"] < dense["wire_bytes"] / 2
        assert run["curve"][-1]["train_loss"] < run["curve"][1]["train_loss"]


@pytest.mark.parametrize("P, options, least", [(2, ["--compress", "dense"], 0.0), (3, [], 3.0)])
def test_minimal_example(P, options, least):
    pytest.importorskip("oktopk.torch")
    done = torchrun(P, "ddp_minimal", *options, "--steps", "60")
    assert done.returncode == 0, done.stderr
    check_report(done.stdout, least)
