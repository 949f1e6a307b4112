# SPDX-License-Identifier: Apache-2.0
"""The common part of the front-ends: who gets the hook's state, and the files of the ranks."""

import warnings

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import oktopk
import oktopk.torch
from launched import run_launched
from oktopk.torch._frontend import find_ddp, give_source, of_model, register
from oktopk.torch._frontend import load_rank_files, save_rank_file
from small import OPTIONS, Net, Samples


def test_sparse_optimisers_get_the_state_and_others_a_warning():
    state, net = oktopk.torch.OkTopkState(), Net()
    sparse = oktopk.torch.SparseSGD(net.parameters())
    plain = torch.optim.SGD(net.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        give_source([sparse, plain], state)
        give_source([sparse], state)  # a second time changes nothing
    assert sparse.source is state
    for optimiser, instead in (
        (torch.optim.AdamW(net.parameters()), "SparseAdamW"),
        (torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), "SparseSGD"),
    ):
        with pytest.warns(UserWarning, match=f"use oktopk.torch.{instead} in its place"):
            give_source([optimiser], state)
    with pytest.raises(oktopk.UsageError, match="SparseSGD has a source of its own, a OkTopkState tha"):
        give_source([sparse], oktopk.torch.OkTopkState())


def test_optimisers_of_other_models_are_left_alone():
    net, other = Net(), Net()
    mine, theirs = (oktopk.torch.SparseAdamW(m.parameters()) for m in (net, other))
    assert of_model([theirs, mine], net) == [mine]


def step(ddp, optimiser, rank):
    samples = Samples()
    ddp(samples.x[rank : rank + 4], samples.x[rank : rank + 4, :10].argmax(1))["loss"].backward()
    optimiser.step()
    optimiser.zero_grad()


def make_world():
    dist.init_process_group("gloo")
    net = Net()
    ddp, state = DistributedDataParallel(net), oktopk.torch.OkTopkState(**OPTIONS)
    optimiser = oktopk.torch.SparseAdamW(net.parameters())
    assert find_ddp(net) is ddp and find_ddp(Net()) is None
    register(ddp, state, [optimiser])
    register(ddp, state, [optimiser])
    return ddp, state, optimiser


def save_with_three(rank, folder):
    ddp, state, optimiser = make_world()
    for _ in range(4):
        step(ddp, optimiser, rank)
    save_rank_file(state, folder)


def load_with_two(rank, folder, elsewhere):
    ddp, state, optimiser = make_world()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        load_rank_files(state, elsewhere, hint="; look elsewhere")
    texts = [str(w.message) for w in seen if "oktopk" in str(w.message)]
    assert len(texts) == (rank == 0) and all("no state of the hook in" in text for text in texts)
    assert all(text.endswith("start_iter dense steps; look elsewhere") for text in texts)
    load_rank_files(state, folder)
    assert state.iteration == 4
    step(ddp, optimiser, rank)
    assert state.iteration == 5 and state.arrived(next(ddp.module.parameters())) is not None
    save_rank_file(state, folder)
    dist.barrier()
    assert names_in(folder) == ["oktopk-2.json", "oktopk-2_rank_0_of_2.pt", "oktopk-2_rank_1_of_2.pt"]
    dist.barrier()
    files = [folder / f"oktopk-2_rank_{r}_of_2.pt" for r in range(2)]
    if rank == 0:
        torch.save({"iteration": 6, "state": {}}, files[0])
    dist.barrier()
    with pytest.raises(oktopk.UsageError, match="rank 0 finds iteration 6, rank 1 iteration 5: give every node all"):
        load_rank_files(state, folder)
    if rank == 0:
        files[0].write_bytes(b"half a file")
    dist.barrier()
    with pytest.raises(oktopk.UsageError, match="rank 0 cannot read the hook's state in .*saved: "):
        load_rank_files(state, folder)
    dist.barrier()
    if rank == 1:
        files[1].unlink()
    dist.barrier()
    with pytest.raises(oktopk.UsageError, match="the check-point of 2 ranks in .* lacks files .*need: 1: give every"):
        load_rank_files(state, folder)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_files_of_three_ranks_serve_two(tmp_path):
    run_launched(3, save_with_three, tmp_path / "saved")
    run_launched(2, load_with_two, tmp_path / "saved", tmp_path / "elsewhere")

