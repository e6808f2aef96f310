"""`neuralpower fit`: whether a network fits into a memory, and the largest batch and context that do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Exit, Typer
from typing_extensions import Unpack

from neuralpower.ask.output import Fit
from neuralpower.ask.spread import check_used, cluster_in, fitted_in, layouts_in
from neuralpower.cli import parsing
from neuralpower.cli.answers import answered
from neuralpower.cli.commands import Model, examples, with_options
from neuralpower.cli.formats import Answer, check_out, form_of, give
from neuralpower.cli.output import VERBOSE, level
from neuralpower.devices.names import bytes_of
from neuralpower.errors import InputError
from neuralpower.files.stages import stage

if TYPE_CHECKING:
    from neuralpower.prediction.fits import fit as fitting
    from neuralpower.prediction.memory.over_time import Lived

app = Typer()


@app.command(
    epilog=examples(
        "neuralpower fit llama-3.1-8b --phase decode --context 8192 --device rtx-4090",
        "neuralpower fit transformers:gpt2 --phase training --seq-len 512 --memory 8GB",
        "neuralpower fit llama-3.1-8b --device l40s --engine vllm --max-model-len 8192",
    )
)
@with_options
def fit(model: Model, **options: Unpack[Fit]) -> None:
    """Compare the memory that a model needs with the device's; exit code 1 where it does not fit."""
    form = form_of(options["form"], options["out"], options["as_json"])
    parsing.check_batch_size(options["batch_size"])
    if options["memory"] is not None:
        bytes_of(options["memory"])  # refused before torch is imported
    spread, _ = fitted_in(options, model)
    check_used(cluster_in(spread), layouts_in(spread), spread, model)
    if options["no_cache"] or options["out"] is not None or options["memory_picture"] is not None:
        _fit(model, options, form)
    else:
        answered(model, {"command": "fit", **options}, lambda: _fit(model, options, form))


def _fit(model: str, options: Fit, form: str) -> None:
    """Find the answer and print it; raises Exit where the model does not fit."""
    stage("importing torch and transformers")
    from neuralpower.api.loaded import chosen, fitted
    from neuralpower.prediction.fits.verdict import DOES_NOT_FIT
    from neuralpower.report.results.explored import fit_table

    picture, named = options["memory_picture"], options["predictor"]
    check_out(options["out"], form)
    parsing.check_memory_picture(picture, layouts_in(fitted_in(options, model)[0])[0].alone)
    passes: list[Lived] = []
    trained = None if named is None else chosen(None, named).predictor
    found, request = fitted(model, options, trained, passes.append if picture is not None else None)
    if picture is not None:
        _draw(passes, found, picture)
    shown = found.to_json()
    detailed = level() >= VERBOSE
    plain = (str, int, float, type(None))
    flat = {n: value for n, value in shown.items() if n != "schema" and isinstance(value, plain)}
    answer = Answer(
        title=f"{model}: {found.verdict}",
        table=lambda: fit_table(found, request, found.device, marked=True, detailed=detailed),
        json=lambda: shown,
        rows=lambda: [[*flat], [*flat.values()]],
        shown=lambda: [["figure", "value"], *([name, value] for name, value in flat.items())],
        lead=lambda: fit_table(found, request, found.device).splitlines(),
    )
    give(answer, form, options["out"])
    if found.verdict == DOES_NOT_FIT:
        raise Exit(1)


def _draw(passes: Sequence[Lived], found: fitting.Fit, path: Path) -> None:
    """Draw the memory over time of the pass with the highest peak."""
    from neuralpower.prediction.memory.over_time import fullest
    from neuralpower.report.results.memory_pictures import write_memory

    if not passes:
        raise InputError(
            f"--memory-picture {path}: no pass was followed on one device; leave --memory-picture out"
        )
    write_memory(fullest(passes), found.memory, path)
