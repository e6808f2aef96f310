"""The families of networks, and their points: one network with one batch size, under the label that says its sizes."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from neuralpower.errors import InputError, unknown
from neuralpower.networks.zoo.paradnn import BLOCKS, CELLS, SWEEPS, VARIANTS

BATCH = "batch_size"


@dataclass(frozen=True)
class Family:
    """`words` has each hyper-parameter's word in labels, in their order; the keyword `selects` chooses among `kinds`."""

    name: str
    title: str
    selects: str
    kinds: tuple[str, ...]
    words: Mapping[str, str]
    defaults: Mapping[str, int]
    walked: tuple[str, ...]
    depth: str
    width: str

    @property
    def id(self) -> str:
        """In the zoo."""
        return f"paradnn_{self.name}"

    @property
    def ranges(self) -> dict[str, tuple[int, ...]]:
        """Swept values of each hyper-parameter, the batch size among them."""
        swept = SWEEPS[self.id]
        return {name: tuple(int(value) for value in swept[name]) for name in self.words}

    @property
    def swept_kinds(self) -> tuple[str, ...]:
        """Those of the paper's sweep."""
        return tuple(str(kind) for kind in SWEEPS[self.id].get(self.selects, self.kinds[:1]))


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "fc": Family(
            name="fc",
            title="fully connected",
            selects="variant",
            kinds=tuple(VARIANTS),
            words={
                "layers": "layer",
                "nodes": "node",
                "input_size": "input",
                "output_size": "output",
                BATCH: "bs",
            },
            defaults={"layers": 8, "nodes": 1024, "input_size": 1000, "output_size": 100, BATCH: 1024},
            walked=(BATCH, "input_size", "output_size"),
            depth="layers",
            width="nodes",
        ),
        "cnn": Family(
            name="cnn",
            title="convolutional",
            selects="block",
            kinds=BLOCKS,
            words={
                "blocks": "block",
                "filters": "filter",
                "input_size": "input",
                "output_size": "output",
                BATCH: "bs",
            },
            defaults={"blocks": 1, "filters": 16, "input_size": 224, "output_size": 1000, BATCH: 8},
            walked=(BATCH, "input_size", "output_size"),
            depth="blocks",
            width="filters",
        ),
        "rnn": Family(
            name="rnn",
            title="recurrent",
            selects="cell",
            kinds=tuple(CELLS),
            words={
                "layers": "layer",
                "embed": "embed",
                "length": "length",
                "vocabulary": "vocab",
                BATCH: "bs",
            },
            defaults={"layers": 5, "embed": 100, "length": 50, "vocabulary": 1024, BATCH: 128},
            walked=(BATCH, "length", "vocabulary"),
            depth="layers",
            width="embed",
        ),
    }
)


def family_named(name: str) -> Family:
    """The family; raises InputError where there is none of that name."""
    if name not in FAMILIES:
        raise unknown("family", name, FAMILIES)
    return FAMILIES[name]


@dataclass(frozen=True)
class Point:
    """`sizes` are in the order of the family's words, the batch size last."""

    family: str
    kind: str
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, family: str, kind: str, sizes: Mapping[str, int]) -> Point:
        """From sizes by name.

        Raises:
            InputError: no such family or kind, or a size that is missing, unknown or below 1.
        """
        found = family_named(family)
        if kind not in found.kinds:
            raise unknown(f"{found.selects} of {found.title} networks", kind, found.kinds)
        for name in (*sizes, *found.words):
            if name not in found.words or name not in sizes:
                raise InputError(f"{name}: the sizes of {found.title} networks are {', '.join(found.words)}")
            if sizes[name] < 1:
                raise InputError(f"{name} {sizes[name]}: must be 1 or more")
        return cls(family, kind, tuple(sizes[name] for name in found.words))

    @property
    def named(self) -> dict[str, int]:
        """Sizes by name."""
        return dict(zip(family_named(self.family).words, self.sizes, strict=True))

    @property
    def network_sizes(self) -> dict[str, int]:
        """Sizes by name, without the batch's."""
        return {name: size for name, size in self.named.items() if name != BATCH}

    @property
    def label(self) -> str:
        """What the point is, its sizes alone."""
        words = family_named(self.family).words.values()
        return "-".join(f"{word}_{size}" for word, size in zip(words, self.sizes, strict=True))

    @property
    def batch_size(self) -> int:
        """Samples in a step."""
        return self.sizes[-1]

    @property
    def model(self) -> str:
        """The network as a MODEL; every batch size of it has the same."""
        family = family_named(self.family)
        keywords = {**self.network_sizes, family.selects: self.kind}
        return f"zoo:{family.id}?" + "&".join(f"{name}={value}" for name, value in keywords.items())

    def replaced(self, **sizes: int) -> Point:
        """With other sizes; raises InputError."""
        return Point.of(self.family, self.kind, {**self.named, **sizes})


def walk(start: Point) -> list[Point]:
    """What `--benchmark` measures: `start` at every batch, input and output size of the sweep, or their like."""
    family = family_named(start.family)
    axes = [family.ranges[name] for name in family.walked]
    return [
        start.replaced(**dict(zip(family.walked, values, strict=True))) for values in itertools.product(*axes)
    ]


def grid(family: Family, kinds: Iterable[str]) -> list[Point]:
    """Every point of the family's sweep."""
    return [
        Point.of(family.name, kind, dict(zip(family.ranges, values, strict=True)))
        for kind in kinds
        for values in itertools.product(*family.ranges.values())
    ]


def sampled(points: Sequence[Point], count: int, seed: int) -> list[Point]:
    """So many of them drawn at random, in their order; all where there are no more. Raises InputError below 1."""
    if count < 1:
        raise InputError(f"sample of {count} points: must be 1 or more")
    if count >= len(points):
        return list(points)
    chosen = sorted(random.Random(seed).sample(range(len(points)), count))
    return [points[i] for i in chosen]


def sharded(points: Iterable[Point], shard: tuple[int, int]) -> Iterator[Point]:
    """Those that fall to one of several jobs, (2, 8) for the second of eight, by a hash of kind and label."""
    number, shards = shard
    for point in points:
        digest = hashlib.sha256(f"{point.kind} {point.label}".encode()).digest()
        if int.from_bytes(digest[:8], "big") % shards == number - 1:
            yield point
