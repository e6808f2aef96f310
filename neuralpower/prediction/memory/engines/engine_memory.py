"""The answer: what an engine takes of a GPU, and what its pool of keys and values holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from neuralpower.dtypes import DTYPES
from neuralpower.prediction.memory.engines.board import Board
from neuralpower.prediction.memory.engines.network import Served

LONGEST = 2**30  # tokens: beyond, nobody asks
# What the cache of vLLM and SGLang holds; "": as the model
CACHE_TYPES = {
    "auto": "",
    "bfloat16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
CACHE_BYTES = {name: DTYPES[held].bits // 8 if held else 0 for name, held in CACHE_TYPES.items()}
WEIGHTS, ACTIVATIONS, IMAGES, GRAPHS = "weights", "activations", "images", "CUDA graphs"  # names of parts


@dataclass(frozen=True)
class Part:
    """Memory that the pool does not get: expected bytes, the most that they may be, and the source."""

    name: str
    value_bytes: int
    high_bytes: int
    source: str


@dataclass(frozen=True)
class Pool:
    """How an engine shares out its pool."""

    block_size: int  # tokens
    block_bytes: int  # on one device
    blocks: int
    tokens: int  # as the engine's log counts them
    sequences: Callable[[int], int] = field(compare=False)  # of this length, that it holds at once
    sequence_bytes: Callable[[int], int] = field(compare=False)  # that one of this length takes


@dataclass(frozen=True)
class EngineMemory:
    """The memory of one device under an engine. Bytes are of one device of several, the fullest one."""

    engine: str
    follows: str  # the version whose rules it follows
    device: str
    devices: int  # ranks that share the model: tensor x pipeline
    total_bytes: int  # that the driver gives
    budget_bytes: int  # that the engine allows itself
    parts: tuple[Part, ...]  # of the budget, before the pool
    pool_bytes: int
    pool_low_bytes: int  # if all parts are as large as they may be
    cache_dtype: str
    pool: Pool
    length: int  # tokens of a sequence in what follows
    most_sequences: int | None  # that the engine runs at once; None: no limit
    positions: int | None  # that the model is made for
    most_tokens: int | None = None  # new tokens of a step at most
    concurrency: int | None = None  # sequences that the request wants to be held at once
    replicas: int = 1  # engines with a pool of their own each
    stage: int = 1  # of the pipeline, from 1: the one whose memory this is, since it decides for all
    refused: str = ""  # why the engine does not start, whatever the pool is
    notes: tuple[str, ...] = ()

    @property
    def sequences(self) -> int:
        """Sequences of `length` tokens that the pools of all replicas hold at once."""
        return self.replicas * self.pool.sequences(self.length)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that the pool holds."""
        return longest_held(self.pool.sequences, self.positions or LONGEST)

    @property
    def fits(self) -> bool:
        """Whether the engine starts, and its pool holds the requested sequences at once."""
        return not self.refused and self.pool_bytes > 0 and self.sequences >= (self.concurrency or 1)

    @property
    def reason(self) -> str:
        """What is in the way, and what helps; nothing where it fits."""
        if self.fits:
            return ""
        if self.pool_bytes <= 0:
            need = sum(part.value_bytes for part in self.parts) / 2**30
            return (
                f"nothing is left for the pool: weights and other parts take {need:.2f} GiB; "
                "choose more devices, or --weights int4"
            )
        if self.refused:
            return self.refused
        if self.sequences == 0:
            return (
                f"the pool holds no sequence of {self.length:,} tokens; choose --max-model-len {self.longest}"
            )
        return (
            f"the pool holds {self.sequences} sequences of {self.length:,} tokens, not {self.concurrency}; "
            "choose a shorter --max-model-len, or --cache-dtype fp8"
        )

    @property
    def used_bytes(self) -> int:
        """All that the engine takes of the device: its parts and its pool."""
        return sum(part.value_bytes for part in self.parts) + max(self.pool_bytes, 0)

    def part(self, name: str) -> int:
        """Expected bytes of one part; 0 where the engine has none of that name."""
        return sum(part.value_bytes for part in self.parts if part.name == name)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; all sizes in bytes or tokens."""
        plain = (str, int, float, bool, type(None))
        own = {name: value for name, value in vars(self).items() if isinstance(value, plain)}
        own.pop("refused")  # as the reason
        return {
            **own,
            "sequences": self.sequences,
            "longest": self.longest,
            "fits": self.fits,
            "reason": self.reason or None,
            "parts": [vars(part) for part in self.parts],
            "block_size": self.pool.block_size,
            "block_bytes": self.pool.block_bytes,
            "blocks": self.pool.blocks,
            "tokens": self.pool.tokens,
            "sequence_bytes": self.pool.sequence_bytes(self.length),
            "notes": list(self.notes),
        }


class Settings(Protocol):
    """Options of one engine. Fields have the names of the command's options."""

    @property
    def max_model_len(self) -> int | None:
        """Tokens of the longest sequence that the engine takes."""

    @property
    def starts_with_longest(self) -> bool:
        """Whether the engine starts only if its pool holds a sequence of `max_model_len` tokens."""

    def check(self, served: Served) -> None:
        """Raise InputError for what the engine refuses."""

    def memory(self, served: Served, board: Board, concurrency: int | None) -> EngineMemory:
        """The memory under the engine; raises InputError as `check`."""


def longest_held(sequences: Callable[[int], int], most: int, count: int = 1) -> int:
    """The longest length of which `count` sequences are held at once; 0 where none is."""
    low, high = 0, min(most, LONGEST) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if sequences(middle) >= count else (low, middle)
    return low
