"""`neuralpower evaluate`: measure networks here, beside what was predicted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from neuralpower.cli import options
from neuralpower.cli.output import say
from neuralpower.files.json_files import json_text
from neuralpower.files.terminal import visible

if TYPE_CHECKING:
    from neuralpower.networks.phases import Phase

app = typer.Typer()
MEASURED = ("forward", "training", "prefill", "decode")
NOISE_LIMIT = 0.1  # above it a measured time says nothing


@app.command()
def evaluate(
    models: list[str] = typer.Argument(
        help="MODEL..., or @FILE with lines of MODEL, batch size, sequence length (- for none), phase, its tokens."
    ),
    predictor: str | None = options.PREDICTOR,
    batch_size: int | None = options.BATCH_SIZE,
    seq_len: int | None = options.SEQ_LEN,
    input_shape: str | None = options.INPUT_SHAPE,
    dtype: str = options.DTYPE,
    phase: str = typer.Option("forward", help="forward or training; prefill or decode of a language model."),
    context: int | None = options.CONTEXT,
    prompt: int | None = typer.Option(None, help="prefill: tokens of the prompt."),
    optimizer: str = options.OPTIMIZER,
    accumulation: int = options.ACCUMULATION,
    checkpointing: bool = typer.Option(False, help="Train with the model's own activation checkpointing."),
    rounds: int = typer.Option(21, help="Runs of each network, spread over the time."),
    trace_file: Path | None = typer.Option(
        None, help="Write predicted and measured timelines for ui.perfetto.dev to this file; takes some runs more."
    ),
    trust_code: bool = options.TRUST_CODE,
    as_json: bool = typer.Option(False, "--json", help="Print the figures as JSON."),
) -> None:
    """Predict networks, run them on this CPU, and print both side by side."""
    from neuralpower.devices.host import read_cpu
    from neuralpower.errors import InputError, ModelError, one_line, unknown

    options.check_batch_size(batch_size)
    if rounds < 1:
        raise InputError(f"rounds {rounds}: must be 1 or more")
    recipe = options.recipe(optimizer, accumulation, checkpointing, phase)
    shape = options.shape(input_shape)
    if phase not in MEASURED:
        raise unknown("phase", phase, MEASURED)
    asked = options.phase(phase, context, prompt)

    from neuralpower.data.dataset import check_place
    from neuralpower.predict.evaluate import Case
    from neuralpower.predict.evaluate import evaluate as run
    from neuralpower.report.chrome import write
    from neuralpower.report.tables import evaluation_json, evaluation_table

    if trace_file is not None:
        check_place(trace_file, "trace.json")
    options.check_named(models, "model")
    cases: list[Case] = []
    for model in models:
        is_list = model.startswith("@")
        if model == "@":
            raise InputError("@ names no list; write @FILE, whose lines are MODEL, batch size, length, phase, tokens")
        lines = listed(Path(model[1:]), trust_code) if is_list else [(model, batch_size, seq_len, None)]
        for name, batch, length, line_phase in lines:
            given = None if is_list else shape
            try:
                batch = options.batch_size(name, batch, given)
            except ModelError:  # it is refused below, and the others are measured
                batch = 1
            cases.append(Case(name, batch, length, given, options.dtype(dtype), line_phase or asked))
    cpu = read_cpu()
    learnt = options.predictor(predictor)
    learnt.check(options.dtype(dtype), "forward")
    apart = learnt.unlike(cpu)
    if apart:
        text = f"warning: predictor {learnt.name} is of another device: {'; '.join(apart)}"
        print(visible(text), file=sys.stderr)
    how = {"rounds": rounds, "threads": cpu.cores}
    way = "training" if phase == "training" else "forward"

    def show(text: str) -> None:
        print(visible(text), file=sys.stderr)

    refused: list[tuple[Case, InputError]] = []
    results = run(cases, learnt, **how, phase=way, recipe=recipe, show=show, refused=lambda *one: refused.append(one))
    if len(refused) == len(cases) == 1:
        raise refused[0][1]
    for case, error in refused:
        print(visible(f"warning: {case.label}: {one_line(error)}"), file=sys.stderr)
    if not results:
        raise ModelError(f"none of {len(cases)} networks could be evaluated; the warnings above say why")
    say(json_text(evaluation_json(results, refused)) if as_json else evaluation_table(results))
    for e in results:
        if e.noise is not None and e.noise > NOISE_LIMIT:
            text = f"{e.case.label}: two halves of its rounds differ by {e.noise:.0%}; something else ran, measure it again"
            print(f"warning: {text}", file=sys.stderr)
        if e.too_slow is not None:
            text = f"{e.case.label}: the sentinel took {e.too_slow:.2f} times its usual time, more than the predictor knows"
            print(f"warning: {text}; not all of that is taken out, measure it again at a quieter time", file=sys.stderr)
    if trace_file is not None:
        from neuralpower.profiling.cases import side_by_side

        write(trace_file, side_by_side(results, learnt, phase=way, recipe=recipe, repeats=rounds, show=show))
    if refused:
        raise ModelError(f"{len(refused)} of {len(cases)} networks could not be evaluated; the warnings above say why")


def listed(file: Path, trust_code: bool = False) -> list[tuple[str, int | None, int | None, Phase | None]]:
    """(MODEL, batch size, sequence length, phase) of each line, None for what it leaves out; raises InputError."""
    from neuralpower.errors import InputError, first_line
    from neuralpower.files.paths import check_regular
    from neuralpower.networks.trust import check_model

    check_regular(file)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InputError(
            f"{file}: cannot be read ({first_line(error)}); it holds lines of MODEL, batch size, length, phase, tokens"
        ) from None
    cases: list[tuple[str, int | None, int | None, Phase | None]] = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        check_model(words[0], f"{file}:{number}", trust_code)
        try:
            length = None if len(words) < 3 or words[2] == "-" else int(words[2])
            phase = _phase(words[3], int(words[4]) if len(words) > 4 else None) if len(words) > 3 else None
            cases.append((words[0], int(words[1]) if len(words) > 1 else None, length, phase))
        except ValueError:
            raise InputError(
                f"{file}:{number}: {line!r} is no MODEL, batch size, length (- for none), phase (forward, prefill or "
                "decode), tokens of its prompt or context"
            ) from None
    if not cases:
        raise InputError(f"{file}: names no network; give lines of MODEL, batch size, length, phase, tokens")
    return cases


def _phase(name: str, tokens: int | None) -> Phase:
    """The phase of a line; raises ValueError for a name that is none, or training, which all lines are or none."""
    if name not in MEASURED or name == "training":
        raise ValueError(name)
    return options.phase(name, tokens if name != "prefill" else None, tokens if name == "prefill" else None)
