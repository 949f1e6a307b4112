# SPDX-License-Identifier: Apache-2.0
"""The checks of the docs find what they are for."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import docs_blocks as blocks  # noqa: E402
from docs_comments import filtered  # noqa: E402
from docs_site import link_problems  # noqa: E402


def test_dead_links_anchors_and_network_loads_are_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<h2 id="one"></h2><a href="b.html"></a><a href="#two"></a><a href="a.html#one"></a>'
        '<script src="https://cdn.example/x.js"></script><a href="https://fine.example"></a>'
    )
    found = "\n".join(link_problems(tmp_path))
    assert found.count("a.html:") == 3
    for what in ("a link to nothing: b.html", "does not exist: #two", "loads from the network"):
        assert what in found


def test_plain_comments_become_those_of_doxygen():
    lines = ["// SPDX-License-Identifier: Apache-2.0", "// Head <x>.", "", "// Before.", "int k = 0;  // behind",
             "            // below", "}  // namespace"]
    assert filtered(lines) == ["/// \\file", "/// Head \\<x\\>.", "", "/// Before.", "int k = 0;  ///< behind",
                               "            ///< below", "}  // namespace"]


def block(text, language="python", source=""):
    return blocks.Block("docs/x.md", 1, language, text, source)


def test_blocks_that_do_not_parse_or_are_not_quoted_rightly_are_found():
    assert list(blocks.unparsed([block("f(a=1, ...)\n")]))
    assert not list(blocks.unparsed([block("f(...)\n")]))
    quoted = "def block(text, language=\"python\", source=\"\"):\n"
    assert not list(blocks.quotes([block(quoted, source="tests/python/test_docsite.py")]))
    assert list(blocks.quotes([block("no such " + "line\n", source="tests/python/test_docsite.py")]))
    assert list(blocks.quotes([block(quoted, source="nowhere.py")]))


def test_every_entry_of_the_table_has_its_block_and_a_reason():
    assert not list(blocks.unused_entries(blocks.all_blocks()))
    assert all(len(reason) > 10 for reason in blocks.PYTHON_LISTED.values())


def test_commands_name_files_and_targets_that_exist():
    assert list(blocks.wrong_in("python examples/nowhere.py && make nothing")) == [
        "no file examples/nowhere.py", "make has no target nothing"]
    assert not list(blocks.wrong_in("torchrun examples/ddp_minimal.py && make docs"))
    assert list(blocks.wrong_in("../.venv/bin/python lab/nowhere.py")) == ["no file lab/nowhere.py"]
    own = ["build/oktopk-lab study xi", "oktopk list", "sudo .venv/bin/python lab/x.py", "../.venv/bin/python -m x"]
    assert all(blocks.COMMAND.match(line) for line in own)
    assert [found[:2] for line in own for found in blocks.SUBCOMMAND.findall(line)] == [
        ("oktopk-lab", "study"), ("oktopk", "list")]
