"""`neuralpower merge`: join datasets of one device into one folder of shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from neuralpower.ask.words import OUTPUT
from neuralpower.cli import parsing
from neuralpower.cli.commands import examples
from neuralpower.cli.output import say, tell

app = Typer()


@app.command(
    epilog=examples(
        "neuralpower merge datasets/monday datasets/tuesday --out datasets/mine",
        "neuralpower merge s3://bucket/a s3://bucket/b -o datasets/fleet",
    )
)
def merge(
    datasets: Annotated[
        list[str],
        Argument(
            help="Datasets of a device: folders or places (s3://bucket/name); the last of equal rows counts."
        ),
    ],
    out: Annotated[
        Path,
        Option(
            "--out",
            "-o",
            help="Output folder; each dataset becomes a shard, and its present shards stay.",
            rich_help_panel=OUTPUT,
        ),
    ],
) -> None:
    """Copy the datasets into the folder and write its card."""
    from neuralpower.data.dataset import read_dataset
    from neuralpower.data.sealing import merge_folders
    from neuralpower.files.atomic import replace_file
    from neuralpower.report.cards import dataset_card

    parsing.check_named(datasets, "dataset")
    rows = merge_folders([*dict.fromkeys(name.rstrip("/") for name in datasets)], out)
    replace_file(out / "README.md", dataset_card(read_dataset(out)))
    for shard, counts in rows.items():
        kinds = ", ".join(f"{kind} {count}" for kind, count in counts.items())
        say(f"{shard}: {sum(counts.values())} rows ({kinds})")
    tell(f"dataset: {out}")
