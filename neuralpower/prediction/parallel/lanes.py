"""A prediction of several devices in time: a lane for each stage and stream.

one stage       its layers and exchanges, call by call, in the last micro-batch; those before it as one slice
several stages  the passes of each micro-batch through each stage, its sends, and what follows the last one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neuralpower.prediction.parallel.pieces import Piece
from neuralpower.prediction.parallel.schedules import Pipeline, laid_out
from neuralpower.prediction.parallel.timing import FURTHER, streams_of, waits_of
from neuralpower.prediction.streams import Plan, Rank, times_of

MOST = 256  # micro-batches that are drawn
LAYERS = "layers"


@dataclass(frozen=True)
class Span:
    """Something that a stream does, in seconds from the begin."""

    name: str
    start_s: float
    end_s: float
    path: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Lane:
    """One stream of the ranks of a stage: spans that follow one another."""

    name: str
    spans: tuple[Span, ...]


def lanes_of_stage(pieces: Sequence[Piece], count: int) -> list[Lane]:
    """The lanes of a network without stages, `count` micro-batches of a step."""
    (piece,) = pieces
    timing, answer = piece.timing, piece.answer
    begun = (count - 1) * timing.micro_batch_s
    before = [
        Span(f"micro-batch {number}", number * timing.micro_batch_s, (number + 1) * timing.micro_batch_s)
        for number in range(min(count - 1, MOST))
    ]
    index = [i for i, task in enumerate(answer.tasks) if task.event != FURTHER]
    tasks = [answer.tasks[i] for i in index]
    issue_s = answer.issue.tasks_s[index] if answer.issue is not None else None
    streams = streams_of(tasks)
    (times,) = times_of(Plan([Rank(answer.device_s[index], issue_s, streams)], waits_of(tasks)))
    names = list(dict.fromkeys(task.stream for task in tasks))
    found: dict[str, list[Span]] = {name: [] for name in sorted(names)}
    for task, start, end in zip(tasks, times.start_s.tolist(), times.end_s.tolist(), strict=True):
        name = getattr(task.layer, "function", "") if task.stream else task.operator or task.layer.kind
        found[task.stream].append(Span(name, begun + start, begun + end, task.path, task.layer.kind))
    found[""] = [*before, *found.get("", [])]
    return [Lane(_named(0, 1, name), tuple(spans)) for name, spans in found.items()]


def lanes_of_stages(
    pipeline: Pipeline, count: int, endings_s: Sequence[float], inference: bool
) -> list[Lane]:
    """The lanes of a pipeline: passes of micro-batches, their sends, and the end of a step.

    Args:
        pipeline: of the network.
        count: micro-batches of a step, or batches in flight.
        endings_s: [ranks] seconds after the last micro-batch, such as the optimizer's.
        inference: whether there are forward passes alone.
    """
    lanes = []
    for rank, (works, times) in enumerate(laid_out(pipeline, min(count, MOST))):
        spans = []
        pieces = pipeline.pieces
        for work, start, end in zip(works, times.start_s.tolist(), times.end_s.tolist(), strict=False):
            which = f", piece {work.piece}" if pieces > 1 else ""
            way = "backward" if work.backward else "forward"
            spans.append(Span(f"{way} {work.batch}{which}", start, end, kind=way))
        if endings_s[rank] and not inference:
            last = spans[-1].end_s
            spans.append(Span("exchange and optimizer", last, last + endings_s[rank], kind="optimizer"))
        sends = zip(times.start_s[len(works) :].tolist(), times.end_s[len(works) :].tolist(), strict=True)
        lanes.append(Lane(_named(rank, pipeline.ranks, ""), tuple(spans)))
        sent = tuple(Span("send", start, end, kind="collective") for start, end in sends if end > start)
        if sent:
            lanes.append(Lane(_named(rank, pipeline.ranks, "sends"), sent))
    return lanes


def _named(rank: int, ranks: int, stream: str) -> str:
    stage = f"stage {rank}: " if ranks > 1 else ""
    return stage + (stream or LAYERS)
