"""The families of networks, their points (a network with a batch size), and the FLOP of each."""

from __future__ import annotations

import functools
import hashlib
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from neuralpower.dtypes import FLOATING
from neuralpower.errors import InputError, unknown
from neuralpower.layers import Layer
from neuralpower.layers.recurrent import Recurrent
from neuralpower.networks.sources import InputRequest, resolve
from neuralpower.networks.zoo.paradnn import BLOCKS, CELLS, SWEEPS, VARIANTS
from neuralpower.profiling.conventions import PRODUCTS, product_flops
from neuralpower.trace.tracer import trace

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
        chosen = family_named(family)
        if kind not in chosen.kinds:
            raise unknown(f"{chosen.selects} of {chosen.title} networks", kind, chosen.kinds)
        for name in (*sizes, *chosen.words):
            if name not in chosen.words or name not in sizes:
                raise InputError(
                    f"{name}: the sizes of {chosen.title} networks are {', '.join(chosen.words)}"
                )
            if sizes[name] < 1:
                raise InputError(f"{name} {sizes[name]}: must be 1 or more")
        return cls(family, kind, tuple(sizes[name] for name in chosen.words))

    @property
    def named(self) -> dict[str, int]:
        return dict(zip(family_named(self.family).words, self.sizes, strict=True))

    @property
    def network_sizes(self) -> dict[str, int]:
        """Sizes by name, without the batch size."""
        return {name: size for name, size in self.named.items() if name != BATCH}

    @property
    def label(self) -> str:
        return "-".join(f"{WORDS[name]}_{size}" for name, size in self.named.items())

    @property
    def batch_size(self) -> int:
        return self.sizes[-1]

    @property
    def model(self) -> str:
        """The network as a MODEL, the same for every batch size."""
        family = family_named(self.family)
        keywords = {**self.network_sizes, family.selects: self.kind}
        return f"zoo:{family.id}?" + "&".join(f"{name}={value}" for name, value in keywords.items())

    def replaced(self, **sizes: int) -> Point:
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


# ---- FLOP of a point: by the paper's formula, and as counted from its network ----
#     Phi = D_H^2 (H - 1) + D_H (D_in + D_out)      weights of a fully connected network, without biases
#     FLOP of a step = 6 Phi bs in training (2 forward, 4 backward), 2 Phi bs in inference
#
# Counted FLOP are from products (1 multiply-add = 2 FLOP) in the network's trace. A backward pass has twice
# the FLOP of the forward pass, less the gradient of the network's own floating input.


TRAIN, INFER = "train", "infer"
MODES = (TRAIN, INFER)
FLOP_PER_WEIGHT = {TRAIN: 6, INFER: 2}
PER_STEP = ("forward_flops", "activation_bytes", "widest_bytes")  # of a recurrent network
IN_PLACE = ("activation",)  # kinds whose output replaces their input in these networks


def phi(layers: int, nodes: int, input_size: int, output_size: int) -> int:
    """Weights by the paper's formula, which has layers - 1 square matrices."""
    return nodes**2 * (layers - 1) + nodes * (input_size + output_size)


@dataclass(frozen=True)
class Counted:
    """A network's numbers of parameters; FLOP of products and bytes of float32 activations for one sample."""

    parameters: int
    weights: int  # in matrices, kernels and tables: without biases and norms
    tensors: int
    forward_flops: int
    input_gradient_flops: int
    activation_bytes: int  # of all outputs, as training keeps them
    widest_bytes: int  # of the largest call's input and output

    def flops(self, mode: str, batch_size: int) -> int:
        training = 3 * self.forward_flops - self.input_gradient_flops
        return batch_size * (training if mode == TRAIN else self.forward_flops)


def described(point: Point, mode: str) -> dict[str, int | None]:
    """Facts of a point without running it; FLOP are for one step."""
    work = counted(point)
    weights = phi(**point.network_sizes) if point.family == "fc" else None
    return {
        "parameters": work.parameters,
        "phi": weights,
        "formula_flops": weights and FLOP_PER_WEIGHT[mode] * weights * point.batch_size,
        "counted_flops": work.flops(mode, point.batch_size),
    }


def counted(point: Point) -> Counted:
    """The counts of the point's network; raises ModelError if it cannot be built."""
    if point.family != "rnn":
        return counted_model(point.model)
    # all work of a recurrent network is per step, and a trace of many steps takes long
    one = counted_model(point.replaced(length=1).model)
    work: dict[str, int] = {name: getattr(one, name) * point.named["length"] for name in PER_STEP}
    return replace(one, **work)


@functools.lru_cache(maxsize=512)
def counted_model(model: str) -> Counted:
    source = resolve(model)
    module = source.build("meta")
    inputs = source.inputs(module, InputRequest(batch_size=1))
    layers = trace(module, inputs.args, inputs.kwargs).layers
    products = [product_flops(layer) for layer in layers if layer.kind in PRODUCTS]
    floating = [layer for layer in layers if layer.dtype in FLOATING]
    return Counted(
        parameters=sum(p.numel() for p in module.parameters()),
        weights=sum(p.numel() for p in module.parameters() if p.dim() > 1),
        tensors=sum(1 for _ in module.parameters()),
        forward_flops=sum(map(product_flops, layers)),
        input_gradient_flops=products[0] if products and inputs.args[0].is_floating_point() else 0,
        activation_bytes=sum(_kept_bytes(layer) for layer in floating if layer.kind not in IN_PLACE),
        widest_bytes=max((int(layer.bytes().input + layer.bytes().output) for layer in floating), default=0),
    )


def _kept_bytes(layer: Layer) -> int:
    """Bytes that a call keeps for its backward pass: its output, and gates and states of recurrent cells."""
    if isinstance(layer, Recurrent):
        cells = layer.sequence_steps * layer.num_layers * layer.directions
        return int(layer.itemsize * cells * layer.hidden_size * (layer.gates + 2))
    return int(layer.bytes().output)
