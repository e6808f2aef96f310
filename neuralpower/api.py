"""The Python API of a predictor: `neuralpower.load(NAME)`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, ParamSpec, TypedDict, TypeVar

import torch
from torch import nn
from typing_extensions import Unpack

from neuralpower.devices.cluster import Cluster, cluster_of, is_cluster
from neuralpower.devices.host import read_cpu
from neuralpower.devices.memory_size import bytes_of, is_size
from neuralpower.devices.spec import known_spec, spec_of
from neuralpower.dtypes import full_name
from neuralpower.errors import InputError, ModelError, is_count
from neuralpower.files.paths import is_file
from neuralpower.layers.base import FORWARD, torch_dtype
from neuralpower.layout import ONE, Layout
from neuralpower.learn import predictor_lookup
from neuralpower.learn.here import target
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.predictor_files import known_predictors
from neuralpower.networks.adapters import with_lora
from neuralpower.networks.callables import as_network
from neuralpower.networks.given_shapes import one_shape, with_tensors
from neuralpower.networks.inputs import InputRequest
from neuralpower.networks.phases import PHASES, PREDICTED, Phase
from neuralpower.networks.requests import Asked, asked_of, given_to
from neuralpower.networks.sharding import Sharding
from neuralpower.networks.source import Source
from neuralpower.networks.sources import published_dtype, resolve
from neuralpower.options import check_options
from neuralpower.platforms import CPU, PLATFORMS, Platform, platform_of
from neuralpower.predict.case import device_memory, predict, run_of, sharding_of
from neuralpower.predict.compose import question_of
from neuralpower.predict.explore.compare import Comparison, Side, compare
from neuralpower.predict.explore.fit import Fit, Request, fit
from neuralpower.predict.explore.fit import memory as memory_of
from neuralpower.predict.explore.phases import sweep_grid
from neuralpower.predict.explore.score import Score, score
from neuralpower.predict.explore.sweep import Sweep
from neuralpower.predict.memory.engines import OPTIONS, EngineRequest, board_of
from neuralpower.predict.memory.peak import Memory
from neuralpower.predict.prediction import Prediction
from neuralpower.predict.weights import scheme_asked
from neuralpower.profiling import NetworkProfile, profile
from neuralpower.profiling.settings import Keywords
from neuralpower.report.notebook import Panel, drawn
from neuralpower.trace.casts import cast_dtype
from neuralpower.trace.master_weights import check_masters
from neuralpower.trace.recipe import RECIPE, TRAINING, Recipe


class PredictOptions(TypedDict, total=False):
    """Rare options of a prediction."""

    seq_len: int | None  # tokens of each sample
    input_shape: Sequence[int] | None  # of one sample
    recipe: Recipe  # of training: optimizer, accumulation, checkpointing
    run: str | None  # eager, graph, compile or engine
    weights: str | None  # quantisation of weights: "int4:128", "fp8", "q4_k_m"
    autocast: str | None  # low precision that products are cast to: "bfloat16"
    lora: str | int | None  # training: rank of adapters, 16 or "16:q_proj,v_proj"
    layout: Layout  # over several devices
    devices: str | Cluster | None  # these devices, such as "8xh100-sxm", in place of a device
    nodes: int  # of these devices each
    plan: Mapping[str, Any] | None  # names of modules -> how tensor ranks share them, as torch's styles
    strict: bool  # whether a network without a plan is refused, instead of sharded by a rule


class SweepOptions(TypedDict, total=False):
    """The grid of a sweep, and the options of all its points."""

    batch_sizes: Sequence[int]  # samples; (1,) by default
    lengths: Sequence[int | None]  # tokens of each sample; None leaves them to the model
    dtypes: Sequence[str] | None  # of weights and inputs; None: a model's own, else float32
    phase: str | Phase | Sequence[Phase]  # of one name; they may differ in their tokens
    recipe: Recipe  # of training: optimizer, accumulation, checkpointing
    memory: str | float | None  # of the device, such as "24GB", or bytes; None: that of its spec sheet
    input_shape: Sequence[int] | None  # of one sample
    run: str | None  # eager, graph, compile or engine; None: the usual one of the phase
    weights: str | None  # quantisation of weights
    layouts: Sequence[Layout]  # over several devices, each a point of the grid
    devices: str | Cluster | None  # these devices
    nodes: int


FIELDS = [each.name for each in fields(Request) if each.name != "model"]  # fields of a request to `fit`
SIZES = ("batch_size", "dtype", "phase", *PredictOptions.__annotations__)  # options of `predict`
Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")
Model = str | Path | nn.Module | Callable[..., Any]


def _on_cpu(asked: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Make the function independent of the caller's default device."""

    @functools.wraps(asked)
    def answered(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        usual = torch.get_default_device().type == "cpu"  # setting a device slows every call down
        with contextlib.nullcontext() if usual else torch.device("cpu"):
            return asked(*args, **kwargs)

    return answered


@dataclass(frozen=True, eq=False, repr=False)
class LoadedPredictor:
    """A loaded predictor of a device; its methods run nothing on any device."""

    predictor: Predictor

    @property
    def name(self) -> str:
        """The predictor's name."""
        return self.predictor.name

    @property
    def device(self) -> str:
        """The device that it predicts."""
        return self.predictor.device

    def __repr__(self) -> str:
        """One line: its name, device, dtypes and phases."""
        p = self.predictor
        return f"LoadedPredictor({self.name}, on {self.device}: {', '.join(p.dtypes)}; {', '.join(p.phases)})"

    def _repr_html_(self) -> str:
        """A panel for notebooks."""
        p = self.predictor
        about = f"dtypes {', '.join(p.dtypes)}; phases {', '.join(p.phases)}"
        return drawn(Panel(self.name, f"predictor of {self.device}: {about}"))

    def on(self, device: str | Path) -> LoadedPredictor:
        """The same for one of its training devices, or for another by its spec sheet.

        Raises:
            PredictorError: it works only for one device, or not for that class of devices.
            InputError: the device is not known.
        """
        return LoadedPredictor(predictor_lookup.on(self.predictor, device)[0])

    @_on_cpu
    def predict(
        self,
        model: Model,
        inputs: Any = None,
        *,
        batch_size: int | None = None,
        dtype: str | torch.dtype | None = None,
        phase: str | Phase = FORWARD,
        **options: Unpack[PredictOptions],
    ) -> Prediction:
        """Latency, power, energy and memory of one pass.

        Args:
            model: a module, which is not changed; a function of the inputs, or one that builds a module; or
                a name, as on the command line.
            inputs: arguments of the forward: a tensor, a tuple of positions, a mapping of keywords; or the
                shape of a tensor, batch first: (1, 3, 224, 224). By default made from the model's
                configuration and the sizes below.
            batch_size: samples; by default the first size of the first tensor of `inputs` or of the model's
                inputs, or 1.
            dtype: of weights and of generated floating inputs; by default a module's own, or the dtype in
                which a model was published, or float32.
            phase: "forward", "training" or "backward"; or a language model's "prefill", "decode" or
                "generate"; sizes as in `Phase.decode(batch=8, context=4096)`.
            **options: `seq_len` (tokens of each sample), `input_shape` (of one sample), `recipe` (of
                training), `run` ("eager", "graph", "compile" or "engine"; by default "engine" for a language
                model's phases on a GPU, else "eager"), `weights` (their quantisation: "int4:128", "fp8",
                "q4_k_m"; by default the checkpoint's), `autocast` ("bfloat16": what products are cast to),
                `lora` (rank of adapters that are trained: 16, or "16:q_proj,v_proj"), `layout` (a `Layout`,
                over several devices), `devices` ("8xh100-sxm") and `nodes` (the cluster), `plan` and `strict`
                (how it is sharded).

        Raises:
            InputError: an unknown option, phase, way to run or quantisation; sizes in addition to `inputs`;
                sizes that the model does not accept; or `inputs` of another dtype than requested.
            ModelError: the model cannot be found, built or traced.
            PredictorError: a dtype or phase that was not trained.
        """
        check_options("option of predict", options, SIZES)
        recipe, layout = options.get("recipe", RECIPE), options.get("layout", ONE)
        _check(batch_size, recipe, layout)
        cluster = self._cluster(options)
        asked = phase if isinstance(phase, Phase) else Phase(phase)
        asked.check(PREDICTED)
        asked, way = (asked, FORWARD) if asked.name in PHASES else (replace(asked, name=FORWARD), asked.name)
        network = as_network(model)
        given, note = self._dtype(network, dtype)
        self.predictor.check(given, FORWARD if way == TRAINING else way)
        if way == TRAINING:
            check_masters(recipe.masters, given, lora=options.get("lora"))
        source = with_lora(resolve(network), options.get("lora"), way, layout)
        run = run_of(self.predictor, options.get("run"), asked, way)
        settings = {"plan": options.get("plan"), "strict": options.get("strict", False)}
        sharding = sharding_of(layout, cluster, run, way, **settings)
        sizes = _Sizes(batch_size, given, dtype is not None, asked, options, sharding)
        runs = _runs(source, inputs, sizes)
        question = question_of(
            self.predictor,
            phase=way,
            dtype=given,
            recipe=recipe,
            run=run,
            weights=scheme_asked(options.get("weights")),
            autocast=_cast(options),
            layout=layout,
            cluster=cluster,
        )
        with _explained(inputs):
            found = predict(runs, self.predictor, question, model=str(source.name))[0]
        return replace(found, assumptions=(*note, *found.assumptions)) if note else found

    def _cluster(self, options: Mapping[str, Any]) -> Cluster | None:
        """The devices that options name; raises InputError where they are not this predictor's."""
        cluster = cluster_in(options)
        if cluster is not None and cluster.spec.slug != self.device:
            raise InputError(
                f"devices {cluster}: this predictor is of {self.device}; "
                f"write neuralpower.load({cluster.spec.slug!r})"
            )
        return cluster

    def _dtype(self, model: Any, asked: str | torch.dtype | None) -> tuple[str, tuple[str, ...]]:
        """(dtype, notes): the requested dtype, else the model's; for a named model the nearest trained one.

        Raises ModelError.
        """
        if asked is not None:
            return _named(asked), ()
        own = _dtype(model)
        nearest = (
            predictor_lookup.nearest_dtype(self.predictor, own) if isinstance(model, (str, Path)) else own
        )
        if nearest == own:
            return own, ()
        lacks = f"which {self.name} does not know"
        return nearest, (f"{model} was published in {own}, {lacks}; predicted in {nearest}",)

    @_on_cpu
    def score(
        self, candidates: Iterable[str | Mapping[str, Any]], by: str = "latency", *, trust_code: bool = False
    ) -> list[Score]:
        """Score and rank candidates, in their given order (see `predict.explore.score`); raises InputError.

        `trust_code` lets candidates name functions and exported programs, which run code.
        """
        if isinstance(candidates, (str, Mapping)) or not isinstance(candidates, Iterable):
            must = "must be a list of JSON objects, or of lines with one object each"
            raise InputError(f"candidates {candidates!r:.40}: {must}")
        return score(candidates, self.predictor, by, trust_code=trust_code)

    def sweep(self, model: Model, **grid: Unpack[SweepOptions]) -> Sweep:
        """Predict a grid of sizes on this device; arguments and errors are those of `neuralpower.sweep`."""
        return swept(model, [self], **grid)

    def compare(self, a: Model, b: Model, **sizes: Any) -> Comparison:
        """Compare two models on this device: the ratio of their times; `sizes` as in `predict`."""
        return compared((self, a), (self, b), **sizes)

    @_on_cpu
    def fit(self, model: Model, memory: str | float | None = None, **request: Any) -> Fit:
        """Whether a model fits into the device's memory, or into a given one: "24GB", or bytes.

        `request` has the fields of `explore.fit.Request`; its `dtype` is by default a module's, or float32.

        Raises:
            InputError: the device's memory is unknown and none is given, or an unknown field of `Request`.
        """
        room = bytes_of(memory) if memory is not None else device_memory(self.predictor)
        if room is None:
            raise InputError(f"{self.device}: its memory is unknown; give memory, such as '24GB'")
        request = self._with_engine(request, room)
        check_options("field of a request", request, (*FIELDS, "devices", "nodes"))
        model = as_network(model)
        dtype = request.get("dtype") or _dtype(model)
        dtype = _named(dtype) if isinstance(dtype, (str, torch.dtype)) else dtype  # refused later
        cluster = self._cluster(request)
        request = {name: value for name, value in request.items() if name not in ("devices", "nodes")}
        request = {"platform": self.predictor.platform, "cluster": cluster, **request, "dtype": dtype}
        return replace(fit(Request(model, **request), room), device=self.device)

    def _with_engine(self, request: Mapping[str, Any], room_bytes: float) -> dict[str, Any]:
        """The request with the engine and its options as one field; raises InputError for options alone."""
        names = (*OPTIONS, "concurrency")
        options = {name: request[name] for name in names if request.get(name) is not None}
        rest = {name: value for name, value in request.items() if name not in names}
        engine = rest.get("engine")
        if engine is None and options:
            name, value = next(iter(options.items()))
            raise InputError(f"{name}={value!r} belongs to an engine; add engine='vllm'")
        if engine is None or isinstance(engine, EngineRequest):
            return rest
        own = None if "platform" in request else known_spec(self.predictor.device)
        board = board_of(own, room_bytes, self.device if own else "a device of this memory")
        count = options.pop("concurrency", None)
        return {**rest, "engine": EngineRequest(engine, options, count, board)}


def _cast(options: PredictOptions) -> torch.dtype | None:
    """The dtype of an autocast; None for no casts. Raises InputError."""
    text = options.get("autocast")
    return None if text is None else cast_dtype(str(text))


@dataclass(frozen=True)
class _Sizes:
    """The request for a model's inputs."""

    batch_size: int | None
    dtype: str
    checked: bool  # whether the caller named the dtype
    phase: Phase
    options: PredictOptions
    sharding: Sharding | None = None


def _runs(source: Source, inputs: Any, sizes: _Sizes) -> Asked:
    """The pass or the generation that runs; raises InputError and ModelError."""
    seq_len, shape = sizes.options.get("seq_len"), sizes.options.get("input_shape")
    if inputs is None:
        shape = tuple(shape) if isinstance(shape, Iterable) else shape
        request = InputRequest(int(sizes.batch_size or 1), seq_len, shape, torch_dtype(sizes.dtype))
        own = sizes.batch_size is None
        return asked_of(source, request, sizes.phase, own_batch=own, sharding=sizes.sharding)
    if seq_len is not None or shape is not None:
        both = "sizes and inputs are both given, but inputs have their own sizes"
        raise InputError(f"{both}; leave one of them out")
    if sizes.phase != Phase():
        both = f"inputs and the phase {sizes.phase.name} are both given"
        raise InputError(f"{both}, and it makes its own inputs; leave one out")
    whole = one_shape(inputs)
    if whole is not None:
        return _of_shape(source, whole, sizes)
    if sizes.sharding is not None and sizes.sharding.needed:
        raise InputError(
            "inputs and a layout with tensor or expert ranks are both given; a rank makes its own inputs: "
            "give a shape, or sizes"
        )
    inputs = with_tensors(inputs, torch_dtype(sizes.dtype))
    return given_to(source, inputs, sizes.dtype, sizes.batch_size, checked=sizes.checked)


@contextlib.contextmanager
def _explained(inputs: Any) -> Iterator[None]:
    """Explain how a shape was read, if a model does not run with it."""
    try:
        yield
    except ModelError as error:
        whole = one_shape(inputs)
        if whole is None:
            raise
        read = f"shape {whole} is a batch of {whole[0]}; for one sample of it write {(1, *whole)}"
        raise ModelError(f"{read}: {error}") from error


def _of_shape(source: Source, whole: tuple[int, ...], sizes: _Sizes) -> Asked:
    """The pass over one tensor of a shape; for a language model (samples, tokens). Raises InputError."""
    batch, *sample = whole
    if sizes.batch_size not in (None, batch):
        raise InputError(
            f"shape {whole} begins with a batch of {batch}, and batch_size is {sizes.batch_size}; "
            "leave batch_size out"
        )
    dtype = torch_dtype(sizes.dtype)
    if not sample:
        tensor = torch.ones(whole, dtype=dtype)
        return given_to(source, tensor, sizes.dtype, batch, checked=sizes.checked)
    return _first_taken(
        whole, dtype, lambda request: asked_of(source, request, sizes.phase, sharding=sizes.sharding)
    )


def _first_taken(
    whole: tuple[int, ...], dtype: torch.dtype, take: Callable[[InputRequest], Answer]
) -> Answer:
    """The result of `take` for a tensor of that shape, or for tokens if a model reads (samples, tokens)."""
    batch, *sample = whole
    try:
        return take(InputRequest(batch, None, tuple(sample) or None, dtype))
    except ModelError:
        raise
    except InputError:
        if len(sample) != 1:
            raise
        return take(InputRequest(batch, sample[0], None, dtype))


def compared(a: tuple[LoadedPredictor, Model], b: tuple[LoadedPredictor, Model], **sizes: Any) -> Comparison:
    """Compare two models, each on a predictor's device; labels name the device if there are two."""
    several = a[0].predictor is not b[0].predictor
    sides = []
    for loaded, model in (a, b):
        found = loaded.predict(model, **sizes)
        name = f"{found.model} on {loaded.name}" if several else found.model
        sides.append(Side(name, found, loaded.predictor))
    return compare(*sides)


@_on_cpu
def swept(model: Model, predictors: Sequence[LoadedPredictor], **grid: Unpack[SweepOptions]) -> Sweep:
    """Predict a grid of sizes with several predictors; raises what `neuralpower.sweep` raises."""
    check_options("option of sweep", grid, SweepOptions.__annotations__)
    asked: dict[str, Any] = {**grid}
    model, dtypes, memory = as_network(model), asked.pop("dtypes", None), asked.pop("memory", None)
    if dtypes is None:
        dtypes = (predictors[0]._dtype(model, None)[0],)
    elif isinstance(dtypes, (list, tuple)):  # other values are refused later
        dtypes = [_named(dtype) for dtype in dtypes]
    _check(None, asked.get("recipe", RECIPE), ONE)
    cluster = cluster_in(asked)
    for name in ("devices", "nodes"):
        asked.pop(name, None)
    phases = _phases(asked.pop("phase", FORWARD))
    return sweep_grid(
        model,
        [one.predictor for one in predictors],
        phases,
        dtypes=dtypes,
        memory_bytes=None if memory is None else bytes_of(memory),
        cluster=cluster,
        **asked,
    )


def _phases(asked: Any) -> list[Phase]:
    """One phase, or several of a list; raises InputError for what names none."""
    several = asked if isinstance(asked, (list, tuple)) else [asked]
    for phase in several:
        if not isinstance(phase, (str, Phase)):
            raise InputError(
                f"phase {phase!r:.40}: must be a name, or a Phase; write 'decode', or leave it out"
            )
    return [phase if isinstance(phase, Phase) else Phase(phase) for phase in several]


def profiled(model: Any, args: Any, kwargs: Mapping[str, Any] | None, settings: Keywords) -> NetworkProfile:
    """Profile a network here; the network can be a name, its inputs a shape.

    Raises what `neuralpower.profiling.profile` raises.
    """
    check_options("setting of a profile", settings, Keywords.__annotations__)
    model, whole = as_network(model), one_shape(args)
    if isinstance(model, (str, Path)) or (callable(model) and not isinstance(model, nn.Module)):
        return _profiled_source(resolve(model), whole, (args, kwargs), settings)
    if isinstance(model, nn.Module):
        dtype = torch_dtype(_dtype(model))
        args = torch.ones(whole, dtype=dtype) if whole is not None else with_tensors(args, dtype)
        kwargs = with_tensors(kwargs, dtype)
    return profile(model, args, kwargs, **settings)


def _profiled_source(
    source: Source, whole: tuple[int, ...] | None, given: tuple[Any, Any], settings: Keywords
) -> NetworkProfile:
    """Profile a network of a source, with inputs of a shape, given inputs, or its own."""
    dtype = torch_dtype(_dtype(source.name))
    place = str(settings.get("device") or "cpu") if settings.get("runtime", True) else "meta"
    module = source.build(place, dtype)
    if settings.get("phase") == TRAINING:
        module.train()
    args, kwargs = given
    if whole is not None or (not kwargs and isinstance(args, tuple) and not args):
        shape = whole or (source.batch_size(None),)
        made = _first_taken(shape, dtype, lambda request: source.inputs(module, request, device=place))
        args, kwargs = made.args, made.kwargs
    named: Keywords = {"name": source.name, **settings}
    return profile(module, with_tensors(args, dtype), with_tensors(kwargs, dtype), **named)


def load(name: str | Path | None = None) -> LoadedPredictor:
    """Load the predictor of a device, or one by its name or file; by default this machine's.

    Args:
        name: a device in any usual spelling ("h100", "RTX 4090"), same as `--device` on the command line;
            else a predictor's name, its file, or NAME@DEVICE.

    Raises:
        PredictorError: no predictor has that name, or the file cannot be used.
        InputError: several devices have that name.
    """
    return LoadedPredictor(predictor_lookup.all_known(name))


def chosen(
    device: str | Path | torch.device | None = None, predictor: str | Path | LoadedPredictor | None = None
) -> LoadedPredictor:
    """The predictor for a device, a predictor's name, both, or this machine; raises what `load` raises."""
    device = str(device) if isinstance(device, torch.device) else device
    if isinstance(predictor, LoadedPredictor):
        return predictor if device is None else predictor.on(device)
    for what, named in (("device", device), ("predictor", predictor)):
        if not isinstance(named, (str, Path, NoneType)):
            raise InputError(f"{what} {named!r:.40}: must be a name or a file; write 'h100', or leave it out")
    return _read(device, predictor, _stamps(device, predictor))


def _stamps(*named: str | Path | None) -> tuple[object, ...]:
    """A value that changes when a predictor's file changes."""
    own = (Path(one) for one in named if one is not None and is_file(one))
    files = [(str(file.resolve()), file.stat()) for file in (*known_predictors().values(), *own)]
    return tuple((path, about.st_mtime_ns, about.st_size) for path, about in files)


@functools.lru_cache(maxsize=8)
def _read(device: str | Path | None, predictor: str | Path | None, _: object) -> LoadedPredictor:
    """The same, cached until a predictor's file changes."""
    if device is None:
        return load(predictor)
    return LoadedPredictor(predictor_lookup.chosen(predictor, device))


def own_memory() -> float:
    """Bytes of this machine's memory; raises InputError if unknown."""
    found = read_cpu().memory_bytes
    if found is None:
        raise InputError("this machine's memory is unknown; give memory, such as '24GB'")
    return float(found)


def cluster_in(options: Mapping[str, Any]) -> Cluster | None:
    """The cluster of the options `devices` and `nodes`; raises InputError."""
    devices, nodes = options.get("devices"), options.get("nodes")
    if devices is None:
        if nodes is not None:
            raise InputError(f"nodes {nodes}: devices says what a node has; give devices='8xh100-sxm'")
        return None
    if isinstance(devices, Cluster):
        return devices
    if not isinstance(devices, str):
        raise InputError(f"devices {devices!r:.40}: must be a text, such as '8xh100-sxm'")
    return cluster_of(devices, 1 if nodes is None else nodes)


def device_in(device: Any, options: Mapping[str, Any]) -> Any:
    """The device that is named, or that of the option `devices`; raises InputError where both name one."""
    cluster = cluster_in(options)
    if cluster is None:
        return device
    if device is not None:
        raise InputError(f"device {device!r:.40} and devices both name a device; leave device out")
    return cluster.spec.slug


def fitted_target(
    device: Any, memory: str | float | None, request: Mapping[str, Any]
) -> tuple[Any, str | float | None, dict[str, Any]]:
    """(device, memory, request) where the device may be a memory, 24GB, or several devices, 8xh100-sxm.

    Several devices without a layout get the usual one. Raises InputError for two that contradict.
    """
    request = dict(request)
    if is_size(device):
        if memory is not None:
            raise InputError(f"device {device!r} and memory {memory!r} both are a size; leave one out")
        return None, device, request
    if is_cluster(device):
        if request.get("devices") is not None:
            device_in(device, request)  # raises: both name devices
        device, request["devices"] = None, device
    cluster = cluster_in(request)
    if cluster is not None and request.get("layout") is None:
        request["layout"] = cluster.usual_layout(request.get("phase") == TRAINING)
    return device, memory, request


@_on_cpu
def memory(model: Model, inputs: Any, device: Any, request: Mapping[str, Any]) -> Memory:
    """The memory of one pass or step on a device, without its time; see `neuralpower.memory`."""
    device, size, request = fitted_target(device, None, request)
    check_options("field of a request", request, (*FIELDS, "devices", "nodes"))
    cluster, device = cluster_in(request), device_in(device, request)
    platform = _platform(device) if size is None else PLATFORMS["nvidia"]
    asked = {name: value for name, value in request.items() if name not in ("devices", "nodes")}
    if (whole := one_shape(inputs)) is not None:
        asked |= {"batch_size": whole[0], "input_shape": whole[1:]}
    elif inputs is not None:
        must = "must be a shape, batch first, such as (8, 3, 224, 224)"
        raise InputError(f"inputs {inputs!r:.40}: {must}")
    model = as_network(model)
    dtype = asked.get("dtype") or _dtype(model)
    dtype = _named(dtype) if isinstance(dtype, (str, torch.dtype)) else dtype
    return memory_of(Request(model, **{"platform": platform, "cluster": cluster, **asked, "dtype": dtype}))


def _platform(device: str | Path | None) -> Platform:
    """The platform of a device; raises InputError."""
    named = target(device)
    return CPU if named is None else platform_of(spec_of(str(named)).hardware())


def _check(batch_size: int | None, recipe: Any, layout: Any) -> None:
    """Raise InputError for an impossible batch size, recipe or layout."""
    if not isinstance(layout, Layout):
        raise InputError(f"layout {layout!r:.40}: must be a Layout, such as neuralpower.Layout(tensor=8)")
    if batch_size is not None and not is_count(batch_size):
        raise InputError(f"batch size {batch_size}: must be a whole number, 1 or more; choose 1")
    if not isinstance(recipe, Recipe):
        raise InputError(f"recipe {recipe!r:.40}: must be a Recipe, such as neuralpower.Recipe('adam')")


def _named(dtype: str | torch.dtype) -> str:
    """The full name of a dtype: "bfloat16" for "bf16" and torch.bfloat16."""
    return full_name(str(dtype).removeprefix("torch."))


def _dtype(model: Any) -> str:
    """The dtype of a module's weights, or in which a model of the catalogue or the hub was published."""
    if isinstance(model, (str, Path)):
        return published_dtype(str(model)) or "float32"
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    return next((str(w.dtype).removeprefix("torch.") for w in weights if w.is_floating_point()), "float32")
