# SPDX-License-Identifier: Apache-2.0
"""examples/elastic_mnist.py in real processes: one is killed, another one joins, and the run learns as an undisturbed
one does."""

import re
import sys
import time

import pytest
from launched import EXAMPLES, run_main, start_program

import oktopk
from oktopk._core import tcp_available

if not tcp_available():
    pytest.skip("this build has no transport tcp (OpenSSL was not found)", allow_module_level=True)

EXAMPLE = EXAMPLES / "elastic_mnist.py"
SECRET = "a secret of the tests"
SECONDS = 240.0  # a bound against hangs


def run_newcomer(folder, *words):
    """Everything that takes long comes before the file "go": the newcomer then joins at once."""
    sys.path.insert(0, str(EXAMPLES))
    from common.data import mnist

    data = mnist.load(None)
    mnist.load = lambda _: data
    (folder / "ready").touch()
    while not (folder / "go").exists():
        time.sleep(0.02)
    return run_main([EXAMPLE, *words])


class Members:
    """Processes with the variables of `oktopk run`, over a rendezvous of this process."""

    def __init__(self, folder, size):
        self.folder = folder
        self.server = oktopk.RendezvousServer(secret=SECRET)
        own = {"RENDEZVOUS": self.server.address, "SECRET": SECRET, "SIZE": str(size), "ENCRYPT": "0"}
        variables = {f"OKTOPK_{name}": value for name, value in own.items()}
        self.variables = variables
        self.processes = []

    def start(self, main):
        log = self.folder / f"{len(self.processes)}.log"
        self.processes.append(start_program(main, log, **self.variables))

    def log(self, place):
        return (self.folder / f"{place}.log").read_text()

    def until(self, condition):
        deadline = time.monotonic() + SECONDS
        while not condition():
            logs = "\n".join(self.log(place)[-1500:] for place in range(len(self.processes)))
            assert time.monotonic() < deadline, logs
            time.sleep(0.02)

    def end(self):
        self.until(lambda: all(process.exitcode is not None for process in self.processes))
        return [process.exitcode for process in self.processes]

    def close(self):
        for process in self.processes:
            process.kill()
            process.join()
        self.server.close()


@pytest.fixture
def members(tmp_path):
    made = []

    def make(size):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Members(folder, size))
        return made[-1]

    yield make
    for one in made:
        one.close()


STEPS = ["--steps", "150"]


def outcome(log):
    found = re.search(r"loss (\d+\.\d+) after (\d+) steps; weights ([0-9a-f]{8})", log)
    assert found is not None, log
    return float(found.group(1)), int(found.group(2)), found.group(3)


def test_a_run_with_a_death_and_a_newcomer_learns_as_an_undisturbed_one(members):
    quiet = members(1)
    quiet.start(lambda: run_main([EXAMPLE, *STEPS]))
    job = members(3)
    job.start(lambda: run_newcomer(job.folder, *STEPS, "--pause", "0.03"))
    job.until(lambda: (job.folder / "ready").exists())
    for _ in range(3):
        job.start(lambda: run_main([EXAMPLE, *STEPS, "--pause", "0.03", "--die", "30"]))
    job.until(lambda: sum("lost [3]" in job.log(place) for place in range(1, 4)) == 2)
    (job.folder / "go").touch()
    ended = job.end()
    assert ended[0] == 0, job.log(0)
    assert sorted(ended[1:]) == [-9, 0, 0], [job.log(place) for place in range(1, 4)]
    survivors = [0, *(place for place in range(1, 4) if ended[place] == 0)]
    results = [outcome(job.log(place)) for place in survivors]
    for loss, steps, weights in results:
        assert (loss, steps, weights) == results[0] and steps == 150
    for place in survivors:
        assert "joined [4]" in job.log(place)
    assert "step 30: members [1, 2]; lost [3], joined []" in job.log(survivors[1])
    assert quiet.end() == [0], quiet.log(0)
    assert results[0][0] == pytest.approx(outcome(quiet.log(0))[0], rel=0.1)
