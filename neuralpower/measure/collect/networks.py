"""The real networks whose layers `collect-data` measures (`networks.txt`), and small changes of them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from neuralpower.errors import NeuralPowerError, unknown
from neuralpower.networks.names.families import index_ranges, with_overrides
from neuralpower.networks.sources import resolve

SWEPT = 32  # networks of a family that stand for its sweep
ATTEMPTS = 8  # changed configurations to try before a network is left as it is
WIDTHS = ("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embed_dim")
HEADS = "num_attention_heads encoder_attention_heads decoder_attention_heads num_heads n_heads n_head".split()
INNER = (
    *("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "d_ff", "dff", "d_inner"),
    *("n_inner", "hidden_dim"),
)
WORDS = ("batch", "text", "step", "quick")  # of an entry of `networks.txt`, besides its MODEL
FOLLOWERS = ("pooler_hidden_size", "word_embed_proj_dim", "projection_size")  # stay equal to the width


@dataclass(frozen=True)
class Network:
    """A MODEL with the batch sizes and text lengths (None: no text, or the model's own) to trace it with."""

    model: str
    batch_sizes: tuple[int, ...]
    seq_lens: tuple[int | None, ...] = (None,)
    steps: tuple[tuple[int, ...], ...] = ()  # batch size and tokens in the cache, of a decoder's step
    quick: bool = False  # cheap to build and to run


def _listed(entry: str) -> Network:
    """The network of an entry of `networks.txt`; raises InputError for an unknown word."""
    head, *overrides = entry.splitlines()
    model, *words = head.split()
    values = {name: value for name, _, value in (word.partition("=") for word in words)}
    for name in values:
        if name not in WORDS:
            raise unknown(f"word of {model} in networks.txt", name, WORDS)
    changes = dict(override.split("=", 1) for override in " ".join(overrides).split())
    return Network(
        with_overrides(model, changes) if changes else model,
        _numbers(values["batch"]),
        _numbers(values["text"]) if "text" in values else (None,),
        (_numbers(values["step"], "x"),) if "step" in values else (),
        "quick" in values,
    )


def _numbers(text: str, separator: str = ",") -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(separator))


_TEXT = Path(__file__).with_name("networks.txt").read_text(encoding="utf-8")
NETWORKS = tuple(_listed(entry) for entry in re.findall(r"^[^#\s].*(?:\n .+)*", _TEXT, re.MULTILINE))


def swept(model: str, generator: random.Random) -> list[Network]:
    """Networks drawn from the ranges of a zoo family; none where `model` is not a family's bare name."""
    ranges = index_ranges(model)
    if ranges is None:
        return []
    drawn_networks: dict[str, Network] = {}
    for _ in range(4 * SWEPT):
        if len(drawn_networks) < SWEPT:
            chosen = {key: generator.choice(values) for key, values in ranges.items()}
            batch = int(chosen.pop("batch_size", 1))
            drawn = with_overrides(model, chosen)
            drawn_networks.setdefault(drawn, Network(drawn, (batch,)))
    return list(drawn_networks.values())


def jittered(network: Network, generator: random.Random) -> Network:
    """The same architecture with slightly other widths, heads, vocabulary, image, batch and text.

    The number of heads moves by up to a third and the width with it, so a head keeps its size; grouped key
    heads still divide the query heads. A proposal is built on meta. Where no proposal can be built, or the
    network is not of `transformers`, only batch and length change.
    """
    changed = replace(
        network,
        batch_sizes=tuple(sorted({_near(size, generator) for size in network.batch_sizes})),
        seq_lens=tuple(length and _shorter(length, generator) for length in network.seq_lens),
        steps=tuple((_near(batch, generator), _shorter(past, generator)) for batch, past in network.steps),
    )
    if not network.model.startswith("transformers:"):
        return changed
    config: Any = resolve(network.model).build("meta").config
    for _ in range(ATTEMPTS):
        model = with_overrides(network.model, dict(_changes(config, generator)))
        try:
            resolve(model).build("meta")
        except NeuralPowerError:
            continue
        return replace(changed, model=model)
    return changed


def _near(size: int, generator: random.Random) -> int:
    """`size`, changed by up to a half and never below one."""
    return max(1, round(size * generator.uniform(0.6, 1.5)))


def _shorter(length: int, generator: random.Random) -> int:
    """Between half of `length` and all of it, so that it stays within the model's positions."""
    return max(1, round(length * generator.uniform(0.5, 1.0)))


def _changes(config: Any, generator: random.Random, prefix: str = "") -> Iterator[tuple[str, int | str]]:
    """Overrides that change `config`, and the text and vision configurations in it."""
    seed = generator.random()
    for inner in ("text_config", "vision_config"):
        if getattr(config, inner, None) is not None:  # the same change, as their outputs may have to meet
            yield from _changes(getattr(config, inner), random.Random(seed), f"{inner}.")
    values = config.to_dict()
    width = next((key for key in WIDTHS if _is_size(values.get(key))), None)
    if width is not None:
        for key, value in (*_widths(values, width, generator), *_sizes(values, generator)):
            yield prefix + key, value


def _widths(values: dict[str, Any], width: str, generator: random.Random) -> Iterator[tuple[str, int | str]]:
    """New heads and widths; a head keeps its size, and the heads that share a key head stay together."""
    heads = {key: values[key] for key in HEADS if _is_size(values.get(key))}
    stages = values.get("num_heads")
    if isinstance(stages, list):  # every stage of Swin doubles both; its hidden_size follows
        width = "embed_dim"
        old, new = stages[0], max(1, stages[0] + generator.choice((-1, 0, 1)))
        yield "num_heads", str([count // old * new for count in stages]).replace(" ", "")
    elif heads:
        number = next(iter(heads.values()))
        key_heads: int = values.get("num_key_value_heads") or 0
        old = key_heads if key_heads > 1 and number % key_heads == 0 else number
        new = max(1, old + generator.randint(-max(1, old // 3), max(1, old // 3)))
        for key, value in heads.items():
            yield key, value // old * new
        if key_heads:
            yield "num_key_value_heads", new if key_heads == old else key_heads
    else:
        old, new = values[width], max(64, round(values[width] * generator.uniform(0.7, 1.3) / 64) * 64)
    for key in (width, *FOLLOWERS):
        if values.get(key) == values[width]:
            yield key, values[width] // old * new
    for key in INNER:
        if _is_size(values.get(key)):
            yield key, max(64, round(values[key] * new / old * generator.uniform(0.7, 1.3) / 16) * 16)


def _sizes(values: dict[str, Any], generator: random.Random) -> Iterator[tuple[str, int | str]]:
    """A little more vocabulary (special tokens stay in it), and images of some patches more or less."""
    if _is_size(values.get("vocab_size")):
        yield "vocab_size", round(values["vocab_size"] * generator.uniform(1.0, 1.1))
    image, patch = values.get("image_size"), values.get("patch_size")
    # stages want whole windows
    if isinstance(image, int) and isinstance(patch, int) and "depths" not in values:
        yield "image_size", max(2 * patch, image + patch * generator.randint(-3, 3))


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
