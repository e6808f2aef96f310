"""`neuralpower train-predictor`: dataset -> one regressor per layer kind -> predictor file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from neuralpower.cli import options
from neuralpower.cli.output import say
from neuralpower.terminal import visible

if TYPE_CHECKING:
    from neuralpower.learn import Trained

app = typer.Typer()
MOST_TOLD = 5  # groups with too few rows that are named, each on a line
DISAGREE = 0.3  # mean error of networks held out, from which on the tables are hardly of one device


@app.command()
def train_predictor(
    datasets: list[str] = typer.Argument(
        help="Folders of datasets, or places such as s3://bucket/name; of several devices: a predictor that holds for others."
    ),
    learner: str = typer.Option("hybrid", help="hybrid: base and residual; lasso: the base alone, as a formula."),
    out: Path | None = typer.Option(None, help="The predictor file; models/NAME.json by default."),
    jobs: int = typer.Option(-1, help="Fits in parallel; -1: as many as cores."),
    trust_code: bool = options.TRUST_CODE,
) -> None:
    """Fit the regressors and write the predictor; errors are of ten held-out folds."""
    from neuralpower.codec import check_places
    from neuralpower.dataset import read_dataset, summarised
    from neuralpower.errors import InputError
    from neuralpower.learn import train
    from neuralpower.report.cards import write_predictor
    from neuralpower.report.tables import training_table

    if not jobs:
        raise InputError(f"jobs {jobs}: must be 1 or more, or -1 for as many as cores")
    data = [read_dataset(folder, samples=False) for folder in dict.fromkeys(name.rstrip("/") for name in datasets)]
    target = out or Path("models") / f"{'+'.join(dataset.name for dataset in data)}.json"
    check_places(target)  # now rather than after minutes of fitting
    trained = train(data, learner, jobs, trust_code=trust_code)
    say(training_table(trained))
    if trained.correction:
        c = trained.correction
        print(
            f"corrected by {c.rows} whole networks: mean error {c.before:.1%} before, {c.after:.1%} after (held out)",
            file=sys.stderr,
        )
        if c.after > DISAGREE:
            print(
                "whole networks and layers disagree: are both of one pass, of this device, and in seconds?",
                file=sys.stderr,
            )
    for line in (*summarised(trained.rejected), *trained.doubts):
        print(visible(line), file=sys.stderr)
    for line in _few(trained):
        print(visible(line), file=sys.stderr)
    if learner == "lasso":
        for key in trained.predictor.regressors:
            say(trained.predictor.formula(key))
    write_predictor(trained.predictor, target)
    print(f"predictor: {target}", file=sys.stderr)


def _few(trained: Trained) -> Iterator[str]:
    """The groups with too few rows, and what is taken for each; many of them as a count."""
    for (kind, dtype, phase, group), rows in list(trained.skipped.items())[:MOST_TOLD]:
        near, exact = trained.predictor.regressor_of((kind, dtype, phase, group))
        instead = f"learnt together, as {near[3]}" if near and exact and near[1] == dtype else "not learnt"
        yield f"{kind} {group} {dtype} {phase}: {rows} rows, too few for a fit of its own; {instead}"
    more = list(trained.skipped.values())[MOST_TOLD:]
    if more:
        yield f"{len(more)} more groups have {min(more)} to {max(more)} rows each, too few for fits of their own"
