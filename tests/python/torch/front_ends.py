# SPDX-License-Identifier: Apache-2.0
"""The front-ends behind one interface, for laws that hold for all of them. The loss is linear in the weights, so that a
test says which gradient a rank has. OKTOPK_TEST_DEVICE as in models.py."""

from __future__ import annotations

import functools
import io
from typing import Any, Dict, List

import pytest
import torch
import torch.distributed as dist
from models import DEVICE, STAGING, nccl_group, use_gpu
from on_gpu import pretend
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from versions import TORCH

from oktopk.torch import LocalSteps, OkTopkState, Reducer, SparseAdamW, _levels, oktopk_hook, register_fsdp
from oktopk.torch.checkpoint import Elastic, unwrap

SHAPES = [(41, 59), (61,), (50, 50), (5, 3, 33), (7,)]  # odd, so that shards are padded; several buckets of DDP
SIZES = [int(torch.tensor(shape).prod()) for shape in SHAPES]
N = sum(SIZES)


def gradient_of(place: int, step: int) -> torch.Tensor:
    """Heavy-tailed, larger on later ranks, and on the grid of 2^-10 so that sums in float32 are exact."""
    generator = torch.Generator().manual_seed(1000 * step + place)
    return (torch.randn(N, generator=generator) ** 3 * (1 + place) * 1024).round() / 1024


class Part(nn.Module):
    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        return (self.weight * gradient.view(self.weight.shape)).sum()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Part(shape) for shape in SHAPES)

    def forward(self, gradient: torch.Tensor) -> Any:
        return sum(part(own) for part, own in zip(self.parts, gradient.split(SIZES)))


class FrontEnd:
    """This rank's model and the object that synchronises it, `state`. Means are flat, on the host, in float64."""

    least_torch = (2, 0)
    shards = 1  # ranks that hold one replica
    defaults: Dict[str, Any] = {}
    presets = ("circulant", "oktopk", "topka", "auto")
    stable: Dict[str, Any] = {}  # options of runs that are compared bit by bit
    check_points = TORCH >= (2, 4)  # of torch.distributed.checkpoint

    def __init__(self, group: Any = None, dtype: torch.dtype = torch.float32, **options: Any) -> None:
        self.group = group
        self.prepare()
        self.place = dist.get_rank(group) // self.shards
        self.replicas = dist.get_world_size(group) // self.shards
        self.model: Any = Net().to(DEVICE, dtype)
        settings = {"preset": "circulant", "density": 0.05, "timeout": 60.0, **STAGING, **self.defaults}
        self.state = self.register(**{**settings, **options})

    def prepare(self) -> None:
        pass

    def register(self, **settings: Any) -> Any:
        raise NotImplementedError

    def backward(self, gradient: torch.Tensor, scale: Any = lambda loss: loss) -> None:
        self.model.zero_grad()
        scale(self.model(gradient.to(DEVICE, next(self.model.parameters()).dtype))).backward()

    def step(self, gradient: torch.Tensor) -> torch.Tensor:
        """Collective: the mean that arrives."""
        self.backward(gradient)
        return self.mean()

    def train(self, gradient: torch.Tensor) -> None:
        """Collective: a step, and the weights move."""
        self.step(gradient)
        self.optimiser.step()

    @functools.cached_property
    def optimiser(self) -> Any:
        return torch.optim.SGD(self.model.parameters(), lr=2**-8)

    def mean(self) -> torch.Tensor:
        return torch.cat([whole(p.grad).reshape(-1) for p in self.model.parameters()]).cpu().double()

    def weights(self) -> torch.Tensor:
        return torch.cat([whole(p).reshape(-1) for p in self.model.parameters()]).cpu().double()

    def rest(self) -> torch.Tensor:
        """Collective: the mean of everything that is unsent. The last call of a test."""
        self.state.flush()
        return self.mean()

    def saved(self) -> bytes:
        return as_bytes(self.state.state_dict())

    def load(self, states: List[bytes]) -> None:
        """This rank's own, or those of all ranks of an earlier run."""
        read = [torch.load(io.BytesIO(state), weights_only=True) for state in states]
        if len(read) == 1:
            self.state.load_state_dict(read[0])
        else:
            self.state.load_state_dicts(read[dist.get_rank() % self.shards :: self.shards])
        self.adopt()

    def save_to(self, path: str) -> None:
        """Collective, as the method below: by torch.distributed.checkpoint."""
        import torch.distributed.checkpoint as dcp

        dcp.save({"state": self.state}, checkpoint_id=path)

    def load_from(self, path: str, is_elastic: bool) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.load({"state": Elastic(self.state, path) if is_elastic else self.state}, checkpoint_id=path)
        self.adopt()

    def adopt(self) -> None:
        """Weights of the state into the model, where the state has some."""


