"""A predictor that is loaded for many calls: `neuralpower.load(NAME)`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from typing_extensions import Unpack

from neuralpower.api.inputs import with_inputs
from neuralpower.api.predicting import predicted
from neuralpower.api.profiled import apart
from neuralpower.ask import texts
from neuralpower.ask.keywords import documented, keywords
from neuralpower.ask.options import Fitting, Laying, Predicting, Sweeping
from neuralpower.ask.spread import Given, cluster_in, device_in, fitted_in
from neuralpower.devices import host
from neuralpower.devices.cluster import Cluster
from neuralpower.devices.hardware import Hardware
from neuralpower.devices.names import bytes_of, reading
from neuralpower.devices.spec import spec_of
from neuralpower.errors import InputError
from neuralpower.files.paths import is_file
from neuralpower.learn.files import predictor_lookup
from neuralpower.learn.files.predictor_files import known_predictors
from neuralpower.learn.files.predictor_json import check_places
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.settings import all_set
from neuralpower.measure import target
from neuralpower.networks.libraries.callables import as_network
from neuralpower.platforms import CPU, PLATFORMS, Platform, platform_of
from neuralpower.prediction.case import device_memory
from neuralpower.prediction.costs.footprint import terms_in
from neuralpower.prediction.costs.prices import price_of
from neuralpower.prediction.explore.compare import Comparison, Side, compare
from neuralpower.prediction.explore.layouts import Layouts, Wanted, layouts
from neuralpower.prediction.fits.fit import Fit, assumed, check_phase, fit
from neuralpower.prediction.fits.fit import memory as memory_of
from neuralpower.prediction.memory.engines import EngineRequest
from neuralpower.prediction.memory.over_time import Lived
from neuralpower.prediction.memory.peak import Memory
from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.request import Request, dtype_for, engine_in, phase_in, request_of, run_of
from neuralpower.report.cards import write_predictor
from neuralpower.trace.question import ENGINE

if TYPE_CHECKING:
    from neuralpower.prediction.evaluation.evaluate import Evaluation
    from neuralpower.prediction.explore.score import Score
    from neuralpower.prediction.explore.sweep import Sweep

Model = str | Path | nn.Module | Callable[..., Any]
DEGREED = ("batch_size", "schedule", "sequence_parallel")  # of each layout


@dataclass(frozen=True, eq=False, repr=False)
class LoadedPredictor:
    """A loaded predictor of a device; its methods run nothing on any device."""

    predictor: Predictor

    @property
    def name(self) -> str:
        return self.predictor.name

    @property
    def device(self) -> str:
        return self.predictor.device

    def __repr__(self) -> str:
        """One line: its name, device, dtypes and phases."""
        p = self.predictor
        return f"LoadedPredictor({self.name}, on {self.device}: {', '.join(p.dtypes)}; {', '.join(p.phases)})"

    def _repr_html_(self) -> str:
        from neuralpower.report.shown import Panel, drawn

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

    def written(self, out: str | Path | None) -> LoadedPredictor:
        """The same, written to a file and under its name; unchanged for None. Raises DatasetError."""
        if out is None:
            return self
        check_places(Path(out))
        write_predictor(self.predictor, Path(out))
        return load(out)

    @apart
    @documented(Predicting, "predict")
    def predict(self, model: Model, inputs: Any = None, **options: Unpack[Predicting]) -> Prediction:
        """Latency, power, energy and memory of one pass.

        Args:
            model: a module, which is not changed; a function of the inputs, or one that builds a module; or
                a name, as on the command line.
            inputs: arguments of the forward: a tensor, a tuple of positions, a mapping of keywords; or the
                shape of a tensor, batch first: (1, 3, 224, 224). By default made from the model's
                configuration and the sizes below.
            **options: as on the command line; a phase can also be a `Phase` with its sizes.
            {options}

        Raises:
            InputError: an unknown option, phase, way to run or quantisation; sizes in addition to `inputs`;
                sizes that the model does not accept; or `inputs` of another dtype than requested.
            ModelError: the model cannot be found, built or traced.
            PredictorError: a dtype or phase that was not trained.
            CoverageError: the coverage is below `min_coverage`.
        """
        given = keywords("option of predict", options, Predicting)
        self.check_devices(cluster_in(given))
        network = model if isinstance(model, str) else as_network(model)
        return predicted(self.predictor, network, inputs, given)

    @apart
    def score(
        self, candidates: Iterable[str | Mapping[str, Any]], by: str = "latency", *, trust_code: bool = False
    ) -> list[Score]:
        """Score and rank candidates, in their given order (see `predict.explore.score`); raises InputError.

        `trust_code` lets candidates name functions and exported programs, which run code.
        """
        from neuralpower.prediction.explore.score import score

        if isinstance(candidates, (str, Mapping)) or not isinstance(candidates, Iterable):
            must = "must be a list of JSON objects, or of lines with one object each"
            raise InputError(f"candidates {candidates!r:.40}: {must}")
        return score(candidates, self.predictor, by, trust_code=trust_code)

    def sweep(self, model: Model, **grid: Unpack[Sweeping]) -> Sweep:
        """Predict a grid of sizes on this device; arguments and errors are those of `neuralpower.sweep`."""
        return swept(model, [self], keywords("option of sweep", grid, Sweeping, "sweep"))

    def compare(self, a: Model, b: Model, inputs: Any = None, **options: Unpack[Predicting]) -> Comparison:
        """Compare two models on this device: the ratio of their times; `options` as in `predict`."""
        return compared((self, a), (self, b), inputs, options)

    @apart
    def fit(self, model: Model, memory: str | float | None = None, **options: Unpack[Fitting]) -> Fit:
        """Whether a model fits into the device's memory, or into a given one: "24GB", or bytes.

        Arguments and errors are those of `neuralpower.fit`.
        """
        given = keywords("field of a request", options, Fitting)
        self.check_devices(cluster_in(given))
        return fitted(model, {**given, "memory": memory}, self.predictor)[0]

    def parallel(self, model: Model, **options: Unpack[Laying]) -> Layouts:
        """All layouts of a model over devices of this kind; arguments are those of `neuralpower.parallel`."""
        return laid(model, self.predictor, keywords("option of parallel", options, Laying))

    def check_devices(self, cluster: Cluster | None) -> None:
        """Raise InputError for devices that are not this predictor's."""
        if cluster is not None and cluster.spec.slug != self.device:
            raise InputError(
                f"devices {cluster}: this predictor is of {self.device}; "
                f"write neuralpower.load({cluster.spec.slug!r})"
            )


