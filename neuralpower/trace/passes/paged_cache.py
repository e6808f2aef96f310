"""A paged cache: attention reads it in place, and what is new is written by the kernel that rotates it.

Eager mode concatenates the cache with what is new at each step, and some models repeat keys and values for
the heads that share them. (Kwon et al., "PagedAttention", SOSP 2023.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from neuralpower.layers.attention import Attention
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.fused_pointwise import FusedPointwise
from neuralpower.networks.phases import DECODE
from neuralpower.trace.dataflow import Dataflow, Edit, Node
from neuralpower.trace.lifetimes import CACHE, Access, Flow, total_bytes
from neuralpower.trace.parts.fusion import is_copy_of_attention, join, joined_call, space_of_node
from neuralpower.trace.parts.serving import attention_of, movement_of, served
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import Question
from neuralpower.trace.records import LayerCall, PassShape, Trace

COPIES = ("copy", "repeat", "cat", "append", "cast")  # on the way from new keys to attention
WRITE = "cache"  # name of the part that writes keys and values


@trace_pass(place="serving", applies=served)
def paged_cache(trace: Trace, question: Question) -> Trace:
    """Let attention read the cache in place, and write new keys and values with the rotary embedding."""
    edit = Edit(flow := Dataflow(trace))
    for i, node in enumerate(flow.nodes):
        if attention_of(node) and len(node.flow.reads) > 2:
            _serve(flow, i, edit)
        elif is_copy_of_attention(flow, node):
            edit.skip(i)
    return edit.made()


@dataclass
class _Operand:
    """Keys or values on their way to attention."""

    access: Access  # of what is new, or of the cache where nothing is
    source: int | None  # the call that makes it
    copies: list[int]  # calls between it and attention, which a paged cache does without
    cached: Access | None = None  # of the cache before
    written: Access | None = None  # where what is new is written to the cache
    repeats: int = 1  # how many heads share one of them


def _operand(flow: Dataflow, access: Access, source: int | None) -> _Operand:
    """Look back from attention through copies."""
    operand = _Operand(access, source, [])
    while operand.source is not None:
        node = flow.nodes[operand.source]
        movement = movement_of(node)
        if movement is None or movement.function not in COPIES or not node.flow.reads:
            break
        grown = movement.function in ("cat", "append")
        place = next((n for n, one in enumerate(node.flow.reads) if not _old(flow, node, n)), None)
        if place is None or (grown and not (len(node.flow.reads) == 2 and place == 1)):
            break  # a rotation that ends in a concatenation
        if grown:
            old = node.flow.reads[0]
            operand.cached = old if old.bytes else None
            operand.written = node.flow.writes[0]._replace(bytes=node.flow.reads[1].bytes)
        elif movement.function != "cast" and node.flow.reads[0].bytes:
            operand.repeats *= max(node.flow.writes[0].bytes // node.flow.reads[0].bytes, 1)
        operand.copies.append(operand.source)
        operand.access, operand.source = node.flow.reads[place], node.sources[place]
    return operand


def _old(flow: Dataflow, node: Node, place: int) -> bool:
    """Whether a concatenation's operand is the cache as it was, which may be empty."""
    access, source = node.flow.reads[place], node.sources[place]
    if movement_of(node) is not None and len(node.flow.reads) == 1:
        return False
    if not access.bytes:
        return True
    storages = flow.trace.storages
    known = 0 <= access.storage < len(storages)
    return source is None and known and storages[access.storage].part == CACHE


def _serve(flow: Dataflow, at: int, edit: Edit) -> None:
    """Change one attention and what comes before it."""
    node = flow.nodes[at]
    call, layer = node.call, attention_of(node)
    assert isinstance(call, LayerCall) and layer is not None  # as the caller has seen
    keys, values = (_operand(flow, node.flow.reads[n], node.sources[n]) for n in (1, 2))
    copies = [
        i
        for operand in (keys, values)
        for i in operand.copies
        if set(flow.nodes[i].readers) <= {at, *operand.copies}
    ]
    if set(copies) != {*keys.copies, *values.copies}:
        return  # something else reads them
    query = node.sources[0]
    chain = _before(flow, [i for i in (query, keys.source, values.source) if i is not None], {at, *copies})
    masked = layer.masked and any(source is not None for source in node.sources[3:])
    layer = _by_heads(layer, flow.trace.about)
    repeats = keys.repeats * _expanded(layer, node.flow.reads[1].bytes)
    served = replace(
        layer,
        key_heads=layer.key_heads // repeats if layer.key_heads % repeats == 0 else layer.key_heads,
        masked=masked,
        causal=layer.causal or (not masked and _is_causal(layer, flow.trace.about, keys)),
        window=layer.window or _window(layer, flow.trace.about, call.path),
    )
    read = [node.flow.reads[0]]
    for operand in (keys, values):
        read += [operand.cached] if operand.cached is not None else []
        read.append(operand.access)
    read += node.flow.reads[3:] if masked else []
    for place in node.flow.reads[3:] if not masked else ():
        if not any(place.storage == a.storage for n in flow.nodes if n is not node for a in n.flow.reads):
            edit.sizes[place.storage] = 0
    edit.put(replace(call, layer=served), Flow(tuple(read), node.flow.writes))
    _write(flow, chain, [operand for operand in (keys, values) if operand.written is not None], edit, call)
    for operand in (keys, values):
        edit.gone |= {*operand.copies}
        if operand.written is not None:  # the cache has the new part in addition to the old one
            edit.sizes[operand.written.storage] = operand.written.bytes


