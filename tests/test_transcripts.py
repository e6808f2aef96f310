"""What five people type, and what they read: a command, its output with numbers masked, and its exit code.

Each file of tests/transcripts/ is one person. After a change that is meant, write them anew:

    python -m tests.test_transcripts
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.program import run

FILES = sorted(Path(__file__).with_name("transcripts").glob("*.txt"))
NET = """
import torch


class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU())


def build():
    return Net()
"""
SIZES = (1, 8, 64)
TABLE = "rows,in_features,out_features,bias,latency_ms\n" + "".join(
    f"{m},{k},{n},1,{0.01 + m * k * n / 1e6}\n" for m in SIZES for k in SIZES for n in SIZES
)
PROMPT = "$ neuralpower"
NUMBER = re.compile(r"(?<![\w.:-])\d+(?:[.,]\d+)*(?:e[+-]?\d+)?(?!\w)")  # no part of a name
BASIS = re.compile(
    r"(memory|compute|launch) +(measured|in-range|extrapolated|borrowed|roofline)$", re.MULTILINE
)
# what depends on the machine, or on which predictor was trained last
VARIES = re.compile(r"^(?:Note: the predictor's machine differs|Warning: ).*\n", re.MULTILINE)


def masked(text: str) -> str:
    """Results with numbers as N; without bars, repeated blanks and varying parts. Errors stay unchanged."""
    plain = VARIES.sub("", text).splitlines()
    lines = (line if line.startswith("error:") else _masked_line(line) for line in plain)
    return "\n".join(lines)


def _masked_line(line: str) -> str:
    plain = NUMBER.sub("N", BASIS.sub("BOUND BASIS", re.sub(r"[█▉▊▋▌▍▎▏]+", "", line)))
    plain = re.sub(r"\bN [mun]?s\b", "N s", plain)  # a time may pass from one unit to the next
    return re.sub(r"-{3,}", "--", re.sub(r" +", " ", plain)).rstrip()


def played(commands: list[str]) -> str:
    """The transcript of these commands, typed in the working folder."""
    Path("net.py").write_text(NET)
    Path("linear.csv").write_text(TABLE)
    said = []
    for command in commands:
        ran = run(*shlex.split(command.removeprefix(PROMPT)))
        said += [command, *filter(None, (masked(ran.out), masked(ran.err))), f"[exit code {ran.code}]", ""]
    return "\n".join(said)


def commands_of(file: Path) -> list[str]:
    return [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith(PROMPT)]


@contextlib.contextmanager
def elsewhere() -> Iterator[None]:
    """Work within in an empty folder."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_a_person_reads_what_the_transcript_says(file: Path) -> None:
    with elsewhere():
        assert played(commands_of(file)) == file.read_text(encoding="utf-8")


def test_all_five_are_there() -> None:
    assert len(FILES) == 5 and all(commands_of(file) for file in FILES)


if __name__ == "__main__":
    os.environ["NEURALPOWER_PROGRESS"] = "off"  # as in tests: a slow machine says more
    for _file in FILES:
        with elsewhere():
            _text = played(commands_of(_file))
        _file.write_text(_text, encoding="utf-8")
