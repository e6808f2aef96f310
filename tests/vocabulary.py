"""Check the words of messages, docstrings, comments and pages: `python -m tests.vocabulary [PATH ...]`.

The list in `vocabulary.txt` names phrases, what to write instead, and why. Code is not prose: identifiers,
text in backticks and fenced blocks of Markdown are skipped. It prints a line per finding; any makes it fail.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PLACES = ("neuralpower", "docs", "README.md", "CONTRIBUTING.md")
LIST = Path(__file__).with_name("vocabulary.txt")
LONGEST = 20  # words of a sentence of a message
SPEAKERS = ("warn", "echo", "secho", "Unmodelled", "OutOfMemory", "BadParameter", "UsageError")
"""Calls besides those of classes named ...Error whose text a user reads."""
CODE = re.compile(r"(`+)[^`]+?\1")
FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2", re.MULTILINE | re.DOTALL)
MARKUP = re.compile(
    r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}|<(style|script)\b.*?</\1>|<[^>]*>|\]\([^)]*\)", re.DOTALL
)
QUOTED = re.compile(r'"([^"]*)"')
SENTENCE = re.compile(r"(?<=[.!?;])\s+|\n\s*\n")


class Phrase(NamedTuple):
    """A phrase that is not written: its pattern, what to write instead, and why."""

    pattern: re.Pattern[str]
    instead: str
    reason: str


class Text(NamedTuple):
    """A piece of prose: the line it begins on, its letters, and whether it is a message to a user."""

    line: int
    prose: str
    message: bool = False


class Finding(NamedTuple):
    """A phrase in a file."""

    path: Path
    line: int
    said: str
    advice: str

    def __str__(self) -> str:
        """The line that is printed."""
        return f"{self.path}:{self.line}: {self.said!r}: {self.advice}"


def phrases(source: str) -> list[Phrase]:
    """The phrases of a list; `=` before a pattern makes it case sensitive."""
    entries = [line for line in source.splitlines() if line.strip() and not line.startswith("#")]
    return [_phrase(*(part.strip() for part in entry.split(" | "))) for entry in entries]


def _phrase(pattern: str, instead: str, reason: str) -> Phrase:
    exact = pattern.startswith("=")
    return Phrase(re.compile(pattern.removeprefix("="), 0 if exact else re.IGNORECASE), instead, reason)


def blank(found: re.Match[str]) -> str:
    """Underscores in place of code, so that lines and columns stay."""
    return re.sub(r"[^\n]", "_", found[0])


def gone(found: re.Match[str]) -> str:
    """Spaces in place of markup, so that lines and columns stay."""
    return re.sub(r"[^\n]", " ", found[0])


def of_python(source: str) -> Iterator[Text]:
    """Docstrings, comments and literals of a module; those of more than one word, as the others are names."""
    tree = ast.parse(source)
    documented = set(_docstrings(tree))
    told = {id(part) for call in _speaking(tree) for part in ast.walk(call)}
    inner = {id(p) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for p in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(_shown(part) for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            text = node.value
        else:
            continue
        if " " in text.strip():
            yield Text(node.lineno, text, id(node) in told and id(node) not in documented)
    yield from _comments(source)


def _docstrings(tree: ast.Module) -> Iterator[int]:
    """Identities of the strings that stand alone: docstrings of modules, classes, functions and values."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield id(node.value)


def _speaking(tree: ast.Module) -> Iterator[ast.Call]:
    """Calls whose text a user reads: errors, warnings and lines that are printed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name.endswith("Error") or name in SPEAKERS:
                yield node


def _shown(part: ast.expr) -> str:
    """A part of an f-string: its letters, or one word in place of a value."""
    return str(part.value) if isinstance(part, ast.Constant) else "{}"


def _comments(source: str) -> Iterator[Text]:
    """Comments; those on lines of their own that follow each other are one text."""
    block: list[str] = []
    first = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            alone = not token.line[: token.start[1]].strip()
            if block and (not alone or token.start[0] != first + len(block)):
                yield Text(first, "\n".join(block))
                block = []
            first = first if block else token.start[0]
            block.append(token.string.lstrip("# "))
    if block:
        yield Text(first, "\n".join(block))


def of_markdown(source: str) -> Iterator[Text]:
    """A page without its fenced blocks and markup."""
    yield Text(1, MARKUP.sub(gone, FENCE.sub(blank, source)))


def of_template(source: str) -> Iterator[Text]:
    """A template's text without its markup, then the texts within its expressions; or a list of commands."""
    yield Text(1, MARKUP.sub(gone, source))
    for found in MARKUP.finditer(source):
        if found[0].startswith("{") and not found[0].startswith("{#"):
            line = 1 + source.count("\n", 0, found.start())
            yield from (Text(line, said) for said in QUOTED.findall(found[0]) if " " in said.strip())


READERS: dict[str, Callable[[str], Iterator[Text]]] = {
    ".py": of_python,
    ".md": of_markdown,
    ".html": of_template,
    ".jinja": of_template,
    ".j2": of_template,
    "commands.txt": of_template,
}
"""What reads the prose of a file, by the end of its name or by its name."""


def on_one_line(prose: str) -> tuple[str, list[int]]:
    """Prose with one space in place of each gap, and the line of each letter, from 0."""
    spaced: list[str] = []
    lines: list[int] = []
    line = 0
    for letter in prose:
        if not letter.isspace():
            spaced.append(letter)
            lines.append(line)
        elif spaced and spaced[-1] != " ":
            spaced.append(" ")
            lines.append(line)
        line += letter == "\n"
    return "".join(spaced), lines


def texts(path: Path) -> Iterator[Text]:
    """The prose of a file, by its name; none of a file of another kind."""
    read = READERS.get(path.suffix) or READERS.get(path.name)
    yield from read(path.read_text()) if read else ()


def findings(path: Path, listed: list[Phrase]) -> Iterator[Finding]:
    """What a file says that the list refuses, and its messages' sentences that are too long."""
    for text in texts(path):
        prose = CODE.sub(blank, text.prose)
        spaced, lines = on_one_line(prose)
        for phrase in listed:
            for found in phrase.pattern.finditer(spaced):
                advice = f"write {phrase.instead} ({phrase.reason})"
                yield Finding(path, text.line + lines[found.start()], found[0], advice)
        for sentence in SENTENCE.split(prose) if text.message else ():
            words = len(sentence.split())
            if words > LONGEST:
                start = " ".join(sentence.split()[:6])
                yield Finding(path, text.line, f"{start} ...", f"{words} words a sentence; at most {LONGEST}")


def files(places: list[Path]) -> Iterator[Path]:
    """The files of folders, and files that are named, in order."""
    for place in places:
        yield from sorted(place.rglob("*")) if place.is_dir() else (place,)


def main(arguments: list[str]) -> int:
    """Print every finding in the places that are named, or in all; 1 if there is one."""
    places = [Path(name) for name in arguments] or [ROOT / name for name in PLACES]
    listed = phrases(LIST.read_text())
    count = 0
    for path in files(places):
        for finding in findings(path, listed) if path.is_file() else ():
            shown = finding.path.relative_to(ROOT) if finding.path.is_relative_to(ROOT) else finding.path
            print(finding._replace(path=shown))
            count += 1
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
