"""Writers and readers of memory, which passes need to fuse or drop calls; and changes to a trace."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from neuralpower.layers import Layer
from neuralpower.trace.lifetimes import Access, Flow
from neuralpower.trace.records import LayerCall, Trace, UnmodelledCall


@dataclass
class Node:
    """One operator call; a call that made several layers, or none, is left as it is."""

    at: int
    calls: list[LayerCall | UnmodelledCall]
    flow: Flow
    sources: list[int | None] = field(default_factory=list)  # of each read: the node that wrote it
    readers: list[int] = field(default_factory=list)  # nodes that read what it wrote
    after: set[int] = field(default_factory=set)  # nodes that must run before it
    final: bool = False  # what it writes is there after the pass

    @property
    def call(self) -> LayerCall | UnmodelledCall | None:
        return self.calls[0] if len(self.calls) == 1 else None


class Dataflow:
    """The calls of a trace as nodes, in order, with what depends on what."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        nodes: dict[int, Node] = {}
        for call in sorted(trace.every_call, key=lambda call: call.at):
            node = nodes.get(call.at)
            if node is None:
                node = nodes[call.at] = Node(call.at, [], trace.flows.get(call.at, Flow()))
            node.calls.append(call)
        self.nodes = list(nodes.values())
        self.bytes = {place: storage.bytes for place, storage in enumerate(trace.storages)}
        writer: dict[int, int] = {}
        read_since: dict[int, list[int]] = {}  # storage -> nodes that read it since it was last written
        for i, node in enumerate(self.nodes):
            for access in node.flow.reads:
                source = writer.get(access.storage)
                node.sources.append(source)
                if source is not None:
                    node.after.add(source)
                    if not self.nodes[source].readers or self.nodes[source].readers[-1] != i:
                        self.nodes[source].readers.append(i)
                read_since.setdefault(access.storage, []).append(i)
            for access in node.flow.writes:
                node.after.update(read_since.pop(access.storage, ()))
                node.after.discard(i)
                if access.storage in writer:
                    node.after.add(writer[access.storage])
                writer[access.storage] = i
                node.final = node.final or self._stays(access.storage)

    def _stays(self, place: int) -> bool:
        """Whether memory is there after the pass, or was before it."""
        storages = self.trace.storages
        if not 0 <= place < len(storages):
            return True
        return storages[place].death is None or storages[place].birth == 0


@dataclass
class Edit:
    """Changes to a trace: calls that go, and calls that come at the places of some of them."""

    flow: Dataflow
    gone: set[int] = field(default_factory=set)  # nodes, by number
    new: dict[int, tuple[LayerCall, Flow]] = field(default_factory=dict)  # by `at`
    sizes: dict[int, int] = field(default_factory=dict)  # storage -> its new bytes
    # storage -> (what is read instead, what was written to it)
    _instead: dict[int, tuple[Access, Access]] = field(default_factory=dict)

    def put(self, call: LayerCall, flow: Flow) -> None:
        """Have a call run at its place, instead of what is there."""
        self.new[call.at] = call, flow

    def add(self, node: Node, path: str, layer: Layer, flow: Flow, parts: tuple[str, ...] = ()) -> None:
        """Have a layer run at the place of a node that goes; `parts`: names of what it stands for."""
        operator = layer.operators[0] if layer.operators else ""
        self.put(LayerCall(path, layer, operator, at=node.at, parts=parts), flow)

    def skip(self, i: int) -> None:
        """Leave a copy out: its readers read what it copied."""
        flow = self.flow.nodes[i].flow
        self.gone.add(i)
        self._instead[flow.writes[0].storage] = self._read(flow.reads[0]), flow.writes[0]

    def _read(self, access: Access) -> Access:
        """The access in place of a copy, whose numbers may have had more bytes."""
        if access.storage not in self._instead:
            return access
        source, copy = self._instead[access.storage]
        share = source.bytes / max(copy.bytes, 1)
        return Access(
            source.storage, source.offset + round(share * access.offset), round(share * access.bytes)
        )

    def made(self, **changes: Any) -> Trace:
        """The changed trace; memory that only calls that are gone have used is none.

        `changes`: of its other fields.
        """
        trace, nodes = self.flow.trace, self.flow.nodes
        gone = {nodes[i].at for i in self.gone}
        kept = [call for call in trace.calls if call.at not in gone and call.at not in self.new]
        calls = sorted((*kept, *(call for call, _ in self.new.values())), key=lambda call: call.at)
        flows = {at: flow for at, flow in trace.flows.items() if at not in gone}
        flows |= {at: flow for at, (_, flow) in self.new.items()}
        if self._instead:
            flows = {at: Flow(tuple(map(self._read, f.reads)), f.writes) for at, f in flows.items()}
        used = {access.storage for flow in flows.values() for access in (*flow.reads, *flow.writes)}
        unused = {access.storage for i in self.gone for access in nodes[i].flow.writes} - used
        storages = tuple(
            s._replace(bytes=self.sizes.get(place, 0 if place in unused and s.birth else s.bytes))
            for place, s in enumerate(trace.storages)
        )
        unmodelled = tuple(call for call in trace.unmodelled if call.at not in gone)
        return replace(
            trace, calls=tuple(calls), unmodelled=unmodelled, flows=flows, storages=storages, **changes
        )
