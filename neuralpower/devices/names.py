"""Names as people write them: which of several things "h100", "RTX4090" or "A100-80GB" means.

`matching` asks in steps, and the first step that finds something decides: the name itself; its words in one
piece; its words, in any order, among those of the thing. What a name's words are depends on the thing.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping

# words in names that do not distinguish devices of one maker
MAKERS = "nvidia geforce rtx tesla quadro amd instinct radeon apple intel arc google cloud aws gpu".split()
_WORDS = re.compile(r"[a-z0-9.+]+")
_MAKERS = re.compile(f"^(?:{'|'.join(MAKERS)})+")
_GIGABYTES = re.compile(r"^([0-9]+)gi?b?$")

Words = tuple[str, ...]
Labels = Mapping[str, Collection[str]]


@functools.lru_cache(maxsize=4096)
def device_words(label: str) -> Words:
    """Words of a device's name, without makers': ("a100", "80gb") of "NVIDIA A100-80G"."""
    words = (_MAKERS.sub("", word) for word in split(label))
    return tuple(_GIGABYTES.sub(r"\1gb", word) for word in words if word)


def split(label: str) -> list[str]:
    """Runs of letters, digits, points and plus signs, in small letters."""
    return _WORDS.findall(label.casefold())


def matching(
    wanted: str, labels: Labels, words: Callable[[str], Words] = device_words, *, parts: bool = True
) -> list[str]:
    """The keys of `labels` whose labels the name means, sorted; empty where there is none.

    Without `parts`, a part of the words does not do.
    """
    steps = (_same, _in_one_piece, *((_among,) if parts else ()))
    return next((found for step in steps if (found := sorted(step(wanted, labels, words)))), [])


def folded(label: str) -> str:
    """A name in small letters, with single spaces."""
    return " ".join(label.split()).casefold()


def _same(wanted: str, labels: Labels, words: Callable[[str], Words]) -> Iterator[str]:
    name = folded(wanted)
    return (key for key, some in labels.items() if name in map(folded, (key, *some)))


def _in_one_piece(wanted: str, labels: Labels, words: Callable[[str], Words]) -> Iterator[str]:
    name, whole = "".join(words(wanted)), "".join(split(wanted))
    for key, some in labels.items() if name else ():
        if any(name == "".join(words(label)) or whole == "".join(split(label)) for label in (key, *some)):
            yield key


def _among(wanted: str, labels: Labels, words: Callable[[str], Words]) -> Iterator[str]:
    asked = words(wanted)
    for key, some in labels.items() if asked else ():
        if any(all(_is_among(word, words(label)) for word in asked) for label in (key, *some)):
            yield key


def _is_among(word: str, words: Words) -> bool:
    """Whether it is one of the words, or one of them without its number: "sxm" for "sxm5"."""
    return word in words or (word.isalpha() and any(re.fullmatch(rf"{word}\d+", other) for other in words))
