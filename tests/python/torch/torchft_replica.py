# SPDX-License-Identifier: Apache-2.0
"""One replica group of test_torchft.py: a process of its own.

    python torchft_replica.py LIGHTHOUSE NAME STEPS MODE FOLDER [DIE_IN_STEP]

It writes FOLDER/NAME.json at the end, and a line per step to stdout. Killed by SIGKILL in the step DIE_IN_STEP: before
its exchange (MODE sync), or between the exchange and the vote (async), so that the others are in the middle of a step.
The first three begin together, and the others wait in step 15 for replica_3.
"""

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torchft
from torch.distributed import TCPStore

import oktopk
import oktopk.torch
from oktopk.torch.torchft import ManagedWorld, ProcessGroup

N = 64
lighthouse, name, steps, is_async, folder = sys.argv[1:6]
steps, dies = int(steps), int(sys.argv[6]) if len(sys.argv) > 6 else -1
torch.set_num_threads(1)
torch.manual_seed(int(name[-1]))  # init_sync makes the weights equal
target = torch.linspace(-2.0, 2.0, N)

weights = torch.nn.Parameter(torch.randn(N))
inner = torch.optim.SGD([weights], lr=0.1, momentum=0.5)
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
seconds = timedelta(seconds=20)
manager = torchft.Manager(
    pg=ProcessGroup(timeout=seconds),
    load_state_dict=lambda state: (weights.data.copy_(state["weights"]), inner.load_state_dict(state["inner"])),
    state_dict=lambda: {"weights": weights.data.clone(), "inner": inner.state_dict()},
    min_replica_size=2,
    use_async_quorum=is_async == "async",
    timeout=seconds,
    quorum_timeout=timedelta(seconds=60),
    rank=0,
    world_size=1,
    store_addr="127.0.0.1",
    store_port=store.port,
    lighthouse_addr=lighthouse,
    replica_id=name,
    hostname="127.0.0.1",
)
world = ManagedWorld(manager)
options = {"warmup": [(2, 1.0)]}  # the place in it must be the same for a replica that joins later
reducer = oktopk.torch.Reducer([weights], communicator=world, preset="circulant", density=0.25, **options)
optimiser = torchft.Optimizer(world, inner)



def wait_for(*names):
    deadline = time.monotonic() + 120
    while not all((Path(folder) / f"{other}.ready").exists() for other in names):
        assert time.monotonic() < deadline, f"{names} did not come"
        time.sleep(0.05)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


(Path(folder) / f"{name}.ready").touch()
wait_for("replica_0", "replica_1", "replica_2")
log = []
sizes = []
while manager.current_step() < steps:
    step = manager.current_step()
    if step == 15:
        wait_for("replica_3")
    optimiser.zero_grad()
    noise = torch.randn(N, generator=torch.Generator().manual_seed(100 * step + int(name[-1])))
    (weights - target - 0.01 * noise).square().sum().mul(0.5).backward()
    if step == dies and is_async == "sync":
        die()
    reducer.reduce_gradients()
    if step == dies:
        die()
    sizes.append(world.size)
    optimiser.step()
    log.append(manager.current_step() > step)
    print(name, step, world.size, log[-1], flush=True)

result = {
    "weights": weights.data.tolist(),
    "momentum": inner.state[weights]["momentum_buffer"].tolist(),
    "distance": float((weights.data - target).norm()),
    "committed": manager.current_step(),
    "tries": len(log),
    "sizes": sizes,
    "reducer_steps": reducer.steps,
}
(Path(folder) / f"{name}.json").write_text(json.dumps(result))
time.sleep(1)  # others may still be in their last step
manager.shutdown(wait=False)
os._exit(0)
