"""A source of models: what tells that a MODEL argument is of it, and how the network is made.

Nothing here, and nothing at the head of a file beside this one, imports torch: whether data may name a model
is asked before torch is needed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuralpower.errors import ModelError

if TYPE_CHECKING:
    from neuralpower.networks.source import Source


@dataclass(frozen=True)
class Given:
    """A MODEL argument, and what it is made of where it is a text or a path."""

    model: Any

    @property
    def is_text(self) -> bool:
        """Whether it is a text or a path, and no object of Python."""
        return isinstance(self.model, (str, Path))

    @property
    def text(self) -> str:
        """All of it; "" of an object."""
        return str(self.model) if self.is_text else ""

    @property
    def location(self) -> str:
        """The text without its overrides."""
        return self.text.partition("?")[0]

    @property
    def name(self) -> str:
        """What stands behind the prefix: "alexnet" of "zoo:alexnet"."""
        return self.location.partition(":")[2]

    @property
    def path(self) -> Path:
        """The location as a path; raises RuntimeError for `~name` of nobody, where `may_be_path` is false."""
        return Path(self.location).expanduser()

    @cached_property
    def may_be_path(self) -> bool:
        """Whether a file could be called so: not if it is too long, of a user who is none, or of other letters."""
        try:
            os.fsencode(self.path)
            self.path.is_dir()
        except (OSError, RuntimeError, ValueError):
            return False
        return self.is_text and "\0" not in self.location

    @cached_property
    def overrides(self) -> dict[str, Any]:
        """`?a=1&b.c=x` -> {"a": 1, "b.c": "x"}: values are JSON, or else strings; raises ModelError."""
        found: dict[str, Any] = {}
        _, mark, query = self.text.partition("?")
        for part in query.split("&") if mark else ():
            key, equals, value = part.partition("=")
            if not key or not equals:
                way_out = "write MODEL?field=value&field=value"
                raise ModelError(f"override {part!r} of {self.text!r} is not field=value; {way_out}")
            try:
                found[key] = json.loads(value)
            except (ValueError, RecursionError):  # also digits without end, and lists in lists
                found[key] = value
        return found


Make = Callable[[Given], "Source"]


@dataclass(frozen=True)
class ModelSource:
    """One source; `model_source` says what its fields mean."""

    written: str
    place: int
    prefix: str
    recognises: Callable[[Given], bool]
    runs_code: bool
    make: Make


SOURCES: list[ModelSource] = []
"""All sources, in order."""


def model_source(
    written: str,
    *,
    place: int = 50,
    prefix: str = "",
    recognises: Callable[[Given], bool] = lambda given: False,
    runs_code: bool = True,
) -> Callable[[Make], Make]:
    """A decorator that registers a function, which makes the `Source` of what is given.

    Args:
        written: how a MODEL of this source is written, as messages list it; "" for objects of Python.
        place: in the order of that list; of several sources that recognise a MODEL, the first takes it.
        prefix: "hub" of "hub:NAME"; sources with a prefix are asked before all others.
        recognises: where there is no prefix, whether a MODEL is of this source.
        runs_code: whether a model of it runs code of others, so that a file of data may not name it (trust.py).

    Raises:
        ValueError: the prefix is taken.
    """
    if prefix and any(prefix == source.prefix for source in SOURCES):
        raise ValueError(f"prefix {prefix!r} of a source of models is taken; choose another")

    def register(make: Make) -> Make:
        SOURCES.append(ModelSource(written, place, prefix, recognises, runs_code, make))
        SOURCES.sort(key=lambda source: (source.place, source.prefix))
        return make

    return register


def recognised(given: Given) -> ModelSource | None:
    """The source of what is given; None where no source knows it."""
    prefixed = (s for s in SOURCES if s.prefix and given.location.startswith(f"{s.prefix}:"))
    others = (s for s in SOURCES if not s.prefix and s.recognises(given))
    return next(prefixed, None) or next(others, None)


def grammar() -> str:
    """How a MODEL is written, for messages."""
    *most, last = (source.written for source in SOURCES if source.written)
    return f"MODEL is {', '.join(most)} or {last}"
