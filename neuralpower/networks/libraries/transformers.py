"""Networks of transformers, from a name, a config.json or a configuration."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neuralpower.dtypes import FEWEST_NETWORK_BITS
from neuralpower.errors import ModelError, UsersError, unknown
from neuralpower.networks.inputs.arguments import transformers_inputs
from neuralpower.networks.inputs.size_limits import check_counts
from neuralpower.networks.libraries.config_files import folder_values, read_of
from neuralpower.networks.libraries.vision import READ
from neuralpower.networks.names.hub import offline
from neuralpower.networks.source import Source
from neuralpower.networks.users_code import failed, users_code
from neuralpower.quantisation.checkpoints import scheme_of

REMOVED = {"transfoxl": "XLNetModel"}  # families that transformers dropped, and what to take instead
REMOTE_CODE = ("auto_map", "trust_remote_code", "custom_pipelines")  # fields that name code, or let it run
SETTINGS = {"num_labels", "attn_implementation", "experts_implementation"}  # any configuration takes these


def is_transformers(model: nn.Module) -> bool:
    """Whether a module is one of transformers, without importing it."""
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(model, transformers.PreTrainedModel)


def configuration_source(name: str, config: Any, model_class: type[nn.Module] | None = None) -> Source:
    """A transformers model from its configuration, which is copied: building a model writes into it.

    A quantized checkpoint's model is built in the requested dtype; the source's `weights` say how it is
    quantised.

    Raises ModelError for a quantization that is not known, or fields of one that make no sense.
    """
    quantized = [part for part in _parts(config) if getattr(part, "quantization_config", None) is not None]
    weights = scheme_of(name, quantized[0].quantization_config) if quantized else None
    chosen = model_class or _class_for(config)

    def construct(dtype: torch.dtype) -> nn.Module:
        if 8 * dtype.itemsize < FEWEST_NETWORK_BITS:
            raise ModelError(
                f"{name} cannot be built in {str(dtype).removeprefix('torch.')}, as transformers builds in "
                f"{FEWEST_NETWORK_BITS} bits or more; choose bfloat16, and ask `score` for products in "
                "8 bits, which takes lists of layers"
            )
        own = copy.deepcopy(config)
        for part in _parts(own):
            part.__dict__.pop("quantization_config", None)  # classes would ask for the library that made it
        if "SequenceClassification" in chosen.__name__ and getattr(own, "pad_token_id", None) is None:
            own.pad_token_id = 0  # decoders refuse to classify a batch without one
        if getattr(own, "image_token_index", 0) is None:
            own.image_token_index = own.text_config.vocab_size - 1  # BLIP-2's stand where its image goes
        with offline(name):  # `chosen` is a PreTrainedModel
            return chosen._from_config(own, dtype=dtype)  # type: ignore[attr-defined, no-any-return]

    return Source(name, construct, transformers_inputs, weights=weights)


def _parts(config: Any) -> list[Any]:
    """The configuration, and that of its text model where it has one."""
    text = getattr(config, "text_config", None)
    return [config] if text is None or isinstance(text, Mapping) else [config, text]


def _class_for(config: Any) -> type[nn.Module]:
    """The class that `architectures` names, or the base model of the type; raises ModelError."""
    named = getattr(config, "architectures", None)
    if named is None or named == []:
        return _base_class(config.model_type)
    if not isinstance(named, (list, tuple)) or not all(isinstance(name, str) for name in named):
        raise ModelError(
            f"architectures {named!r:.100} of a {type(config).__name__}: must be a list of names of classes, "
            'such as ["BertModel"]; write one, or leave it out'
        )
    return _model_class(named[0])


def _base_class(model_type: str) -> type[nn.Module]:
    """The AutoModel class of a model type, or its first task class where it has no base class."""
    for table in _class_tables():
        names = table.get(model_type)
        if names:
            return _model_class(names if isinstance(names, str) else names[0])
    plain = _configuration_types()[model_type].removesuffix("Config") + "Model"
    if hasattr(_transformers(), plain):  # towers that AutoModel does not list, such as Aimv2TextModel
        return _model_class(plain)
    raise ModelError(
        f"model type {model_type!r} of transformers has no class in AutoModel; "
        "choose a class, as in transformers:BertForMaskedLM"
    )


def _class_tables() -> list[dict[str, Any]]:
    """The tables model type -> class name of the Auto classes, AutoModel's first."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    names = [name for name in vars(auto) if name.startswith("MODEL_FOR_") and name.endswith("_MAPPING_NAMES")]
    return [auto.MODEL_MAPPING_NAMES, *(getattr(auto, name) for name in sorted(names))]


