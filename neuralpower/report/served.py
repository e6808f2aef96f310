"""Waiting times of a workload, and plans for one, as tables."""

from __future__ import annotations

from collections.abc import Iterator

from neuralpower.report.grid import grid, note_lines
from neuralpower.report.number_format import many, quantity, share
from neuralpower.serving.plan import Plan
from neuralpower.serving.traffic import POINTS, Load, Traffic

NAMES = {"ttft_s": "first token", "tpot_s": "next tokens", "latency_s": "whole answer"}


def traffic_table(found: Traffic) -> str:
    """What users wait for, and what the engine does meanwhile."""
    return "\n".join([*_head(found), "", _waits(found), "", *_foot(found)])


def _head(found: Traffic) -> Iterator[str]:
    """What was served on what, and how much comes out."""
    devices = f"{found.devices} x {found.device}" if found.devices > 1 else found.device
    replicas = f"{found.replicas} replicas of " if found.replicas > 1 else ""
    layout = f", {found.layout}" if found.layout.ranks > 1 else ""
    yield f"{found.model} in {found.dtype} on {replicas}{devices}{layout}, {found.engine}"
    load = found.value
    arrive = "closed loop" if load.rate is None else f"{load.rate:.3g} requests/s"
    if found.highest is not None:
        arrive = (
            f"{load.rate:.3g} requests/s is the highest rate that holds {', '.join(map(str, found.targets))}"
        )
    yield f"{arrive}: {load.requests:,} requests"
    yield (
        f"{load.tokens_per_s:,.0f} tokens/s ({load.tokens_per_s / found.devices:,.0f} per device), "
        f"{load.requests_per_s:.3g} answers/s"
    )


def _waits(found: Traffic) -> str:
    """The table of waiting times."""
    rows = []
    for measure, name in NAMES.items():
        mean = found.interval(measure)
        bounds = f"{quantity(mean.low, 's')} to {quantity(mean.high, 's')}"
        values = getattr(found.value, measure)
        rows.append([name, *(quantity(values[point], "s") for point in POINTS), bounds])
    return grid(["wait for", *POINTS, "mean, 90 %"], rows, left=1)


def _foot(found: Traffic) -> Iterator[str]:
    """What the engine does meanwhile."""
    load = found.value
    yield (
        f"engine: {share(load.busy)} of the time busy, {load.batch:.3g} requests in a step, "
        f"{share(load.reading)} of it with prompts"
    )
    tokens = found.blocks * found.block
    preempted = f"; {load.preemptions:,} preemptions, {load.recomputed:,} tokens computed again"
    cache = f"cache: {many(tokens, 'tokens')}, {share(load.cache_share)} held"
    yield cache + (preempted if load.preemptions else "")
    if load.goodput_per_s is not None:
        held = share(load.goodput_per_s / load.requests_per_s)
        yield f"promise: {held} of the requests hold {_promise(found)}"
    if found.curve:
        yield ""
        yield grid(
            ["requests/s", "tokens/s", "first token p95", "next tokens p95", "cache"],
            [_point(point) for point in found.curve],
        )
    yield from note_lines(found.notes)


def _promise(found: Traffic) -> str:
    return ", ".join(map(str, found.targets))


def _point(load: Load) -> list[str]:
    """A row of the curve."""
    return [
        f"{load.rate:.3g}",
        f"{load.tokens_per_s:,.0f}",
        quantity(load.ttft_s["p95"], "s"),
        quantity(load.tpot_s["p95"], "s"),
        share(load.cache_share),
    ]


def plan_table(found: Plan) -> str:
    """Ways to serve a rate, the best first, then the ways that do not."""
    promise = ", ".join(map(str, found.targets))
    lines = [f"{found.model}, {found.rate:g} requests/s with {promise}", ""]
    if found.choices:
        header = ["device", "ranks", "replicas", "devices", "requests/s each", "first token p95", "next p95"]
        priced = any(choice.cost is not None for choice in found.choices)
        rows = [
            [
                choice.device,
                str(choice.layout.ranks),
                str(choice.replicas),
                str(choice.devices),
                f"{choice.highest:.3g}",
                quantity(choice.load.ttft_s["p95"], "s"),
                quantity(choice.load.tpot_s["p95"], "s"),
                *(["-" if choice.cost is None else f"{choice.cost:.2f}"] if priced else []),
            ]
            for choice in found.choices
        ]
        lines.append(grid([*header, *(["per hour"] if priced else [])], rows, left=1))
    lines += [f"Skipped {what}: {reason}" for what, reason in found.skipped]
    return "\n".join([*lines, *note_lines(found.notes)])