def evaluated(models: Sequence[Model], predictor: Predictor, rounds: int, options: Given) -> list[Evaluation]:
    """Networks predicted, and measured on this CPU; raises InputError."""
    from neuralpower.prediction.evaluation.evaluate import evaluate, metered

    requests = []
    for network in map(as_network, models):
        dtype, _ = dtype_for(network, options.get("dtype"), predictor)
        requests.append(request_of(network, options, dtype=dtype))
        requests[-1].check(predictor)
    with metered("cpu", bool(options.get("energy"))) as meter:
        return evaluate(requests, predictor, rounds=rounds, threads=host.read_cpu().cores, meter=meter)


def compared(
    a: tuple[LoadedPredictor, Model], b: tuple[LoadedPredictor, Model], inputs: Any, options: Given
) -> Comparison:
    """Compare two models, each on a predictor's device; labels name the device if there are two."""
    several = a[0].predictor is not b[0].predictor
    sides = []
    for loaded, model in (a, b):
        found = loaded.predict(model, inputs, **options)
        name = f"{found.model} on {loaded.name}" if several else found.model
        sides.append(Side(name, found, loaded.predictor))
    return compare(*sides)


@apart
def swept(model: Model, predictors: Sequence[LoadedPredictor], options: Given) -> Sweep:
    """Predict a grid of sizes with several predictors; raises what `neuralpower.sweep` raises."""
    from neuralpower.prediction.explore.phases import grids_of, sweep_grid
    from neuralpower.prediction.explore.sweep import joined

    (network, options) = with_inputs(model, options)
    set_as = (options.get("power_limit"), options.get("clock"))
    known = [one for loaded in predictors for one in all_set(loaded.predictor, *set_as)]
    request, grids, served = grids_of(network, options, known)
    memory = options.get("memory")
    found = joined([sweep_grid(request, those, lists) for lists, those in grids])
    served = (*terms_in(options).warnings, *served)
    return replace(found, notes=(*served, *found.notes, *filter(None, [memory and reading(memory)])))


def fitted(
    model: Model,
    options: Given,
    predictor: Predictor | None = None,
    seen: Callable[[Lived], None] | None = None,
) -> tuple[Fit, Request]:
    """Whether a network fits, and the request; `seen` as in `explore.fit.fit`. Raises InputError."""
    model, options = with_inputs(model, options)
    options, note = fitted_in(options, model)
    memory = options.get("memory")
    room, platform, name, hardware = _room(device_in(options), memory, predictor)
    request, served = _fitted_request(model, options, platform, hardware, engine_in(options, name, room))
    found = fit(request, room, seen)
    said = filter(None, [memory and reading(memory), note])
    return replace(found, notes=(*served, *found.notes, *said), device=name), request


