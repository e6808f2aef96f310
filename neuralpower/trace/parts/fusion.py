"""Fuse calls into kernels, as torch.compile's Inductor does.

Point-wise calls over the same elements are joined along what one makes and the next reads; a reduction is
joined with the point-wise calls before and after it that have its elements or its rows. A point-wise call of
another size is joined where nothing else reads its result: it is computed where it is read. Views are free;
products, attention, sorts and scans stay calls of libraries, and nothing is joined to them. (Ansel et al.,
"PyTorch 2", ASPLOS 2024, section 5; `torch._inductor.scheduler`.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from neuralpower.dtypes import DTYPES, FLOATING
from neuralpower.layers import Layer
from neuralpower.layers.activation import Activation
from neuralpower.layers.attention import Attention
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.embedding import Embedding
from neuralpower.layers.fused_pointwise import FusedPointwise
from neuralpower.layers.movement import ALIAS, Movement
from neuralpower.layers.norm import Norm
from neuralpower.layers.reduction import Reduction
from neuralpower.layers.softmax import Softmax
from neuralpower.trace.dataflow import Dataflow, Edit, Node
from neuralpower.trace.lifetimes import Access, Flow, total_bytes
from neuralpower.trace.paths import block_of, prefixes
from neuralpower.trace.records import LayerCall, Trace

MOVED = "copy cast cat append pad roll repeat fill triangle index gather".split()  # computed where it is read
LOOKED_UP = ("index", "gather")  # of what they are given, they read as much as they write


class Space(NamedTuple):
    """The elements that a kernel runs over."""

    elements: int
    outputs: int = 0  # of a reduction: rows; 0 where nothing is reduced

    @property
    def row(self) -> int:
        """Numbers that are reduced together; 0 where none are."""
        return self.elements // self.outputs if self.outputs else 0


def space_of(layer: Layer) -> Space | None:
    """The elements that a layer runs over; None where it is never part of a fused kernel."""
    if isinstance(layer, (Elementwise, Activation)) and layer.elements:
        return Space(layer.elements)
    if isinstance(layer, Movement) and layer.function in MOVED:
        return Space(layer.elements)
    if isinstance(layer, Reduction):
        return Space(layer.elements, layer.outputs) if layer.outputs < layer.elements else None
    if isinstance(layer, Softmax):
        return Space(layer.rows * layer.width, layer.rows)
    if isinstance(layer, Norm):
        elements = layer.rows * layer.width * layer.spatial
        return Space(elements) if layer.function == "batch" else Space(elements, layer.rows)
    if isinstance(layer, Embedding) and not layer.bags:
        return Space(layer.tokens * layer.width)
    return None


def space_of_node(node: Node) -> Space | None:
    """The same of a node's only call."""
    return space_of(node.call.layer) if isinstance(node.call, LayerCall) else None


@dataclass
class Group:
    """Nodes that become one kernel, by their numbers."""

    members: list[int]
    space: Space | None  # None: it stays as it is
    before: int  # nodes that must run before it, as bits

    @property
    def mask(self) -> int:
        return sum(1 << i for i in self.members)


