# SPDX-License-Identifier: Apache-2.0
"""lab/network/slow_network.py: what it accepts, what it tells tc, its numbers and its page, and real runs."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from network import arguments, counters, launch, methods, namespaces, table

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ROOT / "lab/network/slow_network.py"
LACKING = namespaces.missing_rights() + ([] if importlib.util.find_spec("torch") else ["torch"])
needs_network = pytest.mark.skipif(
    bool(LACKING), reason=f"NOT RUN, missing here: {', '.join(LACKING)}"
)


needs_oktopk = pytest.mark.skipif(
    not importlib.util.find_spec("oktopk"), reason="NOT RUN, missing here: the package oktopk"
)


def parse(*words: str):
    return arguments.parser("").parse_args(list(words))


def made_by(process: subprocess.Popen) -> list[str]:
    """Namespaces of this run that are there; others may have theirs at the same time."""
    return [path.name for path in namespaces.NAMES.glob(f"oktopk-{process.pid}-*")]


def test_parser_without_options_takes_four_ranks_and_ten_million_parameters():
    options = parse()
    assert options.ranks == 4 and options.parameters == 10_000_000 and options.delay == 0
    assert [r.bits for r in options.rate] == [100e6, 1e9]
    assert options.methods == [
        "none",
        "ddp",
        "bf16",
        "powersgd:1",
        "powersgd:4",
        "circulant",
        "oktopk",
        "auto",
    ]


def test_parser_reads_units():
    options = parse("--rate", "2.5mbit,unlimited", "--delay", "0.1ms", "--parameters", "1.5K")
    assert [(r.name, r.bits) for r in options.rate] == [("2.5mbit", 2.5e6), ("unlimited", None)]
    assert options.delay == pytest.approx(1e-4) and options.parameters == 1500


@pytest.mark.parametrize(
    "words, said",
    [
        (["--rate", "fast"], "'fast'"),
        (["--rate", "100"], "'100'"),
        (["--rate", "10kbit"], "between 1mbit and 100gbit"),
        (["--rate", "1gbit,1gbit"], "twice"),
        (["--delay=-1ms"], "-1ms"),
        (["--delay", "2s"], "between 1us and 1s"),
        (["--methods", "ddp,magic"], "'magic'"),
        (["--methods", "powersgd:0"], "powersgd:0"),
        (["--methods", ""], "''"),
        (["--ranks", "1"], "from 2 to 64"),
        (["--ranks", "four"], "'four'"),
        (["--parameters", "12"], "between 1K and 1G"),
        (["--density", "0"], "(0, 1]"),
        (["--density", "nan"], "(0, 1]"),
        (["--warmup", "2"], "from 6 to 1000"),
    ],
)
def test_parser_refuses_and_names_the_value(words, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        parse(*words)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_shaping_limits_with_a_bucket_of_a_millisecond():
    assert (
        namespaces.shaping("room", "eth0", 1e9)
        == (
            "tc -n room qdisc add dev eth0 root handle 1: tbf rate 1000000000bit burst 125000 "
            "latency 50ms"
        ).split()
    )
    assert namespaces.burst_of(100e6) == 12500
    assert namespaces.burst_of(1e6) == 6 * 1500  # never below a few packets


def test_shaping_without_limit_still_has_a_queue_that_counts():
    command = namespaces.shaping("room", "eth0", None)
    assert "pfifo" in command and "tbf" not in command


def test_network_with_delay_has_the_same_limits_and_no_bridge():
    at_once, delayed = [namespaces.Network(2, namespaces.Link(1e8, d)).commands() for d in (0, 5e-3)]
    assert [c for c in delayed if c[0] == "tc"] == [c for c in at_once if c[0] == "tc"]
    assert any("br0" in c for c in at_once) and not any("br0" in c for c in delayed)


def test_network_limits_both_ends_of_every_cable_and_stays_in_its_namespaces():
    network = namespaces.Network(3, namespaces.Link(1e8))
    commands = network.commands()
    ends = [(c[2], c[6]) for c in commands if c[0] == "tc"]
    assert sorted(ends) == sorted(
        [(n, "eth0") for n in network.ranks] + [(network.switch, f"port{r}") for r in range(3)]
    )
    for command in commands:  # nothing that would change the host's own network
        inside = command[1] == "-n" and command[2] in [network.switch, *network.ranks]
        assert inside or command[:3] == ["ip", "netns", "add"], command
    assert all(str(os.getpid()) in name for name in [network.switch, *network.ranks])


def test_missing_rights_names_each_capability_that_is_not_held():
    assert {"CAP_NET_ADMIN", "CAP_SYS_ADMIN"} <= set(
        namespaces.missing_rights("CapEff:\t0000000000000000\n")
    )
    assert "CAP_NET_ADMIN" not in namespaces.missing_rights("CapEff:\t0000000000001000\n")
    assert "CAP_SYS_ADMIN" in namespaces.missing_rights("CapEff:\t0000000000001000\n")


def test_run_says_what_the_command_said():
    with pytest.raises(namespaces.NetworkError, match="false"):
        namespaces.run(["false"])
    with pytest.raises(namespaces.NetworkError, match="no-such-program"):
        namespaces.run(["no-such-program"])


def test_methods_put_powersgd_in_one_bucket():
    assert methods.bucket_options("powersgd:4", 10**7)["bucket_cap_mb"] * 2**20 > 4 * 10**7
    assert methods.bucket_options("ddp", 10**7) == {}


@needs_oktopk
def test_methods_know_the_presets_of_the_package():
    import oktopk

    assert set(methods.PRESETS) == {"auto"} | {name for name, _ in oktopk.presets()}


def test_counters_take_the_root_queue_alone():
    inner = {"kind": "tbf", "parent": "1:1", "bytes": 7, "packets": 1}
    outer = {"kind": "netem", "root": True, "bytes": 9, "packets": 2, "drops": 1}
    assert counters.root_queue(json.dumps([inner, outer])) == outer
    with pytest.raises(ValueError, match="no counted queue"):
        counters.root_queue(json.dumps([inner]))
    assert counters.between({"wire": 5}, {"wire": 12}) == {"wire": 7}


def rank(ends, wire, start=0.0, same=True):
    return {
        "start": start,
        "ends": ends,
        "sent": {"wire": wire, "counted": 0},
        "loss": 1.0,
        "parameters": 1234567,
        "same_weights": same,
    }


def record():
    ddp = table.summary(
        "100mbit", "ddp", [rank([1, 2, 3], 3 * 2**20), rank([1, 2.5, 3], 6 * 2**20, start=0.5)]
    )
    sparse = table.summary(
        "100mbit", "circulant", [rank([0.1, 0.2, 0.3], 3 * 2048), rank([0.1, 0.2, 0.3], 3 * 1024)]
    )
    failed = {
        "network": "100mbit",
        "method": "auto",
        "error": "rank 1: exit code 1\n    first\n    words|more",
    }
    link = table.link_row(
        "100mbit", 1e8, [{"rate": 95e6, "round_trip": 1e-4}, {"rate": 94e6, "round_trip": 0.0}]
    )
    return {
        "tool": "slow_network",
        "links": [link],
        "rows": [ddp, sparse, failed],
        "conditions": {
            "ranks": 2,
            "cores": 2,
            "cpu": "x86",
            "kernel": "6",
            "torch": "2",
            "parameters": 1000,
            "batch": 4,
            "delay": 0.0,
            "density": 0.01,
            "codec": None,
            "warmup": 8,
        },
    }


def test_summary_ends_a_step_with_the_last_rank_and_counts_the_busiest():
    row = record()["rows"][0]
    assert row["times"] == [0.5, 1.5, 0.5]
    assert (row["median"], row["min"], row["max"], row["wire"]) == (0.5, 0.5, 1.5, 2 * 2**20)


def test_summary_with_different_weights_is_a_failure():
    row = table.summary("100mbit", "oktopk", [rank([1], 1), rank([1], 1, same=False)])
    assert "different weights" in row["error"]


def test_link_row_notices_a_link_that_is_not_as_asked():
    def link(rate):
        return table.link_row("1gbit", 1e9, [{"rate": rate, "round_trip": 0.0}])

    assert link(950e6)["as_asked"] and not link(400e6)["as_asked"] and not link(2e9)["as_asked"]
    assert "NOT 1gbit" in table.link_text(link(400e6))
    assert table.link_row("unlimited", None, [{"rate": 1.0, "round_trip": 0.0}])["as_asked"]


def test_markdown_has_a_link_row_ratios_and_failures():
    lines = table.markdown(record()).splitlines()
    assert len(lines) == 6 and len({len(line) for line in lines}) == 1
    assert "link: measured 94 Mbit/s, round trip 0.10 ms" in lines[2]
    assert [c.strip() for c in lines[4].split("|")[2:-1]] == [
        "circulant",
        "100.0 ms",
        "100.0 ms..100.0 ms",
        "3",
        "2.0 KiB",
        "1024.0x",
        "5.0x",
    ]
    assert "auto: FAILED, rank 1: exit code 1: words/more" in lines[5]


def test_markdown_without_ddp_has_no_ratio():
    less = record()
    less["rows"] = less["rows"][1:]
    assert "1024.0x" not in table.markdown(less)


def test_write_docs_replaces_between_the_markers_and_nothing_else(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.START}\nold\n{table.END}\nafter\n")
    for text in ("one\\1", "two"):
        table.write_docs(page, text)
        assert page.read_text() == f"before\n{table.START}\n\n{text}\n\n{table.END}\nafter\n"
    page.write_text("no markers")
    with pytest.raises(ValueError, match="slow_network"):
        table.write_docs(page, "x")


def test_the_docs_page_has_the_markers():
    text = (ROOT / "docs/slow_network.md").read_text()
    assert text.count(table.START) == 1 and table.END in text[text.index(table.START) :]


def read(file: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, str(COMMAND), "--read", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_command_reads_back_what_was_written(tmp_path):
    file = tmp_path / "slow.json"
    file.write_text(json.dumps(record()))
    done = read(file)
    assert done.returncode == 1, done.stderr  # the record has a failed row
    assert table.markdown(record()) in done.stdout and "1,234,567 parameters" in done.stdout


@pytest.mark.parametrize(
    "text, said", [("{}", "not written by"), ("[", "Expecting"), (None, "slow.json")]
)
def test_command_refuses_to_read_what_is_no_record(text, said, tmp_path):
    file = tmp_path / "slow.json"
    if text is not None:
        file.write_text(text)
    done = read(file)
    assert done.returncode == 2 and said in done.stderr and done.stdout == ""


def start(*words: str, prefix: tuple[str, ...] = ()) -> subprocess.Popen:
    return subprocess.Popen(
        [*prefix, sys.executable, str(COMMAND), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen) -> tuple[str, str]:
    """What it said; one that hangs is ended, so that it can clean up, and is a failure."""
    try:
        return process.communicate(timeout=110)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.communicate(timeout=30)
        raise


@pytest.mark.skipif(
    os.geteuid() != 0, reason="NOT RUN: only root can give up its capabilities for this test"
)
def test_command_without_capabilities_says_so_and_exits_2():
    process = start(
        "--methods", "ddp", prefix=("setpriv", "--bounding-set=-net_admin", "--inh-caps=-all", "--")
    )
    out, said = finish(process)
    assert process.returncode == 2 and "CAP_NET_ADMIN" in said and out == ""


BOUNCE = """
import socket, sys, time
from network.link import BOUNCES, PORT, connect
from pathlib import Path
address, file = sys.argv[1:]
if file:
    other, trips = connect(address), []
    for _ in range(BOUNCES):
        start = time.monotonic()
        other.sendall(b".")
        assert other.recv(1) == b"."
        trips.append(time.monotonic() - start)
    Path(file).write_text(str(min(trips)))
