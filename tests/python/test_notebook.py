# SPDX-License-Identifier: Apache-2.0
"""The notebook of the tutorials runs from top to bottom, and is kept without outputs."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs/tutorials/error_feedback.ipynb"


def test_the_notebook_has_no_outputs():
    cells = [c for c in json.loads(NOTEBOOK.read_text())["cells"] if c["cell_type"] == "code"]
    assert cells and not any(c["outputs"] or c["execution_count"] for c in cells)


def test_the_notebook_runs_and_shows_that_keeping_the_rest_works(tmp_path):
    nbformat = pytest.importorskip("nbformat", reason="NOT RUN: the notebook needs nbclient and ipykernel")
    nbclient = pytest.importorskip("nbclient", reason="NOT RUN: the notebook needs nbclient and ipykernel")
    pytest.importorskip("ipykernel", reason="NOT RUN: the notebook needs nbclient and ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = "".join(o.get("text", "") for c in notebook.cells if c.cell_type == "code" for o in c.outputs)
    distances = [float(line.split(":")[1]) for line in shown.splitlines() if line.startswith("distance")]
    forgetting, keeping, ours = distances
    assert keeping < 0.5 * forgetting and ours < 0.5 * forgetting, shown
