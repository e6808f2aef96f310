"""Memory under an engine: the pool of keys and values, and what it holds; one file for each engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any

from neuralpower.errors import InputError, unknown
from neuralpower.networks.inputs.size_limits import check_count
from neuralpower.prediction.memory.engines.board import Board, board_of
from neuralpower.prediction.memory.engines.engine_memory import (
    ACTIVATIONS,
    CACHE_TYPES,
    IMAGES,
    LONGEST,
    WEIGHTS,
    EngineMemory,
    Part,
    Pool,
    Settings,
)
from neuralpower.prediction.memory.engines.llama_cpp import LlamaCppSettings
from neuralpower.prediction.memory.engines.network import Served, served
from neuralpower.prediction.memory.engines.sglang import SglangSettings
from neuralpower.prediction.memory.engines.shares import check_layout, check_ranks, check_stages
from neuralpower.prediction.memory.engines.vllm import VllmSettings

__all__ = [
    "ACTIVATIONS",
    "CACHE_TYPES",
    "ENGINES",
    "OPTIONS",
    "EngineRequest",
    "Board",
    "EngineMemory",
    "IMAGES",
    "LONGEST",
    "Part",
    "Pool",
    "Served",
    "WEIGHTS",
    "board_of",
    "check_layout",
    "check_ranks",
    "check_stages",
    "served",
]

ENGINES: Mapping[str, type[Any]] = {
    "vllm": VllmSettings,
    "sglang": SglangSettings,
    "llama.cpp": LlamaCppSettings,
}
OPTIONS = tuple(dict.fromkeys(each.name for kind in ENGINES.values() for each in fields(kind)))
COUNTS = ("block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "kv_cache_memory_bytes")
SHARES = ("gpu_memory_utilization", "mem_fraction_static")
TEXTS = {"engine_version": "0.19.0", "cache_dtype": "auto"}  # -> one to choose


@dataclass(frozen=True)
class EngineRequest:
    """An engine, its options by name, and the sequences that it is to hold at once."""

    engine: str
    options: Mapping[str, Any] = field(default_factory=dict)
    concurrency: int | None = None
    board: Board | None = None  # None: a memory alone is known

    def settings(self) -> Settings:
        """The engine's settings; raises InputError for an unknown engine or options of another."""
        if self.engine not in ENGINES:
            raise unknown("engine", self.engine, ENGINES)
        check_count("concurrency", self.concurrency)
        kind = ENGINES[self.engine]
        own = {each.name for each in fields(kind)}
        options = {
            name: value for name, value in self.options.items() if value is not None and value is not False
        }
        for name, value in options.items():
            if name not in own:
                others = [e for e, other in ENGINES.items() if name in {one.name for one in fields(other)}]
                shown = name.replace("_", "-") if value is True else f"{name.replace('_', '-')} {value}"
                raise InputError(
                    f"--{shown} belongs to --engine {' or '.join(others)}, not to {self.engine}; leave it out"
                )
            _check_sort(name, value)
        found: Settings = kind(**options)
        return found

    def memory(self, network: Served, room_bytes: float) -> EngineMemory:
        """The memory of a device of `room_bytes` under the engine; raises InputError as `settings`."""
        board = self.board or board_of(None, room_bytes, "a device")
        return self.settings().memory(network, board, self.concurrency)


def _check_sort(name: str, value: Any) -> None:
    """Raise InputError for a value of another sort than the option takes."""
    option = f"--{name.replace('_', '-')} {value!r}"
    if name in COUNTS:
        check_count(name, value)
    if name in SHARES and (isinstance(value, bool) or not isinstance(value, Real)):
        raise InputError(f"{option}: must be a number; choose 0.9")
    if name in TEXTS and not isinstance(value, str):
        raise InputError(f"{option}: must be a text; choose {TEXTS[name]}")
    if name == "enforce_eager" and value is not True:
        raise InputError(f"{option}: must be True or False; choose True")
