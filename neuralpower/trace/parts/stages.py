"""Pipeline stages: a trace cut into consecutive blocks, each part a trace of its own.

What runs before the first block, such as an embedding, is the first stage's; what runs after the last block,
such as a head and the loss, is the last stage's. A weight belongs to the stage that reads it first. One that
embeds tokens and makes logits, too, is there twice, and its two gradients are added.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeVar

from neuralpower.devices.cluster import Layout
from neuralpower.dtypes import DTYPES
from neuralpower.errors import InputError
from neuralpower.trace.lifetimes import ACTIVATIONS, Storage
from neuralpower.trace.paths import module_of, pattern, prefixes
from neuralpower.trace.records import LayerCall, Task, Trace

T = TypeVar("T")
SMALL = 0.25  # of the members of the largest list: smaller lists are not blocks, such as the layers of a head


@dataclass(frozen=True)
class Part:
    """One piece of the network, as a trace of its own."""

    trace: Trace
    blocks: tuple[str, ...]  # paths
    twice: int = 0  # numbers of a weight that another stage has, too
    output: tuple[str, int] = ("", 0)  # (dtype, numbers) of what it sends on


def blocks_of(trace: Trace, at_least: int = 1) -> list[str]:
    """Paths of the repeated blocks that a pipeline is cut between, in the order in which they run.

    They are the outermost numbered modules; where these are fewer than `at_least`, those inside them.
    """
    found: list[str] = []
    for depth in (1, 2, 3):
        found = _numbered(trace, depth) or found
        if len(found) >= at_least:
            break
    return found


def _numbered(trace: Trace, depth: int) -> list[str]:
    """Modules with `depth` numbers in their path, the last one at its end, in the order of their calls."""
    seen: dict[str, str] = {}
    for call in trace.calls:
        for path in (*prefixes(call.path), call.path):
            stars = pattern(path)
            if stars.endswith("*") and stars.split(".").count("*") == depth:
                seen.setdefault(path, stars)
    sizes = Counter(seen.values())
    most = max(sizes.values(), default=0)
    return [path for path, stars in seen.items() if sizes[stars] >= SMALL * most]


def shares_of(blocks: int, parts: int) -> list[int]:
    """How many blocks each part has; where they do not divide evenly, the middle ones have one more.

    The first and the last part have an embedding and a head, too.
    """
    own, more = divmod(blocks, parts)
    first = (parts - more) // 2
    return [own + (first <= i < first + more) for i in range(parts)]


def cut(trace: Trace, layout: Layout) -> list[Part]:
    """The parts of a network, `layout.pipeline * layout.interleave` of them, in the order in which they run.

    Args:
        trace: as it was recorded, or with the tasks of a forward pass.
        layout: its number of stages, and of pieces that each has.

    Raises:
        InputError: more parts than blocks; a pipeline of diffusion, which runs whole.
    """
    count = layout.pipeline * layout.interleave
    if count == 1:
        return [Part(trace, tuple(blocks_of(trace)))]
    if trace.picture is not None:
        raise InputError(
            f"pipeline {layout.pipeline}: a pipeline of diffusion runs whole on each device; write "
            f"--ulysses-degree {layout.pipeline} for ranks that share the tokens, or --data-parallel"
        )
    blocks = blocks_of(trace, count)
    if len(blocks) < count:
        pieces = f" of {layout.interleave} pieces each" if layout.interleave > 1 else ""
        raise InputError(
            f"pipeline {layout.pipeline}{pieces}: the network has {len(blocks)} repeated blocks, one a stage "
            f"at least; choose {max(len(blocks) // layout.interleave, 1)} stages or fewer"
        )
    firsts, done = [], 0
    for share in shares_of(len(blocks), count):
        firsts.append(done)
        done += share
    begins = [_begin(trace, blocks[i]) for i in firsts[1:]]
    owner = _owners(trace, blocks, begins)
    names = [blocks[a:b] for a, b in zip(firsts, [*firsts[1:], len(blocks)], strict=True)]
    borders = [(_begin(trace, own[-1]), begin) for own, begin in zip(names, begins, strict=False)]
    return [
        replace(
            _part(trace, number, begins, owner, tuple(own)),
            output=_output(trace, *borders[number]) if number < len(borders) else ("", 0),
        )
        for number, own in enumerate(names)
    ]


def _begin(trace: Trace, block: str) -> int:
    """The first operator call of a block."""
    inside = (call.at for call in trace.calls if call.path == block or call.path.startswith(f"{block}."))
    return next(inside)


def _owners(trace: Trace, blocks: Sequence[str], begins: Sequence[int]) -> dict[str, int]:
    """The part that each module's first call, or that of one inside it, is in."""
    found: dict[str, int] = {}
    for call in trace.calls:
        for path in (*prefixes(call.path), call.path):
            found.setdefault(path, bisect_right(begins, call.at))
    return found


