"""What to measure: a seeded sweep of every kind, and the distinct layers of real and jittered networks."""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, cast

import torch

from neuralpower.data.schema import config_id
from neuralpower.dtypes import FLOATING, MEASURABLE, TENSORFLOAT32
from neuralpower.errors import InputError, NeuralPowerError, unknown
from neuralpower.layers import KINDS, Draw, Layer
from neuralpower.layers.base import BACKWARD, FORWARD, NEAR_BYTES, RECURRING, torch_dtype, typed
from neuralpower.layers.rows import defaults, field_names, identity, to_row
from neuralpower.measure.collect.gaps import gap_layers
from neuralpower.measure.collect.networks import NETWORKS, Network, jittered, swept
from neuralpower.measure.collect.request import PRESETS, Preset
from neuralpower.measure.collect.schedule import NETWORK, NETWORK_BLOCK
from neuralpower.measure.cpu.rig import BLOCK
from neuralpower.networks.decoder import Decoder
from neuralpower.networks.names.families import variant_of
from neuralpower.networks.sources import InputRequest, resolve
from neuralpower.platforms import CPU
from neuralpower.trace.passes import applied
from neuralpower.trace.question import Question
from neuralpower.trace.recipe import OPTIMIZER, RECIPE, TRAINING, default_loss
from neuralpower.trace.records import Trace
from neuralpower.trace.tracer import trace

NETWORK_LAYERS = 4  # a network may cost as much as NETWORK_LAYERS of the largest layers
FEWEST, FEWEST_EACH = 10, 5  # layers of a kind in a sweep, and in each dtype and phase on an accelerator
FEWEST_RECURRING = 40  # layers of a kind that loops repeat: they are of several groups
BACKWARD_EVERY = 3  # on a CPU, one layer in three runs backward, too: that takes twice as long
TRAINED_EVERY = 2  # on a CPU, every second network is trained for a step: that takes four times as long
BATCHES = ("batch", "rows", "tokens", "elements")  # the field of a kind that grows with the batch


def kinds_named(names: Sequence[str] | None, phases: Sequence[str] = (FORWARD,)) -> list[type[Layer]]:
    """The named kinds, or all kinds of the phases that torch has; raises InputError for an unknown name.

    `network` may stand among the names: a whole network is not a layer.
    """
    for name in names or ():
        if name not in (*KINDS, NETWORK):
            raise unknown("layer kind", name, (*KINDS, NETWORK))
    if names:
        return [kind for name, kind in KINDS.items() if name in names]
    return [kind for kind in KINDS.values() if kind.by_default and phases_of(kind, phases)]


def phases_of(kind: type[Layer], phases: Sequence[str]) -> list[str]:
    """The phases that have such layers: forward kinds run backward, too; an optimizer's phase is its own."""
    own = defaults(kind)["phase"]
    return [phase for phase in phases if phase == own or (own, phase) == (FORWARD, BACKWARD)]


@dataclasses.dataclass(frozen=True)
class Traced:
    """A network at one batch size and length."""

    model: str
    batch_size: int
    seq_len: int | None
    trace: Trace
    context: int | None = None  # of a decoder's step: tokens in its cache

    @property
    def size(self) -> tuple[str, int, int | None]:
        return self.model, self.batch_size, self.seq_len


