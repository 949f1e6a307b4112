#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Members on slow links that train by themselves and meet every 30 steps; they may come and go.

    (umask 077; head -c 32 /dev/urandom | base64 > secret)
    oktopk run -n 2 --encrypt --keep-going --secret-file secret -- python3 examples/local_steps.py

docs/tutorials/local_steps.md starts the members on different hosts.
"""

import argparse

import torch
import torch.nn.functional as F

import oktopk.torch

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--rounds", type=int, default=20, help="outer steps")
parser.add_argument("--every", type=int, default=30, help="local steps between two of them")
args = parser.parse_args()

torch.manual_seed(0)  # all members begin with the same weights
teacher = torch.nn.Linear(64, 10)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
inner = torch.optim.AdamW(model.parameters(), lr=1e-3)

world = oktopk.torch.ElasticWorld(timeout=600.0, on_change=lambda change: print(change, flush=True))
outer = oktopk.torch.LocalSteps(model.parameters(), every=args.every, density=0.02, communicator=world)

own = torch.Generator().manual_seed(1000 + world.members[world.rank])  # every member has its own samples
while world.committed < args.rounds:
    if world.committed == args.rounds - 1:
        world.leave_after_next()  # the others do not wait for this member afterwards
    for _ in range(args.every):
        x = torch.randn(32, 64, generator=own)
        inner.zero_grad()
        F.cross_entropy(model(x), teacher(x).argmax(1)).backward()
        inner.step()
        outer.step()  # every 30th call meets the others

x = torch.randn(4096, 64, generator=torch.Generator().manual_seed(2))
right = (model(x).argmax(1) == teacher(x).argmax(1)).float().mean()
print(f"accuracy {right:.3f} after {args.rounds} rounds of {args.every} steps", flush=True)
