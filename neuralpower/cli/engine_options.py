"""Options of `fit` that name an engine, and how it shares out the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from neuralpower.cli.choices import choice
from neuralpower.cli.commands import OptionGroup
from neuralpower.cli.panels import ENGINE
from neuralpower.errors import InputError

if TYPE_CHECKING:
    from neuralpower.prediction.memory.engines import EngineRequest

NAMES = ("vllm", "sglang", "llama.cpp")


class Engine(OptionGroup):
    """An engine that serves the model; its pool takes the memory that is left."""

    panel = ENGINE

    engine: Annotated[str | None, choice("engine", NAMES, help="Serve the model under this engine")] = None
    gpu_memory_utilization: Annotated[
        float | None, Option(help="vllm: share of the memory that it takes; default: 0.9, from 0.21 on 0.92.")
    ] = None
    mem_fraction_static: Annotated[
        float | None, Option(help="sglang: share for weights and pool; default: by the memory.")
    ] = None
    block_size: Annotated[int | None, Option(help="Tokens of a block; default: 16 of vllm, 1 of sglang.")] = (
        None
    )
    cache_dtype: Annotated[
        str | None, Option(help="Type of keys and values: auto, fp8; of llama.cpp also q8_0, q4_0.")
    ] = None
    max_num_seqs: Annotated[int | None, Option(help="Sequences that the engine runs at once.")] = None
    max_num_batched_tokens: Annotated[int | None, Option(help="Tokens of a step, or of a chunk.")] = None
    max_model_len: Annotated[
        int | None, Option(help="Tokens of the longest sequence; default: the model's positions.")
    ] = None
    kv_cache_memory_bytes: Annotated[
        int | None, Option(help="vllm: bytes of the pool; default: what the other parts leave.")
    ] = None
    enforce_eager: Annotated[
        bool,
        Option("--enforce-eager", help="vllm from 0.21 on: without CUDA graphs, which the pool pays for."),
    ] = False
    engine_version: Annotated[
        str | None, Option(help="vllm: the version whose rules hold; default: 0.19.0.")
    ] = None
    concurrency: Annotated[int | None, Option(help="Sequences that have to be held at once.")] = None

    @property
    def given(self) -> dict[str, Any]:
        """Name -> value of the options that are given, without the engine and the sequences."""
        own = {name: value for name, value in vars(self).items() if name not in ("engine", "concurrency")}
        return {name: value for name, value in own.items() if value is not None and value is not False}

    def asked(self, device: str, memory_bytes: float) -> EngineRequest | None:
        """The engine with its options on a device of that name and memory; None without an engine.

        Raises:
            InputError: an option without an engine, or one that the engine does not have.
        """
        if self.engine is None:
            for name, value in {**self.given, "concurrency": self.concurrency}.items():
                if value is not None:
                    raise InputError(
                        f"--{name.replace('_', '-')} {value} belongs to an engine; add --engine vllm"
                    )
            return None
        from neuralpower.devices.spec import known_spec
        from neuralpower.prediction.memory.engines import EngineRequest, board_of

        board = board_of(known_spec(device), memory_bytes, device)
        return EngineRequest(self.engine, self.given, self.concurrency, board)