class Fusion:
    def __init__(
        self, flow: Dataflow, apart: Collection[int] = (), only: Collection[int] | None = None
    ) -> None:
        """`apart`: nodes that stay as they are; `only`: those that may be joined, None for all."""
        self.flow = flow
        self.groups: list[Group] = []  # by node: several nodes share one
        for i, node in enumerate(flow.nodes):
            before = 0
            for j in node.after:
                before |= self.groups[j].mask | self.groups[j].before
            takes_part = i not in apart and (only is None or i in only)
            space = space_of_node(node) if takes_part else None
            self.groups.append(Group([i], space, before))
            if space is not None:
                for source in sorted({j for j in node.sources if j is not None}, reverse=True):
                    self._take(source, i, space)
                    self._join(self.groups[source], self.groups[i])

    def _take(self, source: int, i: int, space: Space) -> None:
        """Move nodes that only one reduction reads out of the kernel of another reduction with other rows."""
        group, own = self.groups[source], space_of_node(self.flow.nodes[source])
        other = group.space is not None and group.space.outputs and group.space != space
        plain = own is not None and not own.outputs and own.elements == space.elements
        if space.outputs and other and plain and self.flow.nodes[source].readers == [i]:
            group.members.remove(source)
            self.groups[source] = Group([source], own, group.before | group.mask)

    def found(self) -> list[Group]:
        """The groups in an order in which they can run."""
        left = list({id(group): group for group in self.groups}.values())
        left.sort(key=lambda group: group.members[-1])
        done, order = 0, []
        while left:
            at = next(n for n, group in enumerate(left) if not self._waits(group) & ~done)
            group = left.pop(at)
            done |= group.mask
            order.append(group)
        return order

    def _waits(self, group: Group) -> int:
        """Nodes outside of a group that it reads or must follow, as bits."""
        needed = 0
        for i in group.members:
            for j in self.flow.nodes[i].after:
                needed |= 1 << j
        return needed & ~group.mask

    def _join(self, first: Group, second: Group) -> None:
        """Make one of two groups, of which the second reads the first, where that can be."""
        if first is second or first.space is None or second.space is None:
            return
        space = self._together(first, second)
        if space is None or self._between(first, second):
            return
        members = sorted({*first.members, *second.members})
        joined = Group(members, space, (first.before | second.before) & ~(first.mask | second.mask))
        for i in members:
            self.groups[i] = joined
        mask = joined.mask
        for other in self._window(members[0]):
            if other is not joined and other.before & mask:
                other.before |= joined.before | mask

    def _together(self, first: Group, second: Group) -> Space | None:
        """The elements that both run over together; None where they do not fit."""
        one, other = first.space, second.space
        assert one is not None and other is not None  # as the caller has seen
        if one.outputs and other.outputs:
            return one if one == other else None
        reduced, plain = (one, other) if one.outputs else (other, one)
        if plain.elements == reduced.elements or (reduced.outputs and plain.elements == reduced.outputs):
            return reduced
        if not one.outputs and self._read_in(first, second):
            return other if other.outputs else Space(max(one.elements, other.elements))
        return None

    def _read_in(self, first: Group, second: Group) -> bool:
        """Whether nothing but these two reads what the first makes."""
        inside = {*first.members, *second.members}
        nodes = [self.flow.nodes[i] for i in first.members]
        return not any(node.final for node in nodes) and all(inside.issuperset(n.readers) for n in nodes)

    def _between(self, first: Group, second: Group) -> bool:
        """Whether something must run after one of them and before the other."""
        one, other = first.mask, second.mask
        return any(
            group is not first
            and group is not second
            and (
                (group.mask & second.before and group.before & one)
                or (group.mask & first.before and group.before & other)
            )
            for group in self._window(min(first.members[0], second.members[0]))
        )

    def _window(self, start: int) -> Iterable[Group]:
        """The groups with a node from `start` on."""
        return {id(group): group for group in self.groups[start:]}.values()


def joined_call(flow: Dataflow, members: Sequence[int]) -> tuple[LayerCall, Flow]:
    """The call that several nodes become, and its reads and writes outside of it."""
    nodes = [flow.nodes[i] for i in members]
    calls = [node.call for node in nodes]
    layers = [call for call in calls if isinstance(call, LayerCall)]
    inside = set(members)
    reads, writes = _crossing(flow, nodes, inside)
    spaces = [space for call in layers if (space := space_of(call.layer)) is not None]
    largest = max(spaces, key=lambda space: (space.outputs > 0, space.elements))
    layer = FusedPointwise(
        dtype=_dtype(layers),
        bytes_read=total_bytes(reads, flow.bytes),
        bytes_written=max(total_bytes(writes, flow.bytes), 1),
        operations=sum(int(call.layer.flops()) for call in layers),
        row=largest.row,
    )
    call = replace(
        layers[-1],
        path=_path(layers),
        layer=layer,
        operator="",
        gradient=max(call.gradient for call in layers),
        again=any(call.again for call in layers),
        asked=None,
        inputs=tuple(shape for call in layers for shape in call.inputs)[:2],
        parts=tuple(part for call in layers for part in call.parts or (part_name(call),)),
    )
    return call, Flow(reads, writes)


def _dtype(calls: Sequence[LayerCall]) -> str:
    """The type in which a joined call's numbers lie in memory: what it computes in is mostly wider."""
    floating = [call.layer.dtype for call in calls if call.layer.dtype in FLOATING]
    known = floating or [call.layer.dtype for call in calls]
    return min(reversed(known), key=lambda name: DTYPES[name].itemsize)


