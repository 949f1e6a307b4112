# SPDX-License-Identifier: Apache-2.0
"""Sets of rank files: whenever ranks are killed while they save, the old set or the new one is complete. Ranks are
threads, and files are real."""

import itertools
import os
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import oktopk
from oktopk.torch import _frontend
from oktopk.torch._frontend import load_rank_files, save_rank_file

HERE = threading.local()  # rank; calls: left before this rank is killed


class Killed(BaseException):
    """Nobody catches it in between, as nobody does SIGKILL."""


class Step:
    """Stands for a state of the hook."""

    def __init__(self, iteration=0):
        self.iteration, self.loaded = iteration, None

    def state_dict(self):
        return {"iteration": self.iteration, "rank": HERE.rank}

    def load_state_dict(self, state):
        self.load_state_dicts([state])

    def load_state_dicts(self, states):
        self.loaded = [(state["iteration"], state["rank"]) for state in states]


class Ranks:
    """In the place of torch.distributed."""

    def __init__(self, P):
        self.P, self.said, self.barrier = P, [None] * P, threading.Barrier(P, timeout=30)

    def get_rank(self):
        return HERE.rank

    def get_world_size(self):
        return self.P

    def all_gather_object(self, everywhere, mine, group=None):
        count_call()
        self.said[HERE.rank] = mine
        self.barrier.wait()  # its error is a RuntimeError, as torch's
        everywhere[:] = self.said
        self.barrier.wait()

    def run(self, body, calls=None):
        """body(rank) on all ranks. calls[r]: after so many the rank is killed; the others then fail in a gather."""
        results = [None] * self.P

        def one(rank):
            HERE.rank, HERE.calls = rank, None if calls is None else calls[rank]
            try:
                results[rank] = body(rank)
            except BaseException as error:
                results[rank] = error
                if isinstance(error, (Killed, oktopk.CommError)):
                    self.barrier.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.P)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


def count_call():
    left = getattr(HERE, "calls", None)
    if left is not None:
        if left == 0:
            raise Killed()
        HERE.calls = left - 1


@pytest.fixture
def ranks(monkeypatch):
    """ranks(P) makes a world of P ranks."""

    @contextmanager
    def group():
        yield None

    def counted(act):
        def call(*arguments, **named):
            count_call()
            return act(*arguments, **named)

        return call

    def save(content, file, act=torch.save):
        try:
            count_call()
        except Killed:
            file.write(b"half of")
            raise
        act(content, file)

    monkeypatch.setattr(_frontend, "host_group", group)
    monkeypatch.setattr(torch, "save", save)
    for owner, name in ((os, "replace"), (os, "fsync"), (Path, "unlink")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))

    def make(P):
        world = Ranks(P)
        monkeypatch.setattr(_frontend, "dist", world)
        return world

    return make


def folder_of(folder, is_shared, rank):
    return folder if is_shared else folder / str(rank)


def save(ranks, P, iteration, folder, is_shared, calls=None):
    return ranks(P).run(lambda rank: save_rank_file(Step(iteration), folder_of(folder, is_shared, rank)), calls)


def load(ranks, P, folder, is_shared):
    def body(rank):
        state = Step()
        load_rank_files(state, folder_of(folder, is_shared, rank))
        return state.loaded

    return ranks(P).run(body)


def save_as_version_1_0(folder, P, iteration):
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(P):
        state = {"iteration": iteration, "rank": rank}
        torch.save({"iteration": iteration, "state": state}, folder / f"oktopk_rank_{rank}_of_{P}.pt")


def check_resumed(loaded, P, allowed):
    """All ranks have the states of one iteration, complete."""
    if loaded[0] is None:
        assert 0 in allowed and loaded == [None] * len(loaded)
        return
    iteration = loaded[0][0][0]
    assert iteration in allowed
    if len(loaded) == P:
        assert loaded == [[(iteration, rank)] for rank in range(P)]
    else:
        assert loaded == [[(iteration, rank) for rank in range(P)]] * len(loaded)


MOST_CALLS = 14  # of one rank in one save


def deaths(P):
    """Where each rank is killed: one of them at every call, or all at once."""
    for victim, calls in itertools.product(range(P), range(MOST_CALLS)):
        yield tuple(calls if rank == victim else None for rank in range(P))
    for calls in range(MOST_CALLS):
        yield (calls,) * P


