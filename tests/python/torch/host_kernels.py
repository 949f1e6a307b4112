# SPDX-License-Identifier: Apache-2.0
"""The kernels of a GPU, played by the host: reads the tables that cuda_step.py writes for the kernels, and makes the
step with the native code for host memory. So the tables, the clock and the plans are tested without a GPU."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List

import pytest
import torch
from torch import Tensor

from oktopk import _core
from oktopk.torch import cuda_step
from oktopk.torch.host_step import row_of
from oktopk.torch.interval_clock import CudaClock

TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
DENSE, ALL, LISTED, NONZERO = range(4)
BLOCK, LIST_BLOCK = 16384, 4096


def memory(address: int, count: int, dtype: torch.dtype) -> Tensor:
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.frombuffer((ctypes.c_byte * (count * size)).from_address(address), dtype=dtype)


class SeenClock(CudaClock):
    """Leaves behind the rates of the steps before it."""

    runs: Dict[int, List[float]] = {}

    def __init__(self, native: _core.LazyGroup, device: torch.device, is_fixed: bool):
        super().__init__(native, device, is_fixed)
        self.runs[self._head.data_ptr()] = native.runs()


class HostKernels:
    def __init__(self) -> None:
        self.steps = 0
        self._clocks: Dict[int, _core.LazyGroup] = {}

    def step(self, fields: Dict[str, Any], stream: int) -> None:
        self.steps += 1
        rows = memory(fields["tensors"], 13 * fields["tensor_count"], torch.int64).view(-1, 13).tolist()
        self._check_blocks(fields, rows)
        head = memory(fields["clock"], 10, torch.int32)
        if fields["found_inf"] != 0 and memory(fields["found_inf"], 1, torch.float32).item() != 0:
            head[1] = 1
            return
        head[1] = 0
        group = self._tick(fields, head) if fields["totals"] != 0 else _core.LazyGroup()
        kept = 1 - fields["rate"] * fields["decoupled_decay"]
        for row in rows:
            if row[9] != 0:
                memory(row[9], 1, torch.float32).add_(1)
            self._move(group, row, {**fields, "kept": kept})

    def _tick(self, fields: Dict[str, Any], head: Tensor) -> _core.LazyGroup:
        group = self._clocks.get(fields["clock"])
        if group is None or group.now != head[0]:
            group = self._clocks[fields["clock"]] = _core.LazyGroup()
            runs = SeenClock.runs[fields["clock"]]
            for i in range(0, len(runs), 3):
                group.tick(runs[i + 1], runs[i + 2], int(runs[i]))
        assert group.now == head[0]
        group.tick(fields["rate"], fields["decoupled_decay"])
        now, room = group.now, fields["room"]
        assert now < room
        totals, log = (memory(fields[name], 2 * room, torch.float64).view(-1, 2) for name in ("totals", "log"))
        assert torch.equal(totals[:now].t(), torch.from_numpy(group.totals(0)).view(2, -1)[:, :-1])
        totals[now] = torch.from_numpy(group.totals(now))
        log[now] = torch.tensor([fields["rate"], fields["decoupled_decay"]], dtype=torch.float64)
        head[0] = now
        return group

    def _check_blocks(self, fields: Dict[str, Any], rows: List[List[int]]) -> None:
        """Every coordinate or index belongs to one block; blocks are ordered by type."""
        expected = []
        for number in range(len(TYPES)):
            of_type = [
                (i << 32) + block
                for i, row in enumerate(rows)
                if row[11] == number
                for block in range(-(-row[8] // LIST_BLOCK) if row[12] == LISTED else -(-row[0] // BLOCK))
            ]
            assert fields["block_counts"][number] == len(of_type)
            expected += of_type
        assert memory(fields["blocks"], len(expected), torch.int64).tolist() == expected if expected else True

    def _move(self, group: _core.LazyGroup, row: List[int], fields: Dict[str, Any]) -> None:
        size, weights, mean, first, second, last, arrivals, indices, count, steps, caught_up, number, where = row
        if size == 0:
            return
        if fields["grad_scale"] != 0:
            scaled = memory(mean, size, TYPES[number]) / memory(fields["grad_scale"], 1, torch.float32)
            mean = scaled.to(TYPES[number]).data_ptr()
        if where == NONZERO:
            found = memory(mean, size, TYPES[number]).nonzero().view(-1)
            indices, count = found.data_ptr(), found.numel()
        if where in (LISTED, NONZERO) and count == 0:
            return
        made = int(memory(steps, 1, torch.float32).item()) if steps != 0 else 0
        clocks = (0, 0) if where == DENSE else (last, arrivals)
        chosen = (indices, count) if where in (LISTED, NONZERO) else (0, 0)
        names = "type size weights mean first second roots last arrivals indices count steps caught_up".split()
        values = (number, size, weights, mean, first, second, 0, *clocks, *chosen, made, caught_up)
        native = row_of(**dict(zip(names, values)))
        options = {"rate": fields["rate"], "kept": fields["kept"]}
        if fields["is_sgd"]:
            rule = {"momentum": fields["first_beta"], "weight_decay": fields["coupled_decay"]}
            group.sgd([native], {**options, **rule, "nesterov": fields["nesterov"]}, 1)
        else:
            rule = {"beta1": fields["first_beta"], "beta2": fields["second_beta"], "eps": fields["epsilon"]}
            group.adam([native], {**options, **rule}, 1)


@pytest.fixture
def host_kernels(monkeypatch):
    """Call it, and from now on parameters in host memory make their steps as on a GPU."""

    def switch() -> HostKernels:
        kernels = HostKernels()
        monkeypatch.setattr(cuda_step, "kernels_of", lambda device: kernels)
        monkeypatch.setattr("oktopk.torch.interval_clock.CudaClock", SeenClock)
        return kernels

    return switch
