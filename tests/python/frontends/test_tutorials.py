# SPDX-License-Identifier: Apache-2.0
"""The programs that the tutorials quote, on a few ranks of this machine."""

import re
import secrets

import oktopk
from launched import printed_by_example
from versions import needs_torch


@needs_torch((2, 7), "set_all_reduce_hook of fully_shard")
def test_fsdp_replicas_learn_and_send_little(tmp_path):
    first, *others = printed_by_example(4, "fsdp_minimal.py", tmp_path, "--replicas", "2", "--steps", "60")
    found = re.fullmatch(r"2 replicas of 2 shards: loss (0\.\d+), (\d+)x less in a step\n", first)
    assert found, first
    assert float(found.group(1)) < 0.1 and int(found.group(2)) > 10
    assert others == ["", "", ""]


def test_members_with_local_steps_meet_over_encrypted_tcp(tmp_path, monkeypatch):
    secret = secrets.token_hex(16)
    server = oktopk.RendezvousServer("127.0.0.1:0", secret=secret, encrypt=True)
    for name, value in {"RENDEZVOUS": server.address, "SECRET": secret, "SIZE": "2", "ENCRYPT": "1"}.items():
        monkeypatch.setenv(f"OKTOPK_{name}", value)
    printed = printed_by_example(2, "local_steps.py", tmp_path, "--rounds", "4", "--every", "30")
    found = [re.search(r"accuracy (0\.\d+) after 4 rounds of 30 steps\n", text) for text in printed]
    assert all(found), printed
    accuracies = [float(match.group(1)) for match in found]
    assert accuracies[0] == accuracies[1] > 0.2  # chance is 0.1; all members hold the same weights
