"""`neuralpower evaluate`: compare predictions with measurements, made here or elsewhere."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Typer
from typing_extensions import Unpack

from neuralpower.ask import texts
from neuralpower.ask.output import Evaluate
from neuralpower.ask.words import EVALUATED_PHASES
from neuralpower.cli import parsing
from neuralpower.cli.commands import examples, with_options
from neuralpower.cli.known_names import (
    checked_only_model,
    completed_models,
)
from neuralpower.cli.output import VERBOSE, level, say, tell
from neuralpower.errors import InputError, ModelError, first_line, one_line, whole_number
from neuralpower.files.json_files import json_text
from neuralpower.files.stages import counted, stage

if TYPE_CHECKING:
    from neuralpower.learn.predictor import Predictor
    from neuralpower.networks.phases import Phase
    from neuralpower.prediction.evaluation.evaluate import Evaluation
    from neuralpower.prediction.request import Request
    from neuralpower.trace.recipe import Recipe

app = Typer()
NOISE_LIMIT = 0.1  # above it a measured time is unreliable
SHARED = 0.05  # of a measured time, above which other processes are named


@app.command(
    epilog=examples(
        "neuralpower evaluate transformers:bert zoo:resnet50 --predictor models/mine.json",
        "neuralpower evaluate --measured networks.csv --predictor neuralpower,roofline --plot scatter.html",
    )
)
@with_options
def evaluate(
    models: Annotated[
        list[str] | None,
        Argument(
            help="MODEL..., or @FILE with lines: MODEL, batch size, length (- for none), phase, tokens.",
            callback=checked_only_model,
            autocompletion=completed_models,
        ),
    ] = None,
    **options: Unpack[Evaluate],
) -> None:
    """Compare predictions with measurements: networks run here, or a CSV file."""
    if options["measured"] is not None:
        if options["energy"]:
            raise InputError("--energy: is measured in a run here; leave it or --measured out")
        _compare(models or (), options, options["measured"])
        return
    if not models:
        raise InputError("no network given: name models, or give --measured FILE.csv")
    if options["plot"] is not None:
        raise InputError("--plot belongs to --measured; leave it out")
    _measure(models, options)


def _measure(models: Sequence[str], options: Evaluate) -> None:
    """Predict the networks, run them here, and print both."""
    from neuralpower.devices.host import cuda_number

    parsing.check_batch_size(options["batch_size"])
    if options["rounds"] < 1:
        raise InputError(f"rounds {options['rounds']}: must be 1 or more")
    from neuralpower.prediction.request import phase_in, recipe_in

    phase, recipe = phase_in(options), recipe_in(options, str(options["phase"]))
    if recipe.masters:
        raise InputError("--master-weights: evaluate runs steps without masters; leave it out")
    try:
        gpu = options["device"] is not None and cuda_number(options["device"]) is not None
    except InputError as no_place:
        way = "for measurements from elsewhere give --measured FILE.csv"
        raise InputError(f"evaluate measures on this machine: {no_place}; {way}") from None

    from neuralpower.files.atomic import check_place
    from neuralpower.report.perfetto import write
    from neuralpower.report.results.measured import evaluation_json, evaluation_table

    if options["trace_file"] is not None:
        check_place(options["trace_file"], "trace.json")
        if gpu:
            raise InputError("--trace-file: only the CPU's timeline can be measured; leave it out")
    cases = _cases(models, options, phase, recipe)
    how: Any = {"show": tell}
    refused: list[tuple[Request, InputError]] = []
    hears = {"refused": lambda *one: refused.append(one)}
    trained, results = (_on_gpu if gpu else _on_cpu)(options, cases, how | hears)
    if len(refused) == len(cases) == 1:
        raise refused[0][1]
    for request, error in refused:
        tell(f"Warning: {request.label}: {one_line(error)}")
    if not results:
        raise ModelError(f"none of {len(cases)} networks could be evaluated; see the warnings above")
    say(json_text(evaluation_json(results, refused)) if options["as_json"] else evaluation_table(results))
    _warn(results)
    if options["trace_file"] is not None:
        from neuralpower.profiling.cases import side_by_side

        write(options["trace_file"], side_by_side(results, trained, repeats=options["rounds"], **how))
    if refused:
        failed = f"{len(refused)} of {len(cases)} networks"
        raise ModelError(f"{failed} could not be evaluated; see the warnings above")


def _on_cpu(
    options: Evaluate, cases: Sequence[Request], how: Mapping[str, Any]
) -> tuple[Predictor, Sequence[Evaluation]]:
    """The predictor, and the networks measured on this CPU."""
    from neuralpower.devices.host import read_cpu
    from neuralpower.measure.meters import NullMeter
    from neuralpower.prediction.evaluation.evaluate import evaluate as run
    from neuralpower.prediction.evaluation.evaluate import metered

    cpu = read_cpu()
    trained = parsing.predictor(options["predictor"])
    cases = _typed(options, cases, trained)
    apart = _without_extensions(trained.unlike(cpu))
    if apart:
        tell(f"Warning: predictor {trained.name} was trained on another device: {'; '.join(apart)}")
    with metered("cpu", options["energy"]) as meter:
        if isinstance(meter, NullMeter):
            way_out = r"[;,][^;,]*--power none[^;,]*"  # of other commands
            tell(f"Warning: no energy is measured: {re.sub(way_out, '', meter.text)}")
        return trained, run(cases, trained, rounds=options["rounds"], threads=cpu.cores, meter=meter, **how)


def _without_extensions(apart: Sequence[str]) -> Sequence[str]:
    """Differences of two CPUs as text; vector extensions are listed with -v alone."""
    from neuralpower.learn.notes import ONLY

    if level() == VERBOSE or not apart:
        return apart
    return [text for text in apart if not text.endswith(ONLY)] or ["other vector extensions (-v lists them)"]


def _on_gpu(
    options: Evaluate, cases: Sequence[Request], how: Mapping[str, Any]
) -> tuple[Predictor, Sequence[Evaluation]]:
    """The predictor, and the networks measured on the named GPU; raises DeviceError without one."""
    from neuralpower.devices.host import read_cpu
    from neuralpower.measure import rig as rigs
    from neuralpower.prediction.evaluation.on_gpu import evaluate_on, predictor_of

    rig = rigs.open_rig(str(options["device"]), "auto" if options["energy"] else "none", read_cpu().cores)
    trained = parsing.predictor(options["predictor"]) if options["predictor"] else predictor_of(rig)
    return trained, evaluate_on(
        rig, _typed(options, cases, trained), trained, energy=options["energy"], **how
    )


def _typed(asked: Evaluate, cases: Sequence[Request], trained: Predictor) -> Sequence[Request]:
    """The cases in the requested dtype, else each in its model's; raises PredictorError."""
    typed = []
    for case in cases:
        with contextlib.suppress(ModelError):  # it is refused later, and the others are measured
            case = replace(case, dtype=parsing.usual_dtype(str(case.model), trained, asked["dtype"]))
        trained.check(case.dtype, "forward")
        typed.append(case)
    return typed


