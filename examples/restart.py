#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run that is killed and goes on from its last check-point: a perceptron on MNIST.

    torchrun --nproc-per-node 2 --max-restarts 3 examples/restart.py --folder /tmp/saved [--data ~/mnist]

torchrun starts all ranks again when one of them dies. They load the newest check-point that is
complete: weights, optimiser and what the hook has not sent yet; on another number of ranks, too.
--die 25 kills rank 1 in step 25, once, to show it. Needs torch 2.4.
"""

import argparse
import os
import signal
from pathlib import Path
from typing import Optional

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import oktopk.torch
from common.data import mnist
from oktopk.torch.checkpoint import Elastic

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--folder", type=Path, required=True, help="of the check-points")
parser.add_argument("--data", type=Path, help="folder with MNIST's idx files; else a stand-in")
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--every", type=int, default=100, help="steps between check-points")
parser.add_argument("--die", type=int, help="step in which rank 1 dies, the first time")
args = parser.parse_args()


def newest(folder: Path) -> Optional[Path]:
    """DCP writes .metadata last: a check-point without it was interrupted."""
    complete = [path for path in folder.glob("step_*") if (path / ".metadata").exists()]
    return max(complete, key=lambda path: int(path.name[5:]), default=None)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
data = mnist.load(args.data)
images, test_images = (split.images.flatten(1) / 255 for split in (data.train, data.test))
net = torch.nn.Sequential(torch.nn.Linear(784, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10))
model = torch.nn.parallel.DistributedDataParallel(net)
state = oktopk.torch.OkTopkState(preset="circulant", density=0.02, start_iter=args.steps // 20)
model.register_comm_hook(state, oktopk.torch.oktopk_hook)
optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)

first = 0
found = newest(args.folder)
if found is not None:
    weights, moments = get_state_dict(model, optimiser)
    saved = {"model": weights, "optimiser": moments, "hook": Elastic(state, found)}
    dcp.load(saved, checkpoint_id=found)
    set_state_dict(model, optimiser, model_state_dict=weights, optim_state_dict=moments)
    first = int(found.name[5:])
    if rank == 0:
        print(f"goes on after step {first}, iteration {state.iteration} of the hook", flush=True)

for step in range(first, args.steps):
    if step == args.die and rank == 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    generator = torch.Generator().manual_seed(step * dist.get_world_size() + rank)
    batch = torch.randint(len(images), (32,), generator=generator)
    optimiser.zero_grad()
    F.cross_entropy(model(images[batch]), data.train.labels[batch]).backward()
    optimiser.step()
    if (step + 1) % args.every == 0:
        weights, moments = get_state_dict(model, optimiser)
        saved = {"model": weights, "optimiser": moments, "hook": state}
        dcp.save(saved, checkpoint_id=args.folder / f"step_{step + 1}")

flat = torch.cat([p.detach().flatten() for p in net.parameters()])
others = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
dist.all_gather(others, flat)
if rank == 0:
    loss = F.cross_entropy(net(test_images), data.test.labels)
    equal = all(torch.equal(flat, other) for other in others)
    print(f"{data.name}: loss {loss:.4f} after {state.iteration} steps; replicas equal: {equal}", flush=True)
dist.barrier()
dist.destroy_process_group()
