"""`neuralpower score`: candidates ranked by latency, energy or memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Typer
from typing_extensions import Unpack

from neuralpower.ask.output import Score
from neuralpower.cli import parsing
from neuralpower.cli.commands import examples, with_options
from neuralpower.cli.formats import Answer, check_out, form_of, give
from neuralpower.cli.output import tell
from neuralpower.errors import InputError
from neuralpower.files.json_files import json_text
from neuralpower.files.stages import stage

app = Typer()


@app.command(
    epilog=examples(
        "neuralpower score candidates.jsonl --by latency",
        "neuralpower score candidates.jsonl --device h100 --top 5 --format csv -o best.csv",
    )
)
@with_options
def score(
    file: Annotated[str, Argument(help="JSON lines, one candidate each; - for standard input.")],
    **options: Unpack[Score],
) -> None:
    """Score the candidates of a file and rank them."""
    from neuralpower.files.paths import check_regular

    form, by = form_of(options["form"], options["out"], options["as_json"]), options["by"]
    parsing.check_named([file], "file")
    if file != "-":
        check_regular(file)
    try:
        lines = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read ({error}); choose another file") from None
    check_out(options["out"], form)
    stage("importing torch and transformers")

    from neuralpower.layers.base import FORWARD
    from neuralpower.prediction.explore.score import score as scored
    from neuralpower.prediction.explore.score import warnings_of
    from neuralpower.report.results.explored import score_table

    trained = parsing.predictor(options["predictor"], options["device"])
    stage("scoring the candidates")
    found = scored(lines.splitlines(), trained, by, trust_code=options["trust_code"])
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
        table=lambda: score_table(found, options["top"], about),
        json=lambda: "\n".join(map(json_text, shown)),
        rows=lambda: [[*shown[0]], *([*one.values()] for one in shown)],
    )
    give(answer, form, options["out"])
