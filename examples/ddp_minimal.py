#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel with 1% of the gradient, as short as it gets: a perceptron on MNIST.

    torchrun --nproc-per-node 4 examples/ddp_minimal.py [--data ~/mnist] [--compress dense]

The lines marked (*) are all that sparse gradients take.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

from common.data import mnist

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, help="folder with MNIST's idx files; else a stand-in")
parser.add_argument("--compress", default="circulant", help="dense, or a preset of oktopk")
parser.add_argument("--steps", type=int, default=1000)
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
data = mnist.load(args.data)
images, test_images = (split.images.flatten(1) / 255 for split in (data.train, data.test))

model = torch.nn.Sequential(torch.nn.Linear(784, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10))
ddp = torch.nn.parallel.DistributedDataParallel(model)
optimiser: torch.optim.Optimizer
if args.compress == "dense":
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
else:
    import oktopk.torch  # (*)

    warmup = args.steps // 20  # dense steps first
    state = oktopk.torch.OkTopkState(preset=args.compress, density=0.01, start_iter=warmup)  # (*)
    ddp.register_comm_hook(state, oktopk.torch.oktopk_hook)  # (*)
    optimiser = oktopk.torch.SparseAdamW(model.parameters(), state, lr=1e-3)  # (*)

torch.manual_seed(1 + dist.get_rank())  # every rank draws samples of its own
for _ in range(args.steps):
    batch = torch.randint(len(images), (32,))
    optimiser.zero_grad()
    F.cross_entropy(ddp(images[batch]), data.train.labels[batch]).backward()
    optimiser.step()

if args.compress != "dense":
    optimiser.catch_up()  # (*) the weight decay that is still owed
if dist.get_rank() == 0:
    right = (model(test_images).argmax(1) == data.test.labels).float().mean()
    print(f"{args.compress} on {data.name}: accuracy {right:.4f} after {args.steps} steps")
    if args.compress != "dense":
        print(f"compressed {state.compression_stats()[0]:.0f}x")  # (*)
dist.barrier()
dist.destroy_process_group()
