"""Names and sizes of memory as people write them: which device "h100" means, and how much 24GB is.

`matching` asks in steps, and the first step that finds something decides: the name itself; its words in one
piece; its words, in any order, among those of the thing. What a name's words are depends on the thing.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from numbers import Real

from neuralpower.errors import InputError

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


# Sizes of memory as people write them: 24GB, 80GiB.

UNITS = {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
UNITS |= {"kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40}


def bytes_of(text: str | float) -> float:
    """24e9 for "24GB", 24 * 2**30 for "24GiB", a number as it is; raises InputError, also without a unit."""
    given = f"{text:f} b" if isinstance(text, Real) else str(text)
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*", given.lower())
    if not match or match.group(2) not in UNITS or not 0 < float(match.group(1)) < math.inf:
        inputs = "" if isinstance(text, (str, Real)) else "; inputs are given by name: inputs=..."
        shown = " ".join(f"{text!r:.40}".split())
        raise InputError(
            f"memory {shown}: write a positive number with a unit, such as 24GB or 80GiB{inputs}"
        )
    return float(match.group(1)) * UNITS[match.group(2)]


def is_size(text: object) -> bool:
    """Whether a text is a size with a unit, such as 24GB, and no device's name."""
    try:
        return isinstance(text, str) and bytes_of(text) > 0
    except InputError:
        return False


def reading(text: str | float) -> str:
    """A note on how a memory with a decimal unit is read; "" for any other."""
    given = str(text).strip().lower()
    if not isinstance(text, str) or not re.search(r"[kmgt]b$", given):
        return ""
    as_binary = re.sub(r"\s*([kmgt])b$", lambda found: f"{found.group(1).upper()}iB", given)
    size = bytes_of(text) / 2**30
    return f"{text} is read in powers of 1000: {size:.3g} GiB. A card sold as {text} may have {as_binary}"


def gib(size: float) -> str:
    """Bytes in GiB: binary, as drivers and data sheets count memory."""
    return f"{size / 2**30:.3g} GiB" if size < 999.5 * 2**30 else f"{size / 2**30:.0f} GiB"
