"""Names as people write them: which of several things "h100", "RTX4090" or "A100-80GB" means.

`matching` asks in steps, and the first step that finds something decides: the name itself; the name without
spaces, signs and makers' words; the words of the name, in any order, among those of the thing.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping

# words that a device's name has beside what tells it from others of its maker
MAKERS = "nvidia geforce rtx tesla quadro amd instinct radeon apple intel arc google cloud aws gpu".split()
_WORDS = re.compile(r"[a-z0-9.+]+")
_MAKERS = re.compile(f"^(?:{'|'.join(MAKERS)})+(?=.)")
_GIGABYTES = re.compile(r"^(\d+)gi?b?$")


def matching(wanted: str, labels: Mapping[str, Collection[str]]) -> list[str]:
    """The keys of `labels` whose labels the name means, sorted; empty where there is none."""
    steps = (_same, _same_letters, _same_words)
    return next((found for step in steps if (found := sorted(step(wanted, labels)))), [])


def folded(label: str) -> str:
    """A name in small letters, with single spaces."""
    return " ".join(label.split()).casefold()


def _same(wanted: str, labels: Mapping[str, Collection[str]]) -> Iterator[str]:
    name = folded(wanted)
    return (key for key, some in labels.items() if name in map(folded, (key, *some)))


def _same_letters(wanted: str, labels: Mapping[str, Collection[str]]) -> Iterator[str]:
    name = _letters(wanted)
    if name:
        yield from (key for key, some in labels.items() if name in map(_letters, (key, *some)))


def _same_words(wanted: str, labels: Mapping[str, Collection[str]]) -> Iterator[str]:
    words = [word for word in _words(wanted) if word not in MAKERS]
    for key, some in labels.items() if words else ():
        if any(all(_is_among(word, _words(label)) for word in words) for label in (key, *some)):
            yield key


def _is_among(word: str, words: Collection[str]) -> bool:
    """Whether it is one of the words, or one of them without its number: "sxm" for "sxm5"."""
    return word in words or (word.isalpha() and any(re.fullmatch(rf"{word}\d+", other) for other in words))


@functools.lru_cache(maxsize=4096)
def _letters(label: str) -> str:
    """Its letters and digits in one piece, without makers' words before them: "4090" of "RTX 4090"."""
    return _MAKERS.sub("", "".join(_words(label)))


@functools.lru_cache(maxsize=4096)
def _words(label: str) -> tuple[str, ...]:
    return tuple(_GIGABYTES.sub(r"\1gb", word) for word in _WORDS.findall(label.casefold()))
