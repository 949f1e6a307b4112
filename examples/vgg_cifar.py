#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""VGG-16 with batch norm on CIFAR-10.

    torchrun --nproc-per-node 4 examples/vgg_cifar.py \\
        --data ~/cifar10 --compress dense,oktopk,circulant

--width 1 is VGG-16 as it is used for CIFAR-10, with one linear layer at the end: 14.7 million
parameters. The default has a quarter of the channels, for processors without a GPU.
"""

import argparse

from torch import nn

from common.classify import classification_task
from common.data import cifar
from common.main import run_example
from common.options import make_parser
from common.train import Task
from common.world import World

# Simonyan and Zisserman (2015), configuration D: channels of each convolution; 0 halves the image.
LAYERS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)


class Vgg16(nn.Module):
    """width: factor of every channel count."""

    def __init__(self, width: float):
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for wanted in LAYERS:
            if wanted == 0:
                layers.append(nn.MaxPool2d(2))
                continue
            out = max(8, round(wanted * width))
            convolution = nn.Conv2d(channels, out, 3, padding=1, bias=False)
            nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
            layers += [convolution, nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
            channels = out
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(channels, 10)

    def forward(self, images):
        return self.head(self.features(images).flatten(1))


def make_task(args: argparse.Namespace, world: World) -> Task:
    data = world.once(lambda: cifar.load(args.data))
    return classification_task(
        f"VGG-16 (width {args.width:g}) on {data.name}",
        data,
        lambda: Vgg16(args.width),
        world.device,
        mean=[0.4914, 0.4822, 0.4465],
        std=[0.2470, 0.2435, 0.2616],
        augment=not args.no_augment,
    )


if __name__ == "__main__":
    options = make_parser(
        __doc__,
        steps=800,
        batch=16,
        optimiser="momentum",
        weight_decay=5e-4,
        lr={"sgd": 0.1, "momentum": 0.02, "adam": 1e-3},
    )
    options.add_argument(
        "--width",
        type=float,
        default=0.25,
        help="factor of all channel counts (default: %(default)s)",
    )
    options.add_argument(
        "--no-augment", action="store_true", help="images as they are: not moved, not mirrored"
    )
    run_example(options, make_task)
