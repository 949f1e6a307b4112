# SPDX-License-Identifier: Apache-2.0
"""The common part of oktopk.lightning, oktopk.accelerate and oktopk.transformers. A front-end makes the DDP model
itself, so the hook is registered after that, and SparseAdamW and SparseSGD, which were made without a source, get the
hook's state as theirs. The hook's state beside a front-end's check-point is a set of files, one per rank, that is
complete or absent:

    <name>-<set>_rank_<r>_of_<P>.pt     each rank writes its own; no earlier set has this number
    <name>-<set>.json                   written when all ranks have: it makes the set valid

Only then are older sets removed. Readers take the newest set that is valid and complete on all ranks; the nodes need
not share the folder. The set of version 1.0, <name>_rank_<r>_of_<P>.pt, counts as the oldest.

COST: a file of n floats and some more per rank, and three small gathers. With another number of ranks, each reads all
files.
"""

from __future__ import annotations

import gc
import json
import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple, Union

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from oktopk._core import CommError, UsageError
from oktopk.torch._group import HOST_BACKENDS, new_group
from oktopk.torch._owner import SPARSE, live_ddp_models, trouble_with, unwrapped, warn
from oktopk.torch.ddp import oktopk_hook
from oktopk.torch.state import OkTopkState


def check_options(options: Dict[str, Any], who: str) -> None:
    """UsageError at once, not when training begins, where an option is unfit."""
    if "grad_scaler" in options:
        raise UsageError(f"oktopk: {who} takes no grad_scaler: it finds that of the training itself")
    OkTopkState(**options)


def register(ddp: DistributedDataParallel, state: OkTopkState, optimisers: Iterable[Optimizer]) -> None:
    """Registers the hook on a DDP model, and makes the state the source of its optimisers. A second call with the same
    pair changes nothing."""
    if not any(other is state for _, other in getattr(ddp, "_comm_hooks", [])):
        _register_hook(ddp, state)
    give_source(of_model(optimisers, ddp), state)


def _register_hook(ddp: DistributedDataParallel, state: OkTopkState) -> None:
    try:
        ddp.register_comm_hook(state, oktopk_hook)
    except RuntimeError as error:
        if "only be called once" not in str(error):
            raise
        raise UsageError(
            "oktopk: the DDP model has a communication hook already, and DDP takes one: leave the other one out"
        ) from error


def of_model(optimisers: Iterable[Optimizer], model: torch.nn.Module) -> List[Optimizer]:
    """The optimisers, without the front-end's wrappers, that change a parameter of the model."""
    mine = {id(parameter) for parameter in model.parameters()}
    bare = [unwrapped(optimiser) for optimiser in optimisers]
    return [o for o in bare if any(id(p) in mine for g in o.param_groups for p in g["params"])]


def give_source(optimisers: Iterable[Optimizer], state: OkTopkState) -> None:
    """UsageError where an optimiser has another source; a warning where it can have none."""
    state.trust_optimisers()
    for optimiser in optimisers:
        if not isinstance(optimiser, SPARSE):
            text = trouble_with(optimiser)
            if text is not None:
                warn(text)
        elif optimiser.source is None or optimiser.source is state:
            optimiser.source = state
        else:
            raise UsageError(
                f"oktopk: {type(optimiser).__name__} has a source of its own, a {type(optimiser.source).__name__} "
                "that is not this hook's state: leave source= out, it is set when the hook is registered"
            )


def catch_up(optimisers: Iterable[Optimizer]) -> None:
    """Applies the weight decay that is owed to silent coordinates, before weights are used. On all ranks."""
    for optimiser in optimisers:
        bare = unwrapped(optimiser)
        if isinstance(bare, SPARSE):
            bare.catch_up()


def find_ddp(model: torch.nn.Module) -> Optional[DistributedDataParallel]:
    """The live DDP module around a model, for front-ends that do not hand it over."""
    found = _live_ddp(model)
    if len(found) > 1:  # one of an earlier training may wait for the garbage collector
        del found
        gc.collect()
        found = _live_ddp(model)
    if len(found) > 1:
        raise UsageError(f"oktopk: {len(found)} DDP modules are around this model: delete those of earlier trainings")
    return found[0] if found else None


