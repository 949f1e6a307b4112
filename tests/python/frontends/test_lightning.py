# SPDX-License-Identifier: Apache-2.0
"""OkTopkCallback of Lightning: the hook runs on processors, and a resumed run goes on as it was."""

import importlib
import importlib.util
import json
import pickle
import sys
from types import SimpleNamespace

import lightning.pytorch
import pytorch_lightning  # noqa: F401  once, here, and not in every process
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy

import oktopk
import oktopk.lightning
import oktopk.torch
from launched import EXAMPLES, check_report, run_launched
from oktopk.metrics import JsonlWriter, TensorBoardWriter, all_of
from processes import printed_by
from small import BATCH, BATCHES, OPTIONS, Net, Samples, assert_same, note
from versions import needs_cpu_scaler

HAS_TENSORBOARD = importlib.util.find_spec("tensorboard") is not None  # test_metrics.py says aloud where it is not
if HAS_TENSORBOARD:
    import torch.utils.tensorboard  # noqa: F401  once, here, and not in every process


def train(rank, package, folder, epochs, resume):
    """configure_optimizers() has SparseAdamW without a source."""
    pl = importlib.import_module(package)

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def on_train_start(self):  # from here on callback.state exists, and so does the logger's writer
            writers = [JsonlWriter(f"{folder}/metrics-{{rank}}.jsonl")]
            if self.logger:
                writers.append(TensorBoardWriter(self.logger.experiment))  # on rank 1 Lightning's, which does nothing
            callback.state.callback = all_of(*writers)

        def training_step(self, batch, _):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return oktopk.torch.SparseAdamW(self.parameters(), lr=1e-2)

    callback = oktopk.lightning.OkTopkCallback(**OPTIONS)
    loggers = importlib.import_module(package + ".loggers")
    keep_all = importlib.import_module(package + ".callbacks").ModelCheckpoint(save_top_k=-1)
    trainer = pl.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        max_epochs=epochs,
        callbacks=[callback, keep_all],
        default_root_dir=folder,
        logger=loggers.TensorBoardLogger(folder, name="", version="") if HAS_TENSORBOARD else False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module()
    trainer.fit(module, torch.utils.data.DataLoader(Samples(), BATCH), ckpt_path=resume)
    assert trainer.optimizers[0].source is callback.state
    note(folder, rank, callback.state, module)
    rows = [json.loads(line) for line in open(f"{folder}/metrics-{rank}.jsonl")]
    assert rows and rows[-1]["iteration"] == epochs * BATCHES - 1 and rows[-1]["wire_bytes"] > 0


def test_resumed_run_is_the_uninterrupted_one(tmp_path):
    """The second one with the package pytorch_lightning."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    whole.mkdir()
    resumed.mkdir()
    run_launched(2, train, "lightning.pytorch", whole, 3, None)
    middle = whole / "checkpoints" / f"epoch=1-step={2 * BATCHES}.ckpt"
    run_launched(2, train, "pytorch_lightning", resumed, 3, str(middle))
    assert_same(whole, resumed, 3 * BATCHES)
    assert len(torch.load(middle, weights_only=True)["oktopk"]) == 2
    if HAS_TENSORBOARD:
        assert shown_steps(whole) == list(range(OPTIONS["start_iter"], 3 * BATCHES))
        assert shown_steps(resumed) == list(range(2 * BATCHES, 3 * BATCHES))


def shown_steps(folder):
    """Steps of the scalars in TensorBoard's file, which rank 0 alone writes. The values are those of its JSON."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert len(list(folder.glob("events*"))) == 1
    shown = EventAccumulator(str(folder)).Reload().Scalars("oktopk/bucket0/wire_bytes")
    rows = [json.loads(line) for line in open(folder / "metrics-0.jsonl")]
    assert [e.value for e in shown] == [row["wire_bytes"] for row in rows if row["bucket"] == 0]
    return [e.step for e in shown]


def make_trainer(**options):
    return lightning.pytorch.Trainer(accelerator="cpu", logger=False, **options)


def test_one_device_is_refused():
    trainer = make_trainer(devices=1, enable_checkpointing=False)
    module = lightning.pytorch.LightningModule()
    module.configure_optimizers = module.training_step = lambda *_: None
    trainer.callbacks.append(oktopk.lightning.OkTopkCallback(density=0.01))
    with pytest.raises(oktopk.UsageError, match="one device .SingleDeviceStrategy., so there is noth"):
        trainer.fit(module, torch.utils.data.DataLoader(Samples()))


def test_other_strategies_and_other_hooks_are_refused():
    callback = oktopk.lightning.OkTopkCallback(density=0.01)
    fsdp = SimpleNamespace(strategy=FSDPStrategy(), precision_plugin=None)
    with pytest.raises(oktopk.UsageError, match="strategy is FSDPStrategy, but the hook works with D"):
        callback.setup(fsdp, None, "fit")
    with pytest.raises(oktopk.UsageError, match="exists from the beginning of fit"):
        callback.state
    hook = DDPStrategy(ddp_comm_hook=oktopk.torch.oktopk_hook)
    with pytest.raises(oktopk.UsageError, match="ignores elsewhere: leave ddp_comm_hook and"):
        callback.setup(make_trainer(strategy=hook, devices=2), None, "fit")
    callback.setup(fsdp, None, "validate")  # no gradients, nothing to refuse


def test_options_are_checked_when_the_callback_is_made():
    with pytest.raises(oktopk.UsageError, match="density"):
        oktopk.lightning.OkTopkCallback(density=-1.0)
    with pytest.raises(oktopk.UsageError, match="OkTopkCallback takes no grad_scaler"):
        oktopk.lightning.OkTopkCallback(grad_scaler=None)
    pickle.loads(pickle.dumps(oktopk.lightning.OkTopkCallback(density=0.01)))  # strategy ddp_spawn


@needs_cpu_scaler
def test_scaler_of_the_precision_plugin_is_passed_on():
    scaler = torch.amp.GradScaler("cpu")
    plugin = MixedPrecision("16-mixed", "cpu", scaler=scaler)
    callback = oktopk.lightning.OkTopkCallback(density=0.01)
    callback.setup(make_trainer(strategy="ddp", devices=2, plugins=[plugin]), None, "fit")
    assert callback.state.grad_scaler is scaler
    state = callback.state
    callback.setup(make_trainer(strategy="ddp", devices=2, plugins=[plugin]), None, "fit")
    assert callback.state is state  # a second fit() goes on
    callback.setup(make_trainer(strategy="ddp", devices=2), None, "fit")
    assert callback.state.grad_scaler is None


def test_example_learns_and_sends_little(tmp_path):
    """Lightning starts its ranks itself."""
    example = str(EXAMPLES / "lightning_mnist.py")
    check_report(printed_by([sys.executable, example, "--steps", "60"], tmp_path))
