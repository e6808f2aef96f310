"""A source of models: how it recognises a MODEL, how it makes the network, and whether data may name it.

Neither this file nor the head of the other files here imports torch: whether data may name a model is checked
before torch is needed.
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


class Given:
    """A MODEL argument, and its parts where it is a text or a path.

    `text` is all of it ("" for an object of Python), `location` the text without its overrides, and `name`
    what follows the prefix: "alexnet" in "zoo:alexnet".
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.is_text = isinstance(model, (str, Path))
        self.text = str(model) if self.is_text else ""
        self.location, _, self.query = self.text.partition("?")
        self.name = self.location.partition(":")[2]

    @property
    def path(self) -> Path:
        """The location as a path; raises RuntimeError for `~name` of no user: `may_be_path` is false."""
        return Path(self.location).expanduser()

    @cached_property
    def may_be_path(self) -> bool:
        """Whether a file could have that name: not if it is too long, of no user's home, or unencodable."""
        try:
            os.fsencode(self.path)
            self.path.is_dir()
        except (OSError, RuntimeError, ValueError):
            return False
        return self.is_text and "\0" not in self.location

    @cached_property
    def overrides(self) -> dict[str, Any]:
        """`?a=1&b.c=x` -> {"a": 1, "b.c": "x"}: values are JSON, or else strings; raises ModelError."""
        values: dict[str, Any] = {}
        for part in self.query.split("&") if "?" in self.text else ():
            key, equals, value = part.partition("=")
            if not key or not equals:
                way_out = "write MODEL?field=value&field=value"
                raise ModelError(f"override {part!r} of {self.text!r} is not field=value; {way_out}")
            try:
                values[key] = json.loads(value)
            except (ValueError, RecursionError):  # also digits without end, and lists in lists
                values[key] = value
        return values


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
    dtype: Callable[[Given], str | None]
    check: Callable[[Given], object]


SOURCES: list[ModelSource] = []
"""All sources, in order."""


def model_source(
    written: str,
    *,
    place: int = 50,
    prefix: str = "",
    recognises: Callable[[Given], bool] = lambda given: False,
    runs_code: bool = True,
    dtype: Callable[[Given], str | None] = lambda given: None,
    check: Callable[[Given], object] = lambda given: None,
) -> Callable[[Make], Make]:
    """A decorator that registers a function that makes the `Source` of a MODEL.

    Args:
        written: how a MODEL of this source is written, as messages list it; "" for objects of Python.
        place: in the order of that list; of several sources that recognise a MODEL, the first takes it.
        prefix: "hub" in "hub:NAME"; sources with a prefix are asked before all others.
        recognises: where there is no prefix, whether a MODEL is of this source.
        runs_code: whether a model of it runs others' code, so that a file of data may not name it (trust.py).
        dtype: the type in which a model was published, which is then the usual one; None where none is said.
        check: raises ModelError for a name that cannot be; it imports no torch, and may let others pass.

    Raises:
        ValueError: the prefix is taken.
    """
    if prefix and any(prefix == source.prefix for source in SOURCES):
        raise ValueError(f"prefix {prefix!r} of a source of models is taken; choose another")

    def register(make: Make) -> Make:
        SOURCES.append(ModelSource(written, place, prefix, recognises, runs_code, make, dtype, check))
        SOURCES.sort(key=lambda source: (source.place, source.prefix))
        return make

    return register


def recognised(given: Given) -> ModelSource | None:
    """The source that recognises a MODEL; None where none does."""
    prefixed = (s for s in SOURCES if s.prefix and given.location.startswith(f"{s.prefix}:"))
    others = (s for s in SOURCES if not s.prefix and s.recognises(given))
    return next(prefixed, None) or next(others, None)


def published_dtype(model: Any) -> str | None:
    """The type in which a model was published or built; None where that is not known. Raises ModelError."""
    given = Given(model)
    source = None if given.is_text and not given.text.strip() else recognised(given)
    return None if source is None else source.dtype(given)


def grammar() -> str:
    """How a MODEL is written, for messages."""
    *most, last = (source.written for source in SOURCES if source.written)
    return f"MODEL is {', '.join(most)} or {last}"


# Trust: a model that a user types may run code; one in a file of data must not, unless the user allows it.
#
# A file of data is a dataset's table, a journal, a list of candidates, a plan, a JSON file of parameters. It
# may name a network that a library or neuralpower itself defines, and a configuration, which is read as JSON
# and runs nothing. Functions import a file or a package, and an exported program is executed: each source
# says so (`runs_code`).

OPTION = "--trust-code"


def check_model(model: str, where: str = "", trust_code: bool = False) -> None:
    """Raise ModelError where a model that data name would run code; `where` it stands begins the message."""
    source = recognised(Given(str(model)))
    if not trust_code and source is not None and source.runs_code:
        names = ", ".join(f"{source.prefix}:" for source in SOURCES if source.prefix and not source.runs_code)
        raise ModelError(
            f"{where and f'{where}: '}model {str(model)!r:.100} would run code, and a file of data may name "
            f"{names} or a config.json alone; if you trust it, give {OPTION} (in Python trust_code=True)"
        )
