"""The cheapest changes that make a network fit, each with its effect.

`CHANGES` is the place to add one: a class with what it costs, and how it changes a request. Changes are tried
one by one in their order, the cheapest first. Each needs one trace at most, and the search ends after
`ENOUGH` that fit. If none fits alone, they are added up until the network fits.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from neuralpower.errors import InputError, ModelError
from neuralpower.files.json_files import Declared
from neuralpower.networks.diffusion.pictures import GROUP, MODEL
from neuralpower.networks.phases import DECODE
from neuralpower.optimizers.registry import FOREACH, FUSED, KNOWN
from neuralpower.platforms import CPU
from neuralpower.prediction.fits.verdict import FITS, probability_of, verdict_of
from neuralpower.prediction.memory.peak import Memory
from neuralpower.trace.question import ENGINE

if TYPE_CHECKING:
    from neuralpower.prediction.request import Request

ENOUGH = 3  # changes that fit alone: more are not sought
MOST_RANKS = 8  # of devices that are not named: those of one server
WIDE = {"float32": 4, "float64": 8}  # dtype -> bytes of a number


@dataclass(frozen=True)
class Situation:
    """A request that does not fit for sure, and what is known of it."""

    request: Request
    memory: Memory
    room_bytes: float  # that it may take
    largest_batch: int = 0  # that fits as it is; 0: none
    longest: int = 0


@dataclass(frozen=True)
class Step:
    """A changed request; `adjusted` changes its memory where the request cannot say it."""

    words: str
    option: str  # of the command; "" where it has none
    request: Request
    adjusted: Callable[[Memory], Memory] | None = None


@dataclass(frozen=True)
class Remedy(Declared):
    """One change, or several together, and the memory with it."""

    in_json = "change options? cost saved_bytes memory_bytes=memory.bounds fits verdict probability"

    change: str
    options: str  # of the command
    cost: str
    saved_bytes: int  # of the upper bound
    memory: Memory
    verdict: str
    probability: float
    request: Request = field(compare=False, repr=False)  # with the change

    @property
    def fits(self) -> bool:
        """Whether the upper bound is within the memory with it."""
        return self.verdict == FITS


def _trained(request: Request, **changes: Any) -> Request:
    """The request with a changed recipe."""
    return replace(request, recipe=replace(request.recipe, **changes))


class Change(ABC):
    """One way to need less memory."""

    cost: ClassVar[str]  # what it takes in exchange

    @abstractmethod
    def of(self, now: Situation) -> Step | None:
        """The changed request; None where the change does not apply."""


class FusedOptimizer(Change):
    """One kernel steps all parameters, without temporaries."""

    cost = "nothing"

    def of(self, now: Situation) -> Step | None:
        """On a device that steps lists of tensors by default."""
        request = now.request
        recipe = request.recipe.on(request.platform)
        known = KNOWN.get(recipe.known)
        if known is None:
            return None
        # temporaries are about as large as the weights: where activations are far larger, they are the peak
        at_step = now.memory.activations_bytes < 3 * now.memory.weights_bytes
        applies = request.trains and request.platform.family != CPU.family and at_step
        if not applies or recipe.implementation != FOREACH or FUSED not in known.ways:
            return None
        option = f"--optimizer {recipe.optimizer}:{FUSED}"
        return Step("fused optimizer", option, _trained(request, implementation=FUSED))


class MicroBatches(Change):
    """The same batch in several micro-batches, whose gradients add up."""

    cost = "smaller calls"

    def of(self, now: Situation) -> Step | None:
        """The fewest equal micro-batches whose size fits as it is, or of one sample."""
        request, batch = now.request, now.request.batch_size
        if not request.trains or batch == 1:
            return None
        sizes = [size for size in range(1, batch) if batch % size == 0]
        fitting = [size for size in sizes if size <= now.largest_batch]
        size = max(fitting, default=1)
        count = request.recipe.accumulation * (batch // size)
        return Step(
            f"{count} micro-batches of {size}",
            f"--batch-size {size} --accumulation {count}",
            _trained(replace(request, batch_size=size), accumulation=count),
        )


class HalfPrecision(Change):
    """Weights and activations of 16 bits."""

    cost = "rounding to 16 bits"

    def of(self, now: Situation) -> Step | None:
        """From 32 bits and more."""
        if now.request.dtype not in WIDE:
            return None
        return Step("bfloat16", "--dtype bfloat16", replace(now.request, dtype="bfloat16"))


class Tiles(Change):
    """A pipeline's decoder works on tiles of an image."""

    cost = "tiles overlap"

    def of(self, now: Situation) -> Step | None:
        """Where an image is decoded at once."""
        picture = now.request.picture
        if picture.tiling or not now.request.source().pictures:
            return None
        return Step(
            "decoding in tiles", "--tiling", replace(now.request, picture=replace(picture, tiling=True))
        )


@dataclass(frozen=True)
class Offload(Change):
    """Parts of a pipeline wait in the host's memory until they run."""

    name: str

    cost: ClassVar[str] = "copies from the host"

    def of(self, now: Situation) -> Step | None:
        """Where nothing waits yet, or more at a time than this leaves."""
        request, picture = now.request, now.request.picture
        if picture.offload not in (None, MODEL) or picture.offload == self.name:
            return None
        if not request.source().pictures:
            return None
        changed = replace(request, picture=replace(picture, offload=self.name))
        return Step(f"offloading ({self.name})", f"--offload {self.name}", changed)


class CacheOf8Bits(Change):
    """Keys and values of 8 bits, as serving engines offer."""

    cost = "rounding of keys and values"

    def of(self, now: Situation) -> Step | None:
        """The engine's pass keeps its cache, and nothing else, in 8 bits."""
        size = WIDE.get(now.request.dtype, 2)
        if now.memory.cache_bytes == 0 or now.request.run != ENGINE:
            return None

        def smaller(memory: Memory) -> Memory:
            cache = math.ceil(memory.cache_bytes / size)
            tensors = memory.tensor_bytes - memory.cache_bytes + cache
            return replace(memory, cache_bytes=cache, tensor_bytes=tensors)

        batch = now.request.batch_size
        option = f"--engine vllm --cache-dtype fp8{f' --concurrency {batch}' if batch > 1 else ''}"
        return Step("8-bit cache of keys and values", option, now.request, smaller)


class Checkpointing(Change):
    """Repeated blocks keep their inputs and compute their activations again."""

    cost = "a second forward pass"

    def of(self, now: Situation) -> Step | None:
        """Switch it on in a training step."""
        if not now.request.trains or now.request.recipe.checkpointing:
            return None
        return Step("activation checkpointing", "--checkpointing", _trained(now.request, checkpointing=True))


@dataclass(frozen=True)
class Weights(Change):
    """Quantised weights in inference."""

    name: str
    pictures: bool = False  # whether it is for pipelines of diffusion, or for all else

    cost: ClassVar[str] = "rounding of weights"

    def of(self, now: Situation) -> Step | None:
        """Quantise weights that are not quantised yet."""
        request = now.request
        if request.trains or request.weights not in (None, "int8"):
            return None
        if self.pictures != request.source().pictures:
            return None
        return Step(f"{self.name} weights", f"--weights {self.name}", replace(request, weights=self.name))


@dataclass(frozen=True)
class Optimizer(Change):
    """Another optimizer, with smaller states."""

    name: str
    words: str
    instead_of: tuple[str, ...]

    cost: ClassVar[str] = "other updates of the weights"

    def of(self, now: Situation) -> Step | None:
        """Instead of one with larger states."""
        request = now.request
        if not request.trains or request.recipe.known not in self.instead_of:
            return None
        changed = _trained(request, optimizer=self.name, implementation="")
        return Step(self.words, f"--optimizer {self.name}", changed)


class NoMasters(Change):
    """Weights of 16 bits alone, with gradients and states in their type."""

    cost = "updates rounded to 16 bits"

    def of(self, now: Situation) -> Step | None:
        """Instead of float32 masters."""
        if not now.request.recipe.masters:
            return None
        changed = _trained(now.request, masters=False)
        return Step("no float32 masters", "without --master-weights", changed)


class SmallerBatch(Change):
    """Fewer samples at once."""

    cost = "fewer samples at once"

    def of(self, now: Situation) -> Step | None:
        """The largest batch that fits as it is."""
        batch = now.largest_batch
        if not 0 < batch < now.request.batch_size:
            return None
        return Step(f"batch of {batch}", f"--batch-size {batch}", replace(now.request, batch_size=batch))


class ShorterText(Change):
    """Fewer tokens of each sample."""

    cost = "fewer tokens"

    def of(self, now: Situation) -> Step | None:
        """The longest that fits as it is."""
        request, longest = now.request, now.longest
        if request.length is None or not 0 < longest < request.length:
            return None
        option = "--context" if request.phase.name == DECODE else "--seq-len"
        return Step(f"{longest} tokens", f"{option} {longest}", request.of_length(longest))


@dataclass(frozen=True)
class Adapters(Change):
    """Trained adapters in addition to frozen weights (LoRA)."""

    rank: int

    cost: ClassVar[str] = "weights stay as they are"

    def of(self, now: Situation) -> Step | None:
        """Instead of a training step of all weights."""
        request = now.request
        if not request.trains or request.lora is not None:
            return None
        changed = _trained(replace(request, lora=str(self.rank)), masters=False)
        option = f"--lora {self.rank}{' without --master-weights' if request.recipe.masters else ''}"
        return Step(f"LoRA adapters of rank {self.rank}", option, changed)


@dataclass(frozen=True)
class MoreDevices(Change):
    """Tensor ranks in inference, and replicas that share all states (ZeRO 3) in training."""

    ranks: int

    cost: ClassVar[str] = "more devices"

    def of(self, now: Situation) -> Step | None:
        """Where `ranks` may be enough: a share of weights and states must fit, with inputs and framework."""
        request, memory = now.request, now.memory
        most = MOST_RANKS if request.cluster is None else request.cluster.devices
        shared = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
        shared += 0 if request.trains else memory.cache_bytes
        rest = memory.framework_bytes + memory.inputs_bytes
        if request.source().pictures and not request.trains:  # diffusers has no tensor ranks
            return None
        if not request.layout.alone or self.ranks > most or shared / self.ranks + rest > now.room_bytes:
            return None
        if request.trains:
            layout = replace(request.layout, data=self.ranks, shard="zero3")
            option = f"--data-parallel {self.ranks} --zero 3"
        else:
            layout, option = replace(request.layout, tensor=self.ranks), f"--tensor-parallel {self.ranks}"
        return Step(f"{self.ranks} x this device ({layout})", option, replace(request, layout=layout))


ADAM = ("adam", "adamw")
CHANGES: Sequence[Change] = (
    FusedOptimizer(),
    MicroBatches(),
    HalfPrecision(),
    Tiles(),
    Offload(MODEL),
    Offload(GROUP),
    CacheOf8Bits(),
    Checkpointing(),
    Weights("int8"),
    Weights("int4"),
    Weights("int8", pictures=True),
    Weights("nf4", pictures=True),
    Optimizer("adamw8bit", "AdamW with states of 8 bits", ADAM),
    NoMasters(),
    SmallerBatch(),
    ShorterText(),
    Adapters(16),
    MoreDevices(2),
    MoreDevices(4),
    MoreDevices(8),
)
"""All changes, the cheapest first."""


TOGETHER = " + "  # between the words of several changes


def remedies(now: Situation, memory_of: Callable[[Request], Memory]) -> tuple[Remedy, ...]:
    """Changes that save memory, in the order of `CHANGES`; the last may be several together.

    `memory_of` gives the memory of a request. Changes that it refuses with an error are omitted.
    """
    helpful: list[tuple[Change, Remedy]] = []
    for change in CHANGES:
        weaker_fits = any(type(one) is type(change) and remedy.fits for one, remedy in helpful)
        if weaker_fits or sum(remedy.fits for _, remedy in helpful) >= ENOUGH:
            continue
        step = change.of(now)
        remedy = None if step is None else _tried(now, [(change, step)], memory_of)
        if remedy is not None and remedy.saved_bytes > 0:
            helpful.append((change, remedy))
    alone = tuple(remedy for _, remedy in helpful)
    if len(alone) < 2 or any(remedy.fits for remedy in alone):
        return alone
    return (*alone, *_together(now, helpful, memory_of))


def _together(
    now: Situation, found: Sequence[tuple[Change, Remedy]], memory_of: Callable[[Request], Memory]
) -> Iterator[Remedy]:
    """The cheapest changes that fit together, or all of them; the stronger one of each kind."""
    strongest = {type(change): (change, remedy) for change, remedy in found}
    taken: list[tuple[Change, Step]] = []
    request, saved = now.request, 0
    best: Remedy | None = None
    for place, (change, remedy) in enumerate(strongest.values(), 1):
        step = change.of(replace(now, request=request))
        if step is not None:
            request, saved = step.request, saved + remedy.saved_bytes
            taken.append((change, step))
        may_fit = now.memory.high_bytes - saved <= now.room_bytes
        if len(taken) < 2 or not (may_fit or place == len(strongest)):
            continue
        best = _tried(now, taken, memory_of) or best
        if best is not None and best.fits:
            break
    if best is not None:
        yield best


def _tried(
    now: Situation, taken: Sequence[tuple[Change, Step]], memory_of: Callable[[Request], Memory]
) -> Remedy | None:
    """What the steps do together, each made on the one before; None where the network refuses them."""
    try:
        memory = memory_of(taken[-1][1].request)
    except (InputError, ModelError):
        return None
    for _, step in taken:
        memory = step.adjusted(memory) if step.adjusted else memory
    return Remedy(
        change=TOGETHER.join(one.words for _, one in taken),
        options=" ".join(_last([one.option for _, one in taken if one.option])),
        cost="; ".join(change.cost for change, _ in taken),
        saved_bytes=now.memory.high_bytes - memory.high_bytes,
        memory=memory,
        verdict=verdict_of(memory, now.room_bytes),
        probability=probability_of(memory, now.room_bytes),
        request=taken[-1][1].request,
    )


def _last(options: Sequence[str]) -> list[str]:
    """The options without those whose name comes again: the last one says what holds."""
    named = {option.split()[0]: place for place, option in enumerate(options)}
    return [option for place, option in enumerate(options) if named[option.split()[0]] == place]
