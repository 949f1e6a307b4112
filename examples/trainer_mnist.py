#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Trainer of transformers with 1% of the gradient: a perceptron on MNIST.

    torchrun --nproc-per-node 4 examples/trainer_mnist.py [--data ~/mnist] [--resume]

The lines marked (*) are all that sparse gradients take.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import Trainer, TrainingArguments

import oktopk.transformers  # (*)
from common.data import mnist
from oktopk.torch import SparseAdamW  # (*)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, help="folder with MNIST's idx files; else a stand-in")
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--resume", action="store_true", help="go on from the last check-point")
parser.add_argument("--folder", type=Path, default=Path("trainer-mnist"), help="for check-points")
args = parser.parse_args()


class Perceptron(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(784, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10)
        )

    def forward(self, images, labels):
        return {"loss": F.cross_entropy(self.net(images), labels)}


torch.manual_seed(0)
data = mnist.load(args.data)
images = data.train.images.flatten(1) / 255
callback = oktopk.transformers.OkTopkCallback(  # (*)
    preset="circulant",
    density=0.01,
    start_iter=args.steps // 20,
)
trainer = Trainer(
    Perceptron(),
    TrainingArguments(
        str(args.folder),
        use_cpu=not torch.cuda.is_available(),
        max_steps=args.steps,
        save_steps=max(1, args.steps // 2),
        per_device_train_batch_size=32,
        lr_scheduler_type="constant",
        max_grad_norm=0,  # a sparse mean is many steps' gradients at once: clipping at 1 would cut it
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
        report_to=[],
    ),
    train_dataset=[{"images": x, "labels": y} for x, y in zip(images, data.train.labels)],
    optimizer_cls_and_kwargs=(SparseAdamW, {"lr": 1e-3}),  # (*)
    callbacks=[callback],  # (*)
)
trainer.train(resume_from_checkpoint=args.resume)
if trainer.is_world_process_zero():
    test = data.test.images.flatten(1) / 255
    right = (trainer.model.cpu().net(test).argmax(1) == data.test.labels).float().mean()
    print(f"{data.name}: accuracy {right:.4f} after {trainer.state.global_step} steps")
    print(f"compressed {callback.state.compression_stats()[0]:.0f}x")
trainer.accelerator.end_training()
