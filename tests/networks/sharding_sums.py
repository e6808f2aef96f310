"""Whether the work of all ranks adds up to that of the whole network, for configurations of transformers."""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from neuralpower.devices.cluster import Layout
from neuralpower.errors import NeuralPowerError
from neuralpower.layers import Layer
from neuralpower.networks.decoder import Decoder
from neuralpower.networks.inputs.requests import asked_of
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.libraries.transformers import configuration_source
from neuralpower.networks.phases import Phase
from neuralpower.networks.running import WAYS
from neuralpower.networks.sharding import Sharding
from neuralpower.networks.source import Source
from neuralpower.trace.records import Trace
from neuralpower.trace.tracer import Asked, trace_by

TOKENS = 16
HEADS = 8
LAYERS = "num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers depth".split()
EXPERTS = "num_experts num_local_experts n_routed_experts moe_num_experts".split()
SMALLEST = {
    **dict.fromkeys(LAYERS, 2),
    **dict.fromkeys(EXPERTS, 8),
    "num_attention_heads": HEADS,
    "vocab_size": 1024,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "intermediate_size": 512,
    "moe_intermediate_size": 256,
}


USUAL = {
    "moe_intermediate_size": 256,
    "num_experts_per_tok": 2,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
}
"""What configurations leave open."""


def planned() -> dict[str, type]:
    """Classes of configurations that bring a plan for tensor ranks, by model type."""
    auto = importlib.import_module("transformers.models.auto.configuration_auto")
    found = {}
    for model_type in auto.CONFIG_MAPPING_NAMES:
        kind = auto.CONFIG_MAPPING[model_type]
        if getattr(kind, "base_model_tp_plan", None):
            found[model_type] = kind
    return dict(sorted(found.items()))


def configurations(kind: Any) -> Iterator[Any]:
    """Smaller and smaller parts of what makes a configuration small, since some contradict others."""
    for names in (tuple(SMALLEST), (*LAYERS, *EXPERTS), LAYERS, ("layer_types",)):
        with suppress(Exception):
            config = kind()
            for part in (config, *(getattr(config, name, None) for name in kind.sub_configs)):
                if part is not None:
                    _shrink(part, names)
            yield config


def _shrink(config: Any, names: Sequence[str]) -> None:
    own = vars(config)
    count, hidden = own.get("num_attention_heads"), own.get("hidden_size")
    for name in names:
        if isinstance(own.get(name), int) and name in SMALLEST:
            setattr(config, name, min(own[name], SMALLEST[name]))
    for name, usual in USUAL.items():
        if name in own and own[name] is None:
            setattr(config, name, usual)
    kinds = own.get("layer_types")
    if kinds and "layer_types" not in names:
        config.layer_types = ([*dict.fromkeys(kinds)][:2] * 2)[:2]
    if (
        "num_attention_heads" in names
        and isinstance(count, int)
        and isinstance(hidden, int)
        and count > HEADS
    ):
        config.hidden_size = hidden // count * HEADS
        keys = own.get("num_key_value_heads")
        if isinstance(keys, int):
            config.num_key_value_heads = HEADS if keys == count else min(keys, HEADS // 2)


def source_of(model_type: str, kind: Any) -> tuple[Source, Trace] | None:
    """The model of a configuration, for causal text where there is such a class; None where none runs."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    transformers = importlib.import_module("transformers")
    name = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type)
    chosen = getattr(transformers, name) if name else None
    for config in configurations(kind):
        for tokens in (TOKENS, None):
            with suppress(NeuralPowerError):
                source = configuration_source(model_type, config, chosen)
                return source, _traced(source, InputRequest(1, tokens), Layout())
    return None


def problems(model_type: str, kind: Any, ranks: int = 2) -> list[str] | None:
    """In words, what of a rank's work is neither its part of the whole nor repeated; None: nothing runs."""
    found = source_of(model_type, kind)
    if found is None:
        return None
    source, whole = found
    request = InputRequest(1, TOKENS if any(c.kind == "embedding" for c in whole.layers) else None)
    part = _traced(source, request, Layout(tensor=ranks))
    return [*_calls(whole, part, ranks), *_weights(source, request, ranks), *_cache(source, ranks)]


def _traced(source: Source, request: InputRequest, layout: Layout) -> Trace:
    one: Any = asked_of(source, request, Phase(), sharding=Sharding(layout))
    return trace_by(WAYS[:2], one.module, Asked(one.inputs.args, one.inputs.kwargs))  # never with numbers


def _products(found: Trace) -> dict[str, list[tuple[Layer, int]]]:
    by_path = defaultdict(list)
    for call in found.calls:
        if call.layer.multiplies or call.layer.kind == "attention":
            by_path[call.path].append((call.layer, int(call.layer.flops())))
    return by_path


def _calls(whole: Trace, rank: Trace, ranks: int) -> list[str]:
    said = []
    if whole.unmodelled and not rank.unmodelled:
        said.append("unmodelled calls are gone")
    before, after = _products(whole), _products(rank)
    if before.keys() != after.keys():
        said.append(f"products of {before.keys() ^ after.keys()}")
    for path, calls in before.items():
        if len(after[path]) != len(calls):
            said.append(f"{path}: {len(calls)} products become {len(after[path])}")
            continue
        for (layer, flops), (other, part) in zip(calls, after[path], strict=True):
            if part not in (flops, -(-flops // ranks)):
                said.append(f"{path}: {layer} of {flops} FLOP becomes {other} of {part}")
    if sum(f for calls in after.values() for _, f in calls) >= sum(
        f for calls in before.values() for _, f in calls
    ):
        said.append("nothing is split")
    return said


def _weights(source: Source, request: InputRequest, ranks: int) -> list[str]:
    whole = dict(source.build("meta").named_parameters(remove_duplicate=False))
    one: Any = asked_of(source, request, Phase(), sharding=Sharding(Layout(tensor=ranks)))
    said = []
    for name, p in one.module.named_parameters(remove_duplicate=False):
        if p.numel() not in (whole[name].numel(), -(-whole[name].numel() // ranks)):
            said.append(f"{name}: {tuple(whole[name].shape)} becomes {tuple(p.shape)}")
    return said


def _cache(source: Source, ranks: int) -> list[str]:
    config: Any = getattr(source.build("meta"), "config", None)
    if not getattr(config, "use_cache", False):
        return []
    try:
        Decoder(source.build("meta"), InputRequest(1)).cache(1)
    except NeuralPowerError:
        return []  # it keeps none
    sizes = []
    for layout in (Layout(), Layout(tensor=ranks)):
        one: Any = asked_of(source, InputRequest(1), Phase.decode(1, TOKENS), sharding=Sharding(layout))
        trace_by(WAYS[:2], one.module, Asked(one.inputs.args, one.inputs.kwargs))
        sizes.append(one.cache_bytes)
    whole, part = sizes
    # states of recurrent blocks may stay whole beside keys and values that are split
    return [] if whole / ranks <= part <= whole else [f"cache of {whole} bytes becomes {part}"]