def _model_class(name: str) -> type[nn.Module]:
    """A model class of transformers by its name."""
    transformers = _transformers()
    try:
        found = getattr(transformers, name, None)
    except ImportError as error:
        what = f"{name} of transformers needs a package that is not installed"
        raise ModelError(failed(what, error)) from error
    if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
        return found
    for family, instead in REMOVED.items():
        if name.lower().replace("-", "").replace("_", "").startswith(family):
            raise ModelError(
                f"{name}: transformers {transformers.__version__} no longer has it (its vocabulary was a "
                f"pickle, which can run code when it is loaded); choose {instead}, its successor"
            )
    entries = (entry for table in _class_tables() for entry in table.values())
    classes = (one for entry in entries for one in ((entry,) if isinstance(entry, str) else entry))
    raise unknown("transformers model type or class", name, {*_configuration_types(), *classes}, ModelError)


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise ModelError(f"transformers cannot be imported ({error}); pip install transformers") from error


def _configuration_types() -> Mapping[str, str]:
    """Model type -> name of its configuration class."""
    module: Any = importlib.import_module("transformers.models.auto.configuration_auto")
    return module.CONFIG_MAPPING_NAMES  # type: ignore[no-any-return]


def transformers_source(text: str, name: str, overrides: dict[str, Any]) -> Source:
    """`transformers:NAME`: the default configuration of a model type or of a class."""
    if name in _configuration_types():
        model_class, config_class = None, _transformers().CONFIG_MAPPING[name]
    else:
        model_class = _model_class(name)
        config_class = getattr(model_class, "config_class", None)
    if config_class is None:
        raise ModelError(f"{name} has no configuration class; choose one of its subclasses")
    config = _configured(text, config_class, {}, overrides)
    source = configuration_source(text, config, model_class or _base_class(config.model_type))

    def construct(dtype: torch.dtype) -> nn.Module:
        try:
            return source.construct(dtype)
        except (AttributeError, KeyError, TypeError) as error:
            if overrides or not config_class.sub_configs:
                raise
            raise _no_default(config_class) from error

    return replace(source, construct=construct)


def folder_source(text: str, path: Path, overrides: dict[str, Any]) -> Source:
    """A folder with a config.json, or that file."""
    values, file = folder_values(path)
    return described_source(text, values, overrides, str(file))


def described_source(text: str, values: Any, overrides: dict[str, Any], where: str) -> Source:
    """A network by the fields of its config.json, which stand `where`."""
    kind = values.get("model_type") if isinstance(values, dict) else None
    if not isinstance(kind, str):
        raise ModelError(f"{where} has no model_type; add one that transformers knows, such as bert")
    if kind not in _configuration_types():
        raise unknown("transformers model type", kind, _configuration_types(), ModelError)
    config_class = _transformers().CONFIG_MAPPING[kind]
    return configuration_source(text, _configured(text, config_class, values, overrides))


