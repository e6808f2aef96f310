"""`neuralpower sweep`, `compare`, `score` and `fit`: what-if questions, answered without the device."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from typer import Argument, Exit, Option, Typer

from neuralpower.cli import parsing, shared_options
from neuralpower.cli.answers import answered
from neuralpower.cli.choices import (
    FITTED_PHASES,
    PHASES,
    SCORES,
    choice,
    dtype_choice,
    optimizer_choice,
)
from neuralpower.cli.commands import OptionGroup, examples, with_options
from neuralpower.cli.engine_options import Engine
from neuralpower.cli.formats import Answer, Rows, check_out, form_of, give
from neuralpower.cli.known_names import checked_side, completed_models, split_layout
from neuralpower.cli.output import VERBOSE, level, tell
from neuralpower.cli.panels import INPUT, LANGUAGE, OUTPUT, TARGET, TRAINING
from neuralpower.cli.parallel_options import Parallel, SweptParallel, check_used
from neuralpower.devices.cluster import is_cluster
from neuralpower.devices.memory_size import bytes_of, is_size, reading
from neuralpower.errors import InputError
from neuralpower.files.json_files import json_text
from neuralpower.files.stages import stage

if TYPE_CHECKING:
    from neuralpower.devices.cluster import Cluster
    from neuralpower.layout import Layout
    from neuralpower.learn.predictor import Predictor
    from neuralpower.platforms import Platform
    from neuralpower.predict.explore import fit as fitting
    from neuralpower.predict.explore import sweep as swept
    from neuralpower.predict.explore.compare import Side
    from neuralpower.predict.memory.over_time import Lived

Noted = TypeVar("Noted", "swept.Sweep", "fitting.Fit")
app = Typer()


class SweptTokens(OptionGroup):
    """Options: the tokens of a language model's phases, in a grid."""

    panel = LANGUAGE

    context: Annotated[
        str | None, Option(help="decode: tokens in the cache before the step, such as 512:8192.")
    ] = None
    prompt: Annotated[
        str | None, Option(help="prefill, generate: tokens of the prompt, such as 512:8192.")
    ] = None
    new_tokens: shared_options.NewTokens = None


class Sweep(OptionGroup):
    """Options: the grid of a sweep, and the output."""

    panel = INPUT

    model: shared_options.Model
    batch_size: Annotated[
        str | None,
        Option(
            "--batch-size", "-b", help="1,8,32; 1:256 doubles; 64:512:64 adds 64; default: as in predict."
        ),
    ] = None
    seq_len: Annotated[str | None, Option(help="Tokens per sample, written in the same way.")] = None
    input_shape: shared_options.InputShape = None
    dtype: Annotated[
        str | None,
        dtype_choice(
            "One or more, with commas", default="Default: as published, else float32.", several=True
        ),
    ] = None
    weights: shared_options.Weights = None
    phase: Annotated[str, shared_options.phase_choice(PHASES, "Phase to predict")] = "forward"
    device: shared_options.Devices = None
    predictor: shared_options.Predictors = None
    run: shared_options.Run = None
    memory: Annotated[
        str | None,
        Option(
            help="The device's memory: 24GiB (a 24 GB card), or 24GB (24 x 10^9 bytes); default: its own.",
            rich_help_panel=TARGET,
        ),
    ] = None
    tokens: SweptTokens
    training: shared_options.Training
    parallel: SweptParallel
    output: shared_options.Output
    csv: Annotated[
        Path | None, Option(help="Write a line per point to this file.", rich_help_panel=OUTPUT)
    ] = None
    plot: shared_options.Plot = None
    top: Annotated[int, Option(min=0, help="Rows to print; 0 for all.", rich_help_panel=OUTPUT)] = 0


