"""The functions of `neuralpower`. Importing them imports neither torch nor a predictor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from neuralpower.ask.keywords import documented, keywords
from neuralpower.ask.options import (
    Evaluating,
    Explaining,
    Fitting,
    Gating,
    Laying,
    Planning,
    Predicting,
    Serving,
    Standings,
    Sweeping,
)
from neuralpower.ask.spread import device_in
from neuralpower.errors import InputError

if TYPE_CHECKING:
    from torch import nn
    from typing_extensions import Unpack

    from neuralpower.api.loaded import LoadedPredictor
    from neuralpower.api.ranked import Explaining as Block
    from neuralpower.data.dataset import Dataset
    from neuralpower.prediction.evaluation.evaluate import Evaluation
    from neuralpower.prediction.explore.compare import Comparison
    from neuralpower.prediction.explore.gate import Gate
    from neuralpower.prediction.explore.layouts import Layouts
    from neuralpower.prediction.explore.rank import Ranking
    from neuralpower.prediction.explore.score import Score
    from neuralpower.prediction.explore.sweep import Sweep
    from neuralpower.prediction.fits.fit import Fit
    from neuralpower.prediction.memory.peak import Memory
    from neuralpower.prediction.prediction import Prediction
    from neuralpower.profiling import Keywords, NetworkProfile
    from neuralpower.report.results.inspection import Check
    from neuralpower.serving.plan import Plan
    from neuralpower.serving.traffic import Traffic
    from neuralpower.traces.explanation import Explanation

    Model = str | Path | nn.Module | Callable[..., Any]
    Device = str | Path
    Named = str | Path | LoadedPredictor


@documented(Predicting, "predict")
def predict(
    model: Model,
    inputs: Any = None,
    *,
    device: Device | None = None,
    predictor: Named | None = None,
    **options: Unpack[Predicting],
) -> Prediction:
    """Predict latency, power, energy and memory of a network on a device, without running it.

    Args:
        model: an nn.Module, a function, or a name ("zoo:resnet18", "llama-3.1-8b", "hf:ORG/NAME").
        inputs: a tensor, a tuple or mapping of them, or a shape, batch first: (1, 3, 224, 224).
        device: "h100", "RTX 4090", ...; by default this machine's CPU.
        predictor: instead of a device, or with one: a name, a file, or the result of `load`.
        **options: as on the command line:
            {options}

    Raises:
        InputError: an impossible or unknown argument; ModelError and PredictorError are subclasses.

    Example:
        >>> import neuralpower, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU())
        >>> prediction = neuralpower.predict(model, (32, 64), device="h100")
        >>> prediction.batch_size, prediction.parameters, prediction.device
        (32, 16640, 'nvidia-h100-sxm5-80gb')
        >>> prediction.runtime_s.low < prediction.runtime_s.value < prediction.runtime_s.high
        True
    """
    from neuralpower.api.loaded import chosen

    loaded = chosen(device_in({**options, "device": device}), predictor)
    return loaded.predict(model, inputs, **options)


def compare(
    a: Model,
    b: Model | None = None,
    *,
    device: Device | Sequence[Device] | None = None,
    predictor: Named | None = None,
    inputs: Any = None,
    **options: Unpack[Predicting],
) -> Comparison:
    """Compare two networks on a device, or one network on two devices: the ratio of their times.

    Args:
        a: same as the model of `predict`.
        b: the other network; leave it out to compare two devices.
        device: for both, or a pair of devices, the first for `a`.
        predictor: same as in `predict`.
        inputs: same as in `predict`.
        **options: same as in `predict`: `batch_size`, `dtype`, `phase`, ...

    Raises:
        InputError: same as `predict`; or neither two networks nor two devices are given.

    Example:
        >>> import neuralpower
        >>> neuralpower.compare("zoo:resnet18", "zoo:resnet34", device="h100").a_faster > 0.9
        True
        >>> neuralpower.compare("zoo:resnet18", device=("h100", "t4"), batch_size=8).ratio.value < 1
        True
    """
    from neuralpower.api.loaded import chosen, compared

    pair = _several(device_in({**options, "device": device})) or (None,)
    if len(pair) > 2 or (b is None and len(pair) < 2):
        raise InputError(
            "compare needs two networks, or one on two devices: device=('h100', 'a100-sxm4-80gb')"
        )
    first = chosen(pair[0], predictor)
    second = first if len(pair) == 1 else chosen(pair[1], predictor)
    return compared((first, a), (second, a if b is None else b), inputs, options)


@documented(Sweeping, "sweep")
def sweep(
    model: Model,
    *,
    inputs: Any = None,
    device: Device | Sequence[Device] | None = None,
    predictor: Named | None = None,
    **grid: Unpack[Sweeping],
) -> Sweep:
    """Predict a grid of batch sizes, lengths and dtypes on one device or several, from few traces.

    Args:
        model: as in `predict`.
        inputs: as in `predict`; their first side is the batch.
        device: one, or a list of them.
        predictor: as in `predict`.
        **grid: as on the command line; lists of numbers can be texts, such as "1:8":
            {options}

    Raises:
        InputError: as `predict`; sizes that are not a list, or phases of several names.
        PredictorError: a dtype or a phase that was not trained.

    Example:
        >>> import neuralpower
        >>> grid = neuralpower.sweep("zoo:deep_mnist", device="h100", batch_size=(1, 2, 4))
        >>> [(point.batch_size, point.fits) for point in grid.points]
        [(1, True), (2, True), (4, True)]
    """
    from neuralpower.api.loaded import chosen, swept

    several = _several(device_in({**grid, "device": device})) or (None,)
    loaded = [chosen(one, predictor) for one in several]
    given = keywords("option of sweep", grid, Sweeping, "sweep")
    return swept(model, loaded, {**given, "inputs": inputs})


@documented(Fitting, "fit")
def fit(
    model: Model,
    memory: str | float | None = None,
    *,
    inputs: Any = None,
    device: Device | None = None,
    predictor: Named | None = None,
    **options: Unpack[Fitting],
) -> Fit:
    """Find whether a network fits into a device's memory, and the largest batch and context that do.

    Args:
        model: same as in `predict`.
        memory: instead of the device's: "24GB", "80GiB", or bytes.
        inputs: same as in `predict`; their first side is the batch, whose largest size is sought.
        device: same as in `predict`, or a size ("24GB"), or several devices ("8xh100-sxm"); by default this
            machine, or an NVIDIA GPU if only `memory` is given.
        predictor: same as in `predict`.
        **options: as on the command line:
            {options}

    Raises:
        InputError: same as `predict`; or the device's memory is unknown.

    Example:
        >>> import neuralpower
        >>> found = neuralpower.fit("zoo:resnet18", device="h100", batch_size=8)
        >>> found.fits, found.largest_batch > 100
        (True, True)
        >>> found.verdict, found.probability > 0.98
        ('fits', True)
    """
    from neuralpower.api.loaded import chosen, fitted

    given = {**keywords("field of a request", options, Fitting), "inputs": inputs}
    trained = None if predictor is None else chosen(None, predictor).predictor
    return fitted(model, {**given, "device": device, "memory": memory}, trained)[0]


def memory(
    model: Model,
    inputs: Any = None,
    *,
    device: Device | None = None,
    **options: Unpack[Fitting],
) -> Memory:
    """Predict the peak memory alone, by part: faster than `predict`, since no times are composed.

    Args:
        model: same as in `predict`.
        inputs: same as in `predict`, such as a shape, batch first: (8, 3, 224, 224).
        device: same as in `fit`.
        **options: same as in `fit`; the phase is by default "training".

    Raises:
        InputError: same as `fit`.

    Example:
        >>> import neuralpower
        >>> found = neuralpower.memory("zoo:resnet18", (8, 3, 224, 224), device="h100")
        >>> found.low_bytes < found.value_bytes < found.high_bytes
        True
    """
    from neuralpower.api import loaded

    given = keywords("field of a request", options, Fitting)
    return loaded.memory(model, inputs, {"phase": "training", **given, "device": device})


def score(
    candidates: Iterable[str | Mapping[str, Any]],
    *,
    device: Device | None = None,
    predictor: Named | None = None,
    by: str = "latency",
    trust_code: bool = False,
) -> list[Score]:
    """Rank many candidates, each a model with changes, or a list of layers.

    Args:
        candidates: JSON objects, or lines with one object each.
        device: same as in `predict`.
        predictor: same as in `predict`.
        by: "latency", "energy" or "memory".
        trust_code: whether candidates can be functions and exported programs, which run code.

    Raises:
        InputError: candidates that are not a list; an unknown `by`.

    Example:
        >>> import neuralpower
        >>> row = {"kind": "linear", "rows": 128, "in_features": 64, "bias": True}
        >>> widths = [{"layers": [{**row, "out_features": width}]} for width in (64, 4096)]
        >>> [one.rank for one in neuralpower.score(widths, device="h100")]
        [1, 2]
    """
    from neuralpower.api.loaded import chosen

    return chosen(device, predictor).score(candidates, by, trust_code=trust_code)


@documented(Laying, "parallel")
def parallel(model: Model, *, predictor: Named | None = None, **options: Unpack[Laying]) -> Layouts:
    """Rank all ways to spread a network over the devices of a cluster.

    Args:
        model: same as in `predict`.
        predictor: same as in `predict`; by default that of the devices.
        **options: as on the command line; `devices` is required:
            {options}

    Raises:
        InputError: same as `predict`; or no devices are named.

    Example:
        >>> import neuralpower
        >>> gpt2 = "transformers:gpt2"
        >>> found = neuralpower.parallel(gpt2, devices="2xh100-sxm", seq_len=64)
        >>> len(found.fitting), found.fitting[0].layout.ranks
        (4, 2)
    """
    from neuralpower.api.loaded import chosen

    given = keywords("option of parallel", options, Laying, "parallel")
    if given.get("devices") is None:
        raise InputError("parallel: --devices says which devices there are; give --devices 8xh100-sxm")
    return chosen(device_in(given), predictor).parallel(model, **options)


@documented(Standings, "rank")
def rank(
    model: Model, *, device: Device | Sequence[Device] | None = None, **options: Unpack[Standings]
) -> Ranking:
    """Rank devices for a network by throughput, energy, price or carbon; none of them is needed.

    Args:
        model: same as in `predict`.
        device: one, or a list of them; by default all with a spec sheet or a predictor.
        **options: as on the command line:
            {options}

    Raises:
        InputError: same as `predict`; or a ranking by a price or carbon that no option gives.

    Example:
        >>> import neuralpower
        >>> found = neuralpower.rank("zoo:deep_mnist", device=["t4", "h100"], by="energy")
        >>> [one.rank for one in found.devices]
        [1, 2]
    """
    from neuralpower.api.ranked import asked_rank

    return asked_rank(model, device, keywords("option of rank", options, Standings, "rank"))


@documented(Serving, "traffic")
def traffic(
    model: str, *, device: str, predictor: Named | None = None, **options: Unpack[Serving]
) -> Traffic:
    """Serve a language model's users without running anything: what they wait for, and how many there can be.

    Args:
        model: a name, as in `predict`.
        device: of one replica: "l40s", or several that share it: "4xh100-sxm".
        predictor: same as in `predict`.
        **options: as on the command line:
            {options}

    Raises:
        InputError: sizes that cannot be; a model that leaves no memory for a cache; a target that an empty
            system misses.

    Example:
        >>> import neuralpower
        >>> found = neuralpower.traffic("qwen2.5-0.5b", device="l40s", rate=4, requests=40)
        >>> found.value.ttft_s["p95"] < found.value.latency_s["p95"]
        True
    """
    from neuralpower.api.serving import asked_traffic

    return asked_traffic(model, device, predictor, keywords("option of traffic", options, Serving, "traffic"))


@documented(Planning, "plan")
def plan(model: str, **options: Unpack[Planning]) -> Plan:
    """Rank the devices that serve a rate and keep a promise.

    Args:
        model: a name, as in `predict`.
        **options: as on the command line:
            {options}

    Raises:
        InputError: a rate that is none, no promise, or a ranking by cost without prices.

    Example:
        >>> import neuralpower
        >>> asked = {"rate": 20, "sla": "ttft=500ms", "requests": 30, "tensor_parallel": "1"}
        >>> found = neuralpower.plan("qwen2.5-0.5b", devices="l40s", **asked)
        >>> found.choices[0].devices
        1
    """
    from neuralpower.api.serving import asked_plan

    return asked_plan(model, keywords("option of plan", options, Planning, "plan"))


@documented(Gating, "gate")
def gate(
    models: Model | Iterable[str] | Mapping[str, Model] = (),
    *,
    baseline: str | Path,
    update: bool = False,
    device: Device | None = None,
    predictor: Named | None = None,
    **options: Unpack[Gating],
) -> Gate:
    """Compare models with a baseline in a file: which layers changed, and whether limits still hold.

    Args:
        models: one, several names, or names with their modules; by default all names of the baseline.
        baseline: the file.
        update: write today's answers as the baseline, and compare nothing.
        device: same as in `predict`; by default that of the baseline.
        predictor: same as in `predict`.
        **options: as on the command line; one that is not given is as in the baseline:
            {options}

    Raises:
        InputError: no baseline, or one that answers another question; else as `predict`.

    Example:
        >>> import neuralpower, pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "baseline.json"
        >>> found = neuralpower.gate("zoo:deep_mnist", device="t4", baseline=file, update=True)
        >>> neuralpower.gate(baseline=file, max_latency="+5%").passes
        True
    """
    from neuralpower.api.gates import asked_gate

    given = keywords("option of gate", {**options}, Gating)
    return asked_gate(models, baseline, {**given, "device": device, "predictor": predictor}, update=update)


def load(name: str | Path | None = None) -> LoadedPredictor:
    """Load a predictor once for many calls: it has `predict`, `sweep`, `compare`, `fit` and `score`.

    Args:
        name: a device in any usual spelling, same as `--device` on the command line; else a predictor's
            name, its file, or NAME@DEVICE. By default this machine's predictor.

    Raises:
        PredictorError: no predictor has that name, or the file cannot be used.
        InputError: several devices have that name.

    Example:
        >>> import neuralpower
        >>> h100 = neuralpower.load("h100")
        >>> [h100.predict("zoo:deep_mnist", batch_size=size).batch_size for size in (1, 8)]
        [1, 8]
    """
    from neuralpower.api import loaded

    return loaded.load(name)


def profile(
    model: Model, args: Any = (), kwargs: Mapping[str, Any] | None = None, **settings: Unpack[Keywords]
) -> NetworkProfile:
    """Run a network here, and measure work, traffic, memory and time of every layer.

    Args:
        model: as in `predict`; a module is not changed.
        args: positional inputs in a tuple or list, a single input, or a shape: (1, 3, 224, 224).
        kwargs: inputs by keyword.
        **settings: `repeat`, `warmup`, `phase`, `power`, ...; see `neuralpower.profiling.profile`.

    Raises:
        InputError: not a network, or an unknown or impossible setting.
        ModelError: the forward or backward pass raises.
        DeviceError: no clock for the device, or out of memory.

    Example:
        >>> import neuralpower, torch
        >>> found = neuralpower.profile(torch.nn.Linear(64, 256), (32, 64), repeat=2)
        >>> found.total.flops == 2 * 32 * 64 * 256
        True
    """
    from neuralpower.api.profiled import profiled

    return profiled(model, args, kwargs, settings)


@overload
def explain(trace: None = None, **options: Any) -> Block: ...


@overload
def explain(trace: Any, **options: Any) -> Explanation: ...


@documented(Explaining, "explain")
def explain(
    trace: Any = None,
    *,
    device: Device | None = None,
    predictor: Named | None = None,
    **options: Any,
) -> Explanation | Block:
    """Say where the time of a trace went: calls against what they should take, causes, gaps.

    Args:
        trace: a file that torch.profiler exported, or a profiler whose block has ended. Without one, a block
            to run under: `with neuralpower.explain() as run: step()` prints the table; `run.explanation` has
            it.
        device: by default the trace's.
        predictor: same as in `predict`.
        **options: as on the command line:
            {options}

    Raises:
        InputError: no trace of torch.profiler, without shapes, or of a device without a spec sheet.

    Example:
        >>> import neuralpower, torch
        >>> with torch.profiler.profile(record_shapes=True) as profiler:
        ...     _ = torch.ones(64, 64) @ torch.ones(64, 64)
        >>> found = neuralpower.explain(profiler)
        >>> [row.operator for row in found.rows if row.operator == "matmul"]
        ['matmul']
    """
    from neuralpower.api.ranked import Explaining as Block
    from neuralpower.api.ranked import explained_trace

    keywords("option of explain", options, Explaining, "explain")
    how: dict[str, Any] = {"against": None, "capture": None, **options}
    how |= {"device": device, "predictor": getattr(predictor, "name", predictor)}
    return Block(**how) if trace is None else explained_trace(trace, **how)


@documented(Evaluating, "evaluate")
def evaluate(
    models: Model | Sequence[Model],
    *,
    predictor: Named | None = None,
    rounds: int = 21,
    **options: Unpack[Evaluating],
) -> list[Evaluation]:
    """Predict networks, run them on this machine's CPU, and return both times of each.

    Args:
        models: one as in `predict`, or a list of them.
        predictor: same as in `predict`; by default this machine's.
        rounds: runs of each network, spread over time.
        **options: as on the command line:
            {options}

    Raises:
        InputError: same as `predict`; or a network that cannot run here.

    Example:
        >>> import neuralpower
        >>> (found,) = neuralpower.evaluate("zoo:deep_mnist", rounds=1)
        >>> found.measured_s > 0
        True
    """
    from neuralpower.api.loaded import chosen, evaluated

    several: Sequence[Any] = models if isinstance(models, (list, tuple)) else [models]
    given = keywords("option of evaluate", options, Evaluating, "evaluate")
    return evaluated(several, chosen(None, predictor).predictor, rounds, given)


def dataset(place: str | Path) -> Dataset:
    """Read a dataset of measured layers.

    Args:
        place: a folder, or a place such as "s3://bucket/name".

    Raises:
        DatasetError: no dataset is there, or it cannot be read.

    Example:
        >>> import neuralpower
        >>> sorted(neuralpower.dataset("datasets/t4").tables)  # doctest: +SKIP
        ['conv2d', 'linear']
    """
    from neuralpower.data.dataset import read_dataset

    return read_dataset(place)


def check(
    source: str | Path,
    *,
    kind: str | None = None,
    columns: Mapping[str, str] | None = None,
    device: str | None = None,
    out: str | Path | None = None,
    trust_code: bool = False,
) -> Check:
    r"""Check measured rows, as `neuralpower dataset check` does; `print` lists the refused ones with a fix.

    Args:
        source: a dataset's folder, a place such as "s3://bucket/name", or one table: FILE.csv.
        kind: layer kind of a table; by default from its name or columns.
        columns: columns that are computed from the table's: {"runtime_s": "latency_ms/1000"}.
        device: that was measured, where no dataset.json says it.
        out: the folder for the usable rows; by default none is written.
        trust_code: whether models of whole networks can be functions, which run code.

    Raises:
        InputError: a device that is named twice, or not at all although `out` is given.
        DatasetError: a source that cannot be read, or columns that are missing.

    Example:
        >>> import neuralpower, pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "linear.csv"
        >>> head = "rows,in_features,out_features,bias,ms\n"
        >>> _ = file.write_text(head + "128,1024,1024,true,0.2\n128,1024,4096,true,0\n")
        >>> found = neuralpower.check(file, columns={"runtime_s": "ms/1000"}, device="t4")
        >>> found.usable, [row["line"] for row in found.refused]
        ({'linear': 1}, [3])
    """
    from neuralpower.report.results import inspection

    place = None if out is None else Path(out)
    return inspection.check(source, kind, columns, device, place, trust_code=trust_code)


def train(
    datasets: str | Path | Sequence[str | Path],
    learner: str = "hybrid",
    *,
    out: str | Path | None = None,
    jobs: int = -1,
    trust_code: bool = False,
) -> LoadedPredictor:
    """Train a predictor from datasets.

    Args:
        datasets: folders, or places such as "s3://bucket/name". Several devices make one for any device.
        learner: "hybrid", a base and a residual; or "lasso", the base alone, a formula.
        out: the file to write, which ends in .json; by default none.
        jobs: fits in parallel; -1 for one on each core.
        trust_code: whether whole networks in the datasets can be functions, which run code.

    Raises:
        DatasetError: a dataset that cannot be read, or a file that cannot be written.

    Example:
        >>> import neuralpower
        >>> mine = neuralpower.train("datasets/mine", out="models/mine.json")  # doctest: +SKIP
    """
    from neuralpower.api.loaded import LoadedPredictor
    from neuralpower.learn import train as training

    places = [datasets] if isinstance(datasets, (str, Path)) else datasets
    found = training.train([dataset(place) for place in places], learner, jobs, trust_code=trust_code)
    return LoadedPredictor(found.predictor).written(out)


def calibrate(
    source: Named, *, samples: int = 50, seed: int = 0, out: str | Path | None = None
) -> LoadedPredictor:
    """Adapt another machine's predictor to this CPU: some layers are measured here, and times are scaled.

    Args:
        source: a predictor of a CPU: a name, a file, or the result of `load`.
        samples: layers to measure.
        seed: of the choice of layers.
        out: the file to write, which ends in .json; by default none.

    Raises:
        InputError: a predictor of another class of device, or too few samples.

    Example:
        >>> import neuralpower
        >>> mine = neuralpower.calibrate("amd-epyc-2c", out="models/mine.json")  # doctest: +SKIP
    """
    from neuralpower.api.loaded import LoadedPredictor, chosen
    from neuralpower.devices.host import read_cpu
    from neuralpower.learn.networks import calibrate as calibration
    from neuralpower.measure.cpu.reached import reached
    from neuralpower.measure.cpu.timer import prepare_process

    given, cpu = chosen(None, source).predictor, read_cpu()
    calibration.check(given, samples)
    prepare_process(cpu.cores)
    layers = calibration.calibration_layers(given, samples, seed)
    measured = calibration.measure_layers(layers, seed)
    result = calibration.calibrate(given, *measured, cpu, reached(cpu))
    return LoadedPredictor(result.predictor).written(out)


def _several(device: Device | Sequence[Device] | None) -> tuple[Device, ...]:
    """The named devices; empty if none is named."""
    if device is None:
        return ()
    return (device,) if isinstance(device, (str, Path)) else tuple(device)
