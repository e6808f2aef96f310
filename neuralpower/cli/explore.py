"""`neuralpower sweep`, `compare`, `score` and `fit`: what if, from few traces; none needs a device."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option, Typer

from neuralpower.cli import parsing, shared_options
from neuralpower.cli.commands import OptionGroup, with_options
from neuralpower.cli.output import say, tell
from neuralpower.errors import InputError
from neuralpower.files.json_files import json_text

if TYPE_CHECKING:
    from neuralpower.learn.predictor import Predictor
    from neuralpower.platforms import Platform
    from neuralpower.predict.explore.compare import Side

app = Typer()
Model = Annotated[str, Argument(help="transformers:bert, a folder with config.json, zoo:alexnet, ...")]
AsJson = Annotated[bool, Option("--json", help="Print everything as JSON.")]


class Sweep(OptionGroup):
    """The grid of a sweep, and where its points go."""

    model: Model
    batch_size: Annotated[
        str | None, Option(help="1,8,32; 1:256 doubles; 64:512:64 goes in steps; by default as in predict.")
    ] = None
    seq_len: Annotated[str | None, Option(help="Tokens per sample, written in the same way.")] = None
    input_shape: shared_options.InputShape = None
    dtype: Annotated[
        str | None,
        Option(
            help="One or more, with commas; by default that of a published model (`models`), else float32."
        ),
    ] = None
    weights: shared_options.Weights = None
    predictor: Annotated[
        str | None, Option(help="Names or files, with commas; this machine's by default.")
    ] = None
    device: shared_options.Device = None
    memory: Annotated[
        str | None,
        Option(
            help="Of the device: 24GiB (as of a 24 GB card), or 24GB (24 x 10^9 bytes); by default its own."
        ),
    ] = None
    run: Annotated[str, Option(help="eager, graph, compile or engine, as in predict.")] = "eager"
    csv: Annotated[Path | None, Option(help="Write one line per point to this file.")] = None
    plot: Annotated[
        Path | None, Option(help="Draw latency against energy or throughput: FILE.html, .png or .svg.")
    ] = None
    top: Annotated[int, Option(min=0, help="Rows to print; 0 for all.")] = 0
    as_json: AsJson = False


@app.command()
@with_options
def sweep(asked: Sweep) -> None:
    """Predict the points of the grid, and mark the Pareto-optimal ones."""
    from neuralpower.files.csv_files import write_csv
    from neuralpower.predict.explore import fit as fitting
    from neuralpower.predict.explore import sweep as sweeping
    from neuralpower.report.explored import check_plot, sweep_plot, sweep_table

    if asked.plot is not None:
        check_plot(asked.plot)
    parsing.check_file(asked.csv, "points.csv")
    parsing.check_file(asked.plot, "points.png")
    predictors = [
        parsing.predictor(name, device)
        for name in parsing.names(asked.predictor, "predictor") or (None,)
        for device in parsing.names(asked.device, "device") or (None,)
    ]
    shape, batch = parsing.shape(asked.input_shape), asked.batch_size
    usual = (parsing.batch_size(asked.model, None, shape),) if batch is None else ()
    own = parsing.usual_dtype(asked.model, predictors[0]) if asked.dtype is None else ""
    found = sweeping.sweep(
        asked.model,
        predictors,
        batch_sizes=usual if batch is None else sweeping.sizes(batch, "batch size"),
        lengths=sweeping.sizes(asked.seq_len, "seq-len") if asked.seq_len is not None else (None,),
        dtypes=[parsing.dtype(name) for name in parsing.names(asked.dtype, "dtype") or (own,)],
        input_shape=shape,
        memory_bytes=fitting.bytes_of(asked.memory) if asked.memory is not None else None,
        run=asked.run,
        weights=asked.weights,
    )
    if all(point.error for point in found.points):
        raise InputError(f"no point can be predicted: {found.points[0].error}")
    if asked.memory is not None and (read := fitting.reading(asked.memory)):
        found = dataclasses.replace(found, notes=(*found.notes, read))
    if asked.csv is not None:
        write_csv(asked.csv, [vars(found.points[0]), *(vars(p).values() for p in found.points)])
    if asked.plot is not None:
        sweep_plot(found, asked.plot)
    say(json_text(sweeping.to_json(found)) if asked.as_json else sweep_table(found, asked.top, marked=True))


class Compare(OptionGroup):
    """Two sides, and what both do."""

    a: Annotated[str, Argument(help="MODEL, or MODEL@PREDICTOR.")]
    b: Annotated[str, Argument(help="The other one; @PREDICTOR alone is the same model on another device.")]
    predictor: shared_options.Predictor = None
    device: shared_options.Device = None
    sizes: shared_options.Sizes
    phase: Annotated[str, Option(help="As `predict` has them: training, prefill, decode, generate.")] = (
        "forward"
    )
    tokens: shared_options.Tokens
    run: shared_options.Run = None
    as_json: AsJson = False


@app.command()
@with_options
def compare(asked: Compare) -> None:
    """Predict both sides and compare their times."""
    from neuralpower.predict.explore.compare import compare as compared
    from neuralpower.report.explored import comparison_table

    sides = _sides(asked)
    found = compared(*sides)
    say(json_text(found.to_json()) if asked.as_json else comparison_table(found, marked=True))


def _sides(asked: Compare) -> list[Side]:
    """Both models, each predicted on its device; raises InputError."""
    from neuralpower.predict.case import Case, predict_case
    from neuralpower.predict.explore.compare import Side
    from neuralpower.trace.recipe import TRAINING

    shape = asked.sizes.shape
    phase = asked.tokens.phase(asked.phase)
    asked.tokens.check_batch(asked.sizes.batch_size)
    way = "forward" if asked.phase == phase.name else asked.phase
    known: dict[str, Predictor] = {}
    sides = []
    for text in (asked.a, asked.b):
        parsing.check_named([text], "model")
        model, at, name = text.partition("@")
        if at and not name:
            raise InputError(
                f"{text!r} names no predictor behind @; write MODEL@PREDICTOR or @PREDICTOR, or leave @ out"
            )
        model, name = model or asked.a.partition("@")[0], name or asked.predictor or ""
        device = None if at else asked.device
        known[name] = known.get(name) or parsing.predictor(name or None, device)
        dtype = parsing.dtype(asked.sizes.dtype or parsing.usual_dtype(model, known[name]))
        batch = parsing.batch_size(model, asked.sizes.batch_size, shape)
        how: dict[str, Any] = {"run": asked.run, "weights": asked.sizes.weights}
        case = Case(model, batch, asked.sizes.seq_len, shape, dtype, phase, **how)
        known[name].check(dtype, "forward" if way == TRAINING else way)
        prediction, _ = predict_case(case, known[name], phase=way)
        label = case.label + (f" {way}" if way != "forward" else "")
        if "@" in asked.a + asked.b:
            label += f" on {known[name].name}"
        sides.append(Side(label, prediction, known[name]))
    return sides


@app.command()
def score(
    file: str = Argument(help="JSON lines, one candidate each; - for standard input."),
    predictor: shared_options.Predictor = None,
    by: str = Option("latency", help="latency, energy or memory."),
    top: int = Option(20, min=0, help="Rows to print; 0 for all."),
    trust_code: shared_options.TrustCode = False,
    as_json: bool = Option(False, "--json", help="Print one JSON object per candidate, in the file's order."),
) -> None:
    """Score the candidates of a file and rank them."""
    from neuralpower.files.paths import check_regular
    from neuralpower.predict.explore.score import score as scored
    from neuralpower.predict.explore.score import warnings_of
    from neuralpower.report.explored import score_table

    parsing.check_named([file], "file")
    if file != "-":
        check_regular(file)
    try:
        lines = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read ({error}); choose another file") from None
    learnt = parsing.predictor(predictor)
    found = scored(lines.splitlines(), learnt, by, trust_code=trust_code)
    for one in found:
        if one.error:
            tell(f"Warning: {file} line {one.line}: {one.error}")
    if all(one.error for one in found):
        raise InputError(
            f"{file}: none of {len(found)} candidates could be scored; the warnings above say why"
        )
    if by != "latency" and not any(one.rank for one in found):
        raise InputError(f"{by} is not known of any candidate: choose another predictor, or --by latency")
    for text in warnings_of(found, learnt):
        tell(f"Warning: {text}")
    if learnt.platform.memory_note:
        tell(f"Note: {learnt.platform.memory_note}")
    about = f"forward, by {by}, on {learnt.device} ({learnt.name})"
    lines_of_json = (json_text(one.to_json()) for one in found)
    say("\n".join(lines_of_json) if as_json else score_table(found, top, about))


class Fit(OptionGroup):
    """A network, and the memory that it is to fit into."""

    model: Model
    device: Annotated[
        str | None, Option(help="h100, RTX 4090, ... (`devices --specs`), or a spec sheet; this machine's.")
    ] = None
    memory: Annotated[
        str | None, Option(help="Instead of the device's: 24GiB (as of a 24 GB card), or 24GB.")
    ] = None
    phase: Annotated[str, Option(help="forward, training, prefill or decode.")] = "forward"
    batch_size: shared_options.BatchSize = None
    seq_len: Annotated[int | None, Option(help="Tokens per sample; of a prefill the prompt's.")] = None
    context: Annotated[int | None, Option(help="For decode: tokens in the cache before the step.")] = None
    input_shape: shared_options.InputShape = None
    dtype: shared_options.OwnDtype = None
    weights: shared_options.Weights = None
    optimizer: Annotated[
        str,
        Option(
            help="For training: sgd (without momentum), momentum, rmsprop, adam, adamw, adagrad, sparseadam, "
            "or adamw:foreach."
        ),
    ] = "adamw"
    accumulation: Annotated[int, Option(help="For training: micro-batches per step.")] = 1
    checkpointing: Annotated[
        bool, Option("--checkpointing", help="For training: blocks run forward again.")
    ] = False
    run: Annotated[
        str, Option(help="eager, graph, compile or engine, as in predict: what is fused holds no memory.")
    ] = "eager"
    margin: Annotated[
        float | None,
        Option(
            help="Share of the memory to keep free; by default 0 on a CPU, whose memory has an upper bound, "
            "and on others, whose overhead is assumed, 0.3 in training and else 0.1."
        ),
    ] = None
    as_json: AsJson = False


@app.command()
@with_options
def fit(asked: Fit) -> None:
    """Compare the memory that a model needs with the device's; exit code 1 where it does not fit."""
    from neuralpower.predict.explore.fit import Request, reading
    from neuralpower.predict.explore.fit import fit as fitted
    from neuralpower.report.explored import fit_table

    room, platform, name = _room(asked.device, asked.memory)
    shape = parsing.shape(asked.input_shape)
    same = "model seq_len phase optimizer context accumulation checkpointing margin run weights".split()
    request = Request(
        batch_size=parsing.batch_size(asked.model, asked.batch_size, shape),
        input_shape=shape,
        dtype=parsing.dtype(asked.dtype or parsing.usual_dtype(asked.model)),
        platform=platform,
        **{field: getattr(asked, field) for field in same},
    )
    found = fitted(request, room)
    if asked.memory is not None and (read := reading(asked.memory)):
        found = dataclasses.replace(found, notes=(*found.notes, read))
    say(json_text(found.to_json()) if asked.as_json else fit_table(found, request, name, marked=True))
    if not found.fits:
        raise Exit(1)


def _room(device: str | None, memory: str | None) -> tuple[float, Platform, str]:
    """(bytes, platform, name) of what the model is to fit into; raises InputError."""
    from neuralpower.devices.host import read_cpu
    from neuralpower.devices.spec import spec_of
    from neuralpower.platforms import CPU, platform_of
    from neuralpower.predict.explore.fit import bytes_of as parsed

    own: float | None
    if device is None:
        cpu = read_cpu()
        own, platform, name = cpu.memory_bytes, CPU, cpu.name
    else:
        spec = spec_of(device)
        own, platform, name = spec.get("memory_bytes"), platform_of(spec.hardware()), spec.name
    if memory is not None:
        return parsed(memory), platform, name if device else f"{platform.called} of {memory}"
    if own is None:
        raise InputError(f"{name}: its memory is not known; give --memory, such as 24GB")
    return float(int(own)), platform, name