def _live_ddp(model: torch.nn.Module) -> List[DistributedDataParallel]:
    first = next(model.parameters(), None)
    return [ddp for ddp in live_ddp_models() if any(p is first for p in ddp.parameters())]


@contextmanager
def host_group() -> Iterator[Any]:
    """A group of all ranks that moves host memory. Collective."""
    if str(dist.get_backend()).lower() in HOST_BACKENDS:
        yield dist.group.WORLD
        return
    group = new_group(list(range(dist.get_world_size())), "gloo")
    try:
        yield group
    finally:
        dist.destroy_process_group(group)


Folder = Union[str, "os.PathLike[str]"]


class FileSet(NamedTuple):
    """The files of one check-point of P ranks. number: larger in later sets; 0: the set of version 1.0."""

    number: int
    P: int

    def file(self, name: str, rank: int) -> str:
        number = f"-{self.number}" if self.number > 0 else ""
        return f"{name}{number}_rank_{rank}_of_{self.P}.pt"

    def manifest(self, name: str) -> str:
        return f"{name}-{self.number}.json"


def save_rank_file(state: OkTopkState, folder: Folder, name: str = "oktopk") -> None:
    """Collective: writes the state of every rank; the folder then holds this set alone. Where a rank cannot write, all
    ranks raise a UsageError that names it, and the set that was there stays."""
    path, rank, P = Path(folder), dist.get_rank(), dist.get_world_size()
    with host_group() as group:

        def together(act: Callable[[], Any]) -> List[Any]:
            return _gather(_attempt(act), group, f"write the hook's state in {folder}")

        new = FileSet(1 + max(together(lambda: _last_number(path, name))), P)
        together(lambda: _write_state(path / new.file(name, rank), state))
        together(lambda: _write_manifest(path / new.manifest(name), {"oktopk": 1, "ranks": P}))
    _remove_others(path, name, new)


def load_rank_files(state: OkTopkState, folder: Folder, name: str = "oktopk", hint: str = "") -> None:
    """Collective: continues from what was saved, on any number of ranks. UsageError on every rank where one cannot. If
    no rank finds such files, the state stays as it is, and a warning that ends with the hint is given."""
    path, rank, world = Path(folder), dist.get_rank(), dist.get_world_size()
    with host_group() as group:
        reading = f"read the hook's state in {folder}"
        found = _gather(_attempt(lambda: _sets_of(path, name, rank, world)), group, reading)
        chosen = _choose(found, folder, world)
        if chosen is None:
            warn(f"oktopk: no state of the hook in {folder}: it begins anew, with start_iter dense steps" + hint)
            return
        files = _attempt(lambda: [_load(path / chosen.file(name, r)) for r in _ranks_of(chosen, rank, world)])
        iterations = [iteration for iteration, _ in files.value or []]
        _require_one_iteration(_gather(files._replace(value=iterations), group, reading), chosen, folder)
    states = [saved for _, saved in files.value]
    if chosen.P == world:
        state.load_state_dict(states[0])
    else:
        state.load_state_dicts(states)


class _Outcome(NamedTuple):
    value: Any
    problem: Optional[str] = None


def _attempt(act: Callable[[], Any]) -> _Outcome:
    """What it returns, or why it cannot, for the other ranks to hear."""
    try:
        return _Outcome(act())
    except Exception as error:  # torch.load raises anything where a file is damaged
        return _Outcome(None, f"{type(error).__name__}: {error}")


def _gather(mine: _Outcome, group: Any, what: str) -> List[Any]:
    """Collective: the values of all ranks. UsageError on every rank where one has a problem."""
    everywhere: List[Any] = [None] * dist.get_world_size()
    try:
        dist.all_gather_object(everywhere, mine, group=group)
    except RuntimeError as error:
        raise CommError(f"oktopk: the ranks could not {what} together: {error}") from error
    for rank, one in enumerate(everywhere):
        if one.problem is not None:
            raise UsageError(f"oktopk: rank {rank} cannot {what}: {one.problem}")
    return [one.value for one in everywhere]


