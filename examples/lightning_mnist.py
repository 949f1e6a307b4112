#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lightning with 1% of the gradient: a perceptron on MNIST. Lightning starts the ranks itself.

    python3 examples/lightning_mnist.py [--devices 4] [--data ~/mnist] [--resume FILE.ckpt]

The lines marked (*) are all that sparse gradients take.
"""

import argparse
from pathlib import Path

import lightning
import torch
import torch.nn.functional as F

import oktopk.lightning  # (*)
from common.data import mnist
from oktopk.torch import SparseAdamW  # (*)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, help="folder with MNIST's idx files; else a stand-in")
parser.add_argument("--devices", type=int, default=2)
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--resume", help="a check-point of an earlier run")
parser.add_argument("--folder", type=Path, default=Path("lightning-mnist"), help="for check-points")
args = parser.parse_args()


class Perceptron(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(784, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10)
        )

    def training_step(self, batch, _):
        images, labels = batch
        return F.cross_entropy(self.net(images), labels)

    def configure_optimizers(self):
        return SparseAdamW(self.parameters(), lr=1e-3)  # (*) the callback gives it the hook's state


lightning.seed_everything(0)
data = mnist.load(args.data)
samples = torch.utils.data.TensorDataset(data.train.images.flatten(1) / 255, data.train.labels)
callback = oktopk.lightning.OkTopkCallback(  # (*)
    preset="circulant",
    density=0.01,
    start_iter=args.steps // 20,
)
trainer = lightning.Trainer(
    strategy="ddp",
    devices=args.devices,
    max_steps=args.steps,
    callbacks=[callback],  # (*)
    default_root_dir=args.folder,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
model = Perceptron()
trainer.fit(model, torch.utils.data.DataLoader(samples, 32, shuffle=True), ckpt_path=args.resume)
if trainer.is_global_zero:
    test = data.test.images.flatten(1) / 255
    right = (model.net.cpu()(test).argmax(1) == data.test.labels).float().mean()
    print(f"{data.name}: accuracy {right:.4f} after {trainer.global_step} steps")
    print(f"compressed {callback.state.compression_stats()[0]:.0f}x")
trainer.strategy.barrier()