def _compare(models: Sequence[str], options: Evaluate, file: Path) -> None:
    """Print predictions for networks that were measured elsewhere."""
    if models:
        raise InputError(f"--measured {file} names the networks; leave {', '.join(models)} out")
    parsing.check_plot(options["plot"])
    from neuralpower.data.networks import read_networks

    read_networks(file)  # what cannot be read is refused before torch is imported
    stage("importing torch and transformers")
    from neuralpower.prediction.evaluation.measured import BEST, Asking, compare_measured, read_measurements
    from neuralpower.report.results.measured import measured_json, measured_plot, measured_table

    names = list(texts.names(options["predictor"], "predictor") or (BEST,))
    rows, refused, notes = read_measurements(file, device=options["device"], trust_code=options["trust_code"])
    asking = Asking(names)
    compared = list(compare_measured(counted(rows, "predicting networks:", len(rows)), asking.predictors))
    for line in (*notes, *asking.notes):
        tell(f"Note: {line}")
    reasons = [
        f"{one.measurement.label}, {name}: {why}" for one in compared for name, why in one.refused.items()
    ]
    for line in (*refused, *reasons):
        tell(f"Warning: {line}")
    if not any(one.predictions for one in compared):
        raise ModelError(f"{file}: no row could be compared; see the warnings above")
    shown = [*asking.predictors]
    say(
        json_text(measured_json(compared, shown, refused))
        if options["as_json"]
        else measured_table(compared, shown)
    )
    if options["plot"] is not None:
        measured_plot(compared, shown, options["plot"])
    if refused:
        raise ModelError(f"{file}: {len(refused)} rows could not be compared; see the warnings above")