@app.command(
    epilog=examples(
        "neuralpower sweep transformers:gpt2 --batch-size 1:8 --seq-len 64,128",
        "neuralpower sweep llama-3.1-8b --phase decode --context 1024:8192 --device h100",
    )
)
@with_options
def sweep(asked: Sweep) -> None:
    """Predict the points of the grid, and mark the Pareto-optimal ones."""
    form, grid = form_of(asked.output.form, asked.output.out, asked.output.as_json), _Grid.of(asked)
    stage("importing torch and transformers")
    from neuralpower.files.csv_files import write_csv
    from neuralpower.predict.explore import sweep as sweeping
    from neuralpower.report.explored import sweep_table
    from neuralpower.report.grid import note_lines, warning_lines
    from neuralpower.report.pictures import draw, sweep_page

    parsing.check_plot(asked.plot)
    parsing.check_file(asked.csv, "points.csv")
    check_out(asked.output.out, form)
    asked.parallel.check(asked.model)
    predictors = [
        parsing.predictor(name, device)
        for name in parsing.names(asked.predictor, "predictor") or (None,)
        for device in parsing.names(asked.parallel.device(asked.device), "device") or (None,)
    ]
    found = _swept(asked, grid, predictors)
    if all(point.error for point in found.points):
        raise InputError(f"no point could be predicted: {found.points[0].error}")
    found = _noted(found, asked.memory)
    rows = [vars(found.points[0]), *(vars(p).values() for p in found.points)]
    if asked.csv is not None:
        write_csv(asked.csv, rows)
    if asked.plot is not None:
        draw(sweep_page(found), asked.plot)
    answer = Answer(
        title=f"{asked.model}: {len(found.points)} points",
        table=lambda: sweep_table(found, asked.top, marked=True),
        json=lambda: sweeping.to_json(found),
        rows=lambda: [[*row] for row in rows],
        lead=lambda: [*warning_lines(found.warnings), *note_lines(found.notes)],
        page=lambda: sweep_page(found),
        warnings=found.warnings,
    )
    give(answer, form, asked.output.out)


@dataclasses.dataclass(frozen=True)
class _Grid:
    """What the texts of a sweep's options say; reading them imports no torch."""

    batch_sizes: tuple[int, ...] | None  # None: the network's own
    lengths: tuple[int | None, ...]
    contexts: tuple[int | None, ...]
    prompts: tuple[int | None, ...]
    shape: tuple[int, ...] | None
    memory_bytes: float | None

    @classmethod
    def of(cls, asked: Sweep) -> _Grid:
        """The grid of the options; raises InputError."""

        def several(text: str | None, what: str) -> tuple[int | None, ...]:
            return (None,) if text is None else parsing.sizes(text, what)

        batch = asked.batch_size
        return cls(
            None if batch is None else parsing.sizes(batch, "batch size"),
            several(asked.seq_len, "seq-len"),
            several(asked.tokens.context, "context"),
            several(asked.tokens.prompt, "prompt"),
            parsing.shape(asked.input_shape),
            None if asked.memory is None else bytes_of(asked.memory),
        )


def _swept(asked: Sweep, grid: _Grid, predictors: Sequence[Predictor]) -> swept.Sweep:
    """The points: by formulas from few traces; with a phase, each point is traced."""
    from neuralpower.networks.phases import Phase
    from neuralpower.predict.explore.phases import sweep_grid

    own = parsing.usual_dtype(asked.model, predictors[0]) if asked.dtype is None else ""
    return sweep_grid(
        asked.model,
        predictors,
        [
            Phase(asked.phase, None, context, prompt, asked.tokens.new_tokens)
            for context, prompt in itertools.product(grid.contexts, grid.prompts)
        ],
        recipe=asked.parallel.recipe(asked.training.recipe(asked.phase), asked.phase),
        batch_sizes=grid.batch_sizes or (parsing.batch_size(asked.model, None, grid.shape),),
        lengths=grid.lengths,
        dtypes=[parsing.dtype(name) for name in parsing.names(asked.dtype, "dtype") or (own,)],
        input_shape=grid.shape,
        memory_bytes=grid.memory_bytes,
        run=asked.run,
        weights=asked.weights,
        layouts=asked.parallel.layouts,
        cluster=asked.parallel.cluster,
        strict=asked.parallel.require_plan,
    )


class Compare(OptionGroup):
    """Options: the two sides, and their inputs."""

    panel = INPUT

    a: Annotated[
        str,
        Argument(
            help="MODEL, MODEL@PREDICTOR, or with a layout: MODEL@8xh100-sxm:tp4pp2.",
            callback=checked_side,
            autocompletion=completed_models,
        ),
    ]
    b: Annotated[
        str,
        Argument(
            help="The other side; @PREDICTOR alone is the same model on another device.",
            callback=checked_side,
            autocompletion=completed_models,
        ),
    ]
    phase: Annotated[str, shared_options.phase_choice(PHASES, "Phase to predict")] = "forward"
    sizes: shared_options.Sizes
    device: shared_options.Device = None
    predictor: shared_options.Predictor = None
    run: shared_options.Run = None
    tokens: shared_options.Tokens
    parallel: Parallel
    plot: shared_options.Plot = None
    output: shared_options.Output


