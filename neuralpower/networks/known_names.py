"""Names of networks in their libraries' files; nothing is imported, so a typing error is found at once."""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path

_ZOO = re.compile(r'zoo_model\(\s*(f?)"(\w+)(?:\{\w+\})?"')
_NUMBERS = re.compile(r"\b(\d+): \(")  # keys of a table by whose numbers networks are named
_TYPE = re.compile(r'"([\w.-]+)"[:,]\s*"\w+Config"')
_WORD = re.compile(r'"([\w.-]+)"')
AUTO = ("auto_mappings.py", "configuration_auto.py", "modeling_auto.py")


@functools.cache
def zoo_names() -> tuple[str, ...]:
    """Ids of the zoo, by the decorators in its files."""
    found: set[str] = set()
    for file in Path(__file__).with_name("zoo").glob("*.py"):
        text = file.read_text(encoding="utf-8")
        for formatted, name in _ZOO.findall(text):
            numbers = _NUMBERS.findall(text) if formatted else [""]
            found |= {f"{name}{number}" for number in numbers}
    return tuple(sorted(found))


@functools.cache
def transformers_names() -> tuple[frozenset[str], frozenset[str]]:
    """(Model types, all names of types and classes) in the tables of transformers; empty without it."""
    spec = importlib.util.find_spec("transformers")
    places = [] if spec is None else spec.submodule_search_locations or []
    texts = [
        file.read_text(encoding="utf-8")
        for place in places
        for name in AUTO
        if (file := Path(place) / "models" / "auto" / name).is_file()
    ]
    types, words = (frozenset(w for text in texts for w in form.findall(text)) for form in (_TYPE, _WORD))
    return types, words
