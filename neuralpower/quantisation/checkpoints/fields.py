"""The fields of a checkpoint's `quantization_config`, read with refusals that name them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neuralpower.errors import ModelError
from neuralpower.quantisation.schemes import Scheme
from neuralpower.quantisation.weights import PARTS, Pattern


@dataclass(frozen=True)
class Fields:
    """Values by name, of the checkpoint of a model."""

    model: str
    method: str
    values: Mapping[str, Any]

    def whole(self, name: str, default: int | None = None, known: Sequence[int] = ()) -> int:
        """A whole number, one of those known where these are given; raises ModelError."""
        value = self.values.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or (known and value not in known):
            what = f"one of {', '.join(map(str, known))}" if known else "a whole number"
            raise self.wrong(name, value, what)
        return value

    def group(self, name: str = "group_size", default: int = 128) -> int:
        """The number of inputs that share a scale, -1 for all of them; raises ModelError."""
        size = self.whole(name, default)
        if size < 1 and size != -1:
            raise self.wrong(name, size, "1 or more, or -1 for all inputs")
        return size

    def sides(self, name: str) -> tuple[int, int] | None:
        """Both sides of a block, such as [128, 128] or "128x128"; None where there is none.

        Raises ModelError.
        """
        value = self.values.get(name)
        if value is None:
            return None
        given = value.split("x") if isinstance(value, str) else value
        texts = [str(side) for side in given] if isinstance(given, (list, tuple)) else []
        if len(texts) != 2 or not all(text.isdecimal() and int(text) for text in texts):
            raise self.wrong(name, value, "two sides, such as [128, 128]")
        return int(texts[0]), int(texts[1])

    def text(self, name: str, default: str, known: Sequence[str] = ()) -> str:
        """A text in small letters, one of those known where these are given; raises ModelError."""
        value = self.values.get(name)
        value = default if value is None else getattr(value, "value", value)
        if not isinstance(value, str) or (known and value.lower() not in known):
            raise self.wrong(name, value, f"one of {', '.join(known)}" if known else "a text")
        return value.lower()

    def part(self, name: str) -> Fields | None:
        """An object within; None where there is none. Raises ModelError for anything else."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(name, value, "an object")
        return Fields(self.model, self.method, value)

    def patterns(self, *names: str, way: str = PARTS) -> tuple[Pattern, ...]:
        """The modules that lists of these names exclude; raises ModelError."""
        wanted: list[Pattern] = []
        for name in names:
            value = self.values.get(name)
            if value is not None and not isinstance(value, (list, tuple)):
                raise self.wrong(name, value, "a list of modules' names")
            for text in value or ():
                if not isinstance(text, str):
                    raise self.wrong(name, text, "a list of modules' names")
                wanted.append(Pattern(text, way))
        return tuple(wanted)

    def lists(self, *names: str) -> bool:
        """Whether a list of these names is there: without one, libraries exclude the head themselves."""
        return any(self.values.get(name) is not None for name in names)

    def wrong(self, name: str, value: object, must: str) -> ModelError:
        """The refusal of a value."""
        given = "is missing" if value is None else f"is {value!r:.80}"
        return ModelError(
            f"{self.model}: {name} of its quantization_config ({self.method}) {given}, but must be {must}; "
            "correct it, or MODEL?quantization_config=null uses the weights in --dtype"
        )


Reader = Callable[[Fields], Scheme]
READERS: dict[str, Reader] = {}
"""By the name of the method, words joined by hyphens."""


def checkpoint_reader(*methods: str) -> Callable[[Reader], Reader]:
    """A decorator that registers a reader for these methods; raises ValueError for one that is taken."""

    def register(read: Reader) -> Reader:
        for method in methods:
            if method in READERS:
                raise ValueError(f"quantization method {method!r} has a reader already")
            READERS[method] = read
        return read

    return register
