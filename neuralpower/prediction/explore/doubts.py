"""Warnings of a sweep or of scores: why predictions of many networks are less certain than their bounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from neuralpower.learn.estimates import TOLD
from neuralpower.learn.notes import foreign
from neuralpower.learn.predictor import Predictor
from neuralpower.prediction.prediction import COVERED, TRAINED, percent


def doubts(
    predictors: Iterable[Predictor],
    coverages: Sequence[float | None],
    trained: Sequence[float | None],
    devices: Sequence[str],
    what: str = "points",
) -> Iterator[str]:
    """Warnings: what differs from the predictors' devices, and how many networks have little trained data.

    Args:
        predictors: those that were used.
        coverages: of each network; None where it has no prediction.
        trained: of each, the share of its time that was trained on its device.
        devices: of each, the name of its device.
        what: the word for the networks.
    """
    for predictor in predictors:
        yield from (f"{predictor.name}: {text}" for text in foreign(predictor))
    covered = [value for value in coverages if value is not None]
    if low := [value for value in covered if value < COVERED]:
        yield (
            f"{len(low)} of {len(covered)} {what}: more than {1 - COVERED:.0%} of the time rests on formulas "
            f"alone, at most {percent(1 - min(low))}"
        )
    shares: dict[str, list[float]] = {}  # of the time, of each device whose points lean on others
    for device, own, known in zip(devices, trained, coverages, strict=True):
        if own is not None and own < TRAINED and (known or 0.0) - own > 1e-9:
            shares.setdefault(device, []).append(own)
    for said, few in (("nobody measured", False), ("few layers were measured on", True)):
        if names := [device for device, owns in shares.items() if (max(owns) >= TOLD) is few]:
            yield f"{said} {', '.join(names)}: times are scaled from similar devices, see their bounds"
