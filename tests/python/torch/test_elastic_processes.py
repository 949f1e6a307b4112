# SPDX-License-Identifier: Apache-2.0
"""examples/elastic_mnist.py in real processes: one is killed, another one joins, and the run learns as an undisturbed
one does."""

import re
import sys
import time

import pytest
from launched import EXAMPLES, Watched, run_main

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


@pytest.fixture
def members(tmp_path):
    """members(size): processes with the variables of `oktopk run`, over a rendezvous of this process."""
    made = []

    def make(size):
        (tmp_path / str(size)).mkdir()
        server = oktopk.RendezvousServer(secret=SECRET)
        own = {"RENDEZVOUS": server.address, "SECRET": SECRET, "SIZE": str(size), "ENCRYPT": "0"}
        made.append((Watched(tmp_path / str(size), SECONDS), server))
        return made[-1][0], {f"OKTOPK_{name}": value for name, value in own.items()}

    yield make
    for watched, server in made:
        watched.kill()
        server.close()


STEPS = ["--steps", "150"]


def outcome(log):
    found = re.search(r"loss (\d+\.\d+) after (\d+) steps; weights ([0-9a-f]{8})", log)
    assert found is not None, log
    return float(found.group(1)), int(found.group(2)), found.group(3)


def test_a_run_with_a_death_and_a_newcomer_learns_as_an_undisturbed_one(members):
    quiet, variables = members(1)
    quiet.start("0", lambda: run_main([EXAMPLE, *STEPS]), **variables)
    job, variables = members(3)
    job.start("0", lambda: run_newcomer(job.folder, *STEPS, "--pause", "0.03"), **variables)
    job.until(lambda: (job.folder / "ready").exists())
    first = ["1", "2", "3"]
    for name in first:
        job.start(name, lambda: run_main([EXAMPLE, *STEPS, "--pause", "0.03", "--die", "30"]), **variables)
    job.until(lambda: sum("lost [3]" in job.log(name) for name in first) == 2)
    (job.folder / "go").touch()
    assert job.end("0") == 0, job.log("0")
    ended = {name: job.end(name) for name in first}
    assert sorted(ended.values()) == [-9, 0, 0], [job.log(name) for name in first]
    survivors = ["0", *(name for name in first if ended[name] == 0)]
    results = [outcome(job.log(name)) for name in survivors]
    for loss, steps, weights in results:
        assert (loss, steps, weights) == results[0] and steps == 150
    for name in survivors:
        assert "joined [4]" in job.log(name)
    assert "step 30: members [1, 2]; lost [3], joined []" in job.log(survivors[1])
    assert quiet.end("0") == 0, quiet.log("0")
    assert results[0][0] == pytest.approx(outcome(quiet.log("0"))[0], rel=0.1)
