"""The files that the repository holds, whatever else lies in a checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent


def tracked(*patterns: str) -> list[Path]:
    """Files of git's index that match; without git's folder, those of the disk. In order of their names."""
    if not (ROOT / ".git").exists():
        return sorted(
            file for pattern in patterns or ("**/*",) for file in ROOT.glob(pattern) if file.is_file()
        )
    # a checkout may belong to another user, whose settings git would not read
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--"]
    globs = [f":(glob){pattern}" for pattern in patterns]
    listed = subprocess.run([*command, *globs], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted(ROOT / name for name in listed.split("\0") if name)