def make_plan(
    preset: Preset,
    kinds: Sequence[type[Layer]],
    models: Sequence[str] | None,
    dtypes: Sequence[str],
    seed: int,
    whole: bool = False,
    phases: Sequence[str] = (FORWARD,),
) -> list[dict[str, Any]]:
    """Distinct configurations in the order to measure them.

    Each is `{"kind", "config_id", "source", "flops", "bytes", "row"}`. They come in blocks of BLOCK that are
    measured in turn: the layers of one network together, so that they meet the caches as in that network, and
    mixed layers of the sweep. Blocks are shuffled: a collection that is cut off is a smaller one of the same
    make-up. `whole`: networks as a whole, too, each at one of its sizes.

    On a CPU every layer comes in all dtypes, forward, and one in BACKWARD_EVERY of a kind backward, too. On
    an accelerator each layer has one dtype and phase, in turn within a kind: the preset's counts are then
    totals.

    `gaps` come in an order of their own, topics in turn.
    """
    if preset.gaps:
        gaps = gap_layers(preset.sweep, kinds, dtypes, phases, seed)
        return [_item(layer, "gaps") for layer in gaps if affordable(layer, preset)]
    generator = random.Random(seed)
    sweep = list(_sweep(preset, kinds, seed, dtypes, phases))
    generator.shuffle(sweep)
    seen: set[str] = set()
    sources: list[list[dict[str, Any]]] = []
    turns: Counter[tuple[str, bool]] = Counter()
    networks = list(_networks(preset, models, seed))
    for source, layers in (("sweep", sweep), *((one.model, one.trace.layers) for one in networks)):
        items_by_id: dict[str, dict[str, Any]] = {}
        for layer in dict.fromkeys(layers):
            if type(layer) in kinds and affordable(layer, preset) and (preset.loops or not layer.recurs):
                turns[layer.kind, layer.recurs] += 1
                for variant in _variants(layer, dtypes, phases, preset, turns[layer.kind, layer.recurs]):
                    item = _item(variant, source)
                    items_by_id.setdefault(item["config_id"], item)
        sources.append([item for name, item in items_by_id.items() if name not in seen])
        seen.update(items_by_id)
    sources[1:] = _thinned(sources[1:], preset.traced, generator)
    blocks = [block for items in sources for block in _blocks(items, BLOCK)]
    floats = [dtype for dtype in dtypes if dtype in preset.network_dtypes]
    if whole and floats and FORWARD in phases:
        totals = list(islice(_totals(networks, preset, generator, floats, phases), preset.networks))
        blocks += _blocks(totals, NETWORK_BLOCK)
    generator.shuffle(blocks)
    return list(chain.from_iterable(blocks))


def _variants(
    layer: Layer, dtypes: Sequence[str], phases: Sequence[str], preset: Preset, turn: int
) -> Sequence[Layer]:
    """The element types and phases in which to measure a layer, the `turn`-th of its kind."""
    variants = [
        variant
        for variant in dict.fromkeys(_all_variants(layer, dtypes, phases))
        if variant.phase != BACKWARD or affordable(variant, preset)
    ]
    if preset.in_turn and variants:
        return [variants[turn % len(variants)]]
    if FORWARD in phases and turn % BACKWARD_EVERY:
        return [variant for variant in variants if variant.phase != BACKWARD]
    return variants


def _all_variants(layer: Layer, dtypes: Sequence[str], phases: Sequence[str]) -> Iterator[Layer]:
    """The layer in every element type and phase; integers stay integers; no gradient, no backward pass.

    A backward pass comes with the forward pass before it, where evaluation has none like it.
    """
    for phase in phases_of(type(layer), phases):
        trained = layer.training.turned(layer) if phase == BACKWARD else layer
        staged = []
        if phase != BACKWARD or trained.training.differentiable(trained):
            staged.append(dataclasses.replace(trained, phase=phase))
        if phase == BACKWARD and trained.training.only(trained):
            staged.append(dataclasses.replace(trained, phase=FORWARD))
        for one in staged:
            yield from (typed(one, dtype) for dtype in dtypes) if layer.dtype == "float32" else (one,)


def _thinned(
    sources: Sequence[list[dict[str, Any]]], most: int | None, generator: random.Random
) -> Iterator[list[dict[str, Any]]]:
    """At most `most` items of all sources together, drawn at random; each source keeps its order."""
    count = sum(map(len, sources))
    kept = set(range(count)) if most is None or count <= most else set(generator.sample(range(count), most))
    numbers = iter(range(count))
    for items in sources:
        yield [item for item in items if next(numbers) in kept]


def _item(layer: Layer, source: str) -> dict[str, Any]:
    return {
        "kind": layer.kind,
        "config_id": config_id(identity(layer)),
        "source": source,
        "flops": int(layer.flops()),
        "bytes": int(sum(layer.bytes()) + layer.parameters() * layer.itemsize),
        "row": to_row(layer),
    }


def _blocks(items: Sequence[dict[str, Any]], size: int) -> Iterator[Sequence[dict[str, Any]]]:
    return (items[i : i + size] for i in range(0, len(items), size))


