"""`neuralpower score`: candidates ranked by latency, energy or memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from neuralpower.cli import parsing, shared_options
from neuralpower.cli.choices import SCORES, choice
from neuralpower.cli.commands import OptionGroup, examples, with_options
from neuralpower.cli.formats import Answer, check_out, form_of, give
from neuralpower.cli.output import tell
from neuralpower.cli.panels import INPUT, OUTPUT
from neuralpower.errors import InputError
from neuralpower.files.json_files import json_text
from neuralpower.files.stages import stage

app = Typer()


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
    from neuralpower.prediction.explore.score import score as scored
    from neuralpower.prediction.explore.score import warnings_of
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