def _configured(text: str, config_class: Any, values: dict[str, Any], overrides: dict[str, Any]) -> Any:
    """A configuration from `values` (empty: the default one) with `overrides` written over them."""
    values = _without_code(text, values)
    check_counts(text, values)
    try:
        with users_code(f"the configuration of {text} is not accepted"), offline(text):
            config = config_class(**values)
    except UsersError as error:
        if not values:
            raise _no_default(config_class) from error.error
        raise
    if not overrides:
        return config
    with users_code(f"the overrides of {text} are not accepted"):
        for key, value in overrides.items():
            _override(text.partition("?")[0], config, values, key, value)
        values = _without_code(text, values)
        with offline(text):  # some configurations look their backbone up on the hub
            return config_class(**values)


def _without_code(text: str, value: Any) -> Any:
    """Values of a configuration without fields that name others' code, at any depth.

    `auto_map` stands in many a config.json: the classes of transformers are taken instead.

    Raises:
        ModelError: a field would fetch and run code, or load weights.
    """
    if isinstance(value, list):
        return [_without_code(text, each) for each in value]
    if not isinstance(value, Mapping):
        return value
    for key, given in value.items():
        kernels = given.values() if isinstance(given, Mapping) else [given]
        if "attn_implementation" in str(key) and any("/" in str(kernel) for kernel in kernels):
            raise ModelError(
                f"{key} {str(given)!r:.60} of {text!r:.100} names a kernel of the hub, which would be "
                "fetched and run; choose eager or sdpa"
            )
        if key in READ and given:
            raise ModelError(
                f"{key} {str(given)!r:.60} of {text!r:.100}: weights are never read; leave it out"
            )
    return {key: _without_code(text, given) for key, given in value.items() if key not in REMOTE_CODE}


def _no_default(config_class: type) -> ModelError:
    """The error for a configuration that is made of others and therefore has to be given."""
    return ModelError(
        f"{config_class.__name__} is made of other configurations and has no default; "
        "give a folder with its config.json"
    )


def _override(text: str, config: Any, values: dict[str, Any], key: str, value: Any) -> None:
    """Write one override into `values`, of which `config` was made; `a.b` goes into the configuration `a`."""
    outer, dot, inner = key.partition(".")
    outer = config.attribute_map.get(outer, outer)
    known = set(config.to_dict()) | set(config.attribute_map) | SETTINGS
    if outer not in known:
        known |= {name for name in read_of(config) if not callable(getattr(config, name, None))}
    if outer not in known:
        what = f"field of {type(config).__name__} in the overrides of {text}"
        raise unknown(what, outer, known, ModelError)
    if not dot:
        before = getattr(config, outer, None)
        if isinstance(value, int):
            _check_size(text, outer, value, before)
            if "layer" in outer and isinstance(before, int):
                _shorten_layer_lists(values, before, value)
        values[outer] = value
        return
    nested = getattr(config, outer)
    if not hasattr(nested, "to_dict"):
        raise ModelError(
            f"field {outer!r} of {type(config).__name__} holds no configuration, so {key!r} names nothing; "
            f"override {outer!r} itself"
        )
    own = values.get(outer)
    own = dict(own) if isinstance(own, dict) else nested.to_dict()
    _override(text, nested, own, inner, value)
    values[outer] = own


def _check_size(text: str, field: str, value: int, before: Any) -> None:
    """Raise ModelError for a number of layers or a size below what it can be."""
    if "layer" in field and isinstance(before, int) and value < 0 < before:
        raise ModelError(f"{field} {value} in the overrides of {text}: a number of layers must be 0 or more")
    absent = isinstance(before, int) and before < 1  # a size of 0 says that there is no such part
    if field.endswith("size") and value < 1 and not absent:
        raise ModelError(f"{field} {value} in the overrides of {text}: a size must be 1 or more")


def _shorten_layer_lists(values: dict[str, Any], before: int, layers: int) -> None:
    """Cut lists of one entry per layer to the overridden number of layers; drop them if it grows."""
    for name, entries in list(values.items()):
        if isinstance(entries, list) and len(entries) == before > 1:
            values[name] = entries[:layers]
            if layers > before:
                del values[name]
