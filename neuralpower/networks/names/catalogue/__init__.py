"""Models that people deploy, by their published configurations: one JSON file each in this folder.

    {"schema": 1, "task": "language", "parameters": 8030261248, "dtype": "bfloat16",
     "aliases": ["meta-llama/Llama-3.1-8B"], "config": {"model_type": "llama", ...}}

`config` has fields of the published config.json, quantization_config included, and `parameters` is the count
that the maker prints, which a test compares with the network that is built. `note` explains a difference.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuralpower.devices.names import Words, folded, matching, split
from neuralpower.errors import ModelError, unknown

TASKS = "language encoder text-to-text vision vision-language speech image video audio".split()
FORMS = frozenset("instruct it chat hf meta".split())  # words for what a model was trained to, not what it is
MIRRORS = frozenset(["unsloth"])  # who publishes others' models under their names
MOST_LISTED = 12
NEAR = 0.75  # of names that count as a typing error, by difflib's ratio
_NUMBERED = re.compile(r"^([a-z]{2,})(\d.*)$")  # "llama3.1", but not "v3" or "a3b"


@dataclass(frozen=True, kw_only=True)
class Entry:
    name: str
    task: str
    parameters: int  # as its maker prints them
    dtype: str  # of its checkpoint, where that is not quantised
    aliases: tuple[str, ...]
    config: Mapping[str, Any]
    note: str = ""
    source: str = ""  # where a pipeline's configurations were read

    @property
    def quantisation(self) -> str | None:
        """The method by which its checkpoint is quantised; None where it is not."""
        found = self.config.get("quantization_config")
        return None if found is None else str(found["quant_method"])


@functools.cache
def catalogue() -> Mapping[str, Entry]:
    return {file.stem: _read(file) for file in sorted(Path(__file__).parent.glob("*.json"))}


def _read(file: Path) -> Entry:
    data = json.loads(file.read_bytes())
    del data["schema"]
    return Entry(name=file.stem, **{**data, "aliases": tuple(data["aliases"])})


@functools.lru_cache(maxsize=4096)
def model_words(label: str) -> Words:
    """Words of a model's name, without its organisation and forms: ("llama", "3.1", "8b")."""
    words = split(label.rpartition("/")[2])
    parts = (_NUMBERED.match(word) for word in words)
    found = (part for word, match in zip(words, parts, strict=True) for part in _parts(word, match))
    return tuple(word for word in found if word not in FORMS)


def _parts(word: str, numbered: re.Match[str] | None) -> tuple[str, ...]:
    return (word,) if numbered is None else numbered.groups()


def named(text: str) -> list[str]:
    """Names of the models that a text means, in any usual spelling; empty where there is none.

    ORG/NAME is a model of the hub's only where ORG publishes one that is listed: else it may be a folder.
    """
    labels = {name: entry.aliases for name, entry in catalogue().items()}
    organisation, slash, _ = text.strip().rpartition("/")
    if slash and organisation.casefold() not in _organisations():
        return []
    return matching(text, labels, model_words, parts=":" not in text and not slash)


@functools.cache
def _organisations() -> frozenset[str]:
    aliases = (alias for entry in catalogue().values() for alias in entry.aliases)
    return frozenset(alias.partition("/")[0].casefold() for alias in aliases if "/" in alias) | MIRRORS


def near(text: str) -> bool:
    """Whether a text that names no model looks like a slip in the name of one."""
    name = folded(text)
    plain = not any(mark in name for mark in ":/\\")
    return plain and bool(difflib.get_close_matches(name, catalogue(), n=1, cutoff=NEAR))


def find_entry(text: str) -> Entry:
    """The model that a text means; raises ModelError where there is none, and where several are."""
    found = named(text)
    if len(found) == 1:
        return catalogue()[found[0]]
    if found:
        more = f" and {len(found) - MOST_LISTED} more" if len(found) > MOST_LISTED else ""
        listed = ", ".join(found[:MOST_LISTED])
        raise ModelError(f"model {text!r} may be {listed}{more}; choose one of them")
    raise unknown("model", text, catalogue(), ModelError)