def _totals(
    networks: Sequence[Traced],
    preset: Preset,
    generator: random.Random,
    dtypes: Sequence[str],
    phases: Sequence[str],
) -> Iterator[dict[str, Any]]:
    """Rows of kind `network`, with their layers: one affordable size of each model that is known in full.

    On a CPU also a step of each decoder, since its cache can be put back between two calls, and, where all
    phases are requested, a training step of one network in TRAINED_EVERY.
    """
    seen: set[tuple[str, bool]] = set()
    trains = preset.loops and {BACKWARD, OPTIMIZER} <= set(phases)
    for network in generator.sample(networks, len(networks)):
        layers, is_step = network.trace.layers, network.context is not None
        named = variant_of(network.model), is_step
        weights = network.trace.parameter_bytes
        flops = sum(int(layer.flops()) for layer in layers)
        if named in seen or network.trace.unmodelled or not layers or (is_step and not preset.loops):
            continue
        if flops > NETWORK_LAYERS * preset.most_flops or weights > NETWORK_LAYERS * preset.most_bytes:
            continue
        seen.add(named)
        for dtype in dtypes:
            traced = network.trace if dtype == "float32" else _traced(*network.size, named=False, dtype=dtype)
            if traced is not None and not traced.unmodelled:
                held = 2 * max(int(sum(layer.bytes())) for layer in traced.layers)
                yield _total(network, Counter(traced.layers), traced.parameter_bytes + held, dtype)
        if trains and not is_step and len(seen) % TRAINED_EVERY == 0:
            step = _training_step(network)
            if step is not None and step["flops"] <= NETWORK_LAYERS * preset.most_flops:
                yield step


def _training_step(network: Traced) -> dict[str, Any] | None:
    """The row of a step by the usual recipe; None for nothing to train, or where not all of it is known."""
    traced = _traced(*network.size, named=False, training=True)
    if traced is None or traced.unmodelled or not traced.trained:
        return None
    counts: Counter[Layer] = Counter()
    for task in applied(traced, Question(TRAINING, recipe=RECIPE.on(CPU))).tasks:
        counts[task.layer] += task.share  # type: ignore[assignment]  # part of a backward pass
    held = 4 * traced.parameter_bytes + sum(int(layer.bytes().output) for layer in traced.layers)
    return _total(network, counts, held, "float32", TRAINING)


def _total(
    network: Traced, layers: Mapping[Layer, float], held_bytes: int, dtype: str, phase: str = FORWARD
) -> dict[str, Any]:
    given = {"seq_len": network.seq_len, "context": network.context}
    row = {
        "model": network.model,
        "batch": network.batch_size,
        "input": json.dumps({name: value for name, value in given.items() if value}),
        "dtype": dtype,
        "phase": phase,
    }
    counts = [[layer.kind, to_row(layer), n] for layer, n in layers.items()]
    once = network.context or phase == TRAINING  # copies would not do the same again
    return {
        "kind": NETWORK,
        **({"power": False} if once else {}),
        "config_id": config_id({"kind": NETWORK, **row}),
        "source": network.model,
        "flops": round(sum(int(layer.flops()) * n for layer, n in layers.items())),
        "bytes": held_bytes,
        "row": {**row, "layers": json.dumps(counts, separators=(",", ":"))},
    }


def affordable(layer: Layer, preset: Preset) -> bool:
    """Whether one call stays inside the preset's work and memory; a backward pass takes twice of both."""
    times = 2 if layer.phase == BACKWARD else 1
    return times * layer.flops() * 4 / layer.itemsize <= preset.most_flops and (
        times * (sum(layer.bytes()) + layer.parameters() * layer.itemsize) <= preset.most_bytes
    )


def draw(
    kind: type[Layer], count: int, seed: int, preset: Preset = PRESETS["standard"], sort: str = ""
) -> Iterator[Layer]:
    """`count` distinct layers of a kind's sweep, inside the preset's bounds; fewer if the sweep has no more.

    `sort`: layers that only TRAINING has, or that a loop repeats (RECURRING).
    """
    source = Draw(f"{kind.kind} {seed}{sort and ' '}{sort}")
    seen: set[Layer] = set()
    for _ in range(50 * count):
        if len(seen) == count:
            return
        layer = _sampled(kind, source, sort)
        if preset.scales and source.chance(0.5):
            layer = scaled(layer, source.choice(preset.scales))
        if layer.recurs and sum(layer.bytes()) > NEAR_BYTES:
            continue  # no longer in the cache when it is repeated
        if layer not in seen and affordable(layer, preset):
            seen.add(layer)
            yield layer


def _sampled(kind: type[Layer], draw: Draw, sort: str) -> Layer:
    if sort in kind.samples:
        return cast(Layer, kind.samples[sort](kind, draw))
    layer = kind.sample(draw)
    if sort == TRAINING:
        return cast(Layer, kind.training.turned(layer))
    return dataclasses.replace(layer, recurs=True) if sort == RECURRING else layer