@pytest.mark.filterwarnings("ignore:oktopk. no state of the hook")
@pytest.mark.parametrize("before", ["nothing", "a set", "version 1.0"])
@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("P", [1, 2, 3])
def test_a_save_that_is_killed_leaves_the_old_set_or_the_new_one(ranks, tmp_path, P, is_shared, before):
    killed = 0
    for number, calls in enumerate(deaths(P)):
        folder = tmp_path / str(number)
        if before == "a set":
            assert save(ranks, P, 1, folder, is_shared) == [None] * P
        elif before == "version 1.0":
            for rank in range(P):
                save_as_version_1_0(folder_of(folder, is_shared, rank), P, 1)
        ends = save(ranks, P, 2, folder, is_shared, calls)
        assert all(end is None or isinstance(end, (Killed, oktopk.CommError)) for end in ends), ends
        killed += any(isinstance(end, Killed) for end in ends)
        allowed = (2,) if not any(ends) else (0 if before == "nothing" else 1, 2)
        for Q in (1, 2, 3) if is_shared else (P,):
            check_resumed(load(ranks, Q, folder, is_shared), P, allowed)
        assert save(ranks, P, 3, folder, is_shared) == [None] * P  # nothing is in its way
        check_resumed(load(ranks, P, folder, is_shared), P, (3,))
        names = {path.name for rank in range(P) for path in folder_of(folder, is_shared, rank).iterdir()}
        assert len(names) == P + 1, names
    assert killed >= 7  # a write, two fsyncs, a rename, three gathers, and the removals


def test_a_later_set_of_another_number_of_ranks_counts(ranks, tmp_path):
    save_as_version_1_0(tmp_path, 2, 5)
    save_as_version_1_0(tmp_path, 3, 4)
    check_resumed(load(ranks, 3, tmp_path, True), 3, (4,))  # of as many ranks as are here
    check_resumed(load(ranks, 2, tmp_path, True), 2, (5,))
    save(ranks, 3, 6, tmp_path, True)
    save(ranks, 1, 7, tmp_path, True)
    check_resumed(load(ranks, 3, tmp_path, True), 1, (7,))


def test_sets_of_two_models_in_one_folder_are_kept_apart(ranks, tmp_path):
    for number, name in enumerate(("oktopk", "oktopk_1", "oktopk")):
        ranks(2).run(lambda rank: save_rank_file(Step(number), tmp_path, name))
    for name, iteration in (("oktopk", 2), ("oktopk_1", 1)):

        def body(rank):
            state = Step()
            load_rank_files(state, tmp_path, name)
            return state.loaded

        assert ranks(2).run(body) == [[(iteration, 0)], [(iteration, 1)]]
    assert len(list(tmp_path.iterdir())) == 6


def test_a_rank_that_cannot_write_is_named_and_the_old_set_stays(ranks, tmp_path, monkeypatch):
    save(ranks, 3, 1, tmp_path, True)
    write, world = _frontend._write_state, ranks(3)

    def full(path, state):
        if HERE.rank == 1:
            raise OSError(28, "No space left on device")
        write(path, state)

    monkeypatch.setattr(_frontend, "_write_state", full)
    said = world.run(lambda rank: save_rank_file(Step(2), tmp_path))
    assert all(isinstance(one, oktopk.UsageError) for one in said) and len({str(one) for one in said}) == 1
    assert "rank 1 cannot write the hook's state in" in str(said[0]) and "No space left" in str(said[0])
    check_resumed(load(ranks, 3, tmp_path, True), 3, (1,))


def test_files_of_different_check_points_are_refused_on_all_ranks(ranks, tmp_path):
    for rank in range(3):
        save_as_version_1_0(tmp_path / "all", 3, rank)
    save_as_version_1_0(tmp_path / "other", 3, 9)
    os.rename(tmp_path / "other" / "oktopk_rank_2_of_3.pt", tmp_path / "all" / "oktopk_rank_2_of_3.pt")
    for Q, rank in ((3, 2), (2, 0)):
        said = load(ranks, Q, tmp_path / "all", True)
        assert all(f"rank 0 finds iteration 2, rank {rank} iteration 9" in str(one) for one in said), said
