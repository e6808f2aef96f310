"""`neuralpower train-predictor`: dataset -> one regressor per layer kind -> predictor file."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import typer


def train_predictor(
    dataset: Path = typer.Argument(help="A dataset's folder."),
    learner: str = typer.Option("hybrid", help="hybrid: base and residual; lasso: the base alone, as a formula."),
    out: Path | None = typer.Option(None, help="The predictor file; models/NAME.json by default."),
    jobs: int = typer.Option(-1, help="Fits in parallel; -1: as many as cores."),
    seed: int = typer.Option(0, help="Of the folds and the trees."),
) -> None:
    """Fit the regressors and write the predictor; errors are of ten held-out folds."""
    from neuralpower.dataset import read_dataset, replace_file, summarised
    from neuralpower.errors import InputError
    from neuralpower.predictor import train
    from neuralpower.report.cards import predictor_card
    from neuralpower.report.tables import training_table

    data = read_dataset(dataset)
    target = out or Path("models") / f"{data.name}.json"
    try:  # now rather than after minutes of fitting
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror}); choose another --out") from None
    trained = train(data, learner, jobs, seed)
    print(training_table(trained))
    for line in summarised(trained.rejected):
        print(line, file=sys.stderr)
    for (kind, dtype, phase, group), rows in trained.skipped.items():
        print(f"{kind} {group} {dtype} {phase}: {rows} rows, too few for a fit of its own", file=sys.stderr)
    if learner == "lasso":
        for key in trained.predictor.regressors:
            print(trained.predictor.formula(key))
    learnt = dataclasses.replace(trained.predictor, name=target.stem)
    learnt.save(target)
    replace_file(target.with_suffix(".md"), predictor_card(learnt))
    print(f"predictor: {target}", file=sys.stderr)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("train-predictor")(train_predictor)
