# SPDX-License-Identifier: Apache-2.0
"""Dumps from Python: on request, on errors, and the comparison of weights."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from ranks import in_threads

import oktopk

P = 3


def on_all(act):
    """act(comm) on P threads; the error of each rank, or None."""

    def run(comm):
        try:
            act(comm)
        except Exception as error:  # the test looks at it
            return error

    return in_threads(P, run)


def test_dump_on_request_has_all_ranks(tmp_path):
    def act(comm):
        reducer = oktopk.Reducer(comm, 100, preset="circulant", density=0.05)
        reducer.step(np.ones(100, np.float32))
        flight = reducer.flight()
        assert (flight["rank"], flight["size"], flight["step"], flight["in_step"]) == (comm.rank, P, 1, False)
        assert flight["library"] == oktopk.__version__
        assert {op["state"] for op in flight["operations"]} == {"done"}
        assert any(op["label"].startswith("circulant") for op in flight["operations"])
        assert comm.flight.idle_seconds >= 0

    assert on_all(act) == [None] * P
    files = oktopk.dump_flight(tmp_path / "dumps")
    assert {f"oktopk-flight-{rank}.json" for rank in range(P)} <= {Path(file).name for file in files}


def test_errors_leave_dumps(tmp_path, monkeypatch):
    monkeypatch.setenv("OKTOPK_FLIGHT", str(tmp_path))

    def act(comm):
        oktopk.Reducer(comm, 100, preset="circulant", k=5 + comm.rank // 2).step(np.ones(100, np.float32))

    errors = on_all(act)
    assert all(isinstance(error, oktopk.UsageError) for error in errors)
    assert len({str(error) for error in errors}) == 1 and "rank 2 has k = 6, rank 0 has k = 5" in str(errors[0])
    for rank in range(P):
        dump = json.loads((tmp_path / f"oktopk-flight-{rank}.json").read_text())
        assert dump["rank"] == rank
    assert "rank 2 has k = 6" in dump["error"] or dump["error"] == ""


def test_folder_that_cannot_be_made_does_not_hide_the_error(monkeypatch):
    monkeypatch.setenv("OKTOPK_FLIGHT", "/dev/null/dumps")
    errors = on_all(lambda comm: oktopk.Reducer(comm, 100, k=5 + comm.rank // 2).step(np.ones(100, np.float32)))
    assert all(isinstance(error, oktopk.UsageError) for error in errors)
    with pytest.raises(OSError):
        oktopk.dump_flight("/dev/null/dumps")


def test_one_flipped_bit_names_the_rank():
    def act(comm):
        weights = np.arange(1000, dtype=np.float32)
        oktopk.check_equal(comm, weights, 41)
        if comm.rank == 1:
            weights.view(np.uint32)[777] ^= 1
        oktopk.check_equal(comm, weights, 42)

    errors = on_all(act)
    assert {str(error) for error in errors} == {"weights: rank 1 differs from the other 2 ranks in step 42"}
    assert all(isinstance(error, oktopk.UsageError) for error in errors)


def test_other_calls_are_named_on_all_ranks():
    def act(comm):
        reducer = oktopk.Reducer(comm, 100, preset="circulant", density=0.05)
        reducer.step(np.ones(100, np.float32))
        reducer.flush() if comm.rank == 1 else reducer.step(np.ones(100, np.float32))

    errors = on_all(act)
    assert {str(error) for error in errors} == {
        "reducer: rank 1 calls flush() after 1 steps, but rank 0 calls step() after 1 steps: "
        "all ranks must make the same calls"
    }


def wait_for(condition):
    """Whether the condition came true; a bound against hangs."""
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_signal_dumps_ranks_that_wait(tmp_path):
    """Rank 0 waits inside an exchange, and its dump says for whom; then the signal means what it meant before."""
    came = []
    before = signal.signal(signal.SIGUSR1, lambda *_: came.append(True))
    oktopk.dump_flight_on_signal(tmp_path)
    try:
        comms = oktopk.thread_world(2, 60.0)
        waits, goes = threading.Event(), threading.Event()

        def run(comm):
            reducer = oktopk.Reducer(comm, 100, preset="circulant", k=5)
            if comm.rank == 1:
                goes.wait(60)
            waits.set()
            reducer.step(np.ones(100, np.float32))

        threads = [threading.Thread(target=run, args=(comm,)) for comm in comms]
        for thread in threads:
            thread.start()
        waits.wait(60)
        file = tmp_path / "oktopk-flight-0.json"

        def waits_for_rank_1():
            os.kill(os.getpid(), signal.SIGUSR1)
            wait_for(file.exists)
            operations = json.loads(file.read_text())["operations"]
            return operations and operations[-1]["state"] == "started" and operations[-1]["receives"][0][0] == 1

        assert wait_for(waits_for_rank_1)
        goes.set()
        for thread in threads:
            thread.join()
        assert not came
        oktopk.dump_flight_on_signal(None)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert wait_for(lambda: came)
    finally:
        oktopk.dump_flight_on_signal(None)
        signal.signal(signal.SIGUSR1, before)


def test_signal_that_cannot_be_handled_is_refused(tmp_path):
    with pytest.raises(oktopk.UsageError, match="signal 9 cannot be handled"):
        oktopk.dump_flight_on_signal(tmp_path, signal.SIGKILL)
    with pytest.raises(OSError):
        oktopk.dump_flight_on_signal("/dev/null/dumps")
    oktopk.dump_flight_on_signal(tmp_path)
    oktopk.dump_flight_on_signal(tmp_path / "other")  # replaces it
    oktopk.dump_flight_on_signal(None)


def test_metrics_say_who_was_waited_for_and_check_every_takes_sound_steps():
    def act(comm):
        reducer = oktopk.Reducer(comm, 100, preset="circulant", density=0.05, check_every=2)
        for _ in range(5):
            reducer.step(np.ones(100, np.float32))
        stats = reducer.stats
        assert stats["step"] == 5 and (stats["members"], stats["epoch"]) == (P, 0)
        assert stats["waited_for"] in set(range(P)) - {comm.rank}
        assert 0 < stats["seconds_longest_wait"] <= stats["seconds_idle"] * (1 + 1e-9)
        with pytest.raises(oktopk.UsageError, match="check_every = 0, but it must be positive"):
            oktopk.Reducer(comm, 100, check_every=0)

    assert on_all(act) == [None] * P


def test_threads_may_make_communicators_at_the_same_time():
    comms = [comm for _ in range(30) for comm in oktopk.thread_world(4)]
    errors = []

    def watch(part):
        try:
            for _ in range(30):
                for comm in part:
                    oktopk.flight.watch(comm)
        except RuntimeError as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=watch, args=(comms[i::8],)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors
