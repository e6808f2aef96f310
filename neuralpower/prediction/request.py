"""The question about a network, as options say it: its inputs, phase, training, layout and memory.

It alone makes what is followed and priced: the source, the inputs, the sharding and the question of a pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuralpower.ask import texts
from neuralpower.ask.options import Engine, Training, given_in
from neuralpower.ask.spread import DEGREES, Given, cluster_in, layouts_in
from neuralpower.devices.cluster import ONE, USUAL_PER_NODE, Cluster, Layout
from neuralpower.devices.hardware import Hardware
from neuralpower.devices.spec import known_spec
from neuralpower.dtypes import full_name
from neuralpower.errors import InputError, is_count
from neuralpower.late import torch
from neuralpower.layers.base import FORWARD, torch_dtype
from neuralpower.learn.files.predictor_lookup import nearest_dtype
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.diffusion.pictures import MODEL, NOTHING, OFF, OFFLOADS, ON, PictureRequest
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.phases import DECODE, PHASES, PREDICTED, STEP, Phase, listed
from neuralpower.networks.sources import published_dtype, resolve
from neuralpower.platforms import CPU, Platform
from neuralpower.prediction.memory.engines import EngineRequest, board_of
from neuralpower.prediction.weights import scheme_asked, served_type
from neuralpower.quantisation.schemes import Scheme
from neuralpower.trace.parts.routing import ROUTING, Routing
from neuralpower.trace.question import ENGINE as RUN_ENGINE
from neuralpower.trace.question import Knows, Question, checked_run, everything, usual_run
from neuralpower.trace.recipe import RECIPE, TRAINING, Recipe, check_masters

if TYPE_CHECKING:
    from neuralpower.networks.inputs.requests import Asked
    from neuralpower.networks.sharding import Sharding
    from neuralpower.networks.source import Source

SAME = "seq_len run weights autocast lora margin require_plan plan remedies memory_format".split()
"""Options that a request holds as they are."""


@dataclass(frozen=True)
class Request:
    """A network with its inputs, and how it runs."""

    model: Any  # as `resolve` takes it
    batch_size: int = 1
    seq_len: int | None = None
    input_shape: tuple[int, ...] | None = None
    dtype: str = "float32"
    phase: Phase = field(default_factory=Phase)  # training and backward, too
    recipe: Recipe = RECIPE
    routing: Routing = ROUTING
    picture: PictureRequest = NOTHING  # of a pipeline of diffusion
    memory_format: str | None = None  # channels_last; None: as the network has it
    autocast: str | None = None  # the low precision that products are cast to
    lora: str | int | None = None  # training: rank of adapters, such as 16 or "16:q_proj,v_proj"
    run: str | None = None  # one of `trace.question.RUNS`; None: the usual one of the device
    weights: str | None = None  # a name that `--weights` takes; None: the checkpoint's own
    layout: Layout = ONE  # over several devices: the fullest of them has to hold its part
    cluster: Cluster | None = None  # None: nodes of as many devices as is usual
    plan: Mapping[str, Any] | None = None  # names of modules -> how tensor ranks share them
    require_plan: bool = False  # whether a network without a plan for tensor ranks is refused
    margin: float | None = None  # share of the memory that is kept free; None: as the platform says
    # of `fit`
    platform: Platform = CPU
    engine: EngineRequest | None = None  # under this engine; None: under PyTorch alone
    remedies: bool = True  # whether changes that help are sought where it does not fit

    @property
    def way(self) -> str:
        """What a predictor predicts: forward, backward or training."""
        return FORWARD if self.phase.name in PHASES else self.phase.name

    @property
    def trains(self) -> bool:
        return self.phase.name == TRAINING

    @property
    def passed(self) -> Phase:
        """The phase that makes the inputs: a forward pass for training and backward."""
        return self.phase if self.way == FORWARD else replace(self.phase, name=FORWARD)

    @property
    def inputs(self) -> InputRequest:
        """The sizes that its inputs are made from; a training step has labels besides."""
        dtype, shape = torch_dtype(self.dtype), self.input_shape
        picture = replace(self.picture, layout=self.layout)
        return InputRequest(self.batch_size, self.seq_len, shape, dtype, self.trains, picture)

    @property
    def length(self) -> int | None:
        """Tokens of a context or a text, whose largest number `fit` seeks; None: the model's own."""
        return self.phase.context if self.phase.name == DECODE else self.phase.prompt or self.seq_len

    def of_length(self, length: int | None) -> Request:
        """The same with another length."""
        if self.phase.name == DECODE:
            return replace(self, phase=replace(self.phase, context=length))
        if self.phase.prompt is not None:
            return replace(self, phase=replace(self.phase, prompt=length))
        return replace(self, seq_len=length)

    @property
    def replicas(self) -> int:
        """Batches of `batch_size` that all devices have in one step or pass."""
        return self.layout.data * self.recipe.accumulation

    @property
    def cast(self) -> torch.dtype | None:
        """The low precision that products are cast to; raises InputError."""
        if self.autocast is None:
            return None
        from neuralpower.trace.operators.casts import cast_dtype

        return cast_dtype(self.autocast)

    @property
    def label(self) -> str:
        length = f" s{self.seq_len}" if self.seq_len else ""
        phase = "" if self.passed == Phase() else f" {self.passed.label}"
        layout = "" if self.layout.alone else f" {self.layout.short}"
        return f"{self.called} b{self.batch_size}{length}{phase}{layout}"

    @property
    def options(self) -> dict[str, Any]:
        """The options of `predict` that make the request, by name."""
        phase, layout, recipe, cluster = self.phase, self.layout, self.recipe, self.cluster
        return {
            **{name: getattr(self, name) for name in ("batch_size", "dtype", "seq_len")},
            **{name: getattr(phase, name) for name in ("context", "prompt", "new_tokens")},
            "phase": phase.name,
            **self.picture.options,
            **{option: getattr(layout, name) for name, option in DEGREES.items()},
            "zero": layout.shard.removeprefix("zero") or None,
            "schedule": layout.schedule,
            "interleave": layout.interleave,
            "sequence_parallel": layout.sequence,
            "micro_batches": recipe.accumulation if recipe.accumulation > 1 else None,
            "optimizer": recipe.word,
            "optimizer_states": None if recipe.states is None else str(recipe.states),
            "checkpointing": recipe.checkpointing,
            "master_weights": recipe.masters,
            **{name: getattr(self, name) for name in ("autocast", "lora", "memory_format", "weights", "run")},
            "devices": None if cluster is None else f"{cluster.per_node}x{cluster.spec.slug}",
            "nodes": None if cluster is None or cluster.nodes == 1 else cluster.nodes,
        }

    @property
    def called(self) -> str:
        """The model's name; of a module, its class."""
        if isinstance(self.model, (str, Path)):
            return str(self.model)
        from neuralpower.networks.source import Source

        return str(self.model.name) if isinstance(self.model, Source) else type(self.model).__name__

    def source(self) -> Source:
        """The network with its adapters and its memory format; raises InputError and ModelError."""
        from neuralpower.networks.adapters import with_lora
        from neuralpower.trace.operators.memory_formats import with_channels_last

        found, picture = resolve(self.model), self.picture
        if picture.controlnet is not None or picture.ip_adapter:
            found = self._steered(found)
        found = with_lora(found, self.lora, self.way, self.layout)
        return found if self.memory_format is None else with_channels_last(found)

    def _steered(self, pipeline: Source) -> Source:
        """A pipeline with its ControlNet and its IP-adapter; raises InputError for another network."""
        name, adapter = self.picture.controlnet, self.picture.ip_adapter
        if pipeline.steered is None:
            option = "--ip-adapter" if name is None else f"--controlnet {name}"
            raise InputError(
                f"{option}: belongs to whole pipelines of diffusion, and {pipeline.name} is not one; "
                "leave it out, or take one of `neuralpower models --task image`"
            )
        controlnet = None if name in (None, ON) else resolve(name)
        return pipeline.steered(controlnet, name == ON, adapter)

    def run_on(self, platform: Platform) -> str:
        """How it runs on a platform; raises InputError for an unknown way, and one that the phase lacks."""
        return run_of(self.run, self.phase.name, platform)

    def sharding(self, run: str) -> Sharding:
        """How a network is sharded for a way to run; raises InputError where the cluster is too small."""
        from neuralpower.networks.sharding import ENGINE, INFERENCE, Sharding

        if self.cluster is not None:
            self.cluster.check(self.layout)
        usual = min(self.layout.ranks, USUAL_PER_NODE)
        per_node = usual if self.cluster is None else self.cluster.per_node
        use = ENGINE if run == RUN_ENGINE else INFERENCE if self.way == FORWARD else TRAINING
        return Sharding(self.layout, per_node, use, plan=self.plan, require_plan=self.require_plan)

    def asked(self, source: Source, run: str) -> Asked:
        """The pass or the generation that runs on the meta device; raises as `asked_of`."""
        from neuralpower.networks.inputs.requests import asked_of

        return asked_of(source, self.inputs, self.passed, sharding=self.sharding(run))

    def check(self, predictor: Predictor) -> None:
        """Raise PredictorError for a dtype or phase that was not trained, InputError for masters of none."""
        predictor.check(self.dtype, FORWARD if self.trains else self.way)
        if self.autocast is not None and self.cast is not None:
            predictor.check(full_name(self.autocast), FORWARD)
        self.check_masters()

    def check_masters(self) -> None:
        """Raise InputError for masters of weights that have none."""
        masters = self.trains and self.recipe.masters
        check_masters(masters, self.dtype, autocast=self.autocast, lora=self.lora)

    def question(
        self, platform: Platform, scheme: Scheme | None = None, knows: Knows = everything, run: str = ""
    ) -> Question:
        """The question of a pass on a platform; `scheme`: of the weights, which is else the requested one."""
        return Question(
            self.way,
            self.dtype,
            self.recipe.on(platform),
            self.cast,
            self.routing,
            platform,
            knows,
            run or self.run_on(platform),
            scheme or scheme_asked(self.weights),
            self.layout,
            self.cluster,
        )


def run_of(run: str | None, phase: str, platform: Platform) -> str:
    """The requested way to run, else the usual one of a phase on a platform; raises as `checked_run`."""
    return usual_run(platform, phase) if run is None else checked_run(run, phase)


def request_of(model: Any, options: Given, **more: Any) -> Request:
    """The request that options of the table make; `more`: fields that the options do not say.

    The batch size is the network's own where neither says it. Raises InputError for texts that say nothing
    and for options that contradict each other, ModelError for a model that is not found.
    """
    phase, (layout, *_) = phase_in(options), layouts_in(options)
    model = model if options.get("dim") is None else of_sizes(model, str(options["dim"]))
    shape, batch = texts.shape(options.get("input_shape")), options.get("batch_size")
    given = {name: options[name] for name in SAME if options.get(name) is not None}
    routing = options.get("routing", ROUTING)
    if batch is not None and not is_count(batch):
        raise InputError(f"batch size {batch}: must be a whole number, 1 or more; choose 1")
    if batch is None and phase.batch is None and phase.lengths is None and "batch_size" not in more:
        more["batch_size"] = resolve(model).batch_size(None, shape)
    how = {
        "batch_size": 1 if batch is None else int(batch),
        "input_shape": shape,
        "phase": phase,
        "picture": picture_in(options),
        "recipe": recipe_in(options, phase.name, layouts_in(options)),
        "routing": routing if isinstance(routing, Routing) else Routing.parsed(routing),
        "layout": layout,
        "cluster": cluster_in(options),
    }
    return Request(model, **{**how, **given, **more})


def of_sizes(model: Any, text: str) -> str:
    """The name of an ONNX file with sizes such as "batch=8,height=224"; raises InputError."""
    name = str(model) if isinstance(model, (str, Path)) else type(model).__name__
    if not name.partition("?")[0].endswith(".onnx"):
        raise InputError(f"--dim {text}: names sizes of an ONNX file, and {name:.200} is none; leave it out")
    parts = texts.names(text, "dim") or ()
    if not all("=" in part for part in parts):
        raise InputError(f"--dim {text}: write NAME=SIZE with commas, such as batch=8,height=224")
    return f"{name}{'&' if '?' in name else '?'}{'&'.join(parts)}"


def picture_in(options: Given) -> PictureRequest:
    """The request to a pipeline of diffusion; raises InputError for numbers that cannot be."""
    counts: dict[str, Any] = {name: options.get(name) for name in ("frames", "steps", "images")}
    for name, value in counts.items():
        if value is not None and not is_count(value):
            raise InputError(
                f"--{name} {value}: must be a whole number, 1 or more; leave it out for the default"
            )
    reused, offload = options.get("reuse_steps"), options.get("offload")
    if reused is not None and not (isinstance(reused, (int, float)) and 0 <= reused < 1):
        raise InputError(f"--reuse-steps {reused}: a share of the steps, from 0 to below 1; write 0.3")
    if offload not in (None, *OFFLOADS):
        raise InputError(f"--offload {offload}: {', '.join(OFFLOADS)}; write --offload {MODEL}")
    return PictureRequest(
        texts.resolution(options.get("resolution")),
        guidance=_guidance(options.get("guidance")),
        tiling=bool(options.get("tiling")),
        slicing=bool(options.get("slicing")),
        reuse_steps=reused,
        offload=offload,
        controlnet=_guidance(options.get("controlnet")),
        ip_adapter=bool(options.get("ip_adapter")),
        **counts,
    )


def _guidance(given: Any) -> str | None:
    """On or off, as text or as True and False."""
    return {True: ON, False: OFF}[given] if isinstance(given, bool) else given


def phase_in(options: Given) -> Phase:
    """The phase with its tokens; raises InputError for what names none, and for tokens of another."""
    asked = options.get("phase", FORWARD)
    given: dict[str, Any] = {name: options.get(name) for name in ("context", "prompt", "new_tokens")}
    lengths = options.get("lengths")
    given["lengths"] = texts.lengths(lengths) if isinstance(lengths, str) else listed(lengths)
    contexts, chunks = options.get("contexts"), options.get("chunks")
    read = texts.lengths(contexts, "contexts") if isinstance(contexts, str) else listed(contexts, "contexts")
    given["contexts"] = read
    given["chunks"] = texts.chunks(chunks) if isinstance(chunks, str) else listed(chunks, "chunks")
    given = {name: value for name, value in given.items() if value is not None}
    phase = replace(asked if isinstance(asked, Phase) else Phase(asked), **given)
    phase.check(PREDICTED)
    phase.check_length(options.get("seq_len"))
    batch, count = options.get("batch_size"), len(given.get("lengths", ()))
    if phase.name == STEP and batch is not None:
        raise InputError(
            f"--batch-size {batch}: a step has the requests of --contexts and --chunks; leave it out"
        )
    if count and batch not in (None, count):
        raise InputError(
            f"--batch-size {batch} and {count} lengths: each request has one length; leave --batch-size out"
        )
    return phase


def recipe_in(options: Given, phase: str, layouts: tuple[Layout, ...] = (ONE,)) -> Recipe:
    """How it is trained; raises InputError for what belongs to training alone, and for what contradicts."""
    recipe, given = options.get("recipe"), given_in(Training, options)
    if recipe is not None and not isinstance(recipe, Recipe):
        raise InputError(f"recipe {recipe!r:.40}: must be a Recipe, such as neuralpower.Recipe('adam')")
    if recipe is not None and (twice := next((name for name in given if name != "recipe"), "")):
        raise InputError(f"recipe and {twice} both say how the network is trained; leave one out")
    if recipe is None:
        recipe = Recipe(
            options.get("optimizer", RECIPE.optimizer),
            accumulation=options.get("accumulation", 1),
            checkpointing=bool(options.get("checkpointing")),
            masters=bool(options.get("master_weights")),
            states=options.get("optimizer_states"),
        )
        if phase != TRAINING and recipe != RECIPE:
            text = f"belong to phase training, not to {phase}; leave them out"
            raise InputError(f"{recipe}: optimizer, accumulation, checkpointing and masters {text}")
    count = options.get("micro_batches")
    if count is None:
        return recipe
    if recipe.accumulation not in (1, count):
        raise InputError(
            f"--micro-batches {count} and --accumulation {recipe.accumulation} are the same option; "
            "leave one out"
        )
    if phase != TRAINING and all(layout.pipeline == 1 for layout in layouts):
        raise InputError(
            f"--micro-batches {count}: belongs to phase {TRAINING} or to pipeline stages; leave it out"
        )
    return replace(recipe, accumulation=count)


def engine_in(options: Given, device: str, room_bytes: float) -> EngineRequest | None:
    """The engine with its options on a device of that name and memory; None without an engine.

    Raises InputError for an option without an engine.
    """
    given = given_in(Engine, options)
    engine = given.pop("engine", None)
    if engine is None:
        for name, value in given.items():
            raise InputError(f"--{name.replace('_', '-')} {value} belongs to an engine; add --engine vllm")
        return None
    concurrency = given.pop("concurrency", None)
    return EngineRequest(engine, given, concurrency, board_of(known_spec(device), room_bytes, device))


def dtype_for(
    model: Any,
    asked: Any,
    predictor: Predictor | None = None,
    run: str = "",
    engine: str | None = None,
    hardware: Hardware | None = None,
) -> tuple[str, tuple[str, ...]]:
    """(dtype, notes): the requested one, else the model's own; of a name the nearest that is predicted.

    An engine serves a checkpoint in the dtype of its rule: `run` is how the model runs, on the predictor's
    device or, without one, on `hardware`. Raises ModelError.
    """
    if asked is not None:
        named = isinstance(asked, (str, torch.dtype))
        return full_name(str(asked).removeprefix("torch.")) if named else asked, ()
    own = published_dtype(model) or "float32"
    device = hardware if predictor is None else predictor.hardware
    served, notes = served_type(model, own, run, device, engine)
    if predictor is None or not isinstance(model, (str, Path)):
        return served, notes
    nearest = nearest_dtype(predictor, served)
    if nearest == served:
        return served, notes
    lacks = f"which {predictor.name} does not have; predicted in {nearest}"
    said = f"was published in {own}" if served == own else f"is served in {served}"
    return nearest, (f"{model} {said}, {lacks}",)
