"""The notebooks of the pages run from top to bottom, with what this checkout brings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parent.parent / "docs" / "notebooks"
FILES = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_notebook_runs(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notebook = json.loads(file.read_text())
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    threads = torch.get_num_threads()
    try:
        for number, cell in enumerate(cells):
            exec(compile(cell, f"{file.name}[{number}]", "exec"), names)
    finally:
        torch.set_num_threads(threads)
    assert capsys.readouterr().out


def test_notebooks_are_kept_without_results() -> None:
    assert len(FILES) == 3
    for file in FILES:
        notebook = json.loads(file.read_text())
        assert not any(cell.get("outputs") for cell in notebook["cells"]), file.name
