"""What ranks of an engine must divide, and how blocks are shared out among pipeline stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neuralpower.devices.cluster import Layout
from neuralpower.errors import InputError
from neuralpower.prediction.memory.engines.network import Served

PADDED = 64  # engines pad vocabularies to a multiple of it
Shares = Callable[[int, int], list[int]]
"""(blocks, stages) -> blocks of each stage."""


def middle_first(blocks: int, stages: int) -> list[int]:
    """vLLM's: the last stages but one get one more, so that neither end does if it can be helped.

    Source: vllm/distributed/utils.py (`get_pp_indices`).
    """
    own, more = divmod(blocks, stages)
    return [own + (stages - 1 - more <= stage < stages - 1) for stage in range(stages)]


def last_more(blocks: int, stages: int) -> list[int]:
    """SGLang's: the last stages get one more (python/sglang/srt/distributed/utils.py, `get_pp_indices`)."""
    own, more = divmod(blocks, stages)
    return [own + (stage >= stages - more) for stage in range(stages)]


def check_layout(layout: Layout, engine: str) -> None:
    """Raise InputError for what belongs to training, or what no engine does."""
    for name, value in (("zero", layout.shard), ("sequence-parallel", layout.sequence)):
        if value:
            raise InputError(f"--{name} with --engine {engine}: it belongs to training; leave it out")
    if layout.interleave > 1:
        raise InputError(
            f"--schedule {layout.schedule} with --engine {engine}: it belongs to training; leave it out"
        )
    every = layout.tensor * layout.data
    if engine == "vllm" and layout.expert not in (1, every):
        raise InputError(
            f"--expert-parallel {layout.expert}: vllm shares experts among all {every} tensor x data ranks; "
            f"choose {every} or 1"
        )


def check_ranks(config: Any, layout: Layout, engine: str, name: str) -> None:
    """Raise InputError where ranks do not divide heads, vocabulary or widths, as engines do.

    `config` is of the text model, `name` the model's.
    """
    ranks = layout.tensor
    heads, keys = _of(config, "num_attention_heads"), _of(config, "num_key_value_heads")
    if heads is not None and heads % ranks:
        raise _undivided(ranks, name, f"{heads} attention heads", heads)
    if keys is not None and keys % ranks and ranks % keys:
        raise _undivided(ranks, name, f"{keys} key and value heads", keys)
    words = _of(config, "vocab_size")
    if words is not None and (padded := -(-words // PADDED) * PADDED) % ranks:
        raise _undivided(ranks, name, f"a vocabulary of {padded} words with padding", padded)
    inner = _of(config, "intermediate_size")
    if inner is not None and inner % ranks:
        raise _undivided(ranks, name, f"blocks of {inner} features", inner)
    every = ranks * layout.data if engine == "vllm" else ranks  # that cut each expert
    inner = _of(config, "moe_intermediate_size")
    if inner is not None and inner % every and layout.expert == 1:
        raise InputError(
            f"{layout}: {name} has experts of {inner} features, which {every} ranks do not divide; add "
            f"--expert-parallel {every}"
        )
    blocks = _of(config, "num_hidden_layers")
    if blocks is not None and blocks < layout.pipeline:
        raise InputError(
            f"--pipeline-parallel {layout.pipeline}: {name} has {blocks} layers, one a stage at least; "
            f"choose {blocks} or fewer"
        )


def check_stages(served: Served) -> None:
    """Raise InputError for stages of a network whose repeated blocks are not known."""
    if served.layout.pipeline > max(len(served.places.blocks), 1):
        raise InputError(
            f"--pipeline-parallel {served.layout.pipeline}: {served.name} has no list of equal layers that "
            "stages could share; choose 1"
        )


def _of(config: Any, field: str) -> int | None:
    """A whole number of the configuration; those of single layers are lists."""
    found = getattr(config, field, None)
    return found if isinstance(found, int) and found > 0 else None


def _undivided(ranks: int, name: str, what: str, count: int) -> InputError:
    return InputError(
        f"--tensor-parallel {ranks}: {name} has {what}, which {ranks} ranks do not divide; choose a divisor "
        f"of {count}"
    )
