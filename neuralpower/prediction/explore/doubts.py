"""Warnings of a sweep or of scores: why predictions of many networks are less certain than their bounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from neuralpower.learn.notes import foreign
from neuralpower.learn.predictor import Predictor
from neuralpower.prediction.prediction import COVERED, TRAINED, percent


def doubts(
    predictors: Iterable[Predictor],
    coverages: Sequence[float | None],
    trained: Sequence[float | None],
    what: str = "points",
) -> Iterator[str]:
    """Warnings: what differs from the predictors' devices, and how many networks have little trained data.

    Args:
        predictors: those that were used.
        coverages: of each network; None where it has no prediction.
        trained: of each, the share of its time that was trained on its device.
        what: the word for the networks.
    """
    for predictor in predictors:
        yield from (f"{predictor.name}: {text}" for text in foreign(predictor))
    covered = [value for value in coverages if value is not None]
    if low := [value for value in covered if value < COVERED]:
        yield (
            f"{len(low)} of {len(covered)} {what} are covered by trained data for less than {COVERED:.0%} "
            f"of the time, the least for {percent(min(low))}; other layers are estimated"
        )
    known = [(own, all_) for own, all_ in zip(trained, coverages, strict=True) if own is not None]
    if few := [own for own, all_ in known if own < TRAINED and (all_ or 0.0) - own > 1e-9]:
        yield (
            f"{len(few)} of {len(known)} {what}: less than {TRAINED:.0%} of the time was measured on their "
            f"device, at least {percent(min(few))}; similar devices give the others"
        )
