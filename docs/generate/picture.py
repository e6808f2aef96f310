"""A picture of a terminal: a command and its output, as SVG without external resources."""

from __future__ import annotations

import html
import io
import re

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

FONTS = re.compile(r"@font-face \{.*?\}\n?", re.S)


def terminal(command: str, printed: str, width: int = 112) -> str:
    """The SVG of a command and its output; `printed` can contain colours as ANSI codes."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
    console.print(Text.from_ansi(printed.rstrip("\n")))
    picture = console.export_svg(title="neuralpower", theme=MONOKAI, unique_id="neuralpower")
    lines = FONTS.sub("", picture).replace("Fira Code", "DejaVu Sans Mono").splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip()) + "\n"


def words(svg: str) -> str:
    """The text of a picture, line by line."""
    spans = re.findall(r'<text [^>]*y="([\d.]+)"[^>]*>(.*?)</text>', svg)
    lines: dict[str, str] = {}
    for place, text in spans:
        lines[place] = lines.get(place, "") + html.unescape(text).replace("\xa0", " ")
    return "\n".join(lines.values())
