"""A dataset folder to fill in: `dataset.json`, a table per layer kind with two example rows, and a README."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuralpower.data.dataset_format import HARDWARE
from neuralpower.data.schema import write_meta
from neuralpower.errors import DatasetError, unknown, writing
from neuralpower.files.atomic import replace_file
from neuralpower.files.csv_files import csv_text

if TYPE_CHECKING:
    from neuralpower.layers import Layer

EXAMPLES = 2
EXAMPLE = "example"  # the status of a row that shows how to write one: no training sees it
# Times of the examples: those of a device that reaches 1 TFLOP/s and 100 GB/s, after a launch of 5 us.
FLOPS_PER_S, BYTES_PER_S, LAUNCH_S = 1e12, 1e11, 5e-6
MOST_WORDS = 12  # of a field that the header lists
NETWORK_ROWS = (
    ("zoo:resnet18", 8, '{"input_shape": [3, 224, 224]}', "float32", 0.021, EXAMPLE),
    ("transformers:bert", 1, '{"seq_len": 128}', "float32", 0.034, EXAMPLE),
)
README = """# Dataset of {device}

1. Replace the two example rows of each table. Rows whose status is `example` are never used.
2. Write what you know of the device into `dataset.json`; leave `null` for what you do not know.
   Peaks are FLOP/s by dtype, such as `"peak_flops_per_s": {{"float32": 8.1e12}}`.
3. Check: `neuralpower dataset check {folder}`
4. Train: `neuralpower train-predictor {folder} --out models/mine.json`

Units are SI: seconds, watts, joules, bytes. Lines of a table that begin with `#` are comments.
Ten different configurations of a kind are the fewest; some hundred are better.
"""


def write_templates(folder: Path, kinds: Sequence[str], device: str) -> list[Path]:
    """Write the folder's files and give their paths.

    A folder that is a dataset already keeps its `dataset.json` and README, and gets the tables it lacks.

    Raises DatasetError: an unknown kind, a table that is there, or a folder that cannot be written.
    """
    from neuralpower.layers import KINDS

    for kind in kinds:
        if kind not in (*KINDS, "network"):
            raise unknown("layer kind", kind, [*KINDS, "network"], DatasetError)
        if (folder / f"{kind}.csv").exists():
            text = "exists already; choose another folder, or another --kind"
            raise DatasetError(f"{folder / f'{kind}.csv'}: {text}")
    files = []
    with writing(folder, "folder", DatasetError):
        folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "dataset.json").exists():
        write_meta(folder, _meta(device))
        replace_file(folder / "README.md", README.format(device=device, folder=folder))
        files += [folder / "dataset.json", folder / "README.md"]
    for kind in kinds:
        replace_file(folder / f"{kind}.csv", template(kind))
        files.append(folder / f"{kind}.csv")
    return files


def _meta(device: str) -> dict[str, Any]:
    """`dataset.json`, with nulls to fill in unless the device's spec sheet is known."""
    from neuralpower.devices.spec import known_spec

    if known_spec(device) is not None:
        return {"device": device}
    return {"device": device, "source": None, "hardware": dict.fromkeys(HARDWARE)}


def template(kind: str) -> str:
    """A CSV table: comments that explain the columns, a header, and two example rows."""
    from neuralpower.layers import KINDS

    header, rows, fields = (
        (["model", "batch", "input", "dtype", "runtime_s", "status"], NETWORK_ROWS, NETWORK_FIELDS)
        if kind == "network"
        else _example(KINDS[kind])
    )
    comments = [
        f"{kind}: one row per measurement. Lines that begin with # are comments.",
        *(f"  {name}: {text}" for name, text in fields.items()),
        "The two rows below are examples; replace them. Rows with status example are never used.",
    ]
    return "".join(f"# {line}\n" for line in comments) + csv_text([header, *rows])


NETWORK_FIELDS: Mapping[str, str] = {
    "model": "a name as `neuralpower predict` takes it",
    "batch": "samples",
    "input": 'JSON such as {"seq_len": 128} or {"input_shape": [3, 224, 224]}; may be empty',
    "dtype": "such as float32",
    "runtime_s": "seconds of one pass",
    "status": "ok, or empty; other rows are not used",
}


def _example(kind: type[Layer]) -> tuple[list[str], list[list[Any]], dict[str, str]]:
    """(Header, two rows, what each column holds) of a layer kind."""
    from neuralpower.layers.sweep import Draw

    defaults = kind.defaults()
    needed = [name for name in kind.field_names() if name not in defaults]
    header = [*needed, "runtime_s", "power_w", "dtype", "phase", "status"]
    rows: list[list[Any]] = []
    for seed in range(EXAMPLES):
        layer = kind.sample(Draw(f"template {seed}"))
        seconds = LAUNCH_S + layer.flops() / FLOPS_PER_S + sum(layer.bytes()) / BYTES_PER_S
        row = {name: _plain(value) for name, value in layer.to_row().items()}
        row |= {"runtime_s": f"{seconds:.3g}", "power_w": "", "status": EXAMPLE}
        rows.append([row[name] for name in header])
    more = ", ".join(f"{name}={_plain(value)}" for name, value in defaults.items() if name not in header)
    return (
        header,
        rows,
        {
            **{name: _rule(kind, name) for name in needed},
            "runtime_s": "seconds of one call (1.5 ms is 0.0015)",
            "power_w": "watts while it runs; may be empty",
            "dtype": "such as float32, bfloat16; empty: float32",
            "phase": "forward or backward; empty: forward",
            "status": "ok, or empty; other rows are not used",
            "more columns": f"optional; by default {more}",
        },
    )


def _rule(kind: type[Layer], name: str) -> str:
    """The rule of a field, as text."""
    declared = {field.name: field.type for field in dataclasses.fields(kind)}
    if name in kind.words:
        words = sorted(kind.words[name])
        return f"one of {', '.join(words[:MOST_WORDS])}{', ...' if len(words) > MOST_WORDS else ''}"
    return "true or false" if declared[name] == "bool" else "a whole number"


def _plain(value: Any) -> Any:
    """A field's value as people write it."""
    return str(value).lower() if isinstance(value, bool) else value
