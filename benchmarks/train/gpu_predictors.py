"""Train the included predictors of GPUs from AIConfigurator's measured tables.

python -m benchmarks.train.gpu_predictors PATH [--system NAME ...] [--only FAMILY ...] [--out DIR] [--again]

PATH holds aiconfigurator2/ (see benchmarks/gpu_tables). Writes a predictor and card of each system, under
the name of its spec sheet. A predictor in --out that was trained from the same rows is left as it is: an
interrupted run resumes. --again trains it again. The tables are Apache-2.0; predictors name
them as their source.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_tables import SYSTEMS, dataset, families, parts
from benchmarks.train import gpu_power
from neuralpower.data.dataset import Dataset
from neuralpower.devices.spec import known_spec
from neuralpower.learn.files.predictor_lookup import load
from neuralpower.learn.keys import Key
from neuralpower.learn.regressor import Regressor
from neuralpower.learn.train import train, train_power
from neuralpower.report.cards import write_predictor


def up_to_date(file: Path, rows: Dataset) -> bool:
    """Whether the file holds a predictor of the same rows."""
    if not file.exists():
        return False
    about = load(file).dataset
    return about.get("source") == rows.meta["source"] and about.get("rows") == len(rows)


def show(key: Key, regressor: Regressor) -> None:
    """A line per regressor as soon as it is fitted."""
    scores = regressor.scores
    print(f"  {' '.join(key)}: {scores.rows} rows, {scores.mape:.1%}, {scores.inside:.0%} inside", flush=True)


def write(root: Path, system: str, only: Sequence[str], out: Path, jobs: int, again: bool) -> None:
    """Train and write one system's predictor, unless that is done; power from rows that have it."""
    some, metered = list(parts(root, system, only)), list(gpu_power.parts(root, system))
    slug = SYSTEMS[system].slug
    if known_spec(slug) is None:
        print(f"{system}: no spec sheet {slug}; skipped")
        return
    if not some:
        print(f"{system}: no rows; skipped")
        return
    rows, file = dataset(some, system), out / f"{slug}.json"
    if not again and up_to_date(file, rows):
        print(f"{system}: {file} holds these rows already")
        return
    started = time.monotonic()
    print(f"{system}: {len(rows)} rows", flush=True)
    trained = train(rows, jobs=jobs, show=show)
    for doubt in trained.doubts:
        print(f"  {doubt}")
    about = {**trained.predictor.dataset, "rows": len(rows)}
    power = train_power(dataset(metered, system), jobs) if metered else trained.predictor.power
    write_predictor(dataclasses.replace(trained.predictor, dataset=about, power=power), file)
    print(f"  {file}: {file.stat().st_size / 1e6:.2f} MB, {time.monotonic() - started:.0f} s", flush=True)


def main() -> None:
    """Read, train, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, nargs="?", help="the folder that holds aiconfigurator2/")
    parser.add_argument("--system", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), help="which GPUs")
    parser.add_argument("--only", nargs="+", choices=families(), default=[], help="families of kinds")
    parser.add_argument("--out", type=Path, default=Path("models"), help="the folder to write to")
    parser.add_argument("--jobs", type=int, default=2, help="fits side by side")
    parser.add_argument("--again", action="store_true", help="train what is there anew")
    given = parser.parse_args()
    if given.path is None:
        print("benchmarks.train.gpu_predictors needs a folder that holds aiconfigurator2/: skipped")
        return
    given.out.mkdir(parents=True, exist_ok=True)
    for system in given.system:
        write(given.path, system, given.only, given.out, given.jobs, given.again)


if __name__ == "__main__":
    main()
