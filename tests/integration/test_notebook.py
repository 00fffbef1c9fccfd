"""The notebook is executed anew and shows what it shows in the repository."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.programs import ROOT

NOTEBOOK = ROOT / "examples" / "notebook" / "by_hand.ipynb"


def outputs(notebook: Any) -> list[list[str]]:
    """Return what each cell shows, as text."""
    return [
        [one.get("text") or one["data"]["text/plain"] for one in cell.get("outputs", ())]
        for cell in notebook.cells
    ]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_it_finds_a_straggler_and_a_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = [str(ROOT / part) for part in ("", "analyzers", "patches")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(rooms))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    stored = outputs(notebook)
    for cell in notebook.cells:
        cell["outputs"] = []

    resources = {"metadata": {"path": str(NOTEBOOK.parent)}}
    NotebookClient(notebook, timeout=120, resources=resources).execute()

    assert outputs(notebook) == stored
    texts = "".join(text for cell in stored for text in cell)
    assert "rank 2 is more than 10 ms late to most calls: True" in texts
    assert "call 173 on tp:0: rank 3 posted all_gatherv, the others all_reduce" in texts
    assert NOTEBOOK.stat().st_size < 20_000


def test_its_recording_names_no_folder_of_its_machine() -> None:
    text = NOTEBOOK.read_text("utf-8")
    assert "/home/" not in text
    assert str(Path(ROOT).parent) not in text