def _fitted_request(
    model: Model,
    options: Given,
    platform: Platform,
    hardware: Hardware | None,
    engine: EngineRequest | None = None,
) -> tuple[Request, tuple[str, ...]]:
    """The request on a platform and a device, if one is known, and notes on its dtype; raises InputError."""
    network = as_network(model)
    check_phase(options)
    run = run_of(options.get("run"), phase_in(options).name, platform)
    by = None if engine is None else engine.engine
    dtype, notes = dtype_for(network, options.get("dtype"), None, ENGINE if by else run, by, hardware)
    more: dict[str, Any] = {"dtype": dtype, "platform": platform, "engine": engine}
    request = replace(request_of(network, options, **more), run=run)
    lengths = request.phase.lengths
    batch = request.phase.batch or (request.batch_size if lengths is None else len(lengths))
    return replace(request, batch_size=batch), notes


def _room(
    device: Any, memory: str | float | None, predictor: Predictor | None
) -> tuple[float, Platform, str, Hardware | None]:
    """(bytes, platform, name, peaks) of what a model is to fit into; raises InputError."""
    hardware: Hardware | None = None
    size = None if memory is None else bytes_of(memory)
    own: float | None
    if predictor is not None and device is None:
        own, platform, name = device_memory(predictor), predictor.platform, predictor.device
        hardware = predictor.hardware
    elif device is None and memory is not None:
        platform, name = assumed(memory)
        return bytes_of(memory), platform, f"{name} (assumed; this machine: --device cpu)", None
    elif (named := target(device)) is None:
        own, platform, name = (host.own_memory() if size is None else None), CPU, host.read_cpu().name
        name = name if size is None else f"{platform.called} of {memory}"
    else:
        spec = spec_of(str(named))
        hardware = spec.hardware()
        own, platform, name = spec.get("memory_bytes"), platform_of(hardware), spec.name
    room = own if size is None else size
    if room is None:
        how = (
            "not known; give --memory, such as 24GB"
            if predictor is None
            else "unknown; give memory, such as '24GB'"
        )
        raise InputError(f"{name}: its memory is {how}")
    return float(int(room)) if size is None else room, platform, name, hardware


def laid(model: Model, predictor: Predictor, options: Given) -> Layouts:
    """All layouts of a network over the devices of the options, ranked; raises InputError."""
    network, sizes = as_network(model), texts.counts(options.get("batch_size") or 1, "batch size")
    for batch in sizes:
        if batch < 1:
            raise InputError(f"batch size {batch}: must be 1 or more; choose --batch-size 1")
    if options.get("accumulation", 1) != 1:
        raise InputError(
            f"--accumulation {options['accumulation']}: micro-batches follow from --global-batch; "
            "leave it out"
        )
    one = {name: value for name, value in options.items() if name not in DEGREED}
    run = run_of(options.get("run"), phase_in(one).name, predictor.platform)
    dtype, notes = dtype_for(network, options.get("dtype"), predictor, run)
    request = request_of(network, one, dtype=dtype, batch_size=1)
    if request.phase.lengths is not None:
        raise InputError("--lengths: layouts are ranked for equal requests; give --context or --prompt")
    terms = terms_in(options)
    price = terms.price
    found = layouts(
        Wanted(
            request,
            tuple(sizes),
            options.get("global_batch"),
            bool(options.get("sequence_parallel")),
            options.get("schedule", "1f1b"),
            options.get("by", "throughput"),
            None if price is None else price_of(price, terms.currency, predictor.device),
            replace(terms, price=None),
        ),
        predictor,
    )
    return replace(found, notes=(*notes, *terms.warnings, *found.notes))


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
def memory(model: Model, inputs: Any, options: Given) -> Memory:
    """The memory of one pass or step on a device, without its time; see `neuralpower.memory`."""
    model, options = with_inputs(model, {**options, "inputs": inputs})
    options, _ = fitted_in(options, model)
    device = device_in(options)
    sized = device is None and options.get("memory") is not None
    named = None if sized else target(device)
    platform, hardware = PLATFORMS["nvidia"] if sized else CPU, None
    if named is not None:
        _, platform, _, hardware = _room(device, None, None)
    engine = engine_in(options, str(device), 0.0)
    return memory_of(_fitted_request(model, options, platform, hardware, engine)[0])