def scaled(layer: Layer, factor: int) -> Layer:
    name = next(name for name in BATCHES if name in field_names(type(layer)))
    changes: dict[str, Any] = {name: factor * getattr(layer, name)}
    return dataclasses.replace(layer, **changes)


def _sweep(
    preset: Preset, kinds: Sequence[type[Layer]], seed: int, dtypes: Sequence[str], phases: Sequence[str]
) -> Iterator[Layer]:
    shares = sum(kind.sweep_share for kind in KINDS.values() if kind.by_default)
    for kind in kinds:
        variants = len(dtypes) * len(phases_of(kind, phases)) if preset.in_turn else 1
        count = max(round(preset.sweep * kind.sweep_share / shares), FEWEST, FEWEST_EACH * variants)
        yield from draw(kind, count, seed, preset)
        if BACKWARD in phases and kind.training_share:
            yield from draw(kind, max(round(count * kind.training_share), FEWEST), seed, preset, TRAINING)
        if FORWARD in phases and kind.recurring_share and preset.loops:
            yield from draw(
                kind, max(round(count * kind.recurring_share), FEWEST_RECURRING), seed, preset, RECURRING
            )


def _networks(preset: Preset, models: Sequence[str] | None, seed: int) -> Iterator[Traced]:
    """Every network, variant, batch size and length."""
    generator = random.Random(seed)
    listed = {network.model: network for network in NETWORKS}
    if models is None:
        chosen = [network for network in NETWORKS if preset.jitters or network.quick]
    else:
        named = (swept(m, generator) or [listed.get(m, Network(m, (1, 4)))] for m in models if m != "none")
        chosen = list(chain.from_iterable(named))
    for network in chosen:
        for variant in (network, *(jittered(network, generator) for _ in range(preset.jitters))):
            for batch in variant.batch_sizes:
                for seq_len in variant.seq_lens:
                    scale = generator.choice((1, *preset.scales)) if preset.scales else 1
                    traced = _traced(variant.model, scale * batch, seq_len, named=models is not None)
                    if traced is not None:
                        yield Traced(variant.model, scale * batch, seq_len, traced)
            for batch, context in variant.steps:
                step = _step(variant.model, batch, context)
                if step is not None:
                    yield Traced(variant.model, batch, None, *step)


def _traced(
    model: str,
    batch_size: int,
    seq_len: int | None,
    named: bool,
    dtype: str = "float32",
    training: bool = False,
) -> Trace | None:
    try:
        source = resolve(model)
        request = InputRequest(batch_size=batch_size, seq_len=seq_len, dtype=torch_dtype(dtype))
        module = source.build("meta", request.dtype)
        inputs = source.inputs(module, request, "meta")
        loss = default_loss if training else None
        return trace(module, inputs.args, inputs.kwargs, training=training, loss=loss)
    except NeuralPowerError:
        if named:
            raise
        return None  # a network of our own list that this version of a library no longer builds


def _step(model: str, batch_size: int, context: int) -> tuple[Trace, int] | None:
    """One step of a decoder, and its context: at most the longest that its positions allow."""
    try:
        module = resolve(model).build("meta")
        decoder = Decoder(module, InputRequest(batch_size))
        limit = context + 1 if decoder.limit is None else decoder.limit
        one = decoder.decode(min(context, limit - 1))
        return trace(module, one.inputs.args, one.inputs.kwargs), one.context
    except NeuralPowerError:  # no decoder, or this version of a library no longer builds it
        return None


def check_dtypes(dtypes: Sequence[str], device: torch.device) -> None:
    """Raise InputError unless all are floating types that torch takes on the device."""
    for dtype in dtypes:
        if dtype not in FLOATING:
            raise unknown("dtype", dtype, MEASURABLE)
        if dtype == TENSORFLOAT32 and device.type == "cpu":
            raise InputError(f"dtype {dtype}: a CPU has no such arithmetic; choose float32")
        try:
            x, weight = (torch.ones(2, 2, dtype=torch_dtype(dtype), device=device) for _ in range(2))
            torch.nn.functional.linear(x.neg_(), weight)  # inputs are negated between calls
        except RuntimeError as error:
            raise InputError(
                f"dtype {dtype}: torch cannot use it on {device} ({error}); choose float32"
            ) from None
