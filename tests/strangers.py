"""A working folder full of Python files that nobody asked for: each leaves a note when it runs."""

from __future__ import annotations

import sys
from pathlib import Path

OTHERS = ("joblib", "neuralpower", "numpy", "ray", "sitecustomize", "tensorboard", "torch", "usercustomize")


def strangers(folder: Path) -> Path:
    """Write a file for each module of Python's, and of libraries; return the note, which none has written."""
    note = folder / "note"
    for name in {*sys.stdlib_module_names, *OTHERS} - {"__main__"}:
        (folder / f"{name}.py").write_text(f"print(__name__, file=open({str(note)!r}, 'a'))\n1 / 0\n")
    return note
