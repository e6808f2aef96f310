"""`neuralpower train-predictor`: train one regressor per layer kind from datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from neuralpower.ask.words import LEARNERS
from neuralpower.cli import parsing
from neuralpower.cli.choices import choice
from neuralpower.cli.commands import TrustCode, examples
from neuralpower.cli.output import say, tell
from neuralpower.errors import InputError
from neuralpower.files.stages import stage

app = Typer()


@app.command(
    epilog=examples(
        "neuralpower train-predictor datasets/mine --out models/mine.json",
        "neuralpower train-predictor datasets/mine --learner lasso -v",
    )
)
def train_predictor(
    datasets: list[str] = Argument(
        help="Dataset folders, or places (s3://bucket/name). Several devices make a predictor for any device."
    ),
    learner: Annotated[
        str, choice("learner", LEARNERS, help="hybrid: base and residual; lasso: only the base, a formula.")
    ] = "hybrid",
    out: Path | None = Option(None, "--out", "-o", help="The predictor file; default: models/NAME.json."),
    jobs: int = Option(-1, help="Fits in parallel; -1: one for each core."),
    trust_code: TrustCode = False,
    verbose: bool = Option(False, "--verbose", "-v", help="Print a line per regressor, and every note."),
    quiet: bool = Option(False, "--quiet", "-q", help="Print only warnings and the last sentence."),
) -> None:
    """Train the regressors, print their errors on ten held-out folds, and write the predictor."""
    from neuralpower.data.dataset import read_dataset
    from neuralpower.data.schema import check_no_file

    parsing.check_named(datasets, "dataset")
    for folder in datasets:
        check_no_file(Path(folder))
    if jobs < 1 and jobs != -1:
        raise InputError(f"jobs {jobs}: must be 1 or more, or -1 for one on each core")
    stage("reading the datasets")
    data = [
        read_dataset(folder, samples=False) for folder in dict.fromkeys(name.rstrip("/") for name in datasets)
    ]
    stage("importing scikit-learn and torch")
    from neuralpower.learn.files.predictor_json import check_places
    from neuralpower.learn.notes import formula
    from neuralpower.learn.train import train
    from neuralpower.report.cards import write_predictor
    from neuralpower.report.results import training as shown

    target = out or Path("models") / f"{'+'.join(dataset.name for dataset in data)}.json"
    check_places(target)  # checked before minutes of training
    stage("training the regressors")
    trained = train(data, learner, jobs, trust_code=trust_code)
    if not quiet and trained.predictor.regressors:
        say(shown.regressors_table(trained) if verbose else shown.kinds_table(trained))
    for line in shown.warnings_of(trained):
        tell(line)
    for line in shown.notes_of(trained, verbose):
        tell(line)
    if learner == "lasso" and not quiet:
        for key in trained.predictor.regressors:
            say(formula(trained.predictor, key))
    write_predictor(trained.predictor, target)
    tell(f"predictor: {target}")
    say(shown.sentence(trained))
