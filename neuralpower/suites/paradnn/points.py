"""The families of networks, and their points: a network with a batch size, labelled with its sizes."""

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
# the name of each hyper-parameter in a label
WORDS = {
    "layers": "layer",
    "nodes": "node",
    "blocks": "block",
    "filters": "filter",
    "embed": "embed",
    "input_size": "input",
    "output_size": "output",
    "length": "length",
    "vocabulary": "vocab",
    BATCH: "bs",
}


@dataclass(frozen=True)
class Family:
    """`defaults` has the sizes in the order of labels; keyword `selects` takes one of `kinds`."""

    name: str
    title: str
    selects: str
    kinds: tuple[str, ...]
    defaults: Mapping[str, int]
    depth: str
    width: str
    walked: tuple[str, ...]
    """The sizes that `--benchmark` varies."""

    @property
    def id(self) -> str:
        """The family's id in the zoo."""
        return f"paradnn_{self.name}"

    @property
    def words(self) -> dict[str, str]:
        """The names of its sizes in labels, in their order."""
        return {name: WORDS[name] for name in self.defaults}

    @property
    def ranges(self) -> dict[str, tuple[int, ...]]:
        """Swept values of each size, the batch size among them."""
        swept = SWEEPS[self.id]
        return {name: tuple(int(value) for value in swept[name]) for name in self.defaults}

    @property
    def swept_kinds(self) -> tuple[str, ...]:
        """The kinds of the paper's sweep."""
        return tuple(str(kind) for kind in SWEEPS[self.id].get(self.selects, self.kinds[:1]))


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "fc": Family(
            name="fc",
            title="fully connected",
            selects="variant",
            kinds=tuple(VARIANTS),
            defaults={"layers": 8, "nodes": 1024, "input_size": 1000, "output_size": 100, BATCH: 1024},
            depth="layers",
            width="nodes",
            walked=(BATCH, "input_size", "output_size"),
        ),
        "cnn": Family(
            name="cnn",
            title="convolutional",
            selects="block",
            kinds=BLOCKS,
            defaults={"blocks": 1, "filters": 16, "input_size": 224, "output_size": 1000, BATCH: 8},
            depth="blocks",
            width="filters",
            walked=(BATCH, "input_size", "output_size"),
        ),
        "rnn": Family(
            name="rnn",
            title="recurrent",
            selects="cell",
            kinds=tuple(CELLS),
            defaults={"layers": 5, "embed": 100, "length": 50, "vocabulary": 1024, BATCH: 128},
            depth="layers",
            width="embed",
            walked=(BATCH, "length", "vocabulary"),
        ),
    }
)


def family_named(name: str) -> Family:
    """The family; raises InputError if none has that name."""
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
        """A point from sizes by name; raises InputError for unknown names, or sizes below 1."""
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
        """Sizes by name, without the batch size."""
        return {name: size for name, size in self.named.items() if name != BATCH}

    @property
    def label(self) -> str:
        """The sizes as text: "layers_4-nodes_32"."""
        return "-".join(f"{WORDS[name]}_{size}" for name, size in self.named.items())

    @property
    def batch_size(self) -> int:
        """Samples in a step."""
        return self.sizes[-1]

    @property
    def model(self) -> str:
        """The network as a MODEL, the same for every batch size."""
        family = family_named(self.family)
        keywords = {**self.network_sizes, family.selects: self.kind}
        return f"zoo:{family.id}?" + "&".join(f"{name}={value}" for name, value in keywords.items())

    def replaced(self, **sizes: int) -> Point:
        """A copy with other sizes; raises InputError."""
        return Point.of(self.family, self.kind, {**self.named, **sizes})


def _product(axes: Mapping[str, Iterable[int]]) -> Iterator[dict[str, int]]:
    return (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))


def walk(start: Point) -> list[Point]:
    """What `--benchmark` measures: `start` at every size of the sweep in the family's `walked` axes."""
    family = family_named(start.family)
    return [start.replaced(**s) for s in _product({name: family.ranges[name] for name in family.walked})]


def grid(family: Family, kinds: Iterable[str]) -> list[Point]:
    """Every point of the family's sweep."""
    return [Point.of(family.name, kind, sizes) for kind in kinds for sizes in _product(family.ranges)]


def sampled(points: Sequence[Point], count: int, seed: int) -> list[Point]:
    """`count` points drawn at random, in their order; all if there are fewer. Raises InputError."""
    if count < 1:
        raise InputError(f"sample of {count} points: must be 1 or more")
    if count >= len(points):
        return list(points)
    chosen = sorted(random.Random(seed).sample(range(len(points)), count))
    return [points[i] for i in chosen]


def sharded(points: Iterable[Point], shard: tuple[int, int]) -> Iterator[Point]:
    """The points of one of several jobs, (2, 8) for the second of eight, by a hash of kind and label."""
    number, shards = shard
    for point in points:
        digest = hashlib.sha256(f"{point.kind} {point.label}".encode()).digest()
        if int.from_bytes(digest[:8], "big") % shards == number - 1:
            yield point