def _expanded(layer: Attention, read_bytes: int) -> int:
    """How many heads see one of the keys, where a view shows it to each of them: 1 without such a view."""
    numbers = layer.batch * layer.key_heads * layer.key_length * layer.head_size
    return max(numbers * layer.itemsize // read_bytes, 1) if read_bytes else 1


def _by_heads(layer: Attention, about: PassShape) -> Attention:
    """A step's attention with its heads, where those that share keys stand as several queries."""
    if about.phase != DECODE or about.tokens != 1:
        return layer
    return replace(layer, query_heads=layer.query_heads * layer.query_length, query_length=1)


def _is_causal(layer: Attention, about: PassShape, keys: _Operand) -> bool:
    """Whether new tokens attend to one another and to the cache: each to those before it alone."""
    grows = keys.written is not None
    return grows and layer.query_length > 1 and layer.key_length == layer.query_length + about.context


def _window(layer: Attention, about: PassShape, path: str) -> int:
    """Keys that a query sees at most; 0 where it sees all there are."""
    window = about.windows.get(path, 0)
    return window if window < layer.key_length and layer.query_length > 1 else 0


def _before(flow: Dataflow, ends: Iterable[int], users: set[int]) -> list[int]:
    """Arithmetic between products and attention that nothing else reads."""
    chain: set[int] = set()
    queue = list(ends)
    while queue:
        i = queue.pop()
        node = flow.nodes[i]
        if i in chain or node.final or space_of_node(node) is None:
            continue
        if users.issuperset(node.readers) or chain.union(users).issuperset(node.readers):
            chain.add(i)
            queue += [j for j in node.sources if j is not None]
            queue += [j for j in ends if j not in chain]
    return sorted(chain)


def _write(
    flow: Dataflow, chain: Sequence[int], grown: Sequence[_Operand], edit: Edit, call: LayerCall
) -> None:
    """Join norms of queries and keys in one call, and the rotation and the cache's write in another."""
    normed = _norms(flow, chain)
    rotated = [i for i in chain if i not in normed]
    if len(normed) > 1:
        join(edit, sorted(normed))
    written = tuple(one.written for one in grown if one.written is not None)
    made = {access for i in rotated for access in flow.nodes[i].flow.writes}
    places = {access.storage for access in made}
    copied = tuple(one.access for one in grown if one.access.storage not in places)
    if not rotated and not grown:
        return
    if len(rotated) == 1 and not grown and _is_scaling(flow.nodes[rotated[0]]):
        edit.skip(rotated[0])  # attention does it itself
    elif len(rotated) > 1 or (rotated and grown):
        joined, crossing = joined_call(flow, rotated)
        reads = tuple(dict.fromkeys((*crossing.reads, *copied)))
        layer = joined.layer
        size = sum(one.bytes for one in copied)
        assert isinstance(layer, FusedPointwise)  # as it was made
        layer = replace(
            layer,
            bytes_read=total_bytes(reads, flow.bytes),
            bytes_written=layer.bytes_written + size,
        )
        edit.gone |= {*rotated}
        parts = (*joined.parts, WRITE) if grown else joined.parts
        edit.put(replace(joined, layer=layer, parts=parts), Flow(reads, (*crossing.writes, *written)))
    elif grown:
        size = sum(one.access.bytes for one in grown)
        dtype = call.layer.dtype
        layer = FusedPointwise(dtype=dtype, bytes_read=size, bytes_written=size, operations=0)
        at = flow.nodes[grown[0].copies[-1]].at
        new = replace(call, layer=layer, operator="", at=at, parts=(WRITE,), gradient=0.0, asked=None)
        edit.put(new, Flow(tuple(one.access for one in grown), written))


def _is_scaling(node: Node) -> bool:
    """Whether a call multiplies by one number."""
    layer = node.call.layer if isinstance(node.call, LayerCall) else None
    return isinstance(layer, Elementwise) and layer.operands == 1 and layer.function in ("mul", "div")


def _norms(flow: Dataflow, chain: Sequence[int]) -> set[int]:
    """The part of a chain up to its last reductions, and what these alone make: norms of queries and keys."""
    inside = set(chain)
    normed: set[int] = set()
    for i in reversed(chain):
        space = space_of_node(flow.nodes[i])
        if space is not None and space.outputs:
            normed |= _upstream(flow, i, inside)
            normed |= _scaled(flow, i, inside, {space.outputs, space.elements})
    return normed


def _upstream(flow: Dataflow, start: int, inside: set[int]) -> set[int]:
    """A call of a chain, and those of it that its operands come from."""
    upstream, queue = {start}, [start]
    while queue:
        for j in flow.nodes[queue.pop()].sources:
            if j is not None and j in inside and j not in upstream:
                upstream.add(j)
                queue.append(j)
    return upstream


def _scaled(flow: Dataflow, start: int, inside: set[int], rows: set[int]) -> set[int]:
    """Calls after a reduction until its rows are scaled: by its statistics, its type and its weight."""
    scaled: set[int] = set()
    queue = [start]
    while queue:
        for j in flow.nodes[queue.pop()].readers:
            space = space_of_node(flow.nodes[j])
            scales = space is not None and space.elements in rows and not _rotates(flow, flow.nodes[j])
            if scales and j in inside and j not in scaled:
                scaled.add(j)
                queue.append(j)
    return scaled


def _rotates(flow: Dataflow, node: Node) -> bool:
    """Whether a call is the rotation's: it moves numbers, or reads what was made of positions, no weight."""
    movement = movement_of(node)
    if movement is not None and movement.function not in ("cast", "copy"):
        return True
    storages = flow.trace.storages
    outside = (a.storage for a, j in zip(node.flow.reads, node.sources, strict=True) if j is None)
    return any(0 <= place < len(storages) and storages[place].birth for place in outside)
