"""Outputs on pages: run each block of commands below a mark, and write its output into the page.

    python -m docs.generate.outputs                rewrite the pages, the README's table and the picture
    python -m docs.generate.outputs --measure      also measure this machine, for some minutes

A block `python title="net.py"` on the same page becomes a file in the folder of the commands.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from docs.generate.picture import terminal
from docs.generate.tables import short_devices

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/index.md",
    "docs/tutorial.md",
    "docs/csv-examples.md",
    "docs/memory.md",
    "docs/what-if.md",
)
PICTURE = ROOT / "docs" / "images" / "predict.svg"
PICTURED = "neuralpower predict llama-3.1-8b --phase decode --context 4096 --batch-size 32 --device h100"
BLOCK = re.compile(r"(<!-- (run|measure) -->\n```console\n)(.*?)(```)", re.S)
FILE = re.compile(r"```\w+ title=\"([\w./-]+)\"\n(.*?)```", re.S)
DEVICES = re.compile(r"(<!-- devices -->\n)(.*?)(\n\n|\Z)", re.S)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
WIDTH = "80"

Run = Callable[[str, Path], str]


def run(command: str, folder: Path, colours: bool = False) -> str:
    """The output of a command in a folder, stderr first; raises SystemExit."""
    words = shlex.split(command, comments=True)
    program = [sys.executable, "-m", *words] if words[0] == "neuralpower" else words
    environment = {**os.environ, "COLUMNS": WIDTH, "PYTHONPATH": str(ROOT)}
    environment |= dict.fromkeys(("NEURALPOWER_CACHE", "NEURALPOWER_PROGRESS"), "off")
    environment |= {"FORCE_COLOR": "1"} if colours else {"NO_COLOR": "1"}
    done = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command} ended with {done.returncode}: {done.stderr}")
    return done.stderr + done.stdout


def blocks(text: str) -> Iterator[tuple[list[str], str]]:
    """(Commands, the output on the page) of each block that needs no measurement."""
    for _, mark, shown, _ in BLOCK.findall(text):
        lines = shown.splitlines()
        commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        if mark == "run":
            yield commands, "\n".join(line for line in lines if not line.startswith("$ ")).strip("\n")


def files(text: str, folder: Path) -> None:
    """Write the files that a page shows."""
    for name, content in FILE.findall(text):
        (folder / name).write_text(content)


def refreshed(text: str, folder: Path, run: Run = run, measure: bool = False) -> str:
    """The page with the present output of its commands; `measure`: also of those that measure."""
    files(text, folder)

    def again(found: re.Match[str]) -> str:
        start, mark, shown, end = found.groups()
        if mark == "measure" and not measure:
            return found[0]
        lines: list[str] = []
        for command in (line for line in shown.splitlines() if line.startswith("$ ")):
            lines += [command, *run(command[2:], folder).strip("\n").splitlines()]
        return start + "".join(f"{line.rstrip()}\n" for line in lines) + end

    return DEVICES.sub(lambda found: found[1] + short_devices() + found[3], BLOCK.sub(again, text))


def alike(shown: str, printed: str, tolerance: float = 0.02) -> bool:
    """Whether two outputs agree: the same words, and numbers that differ only by rounding."""
    if NUMBER.sub("#", shown).split() != NUMBER.sub("#", printed).split():
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    numbers = ((float(a.replace(",", "")), float(b.replace(",", ""))) for a, b in pairs)
    return all(abs(a - b) <= tolerance * max(a, b) + 0.1 for a, b in numbers)


def main() -> None:
    """Rewrite the pages and the picture."""
    measure = "--measure" in sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        for name in PAGES:
            page = ROOT / name
            page.write_text(refreshed(page.read_text(), Path(folder), measure=measure))
            print(name)
        PICTURE.write_text(terminal(PICTURED, run(PICTURED, Path(folder), colours=True)))
        print(PICTURE.relative_to(ROOT))


if __name__ == "__main__":
    main()