else:
    other, _ = socket.create_server(("", PORT)).accept()
    while byte := other.recv(1):
        other.sendall(byte)
"""


def relays() -> list[int]:
    """The relays that this process has started and that still run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, stat = (folder / "cmdline").read_bytes(), (folder / "stat").read_text()
        except OSError:  # it has just ended
            continue
        parent = int(stat.rpartition(")")[2].split()[1])
        if parent == os.getpid() and str(namespaces.RELAY).encode() in words.split(b"\0"):
            found.append(int(folder.name))
    return found


@needs_network
def test_network_holds_frames_for_the_delay_and_leaves_nothing(tmp_path):
    delay, file = 5e-3, tmp_path / "trip.txt"
    with namespaces.Network(2, namespaces.Link(1e8, delay)) as network:
        assert len(relays()) == 1
        bounce = [sys.executable, "-c", BOUNCE, network.address(1)]
        launch.run_commands(network, [[*bounce, str(file)], [*bounce, ""]], timeout=60)
    assert float(file.read_text()) >= 2 * delay  # the shortest of all
    assert not relays()
    assert not list(namespaces.NAMES.glob(f"oktopk-{os.getpid()}-*"))


@needs_network
def test_run_with_two_ranks_counts_the_wire_and_leaves_nothing(tmp_path):
    file = tmp_path / "slow.json"
    process = start(
        *"--ranks 2 --rate 100mbit --methods ddp --parameters 100K --steps 5".split(),
        *["--warmup", "6", "--timeout", "60", "--json", str(file)],
    )
    out, said = finish(process)
    assert process.returncode == 0, said
    result = json.loads(file.read_text())
    [row] = result["rows"]
    gradient = (
        4 * row["parameters"]
    )  # with two ranks, an allreduce sends n values, half of them in each of two rounds
    assert gradient < row["wire"] < 1.15 * gradient + 20_000
    for sent in row["ranks"]:  # the interface misses headers, never counts more
        assert 0.9 * sent["wire"] < sent["interface"] <= sent["wire"]
    assert row["steps"] == 5 and row["min"] <= row["median"] <= row["max"]
    assert 0 < result["links"][0]["rate"] < 200e6  # without the limit it is beyond 1 Gbit/s
    assert "| ddp" in out and "link: measured" in out
    assert not made_by(process)


@needs_network
@needs_oktopk
def test_run_with_three_ranks_sends_what_oktopk_counts(tmp_path):
    file = tmp_path / "slow.json"
    process = start(
        *"--ranks 3 --rate unlimited --methods circulant --parameters 300K --steps 5".split(),
        *["--warmup", "6", "--timeout", "60", "--json", str(file)],
    )
    _, said = finish(process)
    assert process.returncode == 0, said
    [row] = json.loads(file.read_text())["rows"]
    assert 0 < row["counted"] < row["wire"] < 0.1 * 4 * row["parameters"]
    assert row["wire"] < 1.5 * row["counted"] + 10_000  # headers and acknowledgements, no more
    assert not made_by(process)


@needs_network
def test_run_ended_by_a_signal_leaves_nothing():
    process = start("--ranks", "3", "--rate", "unlimited", "--methods", "ddp", "--timeout", "60")
    deadline, last = time.monotonic() + 30, f"oktopk-{process.pid}-rank2"
    while last not in made_by(process) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert last in made_by(process)
    process.send_signal(signal.SIGTERM)
    finish(process)
    assert process.returncode == 128 + signal.SIGTERM
    assert not made_by(process)
