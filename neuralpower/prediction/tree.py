"""The tree of a network's modules: output shapes, parameters, FLOP, predicted latency and memory of each.

Blocks that repeat are one line, as `[0-11] (BertLayer) x12`, with the sums of all of them.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from neuralpower.errors import InputError, is_count
from neuralpower.prediction.rows import Row

if TYPE_CHECKING:
    from neuralpower.trace.followed import Outline
    from neuralpower.trace.records import Trace

Shape = tuple[int, ...]
OWN = "(own)"  # what a module computes itself, without the modules inside it
LAUNCHES = "(launch overhead)"  # what the device waits for its host
VISIBLE = 0.005  # of the whole: what modules take themselves is listed from here on


@dataclass(frozen=True)
class ModuleShape:
    """One module of a network: its class, what it returns, and the weights that it holds itself."""

    path: str
    type: str
    output: Shape = ()  # of the first tensor of its first call
    outputs: int = 0  # tensors that it returns
    calls: int = 0
    parameters: int = 0
    weight_bytes: int = 0  # with buffers, as they lie in memory; shared ones under their first name
    output_bytes: int = 0  # of all its calls; 0 for a module that holds others


@dataclass(frozen=True)
class Branch:
    """A line of the tree: one module, or `times` equal ones, with all that is inside."""

    name: str
    type: str
    times: int
    output: Shape
    outputs: int
    parameters: int
    flops: float
    runtime_s: float
    share: float  # of all lines below the first
    memory_bytes: int  # its weights and its outputs
    depth: int
    branches: tuple[Branch, ...] = ()

    def lines(self) -> Iterator[Branch]:
        """This line and those below it, in order."""
        yield self
        for branch in self.branches:
            yield from branch.lines()

    @property
    def _like(self) -> tuple[object, ...]:
        """The properties that equal blocks share."""
        inside = tuple((b.name, b._like) for b in self.branches)
        return self.type, self.times, self.output, self.parameters, round(self.flops), inside


def module_shapes(outline: Outline, trace: Trace) -> tuple[ModuleShape, ...]:
    """The modules of a network that was traced, in their order; `trace` after its passes."""
    seen: dict[str, list[Sequence[Shape]]] = defaultdict(list)
    for call in trace.modules:
        seen[call.path].append(call.outputs)
    held = {storage.name: storage.bytes for storage in trace.storages if storage.name}
    parameters, sizes = dict.fromkeys(seen, 0), dict.fromkeys(seen, 0)
    for weight in trace.weights:
        parameters[weight.module] = parameters.get(weight.module, 0) + weight.numbers * (
            weight.name in outline.parameters
        )
        sizes[weight.module] = sizes.get(weight.module, 0) + held.get(weight.name, weight.bytes)
    found = []
    for path, kind, leaf in outline.modules:
        calls = seen.get(path, [])
        elements = sum(math.prod(shape) for shapes in calls for shape in shapes) if leaf else 0
        first = next((shapes for shapes in calls if shapes), ())
        found.append(
            ModuleShape(
                path,
                kind,
                tuple(first[0]) if first else (),
                len(first),
                len(calls),
                parameters.get(path, 0),
                sizes.get(path, 0),
                elements * outline.itemsize,
            )
        )
    return tuple(found)


def tree_of(
    model: str, rows: Sequence[Row], modules: Sequence[ModuleShape], runtime_s: float, depth: int = 3
) -> Branch:
    """The first line of the tree of a prediction's rows, down to `depth` names of a path.

    Raises InputError where that is not a positive number.
    """
    if not is_count(depth):
        raise InputError(f"depth {depth!r}: must be a whole number, 1 or more; choose 3")
    work = _work_by_path(rows)
    waits_s = runtime_s - sum(seconds for seconds, _ in work.values())
    if waits_s > 1e-6 * runtime_s:
        work[LAUNCHES] = waits_s, 0.0
    total_s = sum(seconds for seconds, _ in work.values()) or 1e-30
    known = {module.path: module for module in modules}
    paths = list(known) or [""]
    paths += [path for path in work if path not in known]  # of what no module runs, such as a loss
    inside: dict[str, dict[str, None]] = defaultdict(dict)
    for path in filter(None, paths):
        parts = path.split(".")
        for n, name in enumerate(parts):
            inside[".".join(parts[:n])][name] = None
    builder = _Builder(known, work, {up: [*names] for up, names in inside.items()}, total_s, depth)
    return builder.branch("", model, 0)


def _work_by_path(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """(seconds, FLOP) of what each module runs itself; equal calls of a row share its numbers evenly."""
    works: dict[str, tuple[float, float]] = {}
    for row in rows:
        paths = row.paths or (row.path,)
        for path in paths:
            seconds, flops = works.get(path, (0.0, 0.0))
            works[path] = seconds + row.runtime_s / len(paths), flops + row.flops / len(paths)
    return works


@dataclass(frozen=True)
class _Builder:
    """Lines from the numbers of single modules."""

    modules: Mapping[str, ModuleShape]
    work: Mapping[str, tuple[float, float]]
    inside: Mapping[str, Sequence[str]]  # names in a path
    total_s: float
    depth: int

    def branch(self, path: str, name: str, level: int) -> Branch:
        """A module with all that is inside."""
        module = self.modules.get(path, ModuleShape(path, ""))
        seconds, flops = self.work.get(path, (0.0, 0.0))
        parts = [
            self.branch(f"{path}.{inner}" if path else inner, inner, level + 1)
            for inner in self.inside.get(path, ())
        ]
        parts = [part for part in parts if part.runtime_s or part.parameters or part.output]
        shown = _folded(parts)
        if parts and seconds > VISIBLE * self.total_s:
            own = Branch(OWN, "", 1, (), 0, 0, flops, seconds, seconds / self.total_s, 0, level + 1)
            shown = (*shown, own)
        whole_s = seconds + sum(part.runtime_s for part in parts)
        return Branch(
            name=name,
            type=module.type,
            times=1,
            output=module.output,
            outputs=module.outputs,
            parameters=module.parameters + sum(part.parameters for part in parts),
            flops=flops + sum(part.flops for part in parts),
            runtime_s=whole_s,
            share=whole_s / self.total_s,
            memory_bytes=module.weight_bytes + module.output_bytes + sum(part.memory_bytes for part in parts),
            depth=level,
            branches=shown if level < self.depth else (),
        )


def _folded(branches: Sequence[Branch]) -> tuple[Branch, ...]:
    """Equal blocks that follow each other by number as one line."""

    def like(branch: Branch) -> tuple[object, ...]:
        return "" if branch.name.isdecimal() else branch.name, branch._like

    return tuple(_together(list(some)) for _, some in itertools.groupby(branches, key=like))


def _together(some: Sequence[Branch]) -> Branch:
    """One line for equal blocks: the sum of their numbers."""
    first = some[0]
    if len(some) == 1:
        return first
    inner = tuple(_together(parts) for parts in zip(*(b.branches for b in some), strict=True))
    outer = first.name if len({b.name for b in some}) == 1 else f"[{first.name}-{some[-1].name}]"
    like: dict[str, Any] = {
        "type": first.type,
        "output": first.output,
        "outputs": first.outputs,
        "branches": inner,
    }
    return replace(together(outer, some), times=sum(b.times for b in some), **like)


def together(name: str, some: Sequence[Branch]) -> Branch:
    """One line for several of a level, whose values add up."""
    return Branch(
        name=name,
        type="",
        times=1,
        output=(),
        outputs=0,
        parameters=sum(b.parameters for b in some),
        flops=sum(b.flops for b in some),
        runtime_s=sum(b.runtime_s for b in some),
        share=sum(b.share for b in some),
        memory_bytes=sum(b.memory_bytes for b in some),
        depth=some[0].depth,
    )
