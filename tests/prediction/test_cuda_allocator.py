"""PyTorch's caching allocator for CUDA: rules by hand, and a second, plain reading of them on random runs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from neuralpower.errors import InputError
from neuralpower.prediction.memory.cuda_allocator import (
    CachingAllocator,
    OutOfMemoryError,
    Settings,
    replayed,
)
from neuralpower.trace.lifetimes import ACTIVATIONS, GRADIENTS, OPTIMIZER, WEIGHTS, WORKSPACE, Storage

MIB = 2**20
HISTORY = Path(__file__).with_name("resnet50_h200.txt")


@dataclass
class Part:
    segment: int
    offset: int
    bytes: int
    owner: int = 0  # 0: free


@dataclass
class Plain:
    """The same rules over one list, searched from end to end."""

    parts: list[Part] = field(default_factory=list)
    large: dict[int, bool] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    count: int = 0

    def allocate(self, size: int) -> int:
        size = max(512, (size + 511) // 512 * 512)
        wide = size > MIB
        free = [p for p in self.parts if not p.owner and self.large[p.segment] == wide and p.bytes >= size]
        if free:
            part = min(free, key=lambda p: (p.bytes, p.segment, p.offset))
        else:
            segment = len(self.sizes)
            took = 2 * MIB if not wide else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            self.large[segment], self.sizes[segment] = wide, took
            part = Part(segment, 0, took)
            self.parts.append(part)
        rest = part.bytes - size
        if rest > MIB if wide else rest >= 512:
            self.parts.append(Part(part.segment, part.offset + size, rest))
            part.bytes = size
        self.count += 1
        part.owner = self.count
        return self.count

    def free(self, owner: int) -> None:
        next(p for p in self.parts if p.owner == owner).owner = 0
        kept: list[Part] = []
        for part in sorted(self.parts, key=lambda p: (p.segment, p.offset)):
            last = kept[-1] if kept else part
            if last is not part and last.segment == part.segment and not (last.owner or part.owner):
                last.bytes += part.bytes
            else:
                kept.append(part)
        self.parts = kept

    @property
    def allocated(self) -> int:
        return sum(part.bytes for part in self.parts if part.owner)

    @property
    def reserved(self) -> int:
        return sum(self.sizes.values())


@pytest.mark.parametrize("seed", range(6))
def test_random_runs_reserve_what_a_plain_reading_of_the_rules_reserves(seed: int) -> None:
    draw = random.Random(seed)
    mine, plain = CachingAllocator(), Plain()
    living: list[tuple[int, int]] = []
    for _ in range(600):
        if living and draw.random() < 0.48:
            address, owner = living.pop(draw.randrange(len(living)))
            mine.free(address)
            plain.free(owner)
        else:
            size = int(2 ** draw.uniform(4, 26))
            living.append((mine.allocate(size), plain.allocate(size)))
        assert (mine.allocated, mine.reserved) == (plain.allocated, plain.reserved)


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB + 1, 12 * MIB, 12 * MIB),  # the rest, less than 1 MiB, is not split off
        (1_000_000_000, 1_000_341_504, 1_000_341_504),
    ],
)
def test_one_request_takes_a_block_and_a_segment(size: int, allocated: int, reserved: int) -> None:
    allocator = CachingAllocator()
    allocator.allocate(size)
    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


def test_the_smallest_block_that_is_large_enough_serves() -> None:
    allocator = CachingAllocator()
    large, middle = allocator.allocate(64 * MIB), allocator.allocate(32 * MIB)
    allocator.free(large)
    allocator.free(middle)
    assert allocator.allocate(30 * MIB) == middle
    assert allocator.peak_reserved == 96 * MIB


def test_a_full_device_gets_its_free_segments_back_before_it_refuses() -> None:
    allocator = CachingAllocator(device_bytes=100 * MIB)
    allocator.free(allocator.allocate(60 * MIB))
    allocator.allocate(70 * MIB)
    assert (allocator.reserved, allocator.given_back) == (70 * MIB, 1)
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(40 * MIB)


def test_expandable_segments_reuse_what_growing_requests_leave() -> None:
    fixed, expandable = CachingAllocator(), CachingAllocator(settings=Settings(expandable_segments=True))
    for allocator in (fixed, expandable):
        for size in range(20, 200, 20):  # a batch that grows from step to step
            allocator.free(allocator.allocate(size * MIB))
    assert fixed.reserved == sum(range(20, 200, 20)) * MIB
    assert expandable.reserved == 180 * MIB


def test_a_block_above_the_largest_split_serves_only_requests_near_its_size() -> None:
    allocator = CachingAllocator(settings=Settings(max_split_bytes=100 * MIB))
    allocator.free(allocator.allocate(200 * MIB))
    allocator.allocate(50 * MIB)
    assert allocator.reserved == 250 * MIB
    allocator.allocate(190 * MIB)
    assert allocator.reserved == 250 * MIB
    assert allocator.allocated == 250 * MIB


def test_free_segments_go_back_above_the_garbage_collection_threshold() -> None:
    allocator = CachingAllocator(device_bytes=1000 * MIB, settings=Settings(collect_from=0.5))
    allocator.free(allocator.allocate(400 * MIB))
    allocator.allocate(450 * MIB)
    assert allocator.reserved == 450 * MIB


@pytest.mark.parametrize(
    "wrong", [{"max_split_bytes": 20 * MIB}, {"collect_from": 1.0}, {"collect_from": -0.1}]
)
def test_settings_that_pytorch_refuses_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="PyTorch takes"):
        Settings(**wrong)


def test_a_second_step_finds_the_optimizers_state_and_work_space_comes_and_goes() -> None:
    step = [
        Storage(0, None, 40 * MIB, WEIGHTS),
        Storage(1, 2, 100 * MIB, ACTIVATIONS),
        Storage(1, 1, 60 * MIB, WORKSPACE, (60 * MIB, 50 * MIB), "cudnn"),
        Storage(2, None, 40 * MIB, GRADIENTS),
        Storage(3, None, 80 * MIB, OPTIMIZER),
    ]
    done = replayed(step, handles=(32 * MIB, 32 * MIB))
    assert done.peak_allocated == (64 + 40 + 80 + 100 + 60) * MIB
    # the state goes into the first activations' block, so the second need another; gradients into work space
    assert done.peak_reserved == (64 + 40 + 100 + 60 + 100) * MIB


def test_a_real_history_reserves_what_the_replay_reserves() -> None:
    """Two training steps of ResNet-50 on an H200: 1,822 blocks, 107 segments, equal at every block."""
    lines = HISTORY.read_text(encoding="ascii").splitlines()
    allocator, reserved, blocks = CachingAllocator(), 2 * MIB, list[int]()
    for asked in " ".join(line for line in lines if not line.startswith("#")).split():
        if asked.startswith("f"):
            allocator.free(blocks[int(asked[1:])])
        elif asked.startswith("s"):
            reserved += int(asked[1:])
        else:
            blocks.append(allocator.allocate(int(asked)))
            assert allocator.reserved == reserved, f"block {len(blocks)} of {asked} bytes"
    assert (len(blocks), allocator.reserved) == (1822, 3_617_587_200)


@pytest.mark.parametrize("expandable", [False, True])
def test_what_is_recorded_adds_up(expandable: bool) -> None:
    events: list[tuple[str, int, int]] = []
    settings = Settings(expandable_segments=expandable)
    allocator = CachingAllocator(settings=settings, record=lambda *event: events.append(event))
    for address in [allocator.allocate(size * MIB) for size in (1, 3, 30, 7)][1:]:
        allocator.free(address)
    allocator.empty_cache()
    grown = sum(size for action, _, size in events if action in ("segment_alloc", "segment_map"))
    shrunk = sum(size for action, _, size in events if action == "segment_free")
    taken = sum(size if action == "alloc" else -size for action, _, size in events if "segment" not in action)
    assert (grown - shrunk, taken) == (allocator.reserved, allocator.allocated)
    assert grown == allocator.peak_reserved
