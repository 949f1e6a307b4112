# SPDX-License-Identifier: Apache-2.0
"""Runs commands and keeps their JSON under a key of all arguments and of the program's bytes: what is there
is not run again, so an interrupted report continues, and a new build starts afresh."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import plan


class CommandFailed(Exception):
    pass


def digest(program):
    """Of the command and of the program that it starts under SimGrid, where that lies beside it."""
    hasher = hashlib.sha256()
    for file in sorted({program, *program.parent.glob("oktopk*-simulated")}):
        if file.is_file():
            hasher.update(file.read_bytes())
    return hasher.hexdigest()


def last_words(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def end(process):
    """With all that it started: the command cleans up when asked to, and has two seconds for that."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(2)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            pass


class Runner:
    def __init__(self, program, folder, limit=3600, say=print):
        self.program = Path(program).resolve()
        if not os.access(self.program, os.X_OK):
            raise CommandFailed(f"{program}: no such program; `make lab` builds it")
        self.cache = Path(folder) / "cache"
        self.cache.mkdir(parents=True, exist_ok=True)
        self.digest, self.limit, self.say, self.running = digest(self.program), limit, say, set()

    def execute(self, arguments):
        """Exit code and output."""
        process = subprocess.Popen([self.program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, start_new_session=True)
        self.running.add(process)
        try:
            output, _ = process.communicate(timeout=self.limit)
        except subprocess.TimeoutExpired:
            end(process)
            process.communicate()
            raise CommandFailed(f"it took longer than {self.limit:.0f} s (--limit)") from None
        finally:
            self.running.discard(process)
        return process.returncode, output

    def stop(self):
        for process in list(self.running):
            end(process)

    def place(self, arguments, inputs=""):
        """Of the result in the cache."""
        key = hashlib.sha256("\0".join([self.digest, inputs, *arguments]).encode()).hexdigest()[:24]
        return self.cache / f"{key}.json"

    def result(self, arguments, inputs=""):
        """The JSON that the command writes with -J. `inputs`: what else it depends on."""
        file = self.place(arguments, inputs)
        if not file.exists():
            self.say(f"+ {self.program.name} {' '.join(arguments)}")
            with tempfile.TemporaryDirectory(dir=self.cache) as folder:
                fresh = Path(folder) / "out.json"
                code, output = self.execute([*arguments, "-J", str(fresh)])
                if code != 0 or not fresh.exists():
                    raise CommandFailed(f"exit code {code}: {last_words(output)}")
                json.loads(fresh.read_text())
                fresh.rename(file)
        return json.loads(file.read_text())


def simulate(runner, cells, jobs):
    """All rows, each with its platform, and what failed: [(cell, why)]."""
    def one(cell):
        try:
            return [{**row, "platform": cell.platform} for row in runner.result(cell.arguments())["rows"]], None
        except CommandFailed as error:
            print(f"NOT SIMULATED: {' '.join(cell.arguments())}: {error}", file=sys.stderr)
            return [], str(error)
    pool = ThreadPoolExecutor(max_workers=jobs)
    try:
        results = list(pool.map(one, cells))
    except KeyboardInterrupt:  # the commands have sessions of their own and do not hear of it
        pool.shutdown(wait=False, cancel_futures=True)
        runner.stop()
        raise
    rows = [row for found, _ in results for row in found]
    return rows, [(cell, why) for cell, (_, why) in zip(cells, results) if why]


def kept_rows(file, found):
    """Rows of an earlier scaling.json whose platform, n, P and preset are not in `found`."""
    def key(row):
        return row["platform"], row["n"], row["ranks"], row["preset"]
    fresh = {key(row) for row in found}
    try:
        return [row for row in json.loads(Path(file).read_text())["rows"] if key(row) not in fresh]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandFailed(f"{file}: this is no scaling.json of an earlier report ({error})") from None


def explain(runner, cells):
    """What the tuner says of each (platform, n, P) on the platform's nominal machine."""
    found = []
    for cell in {(c.platform, c.n, c.ranks): c for c in cells}.values():
        text = json.dumps(plan.profile(cell.platform), indent=2)
        file = runner.cache / f"profile-{cell.platform}.json"
        file.write_text(text)
        try:
            answer = runner.result([*plan.explain_arguments(cell), "--profile", str(file)], inputs=text)
        except CommandFailed as error:
            print(f"NOT EXPLAINED: {cell.platform}, P = {cell.ranks}: {error}", file=sys.stderr)
            continue
        choice = answer["rows"][0]
        dense = next((r["seconds"] for r in answer["rows"] if r["preset"] == "dense"), None)
        found.append({"platform": cell.platform, "n": cell.n, "ranks": cell.ranks, "method": choice["method"],
                      "x_dense": dense / choice["seconds"] if dense else None, "crossovers": answer["crossovers"]})
    return found