class Hook(FrontEnd):
    """DDP. keeps: with the buckets of its first step, which it else makes anew."""

    defaults = {"start_iter": 0, "min_numel": 100}
    stable = {"keeps": True}

    def register(self, keeps: bool = False, bucket_cap_mb: float = 0.01, **settings: Any) -> OkTopkState:
        dist._DEFAULT_FIRST_BUCKET_BYTES = int(bucket_cap_mb * 2**20)  # before torch 2.4 a cap of its own
        how = {"bucket_cap_mb": bucket_cap_mb, "process_group": self.group, "find_unused_parameters": keeps}
        self.model = DistributedDataParallel(self.model, **how)
        state = OkTopkState(**settings)
        self.model.register_comm_hook(state, oktopk_hook)
        return state

    def rest(self) -> torch.Tensor:
        self.state.state_dict()  # settles what a GradScaler skipped
        unsent = self.state.unsent()
        named = self.model.module.named_parameters()
        mean = torch.cat([unsent.get(name, torch.zeros(p.numel())).cpu().double() for name, p in named])
        dist.all_reduce(mean, group=None if isinstance(self, OnGpu) else self.group)  # which may be NCCL's
        return mean / self.replicas


class Nodes(Hook):
    """Pairs of ranks sum densely first."""

    defaults = {**Hook.defaults, "group_size": 2}


class OnGpu(FrontEnd):
    """Its steps stay on the GPU. On the CPU a stand-in makes them."""

    presets = ("slots",)

    def prepare(self) -> None:
        pretend()
        if DEVICE.type == "cuda" and self.group is None:
            use_gpu()
            self.group = nccl_group(dist.get_rank(), dist.get_world_size())


class Resident(OnGpu, Hook):
    defaults = {**Hook.defaults, "preset": "slots"}


class ResidentNodes(OnGpu, Hook):
    """The ranks of a node share the work."""

    defaults = {**Resident.defaults, "group_size": 2}


class Explicit(FrontEnd):
    """oktopk.torch.Reducer."""

    def register(self, **settings: Any) -> Reducer:
        return Reducer(self.model.named_parameters(), self.group, **settings)

    def step(self, gradient: torch.Tensor) -> torch.Tensor:
        self.backward(gradient)
        self.state.reduce_gradients()
        return self.mean()


class HostNodes(Explicit):
    defaults = {"group_size": 2}


class ExplicitNodes(OnGpu, Explicit):
    defaults = {"preset": "slots", "group_size": 3}


class Fsdp(FrontEnd):
    least_torch = (2, 7)
    defaults = {"start_iter": 0, "min_numel": 100}

    def register(self, **settings: Any) -> Any:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        names = ("replicate", "shard")
        mesh = init_device_mesh(DEVICE.type, (self.replicas, self.shards), mesh_dim_names=names)
        for module in (self.model.parts[2], self.model):
            fully_shard(module, mesh=mesh["shard"])
        return register_fsdp(self.model, mesh["replicate"], **settings)


class Sharded(Fsdp):
    shards = 2


