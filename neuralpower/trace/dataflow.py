"""Writers and readers of memory, which passes need to fuse or drop calls."""

from __future__ import annotations

from dataclasses import dataclass, field

from neuralpower.trace.accesses import Flow
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
        """The only call."""
        return self.calls[0] if len(self.calls) == 1 else None


class Dataflow:
    """The calls of a trace as nodes, in order, with what depends on what."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        found: dict[int, Node] = {}
        for call in sorted(trace.every_call, key=lambda call: call.at):
            node = found.get(call.at)
            if node is None:
                node = found[call.at] = Node(call.at, [], trace.flows.get(call.at, Flow()))
            node.calls.append(call)
        self.nodes = list(found.values())
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
