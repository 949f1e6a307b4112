#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Accelerate with 1% of the gradient: a perceptron on MNIST.

    torchrun --nproc-per-node 4 examples/accelerate_mnist.py [--data ~/mnist] [--resume]
    accelerate launch --multi_gpu examples/accelerate_mnist.py

The lines marked (*) are all that sparse gradients take.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator

import oktopk.accelerate  # (*)
from common.data import mnist
from oktopk.torch import SparseAdamW  # (*)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, help="folder with MNIST's idx files; else a stand-in")
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--resume", action="store_true", help="go on from the folder of check-points")
parser.add_argument("--folder", type=Path, default=Path("accelerate-mnist"), help="for check-points")
args = parser.parse_args()

accelerator = Accelerator(cpu=not torch.cuda.is_available())
torch.manual_seed(0)
data = mnist.load(args.data)
samples = torch.utils.data.TensorDataset(data.train.images.flatten(1) / 255, data.train.labels)
loader = torch.utils.data.DataLoader(samples, 32, shuffle=True)
net = torch.nn.Sequential(torch.nn.Linear(784, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10))
optimiser = SparseAdamW(net.parameters(), lr=1e-3)  # (*) prepare_hook() gives it the hook's state

model, optimiser, loader = accelerator.prepare(net, optimiser, loader)
state = oktopk.accelerate.prepare_hook(  # (*)
    accelerator,
    model,
    preset="circulant",
    density=0.01,
    start_iter=args.steps // 20,
)
if args.resume:
    accelerator.load_state(str(args.folder))  # the state of every rank's hook included
while state.iteration < args.steps:
    for images, labels in loader:
        optimiser.zero_grad()
        accelerator.backward(F.cross_entropy(model(images), labels))
        optimiser.step()
        if state.iteration == args.steps:
            break
optimiser.optimizer.catch_up()  # (*) the weight decay that is still owed
accelerator.save_state(str(args.folder))

if accelerator.is_main_process:
    test = data.test.images.flatten(1) / 255
    right = (net.cpu()(test).argmax(1) == data.test.labels).float().mean()
    print(f"{data.name}: accuracy {right:.4f} after {state.iteration} steps")
    print(f"compressed {state.compression_stats()[0]:.0f}x")
accelerator.end_training()