@app.command(
    epilog=examples(
        "neuralpower compare transformers:bert transformers:distilbert --seq-len 128",
        "neuralpower compare llama-3.1-8b@h100 @l40s --phase decode --context 4096",
    )
)
@with_options
def compare(asked: Compare) -> None:
    """Predict both sides and compare their times."""
    form = form_of(asked.output.form, asked.output.out, asked.output.as_json)
    stage("importing torch and transformers")
    from neuralpower.predict.explore.compare import compare as compared
    from neuralpower.report.explored import comparison_table
    from neuralpower.report.grid import warning_lines
    from neuralpower.report.pictures import comparison_page, draw

    parsing.check_plot(asked.plot)
    check_out(asked.output.out, form)
    sides = _sides(asked)
    found = compared(*sides)
    if asked.plot is not None:
        draw(comparison_page(found, sides), asked.plot)

    def rows(cell: Callable[[float], Any] = float) -> Rows:
        times = ((found.a, found.a_s), (found.b, found.b_s))
        body = [[name, *map(cell, (time.value, time.low, time.high))] for name, time in times]
        return [["name", "runtime_s", "low_s", "high_s"], *body]

    answer = Answer(
        title=f"{found.a} against {found.b}",
        table=lambda: comparison_table(found, marked=True),
        json=found.to_json,
        rows=rows,
        lead=lambda: [*warning_lines(found.warnings), *comparison_table(found).splitlines()[-1:]],
        page=lambda: comparison_page(found, sides),
        warnings=found.warnings,
    )
    give(answer, form, asked.output.out)


def _sides(asked: Compare) -> list[Side]:
    """Both models, each predicted on its device; raises InputError."""
    from neuralpower.predict.case import Case, predict_case
    from neuralpower.predict.explore.compare import Side
    from neuralpower.trace.recipe import RECIPE, TRAINING

    shape = asked.sizes.shape
    phase = asked.tokens.phase(asked.phase)
    asked.tokens.check_batch(asked.sizes.batch_size)
    way = "forward" if asked.phase == phase.name else asked.phase
    recipe = asked.parallel.recipe(RECIPE, asked.phase)
    known: dict[str, Predictor] = {}
    sides = []
    for number, text in enumerate((asked.a, asked.b)):
        stage(f"predicting {text}", number, 2)
        parsing.check_named([text], "model")
        model, at, place = text.partition("@")
        if at and not place:
            raise InputError(
                f"{text!r} names no predictor behind @; write MODEL@PREDICTOR or @PREDICTOR, or leave @ out"
            )
        model = model or asked.a.partition("@")[0]
        name, layout, cluster = _placed(asked, model, place)
        known[name] = known.get(name) or _answers(asked, name if at else "", cluster)
        dtype = parsing.dtype(asked.sizes.dtype or parsing.usual_dtype(model, known[name]))
        batch = parsing.batch_size(model, asked.sizes.batch_size, shape)
        how: dict[str, Any] = {"run": asked.run, "weights": asked.sizes.weights, "layout": layout}
        how |= {"cluster": cluster, "strict": asked.parallel.require_plan}
        case = Case(model, batch, asked.sizes.seq_len, shape, dtype, phase, **how)
        known[name].check(dtype, "forward" if way == TRAINING else way)
        prediction, _ = predict_case(case, known[name], phase=way, recipe=recipe)
        label = case.label + (f" {way}" if way != "forward" else "")
        if "@" in asked.a + asked.b:
            label += f" on {known[name].name}"
        sides.append(Side(label, prediction, known[name]))
    return sides


def _placed(asked: Compare, model: str, place: str) -> tuple[str, Layout, Cluster | None]:
    """(predictor or device, layout, devices) of a side: its own, else those of the options."""
    from neuralpower.devices.cluster import cluster_of
    from neuralpower.layout import layout_of

    name, own = split_layout(place)
    layout = layout_of(own) if own else asked.parallel.layout
    nodes = asked.parallel.nodes
    cluster = cluster_of(name, nodes or 1) if is_cluster(name) else None if name else asked.parallel.cluster
    if cluster is None:
        return name or asked.predictor or "", layout, None
    if not own:
        check_used(asked.parallel.devices or name, cluster, [layout], model)
    cluster.check(layout)
    return name or asked.parallel.devices or "", layout, cluster


