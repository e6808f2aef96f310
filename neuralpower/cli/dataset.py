"""`neuralpower dataset`: turn your own measurements into a dataset that can train a predictor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from neuralpower.ask import texts
from neuralpower.ask.words import INPUT, OUTPUT, TABLES
from neuralpower.cli import merge, parsing
from neuralpower.cli.choices import choice
from neuralpower.cli.commands import TrustCode, examples
from neuralpower.cli.known_names import completed_devices
from neuralpower.cli.output import say, tell
from neuralpower.errors import InputError
from neuralpower.files.atomic import replace_file
from neuralpower.files.json_files import json_text
from neuralpower.files.paths import is_file, resolved

if TYPE_CHECKING:
    from neuralpower.data.dataset import Dataset

app = typer.Typer(name="dataset", no_args_is_help=True)
MERGED = examples(
    "neuralpower dataset merge datasets/monday datasets/tuesday --out datasets/mine",
    "neuralpower dataset merge s3://bucket/a s3://bucket/b -o datasets/fleet",
)
REFUSED = 1  # exit code of a check that refuses rows
AS_JSON = Option(False, "--json", help="Print the numbers as JSON.", rich_help_panel=OUTPUT)
MAPS = Option(
    [],
    "--map",
    help="COLUMN=EXPRESSION, such as runtime_s=latency_ms/1000; repeat it for more.",
    rich_help_panel=INPUT,
)
USABLE_TO = Option(
    None,
    "--out",
    "-o",
    help="Write the usable rows to this folder, repeats averaged.",
    rich_help_panel=OUTPUT,
)


@app.command(
    epilog=examples(
        "neuralpower dataset init datasets/mine --kind linear,conv2d --device h100",
        "neuralpower dataset init datasets/mine --kind network --device-spec mygpu.json",
    )
)
def init(
    folder: str = Argument(help="The folder to write."),
    kind: Annotated[
        list[str],
        choice(
            "layer kind",
            lambda: TABLES,
            help="Layer kind, or network; repeat it, or use commas.",
            several=True,
            rich_help_panel=INPUT,
        ),
    ] = ["linear"],  # noqa: B006
    device: str | None = Option(
        None,
        help="The device's name; with a name of `devices --specs`, its peaks are filled in.",
        autocompletion=completed_devices,
        rich_help_panel=INPUT,
    ),
    device_spec: Path | None = Option(
        None,
        "--device-spec",
        help="A spec sheet of your own: its numbers are filled in; a file that is not there is written, to "
        "fill in.",
        rich_help_panel=INPUT,
    ),
) -> None:
    """Write a dataset folder to fill in: dataset.json and a commented CSV table per layer kind."""
    from neuralpower.data.importing import write_templates
    from neuralpower.devices.spec import blank_sheet, read_spec

    parsing.check_named([folder], "folder")
    kinds = dict.fromkeys(name for text in kind for name in texts.names(text, "kind") or ())
    sheet = read_spec(device_spec) if device_spec is not None and is_file(device_spec) else None
    if sheet is not None and device is not None:
        raise InputError(
            f"--device {device} and --device-spec {device_spec} both name a device; leave one out"
        )
    name = sheet.name if sheet is not None else device or "My device"
    files = write_templates(Path(folder), [*kinds], name, sheet)
    if device_spec is not None and sheet is None:
        replace_file(device_spec, blank_sheet(name))
        files.append(device_spec)
    for file in files:
        say(file)
    tell(f"Next: fill in the tables, then run: neuralpower dataset check {folder}")


@app.command(
    epilog=examples(
        "neuralpower dataset check datasets/mine",
        "neuralpower dataset check bench.csv --map runtime_s=latency_ms/1000 --device l40s -o datasets/l40s",
    )
)
def check(
    source: str = Argument(
        help="A dataset folder, a place such as s3://bucket/name, or one table: FILE.csv or FILE.parquet."
    ),
    kind: Annotated[
        str | None,
        choice(
            "layer kind",
            lambda: TABLES,
            help="Layer kind of the table; default: from the file's name or columns.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    map_: list[str] = MAPS,
    device: str | None = Option(
        None,
        help="The device that was measured, where no dataset.json says it.",
        autocompletion=completed_devices,
        rich_help_panel=INPUT,
    ),
    out: Path | None = USABLE_TO,
    trust_code: TrustCode = False,
    as_json: bool = AS_JSON,
) -> None:
    """Check rows, list refused ones by line with a fix, and write the usable ones.

    Exit code 1 if rows are refused.
    """
    from neuralpower.data.columns import mapping

    columns = mapping(map_)
    if not is_file(source):
        parsing.check_named([source], "dataset")
    from neuralpower.report.results import inspection

    found = inspection.check(source, kind, columns, device, out, trust_code=trust_code)
    refused = len(found.refused)
    say(json_text(found.to_json()) if as_json else found)
    for file in found.written:
        tell(f"written: {file}")
    if not as_json:
        _next(refused, sum(found.usable.values()), out or (None if is_file(source) else Path(source)))
    if refused:
        raise typer.Exit(REFUSED)


@app.command(
    epilog=examples(
        "neuralpower dataset inspect datasets/mine", "neuralpower dataset inspect datasets/mine --json"
    )
)
def inspect(
    folder: str = Argument(help="A dataset folder, or a place such as s3://bucket/name."),
    trust_code: TrustCode = False,
    as_json: bool = AS_JSON,
) -> None:
    """Show a dataset: device, time span, noise, power, rows per kind, and kinds with too few rows."""
    dataset = _dataset(folder)
    from neuralpower.report.results.inspection import inspection, inspection_json, read_tables

    tables = read_tables(dataset, trust_code)
    say(json_text(inspection_json(dataset, tables)) if as_json else inspection(dataset, tables))


app.command("merge", epilog=MERGED)(merge.merge)


def _dataset(folder: str) -> Dataset:
    from neuralpower.data.dataset import read_dataset

    parsing.check_named([folder], "dataset")
    return read_dataset(folder, samples=False)


def _next(refused: int, usable: int, folder: Path | None) -> None:
    left = f"{refused} refused, {usable} usable" if refused else f"all {usable} rows usable"
    if not usable:
        tell("no usable rows: a predictor cannot be trained yet")
    elif folder is None:
        tell(f"{left}. Next: add --device NAME --out FOLDER to write a dataset")
    else:
        tell(f"{left}. Next: neuralpower train-predictor {folder} --out models/{resolved(folder).name}.json")