def _ranks_of(files: FileSet, rank: int, world: int) -> List[int]:
    """The ranks whose files this rank reads."""
    return [rank] if files.P == world else list(range(files.P))


class _Found(NamedTuple):
    """The sets that one rank finds. valid: their manifests are here, too. complete: all files that this rank reads are
    here."""

    valid: List[FileSet]
    complete: List[FileSet]


def _sets_of(folder: Path, name: str, rank: int, world: int) -> _Found:
    there = set(os.listdir(folder)) if folder.is_dir() else set()
    sets = {FileSet(number, P) for number, P in _state_files(there, name)}
    valid = [one for one in sets if one.number == 0 or one.manifest(name) in there]
    complete = [one for one in sets if all(one.file(name, r) in there for r in _ranks_of(one, rank, world))]
    return _Found(valid, complete)


def _choose(found: List[_Found], folder: Folder, world: int) -> Optional[FileSet]:
    """The newest set that all ranks have; the same on all of them. None: there is none. One manifest is enough: the
    rank that wrote it knew that all files were written."""
    valid = set().union(*(one.valid for one in found))
    common = valid.intersection(*(one.complete for one in found))
    if not valid:
        return None
    if not common:
        newest = max(valid)
        lacking = [str(rank) for rank, one in enumerate(found) if newest not in one.complete]
        raise UsageError(
            f"oktopk: the check-point of {newest.P} ranks in {folder} lacks files that these ranks need: "
            f"{', '.join(lacking)}: give every node all its files"
        )
    return max(common, key=lambda one: (one.number, one.P == world, -one.P))


def _require_one_iteration(iterations: List[List[int]], files: FileSet, folder: Folder) -> None:
    first = iterations[0][0]
    for rank, own in enumerate(iterations):
        odd = next((iteration for iteration in own if iteration != first), None)
        if odd is not None:
            raise UsageError(
                f"oktopk: the files of {files.P} ranks in {folder} are of different check-points: rank 0 finds "
                f"iteration {first}, rank {rank} iteration {odd}: give every node all files of one check-point"
            )


def _write_state(path: Path, state: OkTopkState) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        torch.save({"iteration": state.iteration, "state": state.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())


def _write_manifest(path: Path, content: Any) -> None:
    """At once: ranks that share the folder write the same."""
    unfinished = path.with_name(f"{path.name}.{dist.get_rank()}.unfinished")
    with open(unfinished, "w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def _load(path: Path) -> Tuple[int, Any]:
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    return int(loaded["iteration"]), loaded["state"]


def _state_files(names: Any, name: str) -> Iterator[Tuple[int, int]]:
    """(number of the set, its ranks) of each file of a state."""
    pattern = re.compile(re.escape(name) + r"(?:-(\d+))?_rank_\d+_of_(\d+)\.pt")
    for match in filter(None, map(pattern.fullmatch, names)):
        yield int(match.group(1) or 0), int(match.group(2))


def _last_number(folder: Path, name: str) -> int:
    """The largest number that a set has, valid or not; 0: there is none."""
    pattern = re.compile(re.escape(name) + r"-(\d+)[_.].*")
    names = os.listdir(folder) if folder.is_dir() else []
    return max([int(match.group(1)) for match in map(pattern.fullmatch, names) if match], default=0)


def _remove_others(folder: Path, name: str, kept: FileSet) -> None:
    """Files of all other sets, finished or not."""
    pattern = re.compile(re.escape(name) + r"(-\d+)?(_rank_\d+_of_\d+\.(pt|unfinished)|\.json(\..*)?)")
    keep = {kept.manifest(name), *(kept.file(name, rank) for rank in range(kept.P))}
    for found in filter(pattern.fullmatch, os.listdir(folder)):
        if found not in keep:
            (folder / found).unlink(missing_ok=True)  # another rank may be first
