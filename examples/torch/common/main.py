# SPDX-License-Identifier: Apache-2.0
"""The frame of an example: options, process group, data, the runs, the report."""

import argparse
import time
from collections.abc import Callable

import torch.distributed as dist

from common.compare import Task, compare
from common.options import read_options
from common.plot import draw
from common.report import table, title, write_json
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
        runs = compare(task, recipes, settings, world)
        if world.rank == 0:
            print(f"\n{heading}\n\n{table(task, runs)}", flush=True)
            if args.json:
                options = {k: v for k, v in vars(args).items() if k != "default_lr"}
                context = {"ranks": world.size, "device": world.device.type, "options": options}
                write_json(args.json, task, runs, context)
            if args.plot:
                draw(args.plot, task, runs, heading.splitlines()[0].removeprefix(task.title + ", "))
        dist.barrier()
    finally:
        dist.destroy_process_group()
