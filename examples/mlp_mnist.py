#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A perceptron on MNIST: the smallest comparison, and the shortest example of a Task.

    torchrun --nproc-per-node 4 examples/mlp_mnist.py \\
        --data ~/mnist --compress dense,bf16,powersgd,circulant

784 - 300 - 100 - 10: 266,610 parameters.
"""

import argparse

from torch import nn

from common.classify import classification_task
from common.data import mnist
from common.main import run_example
from common.options import make_parser
from common.train import Task
from common.world import World

HIDDEN = (300, 100)


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, HIDDEN[0]),
        nn.ReLU(),
        nn.Linear(*HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN[1], 10),
    )


def make_task(args: argparse.Namespace, world: World) -> Task:
    data = world.once(lambda: mnist.load(args.data))
    return classification_task(
        f"784-300-100-10 perceptron on {data.name}",
        data,
        make_model,
        world.device,
        mean=[0.1307],
        std=[0.3081],
    )


if __name__ == "__main__":
    run_example(
        make_parser(
            __doc__,
            steps=1000,
            batch=16,
            optimiser="momentum",
            lr={"sgd": 0.1, "momentum": 0.02, "adam": 1e-3},
        ),
        make_task,
    )