def _crossing(
    flow: Dataflow, nodes: Sequence[Node], inside: Collection[int]
) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
    """(accesses that come from outside, accesses whose memory is read outside), each different one once."""
    reads: dict[Access, None] = {}
    writes: dict[Access, None] = {}
    for node in nodes:
        looked_up = _looked_up(node)
        for access, source in zip(node.flow.reads, node.sources, strict=True):
            if source is None or source not in inside:
                reads[access._replace(bytes=min(access.bytes, looked_up or access.bytes))] = None
        if node.final or not all(reader in inside for reader in node.readers) or not node.readers:
            writes |= dict.fromkeys(node.flow.writes)
    return tuple(reads), tuple(writes)


def _looked_up(node: Node) -> int:
    """Bytes that a look-up reads of each operand at most; 0 of other calls."""
    layer = node.call.layer if isinstance(node.call, LayerCall) else None
    looks = isinstance(layer, Embedding) or (isinstance(layer, Movement) and layer.function in LOOKED_UP)
    return int(sum(layer.bytes()[:2])) if looks and layer is not None else 0


def part_name(call: LayerCall) -> str:
    """The name of a part of a joined call: its operator, or its kind where it has none."""
    return call.operator.rpartition(".")[2].strip("_") or call.layer.kind


def _path(calls: Sequence[LayerCall]) -> str:
    """The module that a joined call belongs to: that of its reduction, else the smallest that holds all."""
    for call in calls:
        space = space_of(call.layer)
        if space is not None and space.outputs and call.path:
            return call.path
    common = [*prefixes(calls[-1].path), calls[-1].path]
    return next((p for p in reversed(common) if all(f"{c.path}.".startswith(f"{p}.") for c in calls)), "")


def join(edit: Edit, members: Sequence[int]) -> None:
    """Make one call of several nodes; what only they held in memory is none."""
    call, crossing = joined_call(edit.flow, members)
    edit.gone |= {*members}
    edit.put(call, crossing)
    held = {access.storage for i in members for access in edit.flow.nodes[i].flow.writes}
    edit.sizes |= dict.fromkeys(held - {access.storage for access in crossing.writes}, 0)


def rewritten(flow: Dataflow, groups: Sequence[Group]) -> Trace:
    """The trace with groups of several nodes as one call each, and without what only they held in memory."""
    edit = Edit(flow)
    for group in groups:
        if len(group.members) > 1:
            join(edit, group.members)
    made = edit.made(repeats=tuple(call for group in groups for call in _again(flow, group.members)))
    calls: dict[int, list[LayerCall]] = {}
    for call in made.calls:
        calls.setdefault(call.at, []).append(call)
    ends = (flow.nodes[group.members[-1]].at for group in groups)
    return replace(made, calls=tuple(call for at in ends for call in calls.get(at, ())))


def _again(flow: Dataflow, members: Sequence[int]) -> Iterator[LayerCall]:
    """What runs of a group when checkpointed blocks run again: those of one block are one call.

    A kernel may join the end of a block with the next one's beginning, but each block runs again by itself.
    """
    blocks: dict[str, list[int]] = {}
    for i in members:
        for call in flow.nodes[i].calls:
            if isinstance(call, LayerCall) and call.again:
                blocks.setdefault(block_of(call.path), []).append(i)
    for some in blocks.values():
        if len(set(some)) > 1:
            yield joined_call(flow, some)[0]
        else:
            yield from (call for call in flow.nodes[some[0]].calls if isinstance(call, LayerCall))


def is_cast(flow: Dataflow, node: Node) -> bool:
    """Whether a call changes the type of numbers that fused kernels alone read, which do so themselves."""
    call = node.call
    if not isinstance(call, LayerCall) or not isinstance(call.layer, Movement) or node.final:
        return False
    plain = call.layer.function == "cast" and len(node.flow.reads) == 1 and len(node.flow.writes) == 1
    return plain and all(space_of_node(flow.nodes[i]) is not None for i in node.readers)


def is_copy_of_attention(flow: Dataflow, node: Node) -> bool:
    """Whether a call turns the results of attention, which fused kernels leave as [batch, length, heads]."""
    call = node.call
    if not isinstance(call, LayerCall) or not isinstance(call.layer, Movement):
        return False
    if call.layer.function != "copy" or len(node.flow.reads) != 1 or len(node.flow.writes) != 1:
        return False
    source = node.sources[0]
    made = None if source is None else flow.nodes[source].call
    attends = isinstance(made, LayerCall) and isinstance(made.layer, Attention)
    return attends and node.flow.reads[0].bytes == node.flow.writes[0].bytes


def is_alias(call: LayerCall) -> bool:
    """Whether it is a view that a loop makes, which takes the host's time alone."""
    return isinstance(call.layer, Movement) and call.layer.function == ALIAS
