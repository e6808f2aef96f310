"""Whether the work of all ranks adds up to that of the whole network, for configurations of transformers."""

from __future__ import annotations

import importlib
from collections import defaultdict
from typing import Any

from neuralpower.layers import Layer
from neuralpower.layout import Layout
from neuralpower.networks.inputs import InputRequest
from neuralpower.networks.phases import Phase
from neuralpower.networks.requests import asked_of
from neuralpower.networks.sharding import Sharding
from neuralpower.networks.source import Source
from neuralpower.networks.transformers import configuration_source
from neuralpower.trace.records import Trace
from neuralpower.trace.tracer import trace

TOKENS = 16
LAYERS = (
    "num_hidden_layers",
    "num_layers",
    "n_layer",
    "n_layers",
    "encoder_layers",
    "decoder_layers",
    "depth",
)


def planned() -> dict[str, type]:
    """Classes of configurations that bring a plan for tensor ranks, by model type."""
    auto = importlib.import_module("transformers.models.auto.configuration_auto")
    found = {}
    for model_type in auto.CONFIG_MAPPING_NAMES:
        kind = auto.CONFIG_MAPPING[model_type]
        if getattr(kind, "base_model_tp_plan", None):
            found[model_type] = kind
    return dict(sorted(found.items()))


def few_layers(kind: Any) -> Any:
    """A configuration of the class with two blocks."""
    config = kind()
    for part in (config, *(getattr(config, name, None) for name in kind.sub_configs)):
        for name in LAYERS:
            if isinstance(vars(part).get(name) if part is not None else None, int):
                setattr(part, name, min(getattr(part, name), 2))
        kinds = getattr(part, "layer_types", None)
        if kinds:
            part.layer_types = [*dict.fromkeys(kinds)][:2] * 2
            part.layer_types = part.layer_types[:2]
    return config


def source_of(model_type: str, kind: Any) -> Source:
    """The model of a configuration, for causal text where there is such a class."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    transformers = importlib.import_module("transformers")
    name = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type)
    return configuration_source(model_type, few_layers(kind), getattr(transformers, name) if name else None)


def problems(model_type: str, kind: Any, ranks: int = 2) -> list[str]:
    """In words, what of a rank's work is neither its part of the whole nor repeated."""
    source, request = source_of(model_type, kind), InputRequest(1, TOKENS)
    traces = [_traced(source, request, layout) for layout in (Layout(), Layout(tensor=ranks))]
    found = [*_calls(*traces, ranks), *_weights(source, ranks)]
    return [*found, *_cache(source, request, ranks)]


def _traced(source: Source, request: InputRequest, layout: Layout) -> Trace:
    one: Any = asked_of(source, request, Phase(), sharding=Sharding(layout))
    return trace(one.module, one.inputs.args, one.inputs.kwargs)


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


def _weights(source: Source, ranks: int) -> list[str]:
    whole = dict(source.build("meta").named_parameters(remove_duplicate=False))
    one: Any = asked_of(source, InputRequest(1, TOKENS), Phase(), sharding=Sharding(Layout(tensor=ranks)))
    said = []
    for name, p in one.module.named_parameters(remove_duplicate=False):
        if p.numel() not in (whole[name].numel(), -(-whole[name].numel() // ranks)):
            said.append(f"{name}: {tuple(whole[name].shape)} becomes {tuple(p.shape)}")
    return said


def _cache(source: Source, request: InputRequest, ranks: int) -> list[str]:
    config: Any = getattr(source.build("meta"), "config", None)
    if not getattr(config, "use_cache", False):
        return []
    sizes = []
    for layout in (Layout(), Layout(tensor=ranks)):
        one: Any = asked_of(source, InputRequest(1), Phase.decode(1, TOKENS), sharding=Sharding(layout))
        trace(one.module, one.inputs.args, one.inputs.kwargs)
        sizes.append(one.cache_bytes)
    whole, part = sizes
    # states of recurrent blocks may stay whole beside keys and values that are split
    return [] if whole / ranks <= part <= whole else [f"cache of {whole} bytes becomes {part}"]
