"""The effect of a scheme on a network's weights: bytes before and after, bits, unchanged parts, as text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neuralpower.files.json_files import Declared
from neuralpower.quantisation.formats import LABELS, Format
from neuralpower.quantisation.schemes import Forms, Scheme
from neuralpower.quantisation.weights import Matrices, Weight

MOST_NAMED = 6  # modules that stay as they are
FOLDED = 3  # of one parent, from which on they are named together
# From how many bytes on, and its own: binary, as of memory.
UNITS = ((2.0**40, 2.0**40, "TiB"), (0.1 * 2**30, 2.0**30, "GiB"), (0, 2.0**20, "MiB"))


@dataclass(frozen=True)
class Part:
    """All weights in one format, or in the network's own type."""

    words: str
    numbers: int
    bytes: int


@dataclass(frozen=True)
class Quantised(Declared):
    in_json = """
        name format=words checkpoint bytes plain_bytes bits_per_quantised_weight=bits parts runs_as? left_out
        left_out_dtype=dtype
    """

    name: str  # of the scheme
    words: str  # its format: "int4, groups of 128"
    bytes: int  # of all parameters and buffers
    plain_bytes: int  # of the same in the network's own type
    parts: tuple[Part, ...]  # of what is quantised, the largest first
    left_out: tuple[str, ...]  # modules with matrices that stay as they are, * for a number
    dtype: str  # of these
    checkpoint: bool  # whether it is the checkpoint's own scheme, or one of `--weights`
    runs_as: str = ""  # as text: what products do instead where the device lacks the arithmetic

    @property
    def bits(self) -> float | None:
        """For each quantised weight, with scales and all; None where nothing is quantised."""
        numbers = sum(part.numbers for part in self.parts)
        return 8 * sum(part.bytes for part in self.parts) / numbers if numbers else None

    @property
    def line(self) -> str:
        named = _folded(self.left_out)
        shown, more = named[:MOST_NAMED], max(len(named) - MOST_NAMED, 0)
        shown += [f"{more} more"] if more else []
        stays = f", {self.dtype} {', '.join(shown)} unchanged" if shown else ""
        name = "" if self.name.partition(":")[0] in self.words.lower() else f" ({self.name})"
        bits = "nothing is quantised" if self.bits is None else f"{self.bits:.3g} bits per quantised weight"
        sizes = f"{_size(self.bytes)} instead of {_size(self.plain_bytes)}"
        instead = f"; {self.runs_as}" if self.runs_as else ""
        return f"weights {self.words}{name}{stays}: {sizes}, {bits}{instead}"


def sizes(weights: Sequence[Weight], forms: Forms, matrices: Mapping[str, Matrices]) -> dict[str, int]:
    """B of each weight by its name, quantised where it has a form."""
    return {
        weight.name: weight.bytes
        if (form := forms.get(weight.name)) is None
        else form.bytes(matrices.get(weight.name, weight.matrices))
        for weight in weights
    }


def totals(
    scheme: Scheme, weights: Sequence[Weight], forms: Forms, matrices: Mapping[str, Matrices]
) -> Quantised:
    """The effect of the scheme on these weights."""
    stored = sizes(weights, forms, matrices)
    numbers, bytes_, plain = Counter[str](), Counter[str](), Counter[str]()
    stays: dict[str, None] = {}
    covered: set[str] = set()
    for weight in weights:
        form = forms.get(weight.name)
        if form is not None and form.quantises:
            words = described(form)
            numbers[words] += weight.numbers
            bytes_[words] += stored[weight.name]
            covered.add(_starred(weight.module))
        elif len(weight.shape) > 1:
            stays[_starred(weight.module)] = None
            plain[weight.dtype] += weight.numbers
    parts = (Part(words, count, bytes_[words]) for words, count in numbers.most_common())
    return Quantised(
        name=scheme.name,
        words=_words(scheme, numbers),
        bytes=sum(stored.values()),
        plain_bytes=sum(weight.bytes for weight in weights),
        parts=tuple(parts),
        left_out=tuple(path for path in stays if path not in covered),
        dtype=plain.most_common(1)[0][0] if plain else "",
        checkpoint=scheme.checkpoint,
        runs_as=_instead(scheme, weights),
    )


def _instead(scheme: Scheme, weights: Sequence[Weight]) -> str:
    """A note on products whose arithmetic the device lacks."""
    if not scheme.widened:
        return ""
    dtypes = Counter[str]()
    for weight in weights:
        dtypes[weight.dtype] += weight.numbers
    lacking = " and ".join(LABELS.get(name, name) for name in scheme.widened)
    return f"the device has no fast {lacking} arithmetic, so products run in {dtypes.most_common(1)[0][0]}"


def described(form: Format) -> str:
    """A format as text, with the type that its products multiply in."""
    return ", ".join(filter(None, (form.words, form.multiplies)))


def _words(scheme: Scheme, numbers: Counter[str]) -> str:
    if scheme.mixture:
        share = {words: count / sum(numbers.values()) for words, count in numbers.most_common()}
        mixed = ", ".join(f"{value:.0%} {words}" for words, value in share.items())
        return f"{scheme.mixture.upper()} ({mixed})" if len(share) > 1 else scheme.mixture.upper()
    most = numbers.most_common(3)
    if not most:
        return described(scheme.form) if scheme.form else scheme.name
    return " and ".join(words for words, _ in most)


def _size(count: int) -> str:
    _, size, unit = next(one for one in UNITS if count >= one[0])
    return f"{count / size:.3g} {unit}"


def _folded(paths: Sequence[str]) -> list[str]:
    """The paths, several children of a module as one with a star."""
    parents = Counter(path.rpartition(".")[0] for path in paths)
    parents.pop("", None)
    names = ((path, path.rpartition(".")[0]) for path in paths)
    return list(dict.fromkeys(f"{up}.*" if parents[up] >= FOLDED else path for path, up in names))


def _starred(path: str) -> str:
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)