class Local(FrontEnd):
    """LocalSteps, with a meeting after every step. The mean is that of the ranks' moves."""

    defaults = {"every": 1, "codec": None, "decay": 1.0}
    stable = {"outer_momentum": 0.5}

    def register(self, **settings: Any) -> LocalSteps:
        return LocalSteps(self.model.named_parameters(), self.group, **settings)

    @torch.no_grad()
    def step(self, gradient: torch.Tensor) -> torch.Tensor:
        before = self.weights()
        for p, own in zip(self.model.parameters(), gradient.split(SIZES)):
            p -= own.view(p.shape).to(p)
        self.state.step()
        return before - self.weights()

    def weights(self) -> torch.Tensor:
        """The global ones, in float32 also where the parameters are not."""
        return unwrap(self.state.state_dict())["weights"].double()

    def rest(self) -> torch.Tensor:
        before = self.weights()
        self.state.flush()
        return before - self.weights()

    @torch.no_grad()
    def adopt(self) -> None:
        for p, own in zip(self.model.parameters(), self.weights().split(SIZES)):
            p.copy_(own.view(p.shape))


class LocalNodes(Local):
    defaults = {**Local.defaults, "group_size": 2}


class Levelled(Hook):
    """Its selection is levelled by SparseAdamW. The gradients do not depend on the weights, so all laws hold."""

    defaults = {**Hook.defaults, "levelled": True}
    stable = {**Hook.stable, "warmup": [(2, 1.0)]}  # a state after three steps has levels
    presets = ("circulant", "topka", "slots")
    check_points = False

    def prepare(self) -> None:
        _levels.LEAST_STEPS = 2  # new levels are made every few steps

    @functools.cached_property
    def optimiser(self) -> Any:
        return SparseAdamW(self.model.parameters(), self.state, lr=2**-8)

    def backward(self, gradient: torch.Tensor, scale: Any = lambda loss: loss) -> None:
        assert self.optimiser.source is self.state  # it is there from the first step on
        super().backward(gradient, scale)

    def step(self, gradient: torch.Tensor) -> torch.Tensor:
        mean = super().step(gradient)
        if mean.isfinite().all() and mean.any():
            self.optimiser.step()
        return mean

    def train(self, gradient: torch.Tensor) -> None:
        self.step(gradient)

    def saved(self) -> bytes:
        return as_bytes({"state": self.state.state_dict(), "optimiser": self.optimiser.state_dict()})

    def load(self, states: List[bytes]) -> None:
        read = [torch.load(io.BytesIO(state), weights_only=True) for state in states]
        self.optimiser.load_state_dict(read[0]["optimiser"])
        super().load([as_bytes(one["state"]) for one in read])

    def levels(self) -> List[Any]:
        return [channel.levels and channel.levels.factors for channel in self.state._channels.to_save()]


class LevelledNodes(Levelled):
    defaults = {**Levelled.defaults, "group_size": 2}


class LevelledReducer(Levelled, Explicit):
    defaults = {"levelled": True}
    stable = {"warmup": Levelled.stable["warmup"]}

    def register(self, **settings: Any) -> Reducer:
        return Explicit.register(self, **settings)

    def rest(self) -> torch.Tensor:
        return Explicit.rest(self)

    def levels(self) -> List[Any]:
        return [self.state._flat_reducer.levels]


def as_bytes(state: Any) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def whole(tensor: Any) -> torch.Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach()


def same(*found: Any) -> None:
    """Collective: fails unless tensors have the same bits, and texts are the same, on all ranks."""
    gathered: List[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, found)
    for other in gathered:
        for a, b in zip(found, other):
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, (found, other)


def over(*cases: Any) -> Any:
    """A test for each of these pairs of a front-end and a number of ranks."""
    old = {kind: pytest.mark.skipif(TORCH < kind.least_torch, reason=f"NOT RUN: {kind}") for kind, _ in cases}
    worlds = [pytest.param(kind, P, id=f"{kind.__name__}-{P}", marks=old[kind]) for kind, P in cases]
    return pytest.mark.parametrize("kind, P", worlds)


LEVELLED = [(Levelled, 2), (Levelled, 3), (LevelledNodes, 4), (LevelledReducer, 2)]
IN_NODES = [(Nodes, 4), (HostNodes, 4), (LocalNodes, 4)]
ON_GPU = [(Resident, 3), (ResidentNodes, 4), (ExplicitNodes, 6)]
ALL = [(Hook, 3), (Explicit, 2), (Explicit, 3), (Local, 2), (Local, 3), (Fsdp, 3), (Sharded, 4)]