def _answers(asked: Compare, name: str, cluster: Cluster | None) -> Predictor:
    """The predictor of a side; raises InputError."""
    if cluster is not None:
        return parsing.predictor(asked.predictor, cluster.spec.slug)
    return parsing.predictor(name or asked.predictor, None if name else asked.device)


class Scored(OptionGroup):
    """The candidates, and what they are ranked by."""

    panel = INPUT

    file: Annotated[str, Argument(help="JSON lines, one candidate each; - for standard input.")]
    predictor: shared_options.Predictor = None
    device: shared_options.Device = None
    by: Annotated[str, choice("score", SCORES, help="What ranks them.")] = "latency"
    trust_code: shared_options.TrustCode = False
    output: shared_options.Output
    top: Annotated[int, Option(min=0, help="Rows to print; 0 for all.", rich_help_panel=OUTPUT)] = 20


@app.command(
    epilog=examples(
        "neuralpower score candidates.jsonl --by latency",
        "neuralpower score candidates.jsonl --device h100 --top 5 --format csv -o best.csv",
    )
)
@with_options
def score(asked: Scored) -> None:
    """Score the candidates of a file and rank them."""
    from neuralpower.files.paths import check_regular

    file, by = asked.file, asked.by
    form = form_of(asked.output.form, asked.output.out, asked.output.as_json)
    parsing.check_named([file], "file")
    if file != "-":
        check_regular(file)
    try:
        lines = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read ({error}); choose another file") from None
    check_out(asked.output.out, form)
    stage("importing torch and transformers")

    from neuralpower.layers.base import FORWARD
    from neuralpower.predict.explore.score import score as scored
    from neuralpower.predict.explore.score import warnings_of
    from neuralpower.report.explored import score_table

    trained = parsing.predictor(asked.predictor, asked.device)
    stage("scoring the candidates")
    found = scored(lines.splitlines(), trained, by, trust_code=asked.trust_code)
    for one in found:
        if one.error:
            tell(f"Warning: {file} line {one.line}: {one.error}")
    if all(one.error for one in found):
        raise InputError(
            f"{file}: none of {len(found)} candidates could be scored; the warnings above say why"
        )
    if by != "latency" and not any(one.rank for one in found):
        raise InputError(f"{by} is not known of any candidate: choose another predictor, or --by latency")
    for text in warnings_of(found, trained):
        tell(f"Warning: {text}")
    if note := trained.platform.memory_note(FORWARD):
        tell(f"Note: {note}")
    about = f"forward, by {by}, on {trained.device} ({trained.name})"
    shown = [one.to_json() for one in found]
    answer = Answer(
        title=f"{len(found)} candidates by {by}, on {trained.device}",
        table=lambda: score_table(found, asked.top, about),
        json=lambda: "\n".join(map(json_text, shown)),
        rows=lambda: [[*shown[0]], *([*one.values()] for one in shown)],
    )
    give(answer, form, asked.output.out)


class FittedTokens(OptionGroup):
    """The tokens of a language model's phase, whose memory holds the cache."""

    panel = LANGUAGE

    context: shared_options.Context = None
    prompt: shared_options.Prompt = None
    new_tokens: shared_options.NewTokens = None


