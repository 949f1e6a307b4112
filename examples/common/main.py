# SPDX-License-Identifier: Apache-2.0
"""The frame of an example: options, process group, data, the runs, the report."""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from common.options import read_options
from common.plot import draw
from common.report import table, title, write_json
from common.train import Task, train
from common.world import World, start_world


def run_example(
    parser: argparse.ArgumentParser, make_task: Callable[[argparse.Namespace, World], Task]
) -> None:
    """`make_task` loads the data, if need be with World.once, and describes the model."""
    args, settings, recipes = read_options(parser)
    world = start_world(args.backend)
    try:
        started = time.perf_counter()
        task = make_task(args, world)
        heading = title(task, settings, recipes, world.size)
        seconds = time.perf_counter() - started
        world.say(f"{heading}\non {world.device.type}, ready after {seconds:.1f} s\n")
        runs = []
        for recipe in recipes:
            runs.append(train(task, recipe, settings, world))
            if args.json and world.rank == 0:  # after each, so that a later failure takes nothing
                write_json(args.json, task, runs, _context(args, world))
        world.say(f"\n{heading}\n\n{table(task, runs)}")
        if args.plot and world.rank == 0:
            draw(args.plot, task, runs, heading.splitlines()[0].removeprefix(task.title + ", "))
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _context(args: argparse.Namespace, world: World) -> dict[str, Any]:
    options = {key: value for key, value in vars(args).items() if key != "default_lr"}
    return {"ranks": world.size, "device": world.device.type, "options": options}
