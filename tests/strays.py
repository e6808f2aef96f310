"""Refuse what belongs to one machine: `python -m tests.strays`.

The root holds the files of ROOT_FILES alone, so that a note left there is seen. No text names a path as of a
home folder, except where ALLOWED says why. It prints a line per finding; any makes it fail.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.tracked import ROOT, tracked

ROOT_FILES = {
    ".gitignore",
    ".pre-commit-config.yaml",
    ".pre-commit-hooks.yaml",
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "cli.py",
    "constraints.txt",
    "mkdocs.yml",
    "pyproject.toml",
    "requirements.lock",
}
LOCAL = re.compile(
    r"(?<![\w.}~/-])/(?:tmp|home|root|work|Users|mnt|media|scratch|var/(?:folders|tmp))\b[\w./-]*"
)
"""A path of one machine. `~/x`, `./tmp` and an address's path are none."""
ALLOWED = {
    r"datasets/.*/dataset\.json": r"/tmp/.*",  # the command as it was typed, from which the data came
    r"models/.*\.json": r"/tmp/.*",  # the same, of the data that a predictor was trained on
    r"benchmarks/journal\.py": r"/tmp",  # its documented default: the system's temporary folder
}
"""Patterns of files, and of the paths that each may name."""


def strays(names: Iterable[str]) -> Iterator[str]:
    """Files at the root that are on no list."""
    for name in names:
        if "/" not in name and name not in ROOT_FILES:
            yield f"{name}: a file at the root that tests/strays.py does not list; move it, or list it there"


def local_paths(name: str, text: str) -> Iterator[str]:
    """Paths of one machine in the text of a file; `name` is its path in the repository."""
    allowed = [paths for files, paths in ALLOWED.items() if re.fullmatch(files, name)]
    for number, line in enumerate(text.splitlines(), 1):
        for found in LOCAL.findall(line):
            if not any(re.fullmatch(paths, found) for paths in allowed):
                yield f"{name}:{number}: {found}: a path of one machine; write one that any reader has"


def findings(root: Path, files: Iterable[Path]) -> Iterator[str]:
    """All of both; a file that is no UTF-8 text names no path."""
    named = {file.relative_to(root).as_posix(): file for file in files}
    yield from strays(named)
    for name, file in named.items():
        if name != Path(__file__).relative_to(ROOT).as_posix():
            try:
                yield from local_paths(name, file.read_text(encoding="utf-8"))
            except (UnicodeDecodeError, OSError):
                continue


def main() -> int:
    """Print what is found in the files that git holds; 1 if there is anything."""
    found = list(findings(ROOT, tracked()))
    for line in found:
        print(line)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