class Fit(OptionGroup):
    """A network, and the memory that it is to fit into."""

    panel = INPUT

    model: shared_options.Model
    phase: Annotated[str, shared_options.phase_choice(FITTED_PHASES, "Phase to predict")] = "forward"
    batch_size: shared_options.BatchSize = None
    seq_len: Annotated[int | None, Option(help="Tokens per sample.")] = None
    input_shape: shared_options.InputShape = None
    dtype: shared_options.OwnDtype = None
    weights: shared_options.Weights = None
    device: shared_options.FittedDevice = None
    memory: Annotated[
        str | None,
        Option(
            help="Instead of the device's: 24GiB (as of a 24 GB card), or 24GB; without --device of an "
            "accelerator.",
            rich_help_panel=TARGET,
        ),
    ] = None
    margin: Annotated[
        float | None,
        Option(
            help="Share of the memory to keep free; default: 0 on a CPU, else 0.3 in training and 0.1.",
            rich_help_panel=TARGET,
        ),
    ] = None
    run: shared_options.Run = None
    tokens: FittedTokens
    optimizer: Annotated[
        str,
        optimizer_choice(
            "Optimizer: adamw, muon, adamw8bit, ...; here sgd has no momentum, and momentum is sgd with it",
            "momentum",
            rich_help_panel=TRAINING,
        ),
    ] = "adamw"
    optimizer_states: Annotated[
        str | None,
        Option(
            help="Numbers that an optimizer of any other name keeps per parameter: 2, or 2:bfloat16.",
            rich_help_panel=TRAINING,
        ),
    ] = None
    autocast: shared_options.Autocast = None
    master_weights: shared_options.MasterWeights = False
    lora: shared_options.Lora = None
    accumulation: Annotated[int, Option(help="Micro-batches in a step.", rich_help_panel=TRAINING)] = 1
    checkpointing: Annotated[
        bool,
        Option(
            "--checkpointing",
            help="Recompute blocks instead of keeping activations.",
            rich_help_panel=TRAINING,
        ),
    ] = False
    serving: Engine
    parallel: Parallel
    output: shared_options.Output
    memory_picture: shared_options.MemoryPicture = None
    no_cache: shared_options.NoCache = False


@app.command(
    epilog=examples(
        "neuralpower fit llama-3.1-8b --phase decode --context 8192 --device rtx-4090",
        "neuralpower fit transformers:gpt2 --phase training --seq-len 512 --memory 8GB",
        "neuralpower fit llama-3.1-8b --device l40s --engine vllm --max-model-len 8192",
    )
)
@with_options
def fit(asked: Fit) -> None:
    """Compare the memory that a model needs with the device's; exit code 1 where it does not fit."""
    form = form_of(asked.output.form, asked.output.out, asked.output.as_json)
    parsing.check_batch_size(asked.batch_size)
    if asked.memory is not None:
        bytes_of(asked.memory)  # refused before torch is imported
    _target(asked)[2].check(asked.model)
    if asked.no_cache or asked.output.out is not None or asked.memory_picture is not None:
        _fit(asked, form)
    else:
        answered(asked.model, {"command": "fit", **vars(asked)}, lambda: _fit(asked, form))


def _fit(asked: Fit, form: str) -> None:
    """Find the answer and print it; raises Exit where the model does not fit."""
    shape, length = parsing.shape(asked.input_shape), _prompt(asked)
    device, memory, spread, note = _target(asked)
    stage("importing torch and transformers")
    from neuralpower.predict.explore.fit import Request
    from neuralpower.predict.explore.fit import fit as fitted
    from neuralpower.predict.explore.verdict import DOES_NOT_FIT
    from neuralpower.report.explored import fit_table
    from neuralpower.trace.question import usual_run
    from neuralpower.trace.recipe import Recipe

    check_out(asked.output.out, form)
    parsing.check_memory_picture(asked.memory_picture, spread.layout.alone)
    room, platform, name = _room(spread.device(device), memory)
    same = "model phase optimizer optimizer_states master_weights autocast lora checkpointing margin weights"
    request = Request(
        batch_size=parsing.batch_size(asked.model, asked.batch_size, shape),
        seq_len=length,
        context=asked.tokens.context,
        new_tokens=asked.tokens.new_tokens,
        input_shape=shape,
        dtype=parsing.dtype(asked.dtype or parsing.usual_dtype(asked.model)),
        platform=platform,
        run=asked.run or usual_run(platform, asked.phase),
        accumulation=spread.recipe(Recipe(accumulation=asked.accumulation), asked.phase).accumulation,
        layout=spread.layout,
        cluster=spread.cluster,
        strict=spread.require_plan,
        engine=asked.serving.asked(name, room),
        **{field: getattr(asked, field) for field in same.split()},
    )
    passes: list[Lived] = []
    found = fitted(request, room, passes.append if asked.memory_picture is not None else None)
    if asked.memory_picture is not None:
        _draw(passes, found, asked.memory_picture)
    found = _noted(found, memory, note)
    shown = found.to_json()
    detailed = level() >= VERBOSE
    plain = (str, int, float, type(None))
    flat = {n: value for n, value in shown.items() if n != "schema" and isinstance(value, plain)}
    answer = Answer(
        title=f"{asked.model}: {found.verdict}",
        table=lambda: fit_table(found, request, name, marked=True, detailed=detailed),
        json=lambda: shown,
        rows=lambda: [[*flat], [*flat.values()]],
        shown=lambda: [["figure", "value"], *([name, value] for name, value in flat.items())],
        lead=lambda: fit_table(found, request, name).splitlines(),
    )
    give(answer, form, asked.output.out)
    if found.verdict == DOES_NOT_FIT:
        raise Exit(1)


