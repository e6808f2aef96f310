"""A predictor that is loaded for many calls: `neuralpower.load(NAME)`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, cast

import torch
from torch import nn
from typing_extensions import Unpack

from neuralpower.api.apart import apart
from neuralpower.api.inputs import Sizes, dtype_of, explained, named_dtype, runs_of
from neuralpower.api.options import (
    FIELDS,
    SIZES,
    PredictOptions,
    SweepOptions,
    cast_of,
    check_options,
    check_settings,
    cluster_in,
    device_in,
    fitted_target,
    phases_of,
    renamed,
)
from neuralpower.devices.cluster import Cluster
from neuralpower.devices.layout import ONE
from neuralpower.devices.memory_size import bytes_of
from neuralpower.devices.spec import known_spec, spec_of
from neuralpower.errors import InputError, check_share
from neuralpower.files.paths import is_file
from neuralpower.layers.base import FORWARD
from neuralpower.learn import predictor_lookup
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.predictor_files import known_predictors
from neuralpower.measure import target
from neuralpower.networks.adapters import with_lora
from neuralpower.networks.callables import as_network
from neuralpower.networks.given_shapes import one_shape
from neuralpower.networks.phases import PHASES, PREDICTED, Phase
from neuralpower.networks.requests import Asked
from neuralpower.networks.sources import resolve
from neuralpower.platforms import CPU, PLATFORMS, Platform, platform_of
from neuralpower.prediction.case import device_memory, predict, run_of, sharding_of
from neuralpower.prediction.compose import question_of
from neuralpower.prediction.explore.compare import Comparison, Side, compare
from neuralpower.prediction.explore.fit import Fit, fit
from neuralpower.prediction.explore.fit import memory as memory_of
from neuralpower.prediction.explore.fit_request import Request
from neuralpower.prediction.explore.phases import sweep_grid
from neuralpower.prediction.explore.score import Score, score
from neuralpower.prediction.explore.sweep import Sweep
from neuralpower.prediction.memory.engines import OPTIONS, EngineRequest, board_of
from neuralpower.prediction.memory.peak import Memory
from neuralpower.prediction.prediction import Prediction, check_coverage
from neuralpower.prediction.served_type import check_served_by, served_type
from neuralpower.prediction.weights import scheme_asked
from neuralpower.report.shown import Panel, drawn
from neuralpower.trace.master_weights import check_masters
from neuralpower.trace.recipe import RECIPE, TRAINING

Model = str | Path | nn.Module | Callable[..., Any]


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

    @apart
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
                model's phases on a GPU, else "eager"), `engine` ("vllm" by default, "sglang" or "llama.cpp":
                whose rule says the type of a checkpoint), `weights` (their quantisation: "int4:128", "fp8",
                "q4_k_m"; by default the checkpoint's), `autocast` ("bfloat16": what products are cast to),
                `lora` (rank of adapters that are trained: 16, or "16:q_proj,v_proj"), `layout` (a `Layout`,
                over several devices), `devices` ("8xh100-sxm") and `nodes` (the cluster), `plan` and
                `require_plan` (how it is sharded), `min_coverage` (the least coverage, 0 to 1).

        Raises:
            InputError: an unknown option, phase, way to run or quantisation; sizes in addition to `inputs`;
                sizes that the model does not accept; or `inputs` of another dtype than requested.
            ModelError: the model cannot be found, built or traced.
            PredictorError: a dtype or phase that was not trained.
            CoverageError: the coverage is below `min_coverage`.
        """
        options = cast(PredictOptions, renamed(options, SIZES))
        check_options("option of predict", options, SIZES)
        check_share("min_coverage", options.get("min_coverage"), "min_coverage=0.95")
        recipe, layout = options.get("recipe", RECIPE), options.get("layout", ONE)
        check_settings(batch_size, recipe, layout)
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
        run, engine = run_of(self.predictor, options.get("run"), asked, way), options.get("engine")
        check_served_by(engine, run)
        if dtype is None:
            given, served = served_type(network, given, run, self.predictor, engine)
            note = (*note, *served)
        settings = {"plan": options.get("plan"), "require_plan": options.get("require_plan", False)}
        sharding = sharding_of(layout, cluster, run, way, **settings)
        sizes = Sizes(batch_size, given, dtype is not None, asked, options, sharding, way == TRAINING)
        runs = runs_of(source, inputs, sizes)
        question = question_of(
            self.predictor,
            phase=way,
            dtype=given,
            recipe=recipe,
            run=run,
            weights=scheme_asked(options.get("weights")),
            autocast=cast_of(options),
            layout=layout,
            cluster=cluster,
        )

        def predicted(runs: Asked) -> Prediction:
            return predict(runs, self.predictor, question, model=str(source.name))[0]

        with explained(inputs, lambda shape: predicted(runs_of(source, shape, sizes))):
            found = predicted(runs)
        check_coverage(found, options.get("min_coverage"), "min_coverage")
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
            return named_dtype(asked), ()
        own = dtype_of(model)
        nearest = (
            predictor_lookup.nearest_dtype(self.predictor, own) if isinstance(model, (str, Path)) else own
        )
        if nearest == own:
            return own, ()
        lacks = f"which {self.name} does not know"
        return nearest, (f"{model} was published in {own}, {lacks}; predicted in {nearest}",)

    @apart
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

    @apart
    def fit(self, model: Model, memory: str | float | None = None, **request: Any) -> Fit:
        """Whether a model fits into the device's memory, or into a given one: "24GB", or bytes.

        `request` has the fields of `fit_request.Request`; its `dtype` is by default a module's, or float32.

        Raises:
            InputError: the device's memory is unknown and none is given, or an unknown field of `Request`.
        """
        room = bytes_of(memory) if memory is not None else device_memory(self.predictor)
        if room is None:
            raise InputError(f"{self.device}: its memory is unknown; give memory, such as '24GB'")
        request = self._with_engine(renamed(request, FIELDS), room)
        check_options("field of a request", request, (*FIELDS, "devices", "nodes"))
        model = as_network(model)
        dtype = request.get("dtype") or dtype_of(model)
        dtype = named_dtype(dtype) if isinstance(dtype, (str, torch.dtype)) else dtype  # refused later
        cluster = self._cluster(request)
        request = {name: value for name, value in request.items() if name not in ("devices", "nodes")}
        published = request.get("dtype") is None
        request = {"platform": self.predictor.platform, "cluster": cluster, **request, "dtype": dtype}
        request["published"] = published
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


