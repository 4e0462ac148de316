"""Notebooks run as they stand, without a GPU, and print what they show.

    jupyter execute --inplace --NotebookClient.record_timing=False docs/notebooks/*.ipynb

writes what a changed notebook shows.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))

ELSEWHERE = re.compile(r"(?m)^(time|encoded by) .*|; torch \S+|\b\d\.\de-(0[6-9]|1\d)\b")
"""What another machine, or another version of a library, writes otherwise: times, versions, rounding."""

SECONDS = 300
"""Longest time of a cell, on a machine of any load; a notebook takes a few tens of seconds."""


def _outputs(cells: list[Any]) -> list[list[str]]:
    """The lines that each cell of code shows; a picture is one."""
    shown = []
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        texts = ["".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream"]
        datas = [output["data"] for output in cell["outputs"] if "data" in output]
        texts += ["a picture" if "image/png" in data else "".join(data["text/plain"]) for data in datas]
        shown.append([line.rstrip() for line in ELSEWHERE.sub("", "".join(texts)).splitlines()])
    return shown


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_its_outputs_and_no_error(path):
    """A reader looks at it before running it, and may never run it."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not [output for cell in code for output in cell["outputs"] if output["output_type"] == "error"]
    assert "stderr" not in {output.get("name") for cell in code for output in cell["outputs"]}


def test_there_are_notebooks():
    """Without any, the others would pass."""
    assert len(NOTEBOOKS) == 3


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of the client's event loop
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(path, monkeypatch, tmp_path):
    """In a kernel, line for line, with our commands of this environment."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")])))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    notebook = nbformat.read(path, as_version=4)
    shown = _outputs(notebook.cells)
    nbclient.NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert _outputs(notebook.cells) == shown
