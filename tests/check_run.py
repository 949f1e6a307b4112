# SPDX-License-Identifier: Apache-2.0
"""`oktopk run` with real processes: signals reach whole process groups, every end is bounded, nothing is left behind.

python tests/check_run.py OKTOPK
"""

import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OKTOPK = sys.argv[1]
PATIENCE = 60  # seconds: far more than any of these jobs takes
MANY = 600  # seconds that a process would sleep if nobody ended it


class Job:
    """A launcher, and a folder in which its ranks write their process numbers."""

    def __init__(self, script, *options, ranks=1, **how):
        self.folder = Path(tempfile.mkdtemp(prefix="oktopk-run-"))
        command = [OKTOPK, "run", "-n", str(ranks), *options, "--", "sh", "-c", script]
        env = {**os.environ, "F": str(self.folder)}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self.launcher = subprocess.Popen(command, env=env, **{**streams, **how})

    def await_file(self, name):
        end = time.monotonic() + PATIENCE
        while not (self.folder / name).exists() or not (self.folder / name).read_text().endswith("\n"):
            assert time.monotonic() < end, f"no file {name} came"
            time.sleep(0.02)
        return (self.folder / name).read_text().strip()

    def end(self, status):
        """The output; fails unless the launcher ends soon with this status and every process has gone."""
        out = self.launcher.communicate(timeout=PATIENCE)[0]
        assert self.launcher.returncode == status, f"status {self.launcher.returncode}, not {status}: {out}"
        for file in self.folder.glob("pid*"):
            assert not is_alive(int(file.read_text())), f"{file.name} lives: {out}"
        shutil.rmtree(self.folder)
        return out


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def grandchild(name, before=""):
    """Shell: a process of its own that holds stdout; its number stands in pid.NAME."""
    return f"{before} sh -c 'echo $$ > $F/draft.{name}; mv $F/draft.{name} $F/pid.{name}; exec sleep {MANY}' & "


def await_grandchild(name):
    return f"while [ ! -e $F/pid.{name} ]; do sleep 0.05; done; "


def failing_rank_ends_grandchildren_of_all():
    script = grandchild("$OKTOPK_RANK") + await_grandchild("0") + await_grandchild("1")
    script += f"[ $OKTOPK_RANK = 0 ] && exit 5; wait"
    out = Job(script, "--prefix", ranks=2).end(5)
    assert "rank 0 exited with status 5; the other ranks are ended" in out, out


def process_that_a_rank_leaves_behind_is_ended():
    # In a session of its own: no signal to a group reaches it, and it holds stdout.
    script = grandchild("daemon", "setsid") + await_grandchild("daemon") + "echo done; exit 0"
    out = Job(script, "--prefix").end(0)
    assert "[0] done" in out and "ended 1 processes that the ranks had left behind" in out, out


def signals_reach_grandchildren_and_the_stubborn_are_killed():
    script = "trap '' TERM; " + grandchild("stubborn") + await_grandchild("stubborn") + "echo up > $F/up; wait; wait"
    job = Job(script + f"; sleep {MANY}", "--kill-after", "1", "--prefix")
    job.await_file("up")
    job.launcher.send_signal(signal.SIGTERM)
    out = job.end(128 + signal.SIGKILL)
    assert "rank 0 did not end within 1 s and is killed" in out, out


def signals_are_passed_on():
    for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        script = f"trap 'echo $OKTOPK_RANK heard; kill $child; exit 7' {sent.name[3:]}; "
        script += f"sleep {MANY} & child=$!; echo $child > $F/pid.$OKTOPK_RANK; echo > $F/up.$OKTOPK_RANK; wait"
        job = Job(script, "--prefix", ranks=2)
        for rank in range(2):
            job.await_file(f"up.{rank}")
        job.launcher.send_signal(sent)
        out = job.end(7)
        assert "[0] 0 heard" in out and "[1] 1 heard" in out, out


def rank_that_is_started_anew_leaves_no_grandchildren():
    script = f"if [ -e $F/again ]; then exit 0; fi; " + grandchild("first") + await_grandchild("first")
    out = Job(script + "echo > $F/again; exit 3", "--keep-going", "--restart", "1", "--prefix").end(0)
    assert "is started anew" in out, out


def terminal_interrupts_once_and_gives_ranks_nothing_to_read():
    """The launcher in the foreground of a terminal: Ctrl-C, and a rank that reads."""
    folder = Path(tempfile.mkdtemp(prefix="oktopk-run-"))
    script = 'read line && echo "$line" > $F/read; trap "echo x >> $F/heard" INT; echo > $F/up; '
    script += "while [ ! -e $F/heard ]; do sleep 0.1; done; sleep 1; exit 9"
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["F"] = str(folder)
        os.execv(OKTOPK, [OKTOPK, "run", "-n", "1", "--", "sh", "-c", script])
    end = time.monotonic() + PATIENCE
    while not (folder / "up").exists():
        assert time.monotonic() < end, "the rank waits for the terminal"
        time.sleep(0.05)
    os.write(terminal, b"\x03")
    while True:
        try:
            if not os.read(terminal, 4096):
                break
        except OSError:  # the terminal has no process any more
            break
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 9, status
    assert (folder / "heard").read_text() == "x\n" and not (folder / "read").exists()
    shutil.rmtree(folder)


def taken_address_is_an_error():
    first = Job("echo $OKTOPK_RENDEZVOUS > $F/at; while [ ! -e $F/over ]; do sleep 0.05; done")
    address = first.await_file("at")
    out = Job("true", "--rendezvous", address).end(3)
    assert f"--rendezvous {address} is taken, perhaps by another start of this job" in out and "--join" in out, out
    Job("true", "--rendezvous", address, "--join").end(0)
    (first.folder / "over").touch()
    first.end(0)


for check in (
    failing_rank_ends_grandchildren_of_all,
    process_that_a_rank_leaves_behind_is_ended,
    signals_reach_grandchildren_and_the_stubborn_are_killed,
    signals_are_passed_on,
    rank_that_is_started_anew_leaves_no_grandchildren,
    terminal_interrupts_once_and_gives_ranks_nothing_to_read,
    taken_address_is_an_error,
):
    begin = time.monotonic()
    check()
    print(f"{check.__name__}: fine, {time.monotonic() - begin:.1f} s", flush=True)
print("run: all fine")
