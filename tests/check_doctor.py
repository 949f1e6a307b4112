#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks the ranks of a running command for dumps by SIGUSR1, and the doctor for its opinion.

    check_doctor.py OKTOPK FOLDER RANKS COMMAND...

The doctor must find a running world sound. Where the ranks are processes, the last one is stopped, and the doctor must
name it as the rank that all others wait for. Exits 1 with a word if not.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PATIENCE = 60  # seconds, against hangs only


def ask(folder, ranks, pids):
    """Signals until all `ranks` have left a dump. Returns the dumps by rank."""
    files = {rank: folder / f"oktopk-flight-{rank}.json" for rank in ranks}
    for _ in range(10 * PATIENCE):
        for pid in pids():
            os.kill(pid, signal.SIGUSR1)
        time.sleep(0.1)
        if all(file.exists() for file in files.values()):
            return {rank: json.loads(file.read_text()) for rank, file in files.items()}
    sys.exit(f"no dumps of ranks {list(ranks)} in {folder}")


def pids_of(process, folder):
    """The processes that handle the signal: the command itself, or the children of mpirun."""
    if not folder.exists():
        return []
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    candidates = [int(child) for child in children] or [process.pid]
    return [pid for pid in candidates if handles(pid)]


def handles(pid):
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1)


def expect(doctor, folder, code, words, *options):
    found = subprocess.run([doctor, "doctor", *options, folder], capture_output=True, text=True)
    if found.returncode != code or words not in found.stdout:
        sys.exit(f"exit {found.returncode}, expected {code} and '{words}':\n{found.stdout}{found.stderr}")


def stop_last(doctor, folder, ranks, dumps):
    stopped = dumps[ranks - 1]["pid"]
    others = [dumps[rank]["pid"] for rank in range(ranks - 1)]
    os.kill(stopped, signal.SIGSTOP)
    time.sleep(1)
    for file in folder.iterdir():
        file.unlink()
    ask(folder, range(ranks - 1), lambda: others)
    words = f"wait{'s' if ranks == 2 else ''} for rank {ranks - 1}; rank {ranks - 1} left no dump"
    expect(doctor, folder, 1, words, "--stall", "0.1")
    os.kill(stopped, signal.SIGCONT)


def main():
    doctor, folder, ranks, command = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    shutil.rmtree(folder, ignore_errors=True)
    process = subprocess.Popen([*command, "--flight", str(folder)], stdout=subprocess.DEVNULL)
    try:
        dumps = ask(folder, range(ranks), lambda: pids_of(process, folder))
        expect(doctor, folder, 0, "nothing is wrong", "--stall", "50")
        if len({dump["pid"] for dump in dumps.values()}) == ranks > 1:
            stop_last(doctor, folder, ranks, dumps)
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
