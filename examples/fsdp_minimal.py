#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""FSDP2 with sparse sums between replicas: every replica is sharded over the ranks of a machine.

    torchrun --nproc-per-node 4 examples/fsdp_minimal.py --replicas 2

docs/tutorials/fsdp.md explains it line by line.
"""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import oktopk.torch

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--replicas", type=int, default=2, help="copies of the model; a divisor of the number of ranks")
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()

dist.init_process_group()
device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cuda":
    torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
shards = dist.get_world_size() // args.replicas
mesh = init_device_mesh(device, (args.replicas, shards), mesh_dim_names=("replicate", "shard"))

torch.manual_seed(0)  # the same weights on every replica
sizes = [(256, 512), (512, 512), (512, 1)]
layers = [layer for inside, out in sizes for layer in (torch.nn.Linear(inside, out), torch.nn.ReLU())]
model = torch.nn.Sequential(*layers[:-1]).to(device)
for layer in model[::2]:
    fully_shard(layer, mesh=mesh["shard"])  # the shard dimension alone: FSDP then does no all-reduce
fully_shard(model, mesh=mesh["shard"])
options = {"preset": "circulant", "density": 0.01, "start_iter": args.steps // 20}
sync = oktopk.torch.register_fsdp(model, mesh["replicate"], **options)
optimiser = oktopk.torch.SparseAdamW(model.parameters(), sync, lr=1e-3)

torch.manual_seed(1 + dist.get_rank())  # every rank draws its own samples
for _ in range(args.steps):
    x = torch.randn(32, 256, device=device)
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
optimiser.catch_up()

if dist.get_rank() == 0:
    sent = sum(stats["wire_bytes"] for stats in sync.stats.values())
    dense = sum(stats["dense_bytes"] for stats in sync.stats.values())
    print(f"{args.replicas} replicas of {shards} shards: loss {loss.item():.4f}, {dense / sent:.0f}x less in a step")
dist.barrier()
dist.destroy_process_group()
