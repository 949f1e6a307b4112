# SPDX-License-Identifier: Apache-2.0
"""The hook's state beside a front-end's check-point: one file per rank in its folder, as <name>_rank_<r>_of_<P>.pt.
Loading compares what the ranks have found before any of them goes on.

COST: a file of n floats and some more per rank. With another number of ranks, each reads all files.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Union

import torch
import torch.distributed as dist

from oktopk._core import UsageError
from oktopk.torch._frontend import host_group, warn
from oktopk.torch.state import OkTopkState

Folder = Union[str, "os.PathLike[str]"]


def save_rank_file(state: OkTopkState, folder: Folder, name: str = "oktopk") -> None:
    """Writes this rank's file. Files of a run with another number of ranks are removed: the folder holds one
    check-point."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    own = path / _file_name(name, dist.get_rank(), dist.get_world_size())
    unfinished = own.with_suffix(".unfinished")
    torch.save({"iteration": state.iteration, "state": state.state_dict()}, unfinished)
    os.replace(unfinished, own)
    for P in _numbers_of_ranks(path, name) - {dist.get_world_size()}:
        for rank in range(P):
            try:
                (path / _file_name(name, rank, P)).unlink()
            except FileNotFoundError:  # another rank was first
                pass


def load_rank_files(state: OkTopkState, folder: Folder, name: str = "oktopk", hint: str = "") -> None:
    """Collective: continues from what was saved, on any number of ranks. UsageError on every rank where one cannot. If
    no rank finds such files, the state stays as it is, and a warning that ends with the hint is given."""
    here = _read(Path(folder), name)
    everywhere: List[Any] = [None] * dist.get_world_size()
    with host_group() as group:
        dist.all_gather_object(everywhere, here._replace(states=[]), group=group)
    _require_fit(everywhere, folder)
    if not here.states:
        warn(f"oktopk: no state of the hook in {folder}: it begins anew, with start_iter dense steps" + hint)
    elif here.P == dist.get_world_size():
        state.load_state_dict(here.states[0])
    else:
        state.load_state_dicts(here.states)


class _Found(NamedTuple):
    P: int  # ranks of the run that saved; 0: there are no files
    iteration: int
    problem: Optional[str]
    states: List[Dict[str, Any]]


def _read(folder: Path, name: str) -> _Found:
    world = dist.get_world_size()
    numbers = _numbers_of_ranks(folder, name)
    if not numbers:
        return _Found(0, 0, None, [])
    P = world if world in numbers else min(numbers)
    ranks = [dist.get_rank()] if P == world else list(range(P))
    try:
        files = [_load(folder / _file_name(name, rank, P)) for rank in ranks]
        return _Found(P, int(files[0]["iteration"]), None, [file["state"] for file in files])
    except Exception as error:  # torch.load raises anything where a file is damaged
        where = f"rank {dist.get_rank()} cannot read the hook's state in {folder}"
        return _Found(P, 0, f"{where}: {type(error).__name__}: {error}", [])


def _require_fit(found: List[_Found], folder: Folder) -> None:
    for one in found:
        if one.problem is not None:
            raise UsageError(f"oktopk: {one.problem}")
    for rank, one in enumerate(found):
        if (one.P, one.iteration) != (found[0].P, found[0].iteration):
            raise UsageError(
                f"oktopk: the ranks find different check-points in {folder}: rank 0 {_words(found[0])}, "
                f"rank {rank} {_words(one)}: give every node all files of one check-point"
            )


def _words(found: _Found) -> str:
    if found.P == 0:
        return "no state of the hook"
    return f"one of {found.P} ranks at iteration {found.iteration}"


def _load(path: Path) -> Dict[str, Any]:
    loaded: Dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return loaded


def _file_name(name: str, rank: int, P: int) -> str:
    return f"{name}_rank_{rank}_of_{P}.pt"


def _numbers_of_ranks(folder: Path, name: str) -> "set[int]":
    pattern = re.compile(re.escape(name) + r"_rank_\d+_of_(\d+)\.pt")
    files = os.listdir(folder) if folder.is_dir() else []
    return {int(match.group(1)) for match in map(pattern.fullmatch, files) if match}
