"""`neuralpower train-predictor`: dataset -> one regressor per layer kind -> predictor file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, Typer

from neuralpower.cli import parsing, shared_options
from neuralpower.cli.choices import LEARNERS, choice
from neuralpower.cli.commands import examples
from neuralpower.cli.output import say, tell
from neuralpower.errors import InputError
from neuralpower.files.stages import stage

if TYPE_CHECKING:
    from neuralpower.learn.train import Trained

app = Typer()
FEW_WARNINGS = 2  # of one kind that are printed without being asked for
DISAGREE = 0.3  # mean error of networks held out, from which on the tables are hardly of one device


@app.command(
    epilog=examples(
        "neuralpower train-predictor datasets/mine --out models/mine.json",
        "neuralpower train-predictor datasets/mine --learner lasso -v",
    )
)
def train_predictor(
    datasets: list[str] = Argument(
        help="Folders of datasets, or places such as s3://bucket/name; of several devices: a predictor that "
        "holds for others."
    ),
    learner: Annotated[
        str, choice("learner", LEARNERS, help="hybrid: base and residual; lasso: a formula.")
    ] = "hybrid",
    out: Path | None = Option(None, "--out", "-o", help="The predictor file; default: models/NAME.json."),
    jobs: int = Option(-1, help="Fits in parallel; -1: as many as cores."),
    trust_code: shared_options.TrustCode = False,
    verbose: bool = Option(False, "--verbose", "-v", help="Print a line per regressor, and every warning."),
) -> None:
    """Fit the regressors, print how well they do on ten held-out folds, and write the predictor."""
    stage("importing scikit-learn and torch")
    from neuralpower.data.dataset import read_dataset
    from neuralpower.data.screening import summarised
    from neuralpower.learn.codec import check_places
    from neuralpower.learn.train import train
    from neuralpower.report.cards import write_predictor
    from neuralpower.report.tables import training_summary, training_table

    if jobs < 1 and jobs != -1:
        raise InputError(f"jobs {jobs}: must be 1 or more, or -1 for as many as cores")
    parsing.check_named(datasets, "dataset")
    data = [
        read_dataset(folder, samples=False) for folder in dict.fromkeys(name.rstrip("/") for name in datasets)
    ]
    target = out or Path("models") / f"{'+'.join(dataset.name for dataset in data)}.json"
    check_places(target)  # now rather than after minutes of fitting
    stage("fitting the regressors")
    trained = train(data, learner, jobs, trust_code=trust_code)
    say(training_table(trained) if verbose else training_summary(trained))
    if trained.correction:
        c = trained.correction
        errors = f"mean error {c.before:.1%} before, {c.after:.1%} after (held out)"
        tell(f"corrected by {c.rows} whole networks: {errors}")
        if c.after > DISAGREE:
            tell("whole networks and layers disagree: are both of one pass, of this device, and in seconds?")
    for lines in (list(summarised(trained.rejected)), trained.doubts, list(_skipped(trained))):
        shown = lines if verbose or len(lines) <= FEW_WARNINGS else lines[: FEW_WARNINGS - 1]
        for line in shown:
            tell(line)
        if len(shown) < len(lines):
            tell(f"({len(lines) - len(shown)} more of the kind; --verbose prints them)")
    if learner == "lasso":
        for key in trained.predictor.regressors:
            say(trained.predictor.formula(key))
    write_predictor(trained.predictor, target)
    tell(f"predictor: {target}")


def _skipped(trained: Trained) -> Iterator[str]:
    """A line per group that has too few rows; first those that are not learnt at all."""
    found: list[tuple[bool, str]] = []
    for (kind, dtype, phase, group), rows in trained.skipped.items():
        near, exact = trained.predictor.regressor_of((kind, dtype, phase, group))
        together = bool(near and exact and near[1] == dtype)
        instead = f"learnt together, as {near[3]}" if near and together else "not learnt"
        line = f"{kind} {group} {dtype} {phase}: {rows} rows, too few for a fit of its own; {instead}"
        found.append((together, line))
    yield from (line for _, line in sorted(found, key=lambda one: one[0]))