def _part(
    trace: Trace, number: int, begins: Sequence[int], owner: dict[str, int], blocks: tuple[str, ...]
) -> Part:
    last = number == len(begins)

    def inside(at: int) -> bool:
        return bisect_right(begins, at) == number

    def owns(path: str) -> bool:
        above = (path, *reversed(prefixes(path)))
        return next((owner[one] for one in above if one in owner), 0) == number

    tied = {weight.name: weight.numbers for weight in trace.weights if weight.tied}
    twice = {name: size for name, size in tied.items() if len(begins) and (last or owns(module_of(name)))}

    def has(name: str) -> bool:
        return owns(module_of(name)) or (last and name in twice)

    weights = tuple(weight for weight in trace.weights if has(weight.name))
    parameters = _parameters(trace)
    trained = [
        (name, what) for name, what in zip(trace.trained_names, trace.trained, strict=True) if has(name)
    ]
    sizes = {weight.name: weight for weight in weights}
    part = replace(
        trace,
        calls=_inside(trace.calls, inside),
        unmodelled=_inside(trace.unmodelled, inside),
        tasks=_tasks_inside(trace.tasks, inside, last),
        gradients=tuple(call for call in trace.gradients if owns(call.path)),
        own_backward=_inside(trace.own_backward, inside),
        trained=tuple(what for _, what in trained),
        trained_names=tuple(name for name, _ in trained),
        sparse=tuple((name, rows) for name, rows in trace.sparse if has(name)),
        weights=weights,
        parameters=sum(weight.numbers for weight in weights if weight.name in parameters),
        parameter_bytes=sum(weight.bytes for weight in weights if weight.name in parameters),
        storages=_storages(trace, inside, sizes, owns),
    )
    return Part(part, blocks, sum(twice.values()))


def _parameters(trace: Trace) -> set[str]:
    """Names of the weights that are parameters: they stand before buffers."""
    sums = accumulate(weight.numbers for weight in trace.weights)
    pairs = zip(trace.weights, sums, strict=True)
    return {weight.name for weight, numbers in pairs if numbers <= trace.parameters}


def _inside(some: Iterable[T], inside: Callable[[int], bool]) -> tuple[T, ...]:
    return tuple(one for one in some if inside(one.at))  # type: ignore[attr-defined]


def _tasks_inside(tasks: Sequence[Task], inside: Callable[[int], bool], last: bool) -> tuple[Task, ...]:
    """Tasks of a forward pass; what a pass has added without a place in it comes last."""
    return tuple(task for task in tasks if (inside(task.at) if task.at else last))


def _storages(
    trace: Trace, inside: Callable[[int], bool], weights: Collection[str], owns: Callable[[str], bool]
) -> tuple[Storage, ...]:
    """The same storages in their places; those of other parts take nothing."""
    readers = {
        access.storage
        for at, flow in trace.flows.items()
        if inside(at)
        for access in (*flow.reads, *flow.writes)
    }

    listed = {weight.name for weight in trace.weights}

    def here(place: int, one: Storage) -> bool:
        if one.name:
            return one.name in weights or (one.name not in listed and owns(module_of(one.name)))
        return place in readers if one.birth == 0 else inside(one.birth)

    return tuple(
        one if here(place, one) else one._replace(bytes=0) for place, one in enumerate(trace.storages)
    )


def _output(trace: Trace, before: int, begin: int) -> tuple[str, int]:
    """(dtype, numbers) of what crosses a border: made in the block from `before` on, read from `begin` on.

    Masks and angles of positions, which all blocks read, are made by each stage for itself.
    """
    read = {access.storage for at, flow in trace.flows.items() if at >= begin for access in flow.reads}
    crossing = sum(
        one.bytes
        for place, one in enumerate(trace.storages)
        if place in read and before <= one.birth < begin and one.part == ACTIVATIONS
    )
    after: LayerCall = next(call for call in trace.calls if call.at >= begin)
    dtype = after.layer.dtype
    return dtype, round(crossing / DTYPES[dtype].itemsize)
