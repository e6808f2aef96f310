"""A history of memory in the format of PyTorch's snapshots, which pytorch.org/memory_viz draws.

It is what `torch.cuda.memory._snapshot()` would return after two passes or steps with a recorded history:
every block that is allocated and freed, and the segments at the end. Times are counted in events, since
nothing runs. A block's frames name the operator, its module and the modules around it.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neuralpower.errors import writing
from neuralpower.files.atomic import aside
from neuralpower.prediction.memory.cuda_allocator import (
    HANDLE,
    SMALL_SEGMENT,
    WORK,
    Ask,
    CachingAllocator,
    asked,
)
from neuralpower.prediction.memory.over_time import Lived
from neuralpower.trace.lifetimes import WORKSPACE, Storage

BASE = 0x7F00_0000_0000  # first address, as CUDA's look
PROTOCOL = 4  # that the page reads
Frame = dict[str, Any]
Event = dict[str, Any]


def write_snapshot(one: Lived, path: Path) -> None:
    """Write the pickle that `torch.cuda.memory._dump_snapshot` would; raises InputError."""
    with writing(path, "file"), aside(path) as new:
        new.write_bytes(pickle.dumps(snapshot(one), protocol=PROTOCOL))


def snapshot(one: Lived) -> dict[str, Any]:
    """The history of two passes or steps on device 0, stream 0, and the segments after them."""
    history = _History(one)
    for ask in asked(one.storages, one.handles):
        history.add(ask)
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0}
    return {
        "segments": [*history.segments()],
        "device_traces": [history.events],
        "allocator_settings": {**settings, "expandable_segments": False},
        "external_annotations": history.annotations,
    }


class _History:
    """The events so far, and what is alive."""

    def __init__(self, lived: Lived) -> None:
        self.lived = lived
        self.events: list[Event] = []
        self.annotations: list[dict[str, Any]] = []
        self._allocator = CachingAllocator(record=self._note)
        self._frames = [frames_of(lived, storage) for storage in lived.storages]
        # of kernels' work space, by call
        self._working = {
            s.birth: f for s, f in zip(lived.storages, self._frames, strict=True) if s.part == WORKSPACE
        }
        self._asked: tuple[int, list[Frame]] = (0, [])  # bytes and frames of the block that is being made
        self._living: dict[int, int] = {}  # place -> address
        self._handles: list[int] = []
        # address -> bytes, bytes of the request, frames
        self._blocks: dict[int, tuple[int, int, list[Frame]]] = {}
        self._segments: dict[int, int] = {}  # address -> bytes
        self._part = ""

    def add(self, ask: Ask) -> None:
        self._annotate(ask)
        if ask.bytes is None:
            self._allocator.free(self._living.pop(ask.place))
            return
        self._asked = ask.bytes, self._frames_of(ask)
        address = self._allocator.allocate(ask.bytes)
        if ask.place == HANDLE:
            self._handles.append(address)
        else:
            self._living[ask.place] = address

    def segments(self) -> Iterator[dict[str, Any]]:
        """The segments with their blocks, by address."""
        for address, size in sorted(self._segments.items()):
            blocks = [*self._within(address, size)]
            active = [block for block in blocks if block["state"] == "active_allocated"]
            used = sum(block["size"] for block in active)
            yield {
                "device": 0,
                "address": BASE + address,
                "total_size": size,
                "allocated_size": used,
                "active_size": used,
                "requested_size": sum(block["requested_size"] for block in active),
                "stream": 0,
                "segment_type": "small" if size == SMALL_SEGMENT else "large",
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "frames": [],
                "blocks": blocks,
            }

    def _within(self, begin: int, size: int) -> Iterator[dict[str, Any]]:
        """The blocks of a segment, free ones between those in use."""
        at, end = begin, begin + size
        for address in [*sorted(a for a in self._blocks if begin <= a < end), end]:
            if address > at:
                yield _block(at, address - at, address - at, "inactive", [])
            if address < end:
                taken, asked_for, frames = self._blocks[address]
                yield _block(address, taken, asked_for, "active_allocated", frames)
                at = address + taken

    def _note(self, action: str, address: int, size: int) -> None:
        """Note that a block or a segment comes or goes."""
        if action == "alloc":
            self._blocks[address] = (size, *self._asked)
            self._event(action, address, *self._asked)
        elif action == "free":
            _, size, frames = self._blocks.pop(address)
            self._event("free_requested", address, size, frames)
            self._event("free_completed", address, size, frames)
        else:
            self._segments[address] = size
            self._event(action, address, size, self._asked[1])

    def _event(self, action: str, address: int, size: int, frames: list[Frame]) -> None:
        event = {"action": action, "addr": BASE + address, "size": size, "stream": 0}
        more = {"time_us": len(self.events), "compile_context": "N/A", "user_metadata": "", "frames": frames}
        self.events.append({**event, **more})

    def _annotate(self, ask: Ask) -> None:
        """Say where a part of the pass or step begins."""
        part = f"{self.lived.part_at(ask.call)} {ask.step + 1}"
        if part == self._part:
            return
        for stage, name in (("END", self._part), ("START", part)):
            if name:
                entry = {"stage": stage, "name": name, "device": 0, "time_us": len(self.events)}
                self.annotations.append(entry)
        self._part = part

    def _frames_of(self, ask: Ask) -> list[Frame]:
        """Operator, module and the modules around it, the innermost first."""
        if ask.place == HANDLE:
            return [_frame("cuBLAS handle", "cuBLAS", 0)]
        return self._working[ask.call] if ask.place == WORK else self._frames[ask.place]


def frames_of(lived: Lived, storage: Storage) -> list[Frame]:
    """The frames of what made a storage, the innermost first; lines count operator calls."""
    path, operator = storage.origin
    path = storage.name.rpartition(".")[0] if storage.name else path
    what = storage.name or operator or storage.part
    part = lived.part_at(storage.birth) if storage.birth else "before"
    outer = path.split(".") if path else []
    modules = [".".join(outer[:depth]) for depth in range(len(outer), 0, -1)]
    return [
        _frame(f"{what} ({storage.part})", path or lived.model, storage.birth),
        *(_frame(module, lived.model, 0) for module in modules),
        _frame(part, lived.model, 0),
    ]


def _frame(name: str, file: str, line: int) -> Frame:
    return {"name": name, "filename": file, "line": line}


def _block(address: int, size: int, asked_for: int, state: str, frames: list[Frame]) -> dict[str, Any]:
    sizes = {"address": BASE + address, "size": size, "requested_size": asked_for}
    return {**sizes, "state": state, "frames": frames}
