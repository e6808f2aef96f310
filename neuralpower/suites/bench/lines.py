"""Result lines: `__results.time__= 12.5`, a name and its JSON value, among whatever else a log holds."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from neuralpower.files.json_files import json_text, nullable

PATTERN = re.compile(r"[ \t]*__(.+?(?=__[ \t]*[=]))__[ \t]*=(.+)")


class Parsed(NamedTuple):
    """What a text says, the last value of each name; and the lines whose value is no JSON, as of a run that was killed."""

    values: dict[str, Any]
    unreadable: tuple[str, ...]


def result_line(name: str, value: Any) -> str:
    """One line; a number that is not finite becomes null."""
    return f"__{name}__= {json_text(nullable(value))}"


def parse(text: str) -> Parsed:
    """All result lines of a text."""
    values: dict[str, Any] = {}
    unreadable: list[str] = []
    for line in text.splitlines():
        match = PATTERN.match(line)
        if match is None:
            continue
        try:
            values[match.group(1)] = json.loads(match.group(2))
        except ValueError:
            unreadable.append(line.strip())
    return Parsed(values, tuple(unreadable))
