"""Locks of files, and commands where the names that only Unix has are missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from neuralpower.files import locks

ROOT = Path(__file__).parent.parent.parent
WINDOWS = """
import os, signal, sys, types
import asyncio, multiprocessing, subprocess, tempfile  # which would ask for parts of Windows
for name in ("fcntl", "resource", "termios", "pwd", "grp", "pty", "tty"):
    sys.modules[name] = None
functions = ("geteuid", "getuid", "fchmod", "killpg", "setsid", "sched_getaffinity")
for name in (*functions, "O_NOFOLLOW", "O_NONBLOCK"):
    delattr(os, name)
for name in ("SIGHUP", "SIGKILL"):
    delattr(signal, name)
held = set()
def locking(descriptor, way, size):
    assert (way, size, os.lseek(descriptor, 0, os.SEEK_CUR)) == (2, 1, 2**40)
    place = os.fstat(descriptor).st_ino
    if place in held:
        raise PermissionError
    held.add(place)
sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
platform, sys.platform = sys.platform, "win32"
from neuralpower.files import locks
sys.platform = platform
del sys.modules["msvcrt"]
assert locks.WINDOWS
opened = os.open
def no_folders(path, flags, mode=0o777):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    return opened(path, flags, mode)
os.open = no_folders
from neuralpower.cli import main
main()
"""


def test_a_lock_is_taken_once(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with file.open("w") as first, file.open() as second:
        locks.take(first.fileno())
        with pytest.raises(BlockingIOError):
            locks.take(second.fileno())
        first.close()
        locks.take(second.fileno(), wait=True)


@pytest.mark.parametrize(
    "command",
    [
        "predict zoo:deep_mnist --device h100 --out FOLDER/answer.html --csv FOLDER/rows.csv",
        "gate zoo:deep_mnist --device h100 --baseline FOLDER/baseline.json --update",
        "fit zoo:deep_mnist --device h100 --out FOLDER/answer.json",
    ],
    ids=lambda command: command.split()[0],
)
def test_commands_need_nothing_that_only_unix_has(command: str, tmp_path: Path) -> None:
    words = command.replace("FOLDER", str(tmp_path)).split()
    ended = subprocess.run(
        [sys.executable, "-c", WINDOWS, *words], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert all(file.stat().st_size > 9 for file in tmp_path.iterdir())
    assert not list(tmp_path.glob(".*"))