def compared(a: tuple[LoadedPredictor, Model], b: tuple[LoadedPredictor, Model], **sizes: Any) -> Comparison:
    """Compare two models, each on a predictor's device; labels name the device if there are two."""
    several = a[0].predictor is not b[0].predictor
    sides = []
    for loaded, model in (a, b):
        found = loaded.predict(model, **sizes)
        name = f"{found.model} on {loaded.name}" if several else found.model
        sides.append(Side(name, found, loaded.predictor))
    return compare(*sides)


@apart
def swept(model: Model, predictors: Sequence[LoadedPredictor], **grid: Unpack[SweepOptions]) -> Sweep:
    """Predict a grid of sizes with several predictors; raises what `neuralpower.sweep` raises."""
    asked = renamed(grid, SweepOptions.__annotations__)
    check_options("option of sweep", asked, SweepOptions.__annotations__)
    model, dtypes, memory = as_network(model), asked.pop("dtypes", None), asked.pop("memory", None)
    served: tuple[str, ...] = ()
    phases = phases_of(asked.pop("phase", FORWARD))
    if dtypes is None:
        first = predictors[0]
        usual = first._dtype(model, None)[0]
        if phases:  # none are refused later
            run = run_of(first.predictor, asked.get("run"), phases[0])
            usual, served = served_type(model, usual, run, first.predictor)
        dtypes = (usual,)
    elif isinstance(dtypes, (list, tuple)):  # other values are refused later
        dtypes = [named_dtype(dtype) for dtype in dtypes]
    check_settings(None, asked.get("recipe", RECIPE), ONE)
    cluster = cluster_in(asked)
    for name in ("devices", "nodes"):
        asked.pop(name, None)
    found = sweep_grid(
        model,
        [one.predictor for one in predictors],
        phases,
        dtypes=dtypes,
        lengths=asked.pop("seq_lens", (None,)),
        memory_bytes=None if memory is None else bytes_of(memory),
        cluster=cluster,
        **asked,
    )
    return replace(found, notes=(*served, *found.notes))


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


@apart
def memory(model: Model, inputs: Any, device: Any, request: Mapping[str, Any]) -> Memory:
    """The memory of one pass or step on a device, without its time; see `neuralpower.memory`."""
    device, size, request = fitted_target(device, None, renamed(request, FIELDS))
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
    dtype = asked.get("dtype") or dtype_of(model)
    dtype = named_dtype(dtype) if isinstance(dtype, (str, torch.dtype)) else dtype
    return memory_of(Request(model, **{"platform": platform, "cluster": cluster, **asked, "dtype": dtype}))


def _platform(device: str | Path | None) -> Platform:
    """The platform of a device; raises InputError."""
    named = target(device)
    return CPU if named is None else platform_of(spec_of(str(named)).hardware())