def _draw(passes: Sequence[Lived], found: fitting.Fit, path: Path) -> None:
    """Draw the memory over time of the pass with the highest peak."""
    from neuralpower.predict.memory.over_time import fullest
    from neuralpower.report.memory_pictures import write_memory

    if not passes:
        raise InputError(
            f"--memory-picture {path}: no pass was followed on one device; leave --memory-picture out"
        )
    write_memory(fullest(passes), found.memory, path)


def _prompt(asked: Fit) -> int | None:
    """The tokens of a sample: --seq-len, or --prompt of a prefill and a generation; raises InputError."""
    prompt, length = asked.tokens.prompt, asked.seq_len
    if prompt is not None and asked.phase not in ("prefill", "generate"):
        raise InputError(
            f"--prompt {prompt} belongs to --phase prefill or generate, not to {asked.phase}; leave it out"
        )
    if prompt is not None and length not in (None, prompt):
        raise InputError(
            f"--prompt {prompt} and --seq-len {length} both are the prompt's length; leave one out"
        )
    return length if prompt is None else prompt


def _target(asked: Fit) -> tuple[str | None, str | None, Parallel, str]:
    """(device, memory, several devices, note): --device may be a memory or several devices.

    Several devices without a layout get the usual one, and a note. Raises InputError for two that contradict.
    """
    device, memory, spread = asked.device, asked.memory, asked.parallel
    if device is not None and is_size(device):
        if memory is not None:
            raise InputError(f"--device {device} and --memory {memory} both are a size; leave one out")
        device, memory = None, device
    elif device is not None and is_cluster(device):
        if spread.devices is not None:
            spread.device(device)  # raises: both name devices
        device, spread = None, Parallel(**{**vars(spread), "devices": device})
    cluster = spread.cluster
    if cluster is None or cluster.devices == 1 or not spread.layout.alone:
        return device, memory, spread, ""
    layout = cluster.usual_layout(asked.phase == "training")
    degrees = {f"{degree}_parallel": getattr(layout, degree) for degree in ("tensor", "pipeline", "data")}
    spread = Parallel(**{**vars(spread), **degrees, "zero": layout.shard.removeprefix("zero") or None})
    others = f"neuralpower parallel {asked.model} --devices {spread.devices}"
    return device, memory, spread, f"no layout is given: {layout} is assumed. Others: {others}"


def _noted(found: Noted, memory: str | None, *more: str) -> Noted:
    """The result, with a note where --memory may mean another size than the user thinks, and others."""
    notes = (*found.notes, reading(memory) if memory is not None else "", *more)
    return dataclasses.replace(found, notes=tuple(filter(None, notes)))


def _room(device: str | None, memory: str | None) -> tuple[float, Platform, str]:
    """(bytes, platform, name) of what the model is to fit into; raises InputError."""
    from neuralpower.devices.host import read_cpu
    from neuralpower.devices.spec import spec_of
    from neuralpower.learn.here import target
    from neuralpower.platforms import CPU, platform_of
    from neuralpower.predict.explore.fit import assumed

    own: float | None
    if device is None and memory is not None:
        platform, name = assumed(memory)
        return bytes_of(memory), platform, f"{name} (assumed; this machine: --device cpu)"
    named = target(device)
    if named is None:
        cpu = read_cpu()
        own, platform, name = cpu.memory_bytes, CPU, cpu.name
    else:
        spec = spec_of(str(named))
        own, platform, name = spec.get("memory_bytes"), platform_of(spec.hardware()), spec.name
    if memory is not None:
        return bytes_of(memory), platform, name if named else f"{platform.called} of {memory}"
    if own is None:
        raise InputError(f"{name}: its memory is not known; give --memory, such as 24GB")
    return float(int(own)), platform, name
