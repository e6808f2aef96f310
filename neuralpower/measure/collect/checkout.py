"""The commit of neuralpower that measures, where it runs from a checkout; needs no torch."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCES = Path(__file__).parents[3]


def checkout(folder: Path = SOURCES) -> dict[str, str | bool | None]:
    """`git_sha`, and `git_dirty` where tracked files differ from it; both None outside a checkout."""
    sha = _git(folder, "rev-parse", "HEAD") if (folder / ".git").exists() else None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no") if sha else None
    return {"git_sha": sha, "git_dirty": None if changed is None else bool(changed)}


def _git(folder: Path, *arguments: str) -> str | None:
    """The output of git; None where there is no git, or it refuses the folder."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