def _cases(models: Sequence[str], options: Evaluate, phase: Phase, recipe: Recipe) -> list[Request]:
    """The named networks, and those in the listed files; raises InputError."""
    from neuralpower.networks.sources import resolve
    from neuralpower.prediction.request import Request

    shape = texts.shape(options["input_shape"])
    parsing.check_named(models, "model")
    cases: list[Request] = []
    for model in models:
        is_list = model.startswith("@")
        if model == "@":
            raise InputError(
                "@ has no file name; write @FILE, with lines: MODEL, batch size, length, phase, tokens"
            )
        one = (model, options["batch_size"], options["seq_len"], None)
        lines = listed(Path(model[1:]), options["trust_code"]) if is_list else [one]
        given = None if is_list else shape
        for name, batch, length, line_phase in lines:
            try:
                batch = resolve(name).batch_size(None, given) if batch is None else batch
            except ModelError:  # it is refused later, and the others are measured
                batch = 1
            how: dict[str, Any] = {"phase": line_phase or phase, "recipe": recipe}
            cases.append(Request(name, batch, length, given, **how))
    return cases


def _warn(results: Sequence[Evaluation]) -> None:
    """Warn about networks whose measured time is unreliable."""
    for e in results:
        if e.noise is not None and e.noise > NOISE_LIMIT:
            text = f"two halves of its rounds differ by {e.noise:.0%}. Fix: stop other work and measure again"
            tell(f"Warning: {e.request.label}: {text}")
        if e.waited > SHARED:
            text = f"other processes had its cores for {e.waited:.0%} of its time, which is corrected"
            tell(f"Warning: {e.request.label}: {text}. Fix: stop other work and measure again")
        if e.too_slow is not None:
            text = (
                f"the machine was {e.too_slow:.2f} times slower than usual, more than the predictor has seen"
            )
            advice = "the correction is incomplete. Fix: measure again when the machine is quiet"
            tell(f"Warning: {e.request.label}: {text}; {advice}")


def listed(file: Path, trust_code: bool = False) -> list[tuple[str, int | None, int | None, Phase | None]]:
    """(MODEL, batch size, length, phase) of each line, None for omitted values; raises InputError."""
    from neuralpower.files.paths import check_regular
    from neuralpower.networks.sources.base import check_model

    check_regular(file)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        holds = "write lines of MODEL, batch size, length, phase, tokens"
        raise InputError(f"{file}: cannot be read ({first_line(error)}); {holds}") from None
    cases: list[tuple[str, int | None, int | None, Phase | None]] = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        check_model(words[0], f"{file}:{number}", trust_code)
        try:
            length = None if len(words) < 3 or words[2] == "-" else whole_number(words[2])
            tokens = whole_number(words[4]) if len(words) > 4 else None
            phase = _phase(words[3], tokens) if len(words) > 3 else None
            cases.append((words[0], whole_number(words[1]) if len(words) > 1 else None, length, phase))
        except ValueError:
            raise InputError(
                f"{file}:{number}: {line!r} is not MODEL, batch size, length, phase, tokens; "
                "length may be -, phase is forward, prefill or decode"
            ) from None
    if not cases:
        raise InputError(f"{file}: has no network; write lines of MODEL, batch size, length, phase, tokens")
    return cases


def _phase(name: str, tokens: int | None) -> Phase:
    """The phase of a line; raises ValueError for another name, or training, which needs --phase."""
    if name not in EVALUATED_PHASES or name == "training":
        raise ValueError(name)
    from neuralpower.prediction.request import phase_in

    return phase_in({"phase": name, "prompt" if name == "prefill" else "context": tokens})
