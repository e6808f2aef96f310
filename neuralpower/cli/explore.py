"""`neuralpower sweep`, `compare`, `score` and `fit`: what if, from few traces; none needs a device."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from neuralpower.cli import options
from neuralpower.cli.output import say
from neuralpower.files.json_files import json_text
from neuralpower.files.terminal import visible

if TYPE_CHECKING:
    from neuralpower.learn.predictor import Predictor
    from neuralpower.platforms import Platform

app = typer.Typer()
MODEL = typer.Argument(help="transformers:bert, a folder with config.json, zoo:alexnet, ...")
JSON = typer.Option(False, "--json", help="Print everything as JSON.")


@app.command()
def sweep(
    model: str = MODEL,
    batch_size: str | None = typer.Option(
        None, help="1,8,32; 1:256 doubles; 64:512:64 goes in steps; by default as in predict."
    ),
    seq_len: str | None = typer.Option(None, help="Tokens per sample, written in the same way."),
    input_shape: str | None = options.INPUT_SHAPE,
    dtype: str = typer.Option("float32", help="One or more, with commas."),
    predictor: str | None = typer.Option(None, help="Names or files, with commas; this machine's by default."),
    memory: str | None = typer.Option(None, help="Of the device, such as 24GB; by default what its spec sheet says."),
    csv: Path | None = typer.Option(None, help="Write one line per point to this file."),
    plot: Path | None = typer.Option(None, help="Draw latency against energy or throughput: FILE.html, .png or .svg."),
    top: int = typer.Option(0, min=0, help="Rows to print; 0 for all."),
    as_json: bool = JSON,
) -> None:
    """Predict a grid of batch sizes, lengths, types and devices from few traces; the points nothing beats are marked."""
    from neuralpower.errors import InputError
    from neuralpower.files.csv_files import write_csv
    from neuralpower.predict.explore import fit as fitting
    from neuralpower.predict.explore import sweep as sweeping
    from neuralpower.report.explored import check_plot, sweep_plot, sweep_table

    if plot is not None:
        check_plot(plot)
    options.check_file(csv, "points.csv")
    options.check_file(plot, "points.png")
    predictors = [options.predictor(name) for name in options.names(predictor, "predictor") or (None,)]
    shape = options.shape(input_shape)
    if batch_size is None:
        batch_sizes: Sequence[int] = [options.batch_size(model, None, shape)]
    else:
        batch_sizes = sweeping.sizes(batch_size, "batch size")
    found = sweeping.sweep(
        model,
        predictors,
        batch_sizes=batch_sizes,
        lengths=sweeping.sizes(seq_len, "seq-len") if seq_len is not None else (None,),
        dtypes=[options.dtype(name) for name in options.names(dtype, "dtype") or ("float32",)],
        input_shape=shape,
        memory_bytes=fitting.bytes_of(memory) if memory is not None else None,
    )
    if all(point.error for point in found.points):
        raise InputError(f"no point can be predicted: {found.points[0].error}")
    _warn(predictors)
    if csv is not None:
        write_csv(csv, [sweeping.SweepPoint.__dataclass_fields__, *(vars(p).values() for p in found.points)])
    if plot is not None:
        sweep_plot(found, plot)
    say(json_text(sweeping.to_json(found)) if as_json else sweep_table(found, top))


@app.command()
def compare(
    a: str = typer.Argument(help="MODEL, or MODEL@PREDICTOR."),
    b: str = typer.Argument(help="The other one; @PREDICTOR alone is the same model on another device."),
    predictor: str | None = options.PREDICTOR,
    batch_size: int | None = options.BATCH_SIZE,
    seq_len: int | None = options.SEQ_LEN,
    input_shape: str | None = options.INPUT_SHAPE,
    dtype: str = options.DTYPE,
    phase: str = typer.Option("forward", help="As `predict` has them: training, prefill, decode, generate."),
    context: int | None = typer.Option(None, help="decode: tokens in the cache before the step."),
    prompt: int | None = typer.Option(None, help="prefill, generate: tokens of the prompt."),
    new_tokens: int | None = typer.Option(None, help="generate: tokens to make after the prompt."),
    as_json: bool = JSON,
) -> None:
    """Compare two models, or a model on two devices: ratio of the times, and how likely one is the faster."""
    from neuralpower.errors import InputError
    from neuralpower.predict.case import Case, predict_case
    from neuralpower.predict.explore.compare import Side
    from neuralpower.predict.explore.compare import compare as compared
    from neuralpower.report.explored import comparison_table
    from neuralpower.trace.training import TRAINING

    shape = options.shape(input_shape)
    case_phase = options.phase(phase, context, prompt, new_tokens)
    way = "forward" if phase == case_phase.name else phase
    known: dict[str, Predictor] = {}
    sides = []
    for text in (a, b):
        options.check_named([text], "model")
        model, at, name = text.partition("@")
        if at and not name:
            raise InputError(
                f"{text!r} names no predictor behind @; write MODEL@PREDICTOR or @PREDICTOR, or leave @ out"
            )
        model, name = model or a.partition("@")[0], name or predictor or ""
        known[name] = known.get(name) or options.predictor(name or None)
        batch = options.batch_size(model, batch_size, shape)
        case = Case(model, batch, seq_len, shape, options.dtype(dtype), case_phase)
        known[name].check(case.dtype, "forward" if way == TRAINING else way)
        prediction, _ = predict_case(case, known[name], phase=way)
        label = (
            case.label + (f" {way}" if way != "forward" else "") + (f" on {known[name].name}" if "@" in a + b else "")
        )
        sides.append(Side(label, prediction, known[name]))
    found = compared(*sides)
    _warn(known.values())
    say(json_text(found.to_json()) if as_json else comparison_table(found))


@app.command()
def score(
    file: str = typer.Argument(help="JSON lines, one candidate each; - for standard input."),
    predictor: str | None = options.PREDICTOR,
    by: str = typer.Option("latency", help="latency, energy or memory."),
    top: int = typer.Option(20, min=0, help="Rows to print; 0 for all."),
    trust_code: bool = options.TRUST_CODE,
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object per candidate, in the file's order."),
) -> None:
    """Rank candidates: configurations with changed fields, or lists of layers."""
    from neuralpower.errors import InputError
    from neuralpower.files.paths import check_regular
    from neuralpower.predict.explore.score import score as scored
    from neuralpower.report.explored import score_table

    options.check_named([file], "file")
    if file != "-":
        check_regular(file)
    try:
        lines = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read ({error}); choose another file") from None
    learnt = options.predictor(predictor)
    found = scored(lines.splitlines(), learnt, by, trust_code=trust_code)
    for one in found:
        if one.error:
            print(visible(f"warning: {file} line {one.line}: {one.error}"), file=sys.stderr)
    if all(one.error for one in found):
        raise InputError(f"{file}: none of {len(found)} candidates could be scored; the warnings above say why")
    if by != "latency" and not any(one.rank for one in found):
        raise InputError(f"{by} is not known of any candidate: choose another predictor, or --by latency")
    _warn([learnt])
    if learnt.platform.memory_note:
        print(f"note: {learnt.platform.memory_note}", file=sys.stderr)
    say("\n".join(json_text(one.to_json()) for one in found) if as_json else score_table(found, top))


@app.command()
def fit(
    model: str = MODEL,
    device: str | None = typer.Option(None, help="A spec sheet's name or file (`devices --specs`); this machine's."),
    memory: str | None = typer.Option(None, help="Instead of the device's, such as 24GB or 80GiB."),
    phase: str = typer.Option("forward", help="forward, training, prefill or decode."),
    batch_size: int | None = options.BATCH_SIZE,
    seq_len: int | None = typer.Option(None, help="Tokens per sample; of a prefill the prompt's."),
    context: int | None = typer.Option(None, help="For decode: tokens in the cache before the step."),
    input_shape: str | None = options.INPUT_SHAPE,
    dtype: str = options.DTYPE,
    optimizer: str = typer.Option(
        "adamw",
        help="For training: sgd (without momentum), momentum, rmsprop, adam, adamw, adagrad, sparseadam, or adamw:foreach.",
    ),
    accumulation: int = typer.Option(1, help="For training: micro-batches per step."),
    checkpointing: bool = typer.Option(False, "--checkpointing", help="For training: blocks run forward again."),
    margin: float | None = typer.Option(
        None,
        help="Share of the memory to keep free; by default 0 on a CPU, whose memory has an upper bound, and on others, whose "
        "overhead is assumed, 0.3 in training and else 0.1.",
    ),
    as_json: bool = JSON,
) -> None:
    """Say whether a model fits into a device's memory (exit code 0, or 1 where not), and the largest that would."""
    from neuralpower.predict.explore.fit import Request
    from neuralpower.predict.explore.fit import fit as fitted
    from neuralpower.report.explored import fit_table

    room, platform, name = _room(device, memory)
    shape = options.shape(input_shape)
    request = Request(
        model,
        options.batch_size(model, batch_size, shape),
        seq_len,
        shape,
        options.dtype(dtype),
        phase,
        optimizer,
        platform,
        context,
        accumulation,
        checkpointing,
        margin,
    )
    found = fitted(request, room)
    say(json_text(found.to_json()) if as_json else fit_table(found, request, name))
    if not found.fits:
        raise typer.Exit(1)


def _room(device: str | None, memory: str | None) -> tuple[float, Platform, str]:
    """(bytes, platform, name) of what the model is to fit into; raises InputError."""
    from neuralpower.devices.host import read_cpu
    from neuralpower.devices.spec import spec_of
    from neuralpower.errors import InputError
    from neuralpower.platforms import CPU, platform_of
    from neuralpower.predict.explore.fit import bytes_of as parsed

    if device is None:
        cpu = read_cpu()
        own, platform, name = cpu.memory_bytes, CPU, cpu.name
    else:
        spec = spec_of(device)
        found = spec.get("memory_bytes")
        own, platform, name = (None if found is None else int(found)), platform_of(spec.hardware()), spec.name
    if memory is not None:
        return parsed(memory), platform, f"of {name}" if device else "as given"
    if own is None:
        raise InputError(f"{name}: its memory is not known; give --memory, such as 24GB")
    return float(own), platform, name


def _warn(predictors: Iterable[Predictor]) -> None:
    for predictor in predictors:
        for text in predictor.foreign():
            print(visible(f"warning: {predictor.name}: {text}"), file=sys.stderr)
