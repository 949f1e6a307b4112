#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A perceptron on MNIST whose members fail and join while it trains.

    oktopk run -n 3 --keep-going -- python3 examples/elastic_mnist.py --die 300 [--data ~/mnist]

--die 300 kills the newest of the first members in step 300. The others repair the step and go on. A member that comes
later gets weights and optimiser from them; for this the job needs an address and a secret that the newcomer knows:

    (umask 077; head -c 32 /dev/urandom | base64 > secret)
    oktopk run -n 3 --keep-going --rendezvous 127.0.0.1:29400 --secret-file secret -- python3 examples/elastic_mnist.py
    oktopk run -n 1 --join --rendezvous 127.0.0.1:29400 --secret-file secret -- python3 examples/elastic_mnist.py

The first command serves the rendezvous, so it must not end before the others.
"""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import oktopk.torch
from common.data import mnist

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", type=Path, help="folder with MNIST's idx files; else a stand-in")
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--batch", type=int, default=96, help="samples of all members together")
parser.add_argument("--pause", type=float, default=0.0, help="seconds before each step, to see changes happen")
parser.add_argument("--die", type=int, help="step in which the last of the first members is killed")
args = parser.parse_args()

torch.manual_seed(0)  # all members begin with the same weights
data = mnist.load(args.data)
images, test_images = (split.images.flatten(1) / 255 for split in (data.train, data.test))
model = torch.nn.Sequential(torch.nn.Linear(784, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10))


def tell(change: oktopk.torch.Change) -> None:
    print(f"step {change.step}: members {change.members}; lost {change.lost}, joined {change.joined}", flush=True)


world = oktopk.torch.ElasticWorld(on_change=tell)
warmup = [(args.steps // 20, 1.0)]  # dense steps first
reducer = oktopk.torch.Reducer(
    model.parameters(), communicator=world, preset="circulant", residual="sender_keeps", density=0.02, warmup=warmup
)
optimiser = oktopk.torch.SparseSGD(model.parameters(), reducer, lr=0.1, momentum=0.5)
world.share(model=model, optimizer=optimiser)
is_last = world.epoch == 1 and world.rank == world.size - 1

while world.committed < args.steps:
    step = world.committed
    if step == args.steps - 1:
        world.leave_after_next()
    if step == args.die and is_last:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(args.pause)
    whole = torch.randint(len(images), (args.batch,), generator=torch.Generator().manual_seed(step))
    batch = whole[world.rank :: world.size]  # every member has a part of the same samples
    optimiser.zero_grad()
    F.cross_entropy(model(images[batch]), data.train.labels[batch]).backward()
    reducer.reduce_gradients()
    optimiser.step()

optimiser.catch_up()  # the weight decay that is still owed
with torch.no_grad():
    loss = F.cross_entropy(model(test_images), data.test.labels)
bits = sum(p.detach().view(torch.int32).long().sum().item() for p in model.parameters()) % 2**32
print(f"{data.name}: loss {loss:.4f} after {world.committed} steps; weights {bits:08x}", flush=True)
