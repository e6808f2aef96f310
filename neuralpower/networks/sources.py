"""The MODEL argument -> a model and its inputs. Weights are never loaded or downloaded.

MODEL is one of
    a folder with a config.json, or that file        transformers; `architectures` names the class
    transformers:bert, transformers:BertForMaskedLM  the default configuration of a model type or class
    torchvision:resnet50, timm:NAME                  where these are installed
    zoo:alexnet                                      the networks of neuralpower itself
    package.module:function, path/file.py:function   returns an nn.Module, or (module, inputs); `example_input_array` of
                                                     a module are its inputs, too
    path/network.pt2                                 written by torch.export.save
and all but the last can end in overrides: transformers:bert?num_hidden_layers=2&hidden_size=512. An nn.Module
and a transformers configuration object are accepted as they are.
"""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from neuralpower.errors import InputError, ModelError, UsersError, unknown
from neuralpower.files.json_files import read_json
from neuralpower.files.paths import is_file, is_folder, shown
from neuralpower.layers.base import Call
from neuralpower.networks.config_fields import read_of
from neuralpower.networks.copies import copied, in_dtype
from neuralpower.networks.exported_archive import check_exported, no_program
from neuralpower.networks.input_values import with_values_of, written
from neuralpower.networks.inputs import (
    InputRequest,
    Inputs,
    batch_of,
    called_with,
    in_batches,
    is_count,
    place,
    shaped_inputs,
    transformers_inputs,
)
from neuralpower.networks.offline import offline
from neuralpower.networks.promised_values import promise, promised, with_values, without_values
from neuralpower.networks.refusals import check_followable
from neuralpower.networks.running import own_randomness, quiet
from neuralpower.networks.size_limits import bounded, check_counts, overflows
from neuralpower.networks.trust import CONFIGURATION, EXPORTED, FUNCTION, NAME, sort_of
from neuralpower.networks.users_code import check_computed, check_plain, failed, users_code

if TYPE_CHECKING:
    from transformers import PretrainedConfig

__all__ = ["InputRequest", "Inputs", "Source", "resolve"]

GRAMMAR = (
    "MODEL is a folder with a config.json, transformers:NAME, torchvision:NAME, timm:NAME, zoo:NAME, "
    "package.module:function, path/file.py:function or a .pt2 file"
)
AT_A_PROMPT = (  # what to give for a network that does not say what its inputs look like
    "--input-shape (without the batch, as in 3x224x224), or an example_inputs(batch_size) function beside the model's"
)
EXAMPLE = "example_input_array"  # of a module, where PyTorch Lightning finds what to call it with
IN_PYTHON = "inputs, or an input_shape (without the batch, as in (3, 224, 224))"
REMOVED = {"transfoxl": "XLNetModel"}  # families that newer releases of transformers dropped, and what to take instead
FETCHED = (
    "weights",
    "weights_backbone",
    "pretrained",
    "pretrained_backbone",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
)
READ = ("checkpoint_path", "cache_dir", "hf_hub_id")  # of timm: files and places that weights come from
REMOTE_CODE = ("auto_map", "trust_remote_code", "custom_pipelines")  # of a config.json: what names code, or lets it run
SETTINGS = {"num_labels", "attn_implementation", "experts_implementation"}  # of any configuration, though no fields


@dataclass(frozen=True)
class Source:
    """Where a model and its inputs come from.

    `construct` makes the module on torch's current default device, in the given floating dtype; `examples` makes the
    inputs of a module for a request, on the CPU.
    """

    name: str
    construct: Callable[[torch.dtype], nn.Module]
    examples: Callable[[nn.Module, InputRequest], Inputs]
    has_values: bool = True  # whether what it builds on the CPU says what buffers on meta hold
    brings: Callable[[nn.Module], Inputs | None] | None = None  # the inputs that come with a module that it built

    def build(self, device: str = "meta", dtype: torch.dtype = torch.float32) -> nn.Module:
        """The model in eval mode with seeded random weights; raises ModelError.

        A constructor that needs values (`.item()`) cannot run on meta: its model then comes back on the CPU. A model's
        buffers on meta promise the values that they are built with.
        """
        try:
            with users_code(f"{self.name} cannot be built"), bounded(self.name, torch.device(device).type):
                return self._promising(self._construct(device, dtype), dtype)
        except UsersError as error:
            if torch.device(device).type != "meta" or _is_final(error.error):
                raise
            return self.build("cpu", dtype)

    def inputs(self, model: nn.Module, request: InputRequest | None = None, device: str = "cpu") -> Inputs:
        """Seeded random inputs on `device`, which on meta promise their values; raises InputError or ModelError."""
        request = request or InputRequest()
        request.check()
        make = partial(self._made, model, request)
        with own_randomness():
            return Inputs(*(without_values(make) if torch.device(device).type == "meta" else make(device)))

    def _made(self, model: nn.Module, request: InputRequest, device: str) -> tuple[Any, Any, str]:
        """(positions, keywords, note) of a call; raises InputError or ModelError."""
        what = f"inputs of {self.name} cannot be made for batch size {request.batch_size}"
        with users_code(what, "ask for other sizes, or give inputs of your own in Python: predict(model, inputs)"):
            made = place(self.examples(model, request), device, request.dtype)
        return made.args, made.kwargs, made.note

    def batch_size(self, asked: int | None, shape: Sequence[int] | None = None) -> int:
        """What is asked for, else that of the inputs that come with the network, else 1; raises as `build`."""
        if asked is not None or shape is not None or self.brings is None:
            return 1 if asked is None else asked
        model = self.build()
        with users_code(f"the inputs of {self.name} cannot be read"):
            inputs = self.brings(model)
        return (batch_of(inputs) or 1) if inputs is not None else 1

    def call(self, request: InputRequest, device: str = "cpu") -> Call:
        """The network with random weights and inputs, ready to be timed."""
        module = self.build(device, request.dtype)
        inputs = self.inputs(module, request, device=device)
        tensors = tuple(v for v in (*inputs.args, *inputs.kwargs.values()) if isinstance(v, torch.Tensor))
        return Call(module, tuple(inputs.args), dict(inputs.kwargs), warm=tensors, recurs=True)

    def _promising(self, model: nn.Module, dtype: torch.dtype) -> nn.Module:
        """`model`; where a run asks for the values of its buffers on meta, it is built once more, on the CPU."""
        if not self.has_values:
            return model
        real = functools.cache(lambda: dict(self.build("cpu", dtype).named_buffers()))

        def bind(name: str, buffer: Tensor) -> None:
            if buffer.is_meta and promised(buffer) is None:
                promise(buffer, lambda: real()[name])

        for name, buffer in model.named_buffers():
            bind(name, buffer)
        return model

    def _construct(self, device: str, dtype: torch.dtype) -> nn.Module:
        with own_randomness(), torch.device(device):
            torch.manual_seed(0)
            model = self.construct(dtype)
        check_plain(model.forward, f"the forward of {type(model).__name__}")
        return _evaluating(model)


def resolve(model: str | Path | nn.Module | PretrainedConfig) -> Source:
    """The source of `model`; raises ModelError where it is not found.

    A function's file or package is imported: a model that data name goes through `trust.check_model` before.
    """
    with users_code(f"{model if isinstance(model, (str, Path)) else type(model).__name__!s:.300} cannot be read"):
        return _resolved(model)


def _resolved(model: str | Path | nn.Module | PretrainedConfig) -> Source:
    if isinstance(model, nn.Module):
        return _module_source(model)
    if _is_configuration(model):
        return _configuration_source(type(model).__name__, model)
    if not isinstance(model, (str, Path)):
        raise ModelError(f"{model!r:.40} is no MODEL; {GRAMMAR}, an nn.Module or a configuration object")
    text = str(model)
    if not text.strip():
        raise ModelError(f"no model is named; {GRAMMAR}")  # an empty path would be the working folder
    location, mark, query = text.partition("?")
    overrides = _overrides(text, query) if mark else {}
    check_counts(text, overrides)
    sort = sort_of(location)
    if sort == NAME:
        prefix, _, rest = location.partition(":")
        return _PREFIXES[prefix](text, rest, overrides)
    if sort == EXPORTED:
        return _exported_source(text, _path_of(location), overrides)
    if sort == CONFIGURATION:
        return _folder_source(text, _path_of(location), overrides)
    if sort == FUNCTION:
        place_of, _, name = location.rpartition(":")
        return _function_source(text, place_of, name, overrides)
    raise ModelError(f"{text!r} is no folder and names no source; {GRAMMAR}")


def _path_of(location: str) -> Path:
    """The path that a text names; raises ModelError for `~name` of nobody."""
    try:
        return Path(location).expanduser()
    except RuntimeError as error:
        raise ModelError(f"{location}: {error}; give a whole path") from None


def _overrides(text: str, query: str) -> dict[str, Any]:
    """`a=1&b.c=x` -> {"a": 1, "b.c": "x"}: values are JSON, or else strings."""
    found: dict[str, Any] = {}
    for part in query.split("&"):
        key, equals, value = part.partition("=")
        if not key or not equals:
            raise ModelError(f"override {part!r} of {text!r} is not field=value; write MODEL?field=value&field=value")
        try:
            found[key] = json.loads(value)
        except (ValueError, RecursionError):  # also digits without end, and lists in lists
            found[key] = value
    return found


def _is_final(error: BaseException | None) -> bool:
    """Whether a constructor that failed on meta fails on the CPU, too: a package is missing, a size is past all memory."""
    return overflows(error) or isinstance(error, (ImportError, RecursionError)) or not isinstance(error, Exception)


def _evaluating(model: nn.Module) -> nn.Module:
    """`model` in eval mode; an exported module keeps the mode it was exported in."""
    with suppress(NotImplementedError):
        model.eval()
    return model


# ---- a module or a configuration in hand ----


def _module_source(module: nn.Module) -> Source:
    """The user's module, which is never changed: another device or dtype gets a copy."""

    def construct(dtype: torch.dtype) -> nn.Module:
        check_followable(module, ())
        return copied(module, torch.get_default_device(), dtype)

    name = type(module).__name__

    def brings(model: nn.Module) -> Inputs | None:
        example = getattr(module, EXAMPLE, None)
        return None if example is None else called_with(example)

    def examples(model: nn.Module, request: InputRequest) -> Inputs:
        own = brings(model)
        if own is not None and request.input_shape is None:
            return _of_its_own(name, own, request)
        if _is_transformers(model):
            return transformers_inputs(model, request)
        return _by_shape(name, model, request, way_out=IN_PYTHON)

    return Source(name, construct, examples, False, brings)  # copies promise the originals' values


def _is_configuration(model: object) -> bool:
    """Whether `model` is a configuration of transformers, without importing it for those who do not use it."""
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(model, transformers.PretrainedConfig)


def _is_transformers(model: nn.Module) -> bool:
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(model, transformers.PreTrainedModel)


def _by_shape(
    name: str,
    model: nn.Module,
    request: InputRequest,
    natural: tuple[int, ...] | None = None,
    way_out: str = AT_A_PROMPT,
) -> Inputs:
    """Inputs from the shape that was asked for, else from `natural`; raises ModelError, with a way out, where there is none."""
    shape = request.input_shape
    if request.seq_len is not None:
        shape = _with_length(name, request.seq_len, shape or natural)
    shape = shape or natural
    if shape is None:
        raise ModelError(f"{name} does not say what its inputs look like; give {way_out}")
    return shaped_inputs(model, request, shape)


def _with_length(name: str, seq_len: int, shape: tuple[int, ...] | None) -> tuple[int, ...]:
    """`shape` with its first size, the steps of a sequence, set to `seq_len`."""
    if shape is not None and len(shape) > 2:
        raise InputError(f"seq_len is {seq_len}, but the inputs of {name} are {shape} without steps; leave seq_len out")
    return (seq_len, *(shape or ())[1:])


# ---- transformers ----


def _configuration_source(name: str, config: Any, model_class: type[nn.Module] | None = None) -> Source:
    """A transformers model from its configuration, which is copied: building a model writes into it."""
    _check_not_quantized(name, config)
    chosen = model_class or _class_for(config)

    def construct(dtype: torch.dtype) -> nn.Module:
        if dtype.itemsize < 2:
            raise ModelError(
                f"{name} cannot be built in {str(dtype).removeprefix('torch.')}, as transformers builds in 16 bits or more; "
                "choose bfloat16, and ask `score` for products in 8 bits, which takes lists of layers"
            )
        own = copy.deepcopy(config)
        if "SequenceClassification" in chosen.__name__ and getattr(own, "pad_token_id", None) is None:
            own.pad_token_id = 0  # decoders refuse to classify a batch without one
        if getattr(own, "image_token_index", 0) is None:
            own.image_token_index = own.text_config.vocab_size - 1  # BLIP-2's stand where its image goes
        with offline(name):
            return chosen._from_config(own, dtype=dtype)  # type: ignore[attr-defined, no-any-return]  # of PreTrainedModel

    return Source(name, construct, transformers_inputs)


def _check_not_quantized(name: str, config: Any) -> None:
    """Raise ModelError where a checkpoint's weights are quantized: what is built has them in the dtype that is asked for."""
    quantization = getattr(config, "quantization_config", None)
    if quantization is not None:
        fields = quantization if isinstance(quantization, Mapping) else vars(quantization)
        method = fields.get("quant_method")
        raise ModelError(
            f"the weights of {name} are quantized ({getattr(method, 'value', method)}), and products of such are not "
            "described; MODEL?quantization_config=null takes them in the dtype that is asked for"
        )


def _class_for(config: Any) -> type[nn.Module]:
    """The class that `architectures` names, or the base model of the type; raises ModelError."""
    named = getattr(config, "architectures", None)
    if named is None or named == []:
        return _base_class(config.model_type)
    if not isinstance(named, (list, tuple)) or not all(isinstance(name, str) for name in named):
        raise ModelError(
            f"architectures {named!r:.100} of a {type(config).__name__}: must be a list of names of classes, such as "
            '["BertModel"]; write one, or leave it out'
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
        f"model type {model_type!r} of transformers has no class that AutoModel knows; "
        "name the class, as in transformers:BertForMaskedLM"
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
        raise ModelError(failed(f"{name} of transformers needs a package that is not installed", error)) from error
    if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
        return found
    for family, instead in REMOVED.items():
        if name.lower().replace("-", "").replace("_", "").startswith(family):
            raise ModelError(
                f"{name}: transformers {transformers.__version__} has it no longer (its vocabulary was a pickle, which can run "
                f"code when it is loaded); choose {instead}, which descends from it"
            )
    raise unknown("transformers model type or class", name, _known_names(), ModelError)


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise ModelError(f"transformers cannot be imported ({error}); pip install transformers") from error


def _known_names() -> set[str]:
    """Every model type and every class name that the Auto classes know."""
    names = set(_configuration_types())
    for table in _class_tables():
        for entry in table.values():
            names.update((entry,) if isinstance(entry, str) else entry)
    return names


def _configuration_types() -> Mapping[str, str]:
    module = importlib.import_module("transformers.models.auto.configuration_auto")
    types: Mapping[str, str] = module.CONFIG_MAPPING_NAMES
    return types


def _transformers_source(text: str, name: str, overrides: dict[str, Any]) -> Source:
    """`transformers:NAME`: the default configuration of a model type or of a class."""
    transformers = _transformers()
    if name in _configuration_types():
        config_class = transformers.CONFIG_MAPPING[name]
        model_class = None
    else:
        model_class = _model_class(name)
        config_class = getattr(model_class, "config_class", None)
        if config_class is None:
            raise ModelError(f"{name} has no configuration class of its own; name one of its subclasses")
    config = _configured(text, config_class, {}, overrides)
    source = _configuration_source(text, config, model_class or _base_class(config.model_type))

    def construct(dtype: torch.dtype) -> nn.Module:
        try:
            return source.construct(dtype)
        except (AttributeError, KeyError, TypeError) as error:
            if overrides or not config_class.sub_configs:
                raise
            raise _no_default(config_class) from error

    return replace(source, construct=construct)


def _folder_source(text: str, path: Path, overrides: dict[str, Any]) -> Source:
    """A folder with a config.json, or that file."""
    file = path / "config.json" if is_folder(path) else path
    if not is_file(file):
        raise ModelError(
            f"{shown(path)} holds no config.json; give a folder of transformers, or {GRAMMAR.partition(', ')[2]}"
        )
    try:
        values = read_json(file)
    except (ValueError, OSError) as error:
        raise ModelError(f"{file} is no JSON ({error}); write the configuration again") from error
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise ModelError(f"{file} has no model_type; add one that transformers knows, such as bert")
    if values["model_type"] not in _configuration_types():
        raise unknown("transformers model type", values["model_type"], _configuration_types(), ModelError)
    config_class = _transformers().CONFIG_MAPPING[values["model_type"]]
    return _configuration_source(text, _configured(text, config_class, values, overrides))


def _configured(text: str, config_class: Any, values: dict[str, Any], overrides: dict[str, Any]) -> Any:
    """A configuration from `values` (empty: the default one) with `overrides` written over them."""
    values = _without_code(text, values)
    check_counts(text, values)
    try:
        with users_code(f"the configuration of {text} is not accepted"):
            config = _made_config(text, config_class, values)
    except UsersError as error:
        if not values:
            raise _no_default(config_class) from error.error
        raise
    if not overrides:
        return config
    values = dict(values)
    with users_code(f"the overrides of {text} are not accepted"):
        for key, value in overrides.items():
            _override(text.partition("?")[0], config, values, key, value)
        return _made_config(text, config_class, _without_code(text, values))


def _made_config(text: str, config_class: Any, values: dict[str, Any]) -> Any:
    """The configuration; some look their backbone up on the hub."""
    with offline(text):
        return config_class(**values)


def _without_code(text: str, value: Any) -> Any:
    """Values of a configuration without what names code of others, at any depth; raises ModelError for what would load it.

    `auto_map` stands in many a config.json: the classes of transformers are taken instead.
    """
    if isinstance(value, list):
        return [_without_code(text, each) for each in value]
    if not isinstance(value, Mapping):
        return value
    for key, given in value.items():
        kernels = given.values() if isinstance(given, Mapping) else [given]
        if "attn_implementation" in str(key) and any("/" in str(kernel) for kernel in kernels):
            raise ModelError(
                f"{key} {str(given)!r:.60} of {text!r:.100} names a kernel of the hub, which would be fetched and run; "
                "choose eager or sdpa"
            )
        if key in READ and given:
            raise ModelError(f"{key} {str(given)!r:.60} of {text!r:.100}: weights are never read; leave it out")
    return {key: _without_code(text, given) for key, given in value.items() if key not in REMOTE_CODE}


def _no_default(config_class: type) -> ModelError:
    """The error for a configuration that is made of others and therefore has to be given."""
    return ModelError(
        f"{config_class.__name__} is composed of other configurations and has no default that can be built; "
        "give a folder with its config.json"
    )


def _override(text: str, config: Any, values: dict[str, Any], key: str, value: Any) -> None:
    """Write one override into `values`, of which `config` was made; `a.b` goes into the configuration `a`."""
    outer, dot, inner = key.partition(".")
    outer = config.attribute_map.get(outer, outer)
    known = set(config.to_dict()) | set(config.attribute_map) | SETTINGS
    if outer not in known and (outer not in (read := read_of(config)) or callable(getattr(config, outer, None))):
        known |= {name for name in read if not callable(getattr(config, name, None))}
        raise unknown(f"field of {type(config).__name__} in the overrides of {text}", outer, known, ModelError)
    if not dot:
        count = getattr(config, outer, None)
        if "layer" in outer and isinstance(value, int) and isinstance(count, int) and value < 0 < count:
            raise ModelError(f"{outer} {value} in the overrides of {text}: a number of layers is 0 or more")
        absent = isinstance(count, int) and count < 1  # a size that says by 0 that there is no such part
        if outer.endswith("size") and isinstance(value, int) and value < 1 and not absent:
            raise ModelError(f"{outer} {value} in the overrides of {text}: a size is 1 or more")
        _shorten_layer_lists(config, values, outer, value)
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


def _shorten_layer_lists(config: Any, values: dict[str, Any], field: str, value: Any) -> None:
    """Cut lists that hold one entry per layer when the number of layers is overridden."""
    layers = getattr(config, field, None)
    if "layer" not in field or not isinstance(layers, int) or not isinstance(value, int):
        return
    for name, entries in list(values.items()):
        if isinstance(entries, list) and len(entries) == layers and layers > 1:
            if value <= layers:
                values[name] = entries[:value]
            else:
                del values[name]


# ---- torchvision, timm and the zoo ----


def _vision_package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ModelError(f'{name} is not installed; pip install "neuralpower[vision]"') from error


def _check_weightless(text: str, overrides: Mapping[str, Any]) -> None:
    """Raise ModelError for an override that has weights loaded, which may be a pickle, or fetched."""
    for key, value in overrides.items():
        if key in (*FETCHED, *READ):
            raise ModelError(f"{key} {str(value)!r:.60} of {text!r:.100}: weights are never loaded; leave it out")


def _torchvision_source(text: str, name: str, overrides: dict[str, Any]) -> Source:
    """`torchvision:NAME`: images of 3x224x224, for Inception 3x299x299."""
    models = _vision_package("torchvision").models
    if name not in models.list_models():
        raise unknown("torchvision model", name, models.list_models(), ModelError)
    natural = (3, 299, 299) if name == "inception_v3" else (3, 224, 224)
    _check_weightless(text, overrides)

    def construct(dtype: torch.dtype) -> nn.Module:
        backbone = "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters
        weightless = {"weights_backbone": None} if backbone else {}
        with offline(text):
            return _module(models.get_model(name, weights=None, **weightless, **overrides), text, dtype)

    return Source(text, construct, lambda model, request: _by_shape(text, model, request, natural))


def _timm_source(text: str, name: str, overrides: dict[str, Any]) -> Source:
    """`timm:NAME`: the input size is the one that timm lists for the model."""
    timm = _vision_package("timm")
    if name not in timm.list_models():
        raise unknown("timm model", name, timm.list_models(), ModelError)
    _check_weightless(text, overrides)

    def construct(dtype: torch.dtype) -> nn.Module:
        with offline(text):
            return _module(timm.create_model(name, pretrained=False, **overrides), text, dtype)

    def examples(model: nn.Module, request: InputRequest) -> Inputs:
        listed: Any = getattr(model, "pretrained_cfg", None) or {}
        return _by_shape(text, model, request, tuple(listed.get("input_size", (3, 224, 224))))

    return Source(text, construct, examples)


def _zoo_source(text: str, name: str, overrides: dict[str, Any]) -> Source:
    """`zoo:NAME`; overrides are keywords of its build function."""
    zoo: Mapping[str, Any] = importlib.import_module("neuralpower.networks.zoo").ZOO
    if name not in zoo:
        raise unknown("zoo network", name, zoo, ModelError)
    entry = zoo[name]
    keywords = inspect.signature(entry.build).parameters
    for key, value in overrides.items():
        sizes = value if isinstance(value, list) else [value]
        if key in keywords and is_count(keywords[key].default) and not all(map(is_count, sizes)):
            raise ModelError(f"{key} {value!r:.40} of {text!r:.100}: must be a whole number, 1 or more")

    def construct(dtype: torch.dtype) -> nn.Module:
        return _module(_called(entry.build, overrides, text), text, dtype)

    def examples(model: nn.Module, request: InputRequest) -> Inputs:
        make = entry.example_inputs
        if make is not None and request.input_shape is None:
            shared = overrides.keys() & inspect.signature(make).parameters.keys()
            return called_with(_ask(partial(make, **{key: overrides[key] for key in shared}), request, text))
        return _by_shape(text, model, request, tuple(entry.input_shape))

    return Source(text, construct, examples)


def _called(function: Callable[..., Any], keywords: Mapping[str, Any], text: str) -> Any:
    """`function(**keywords)`, after a look at its signature."""
    try:
        signature = inspect.signature(function)
        signature.bind(**keywords)
    except TypeError as error:
        names = [name for name in signature.parameters if name != "self"]
        takes = f"it takes {', '.join(names)}" if names else "it takes none"
        raise ModelError(
            f"{text} cannot be called like this ({error}); {takes}; give them as MODEL?name=value&name=value"
        ) from error
    return function(**keywords)


def _module(value: Any, text: str, dtype: torch.dtype) -> nn.Module:
    """`value`, which has to be a module, with floating weights in `dtype`; complex ones stay as they are."""
    if isinstance(value, nn.Module):
        value._apply(partial(in_dtype, dtype=dtype))  # type: ignore[no-untyped-call]  # `to` makes complex weights real
        return value
    check_computed(value, text)
    raise ModelError(f"{text} gives a {type(value).__name__}; it has to return an nn.Module or (module, inputs)")


# ---- functions ----


def _function_source(text: str, location: str, name: str, overrides: dict[str, Any]) -> Source:
    """`package.module:function` and `path/file.py:function`; overrides are keywords of the function."""
    of_file = location.endswith(".py")
    loaded = _loaded_file(location) if of_file else _imported(text, location)
    folder = _path_of(location).resolve().parent if of_file else Path.cwd()
    with users_code(f"{name} of {location} cannot be read"):  # a module may have a `__getattr__` of its own
        function = getattr(loaded, name, None)
    if not callable(function):
        names = [n for n, value in vars(loaded).items() if callable(value) and not n.startswith("_")]
        own = [n for n in names if getattr(getattr(loaded, n), "__module__", None) == loaded.__name__]
        raise unknown(f"function in {location}", name, own or names, ModelError)
    if isinstance(function, nn.Module):
        raise ModelError(f"{text} is a {type(function).__name__} that has been built; give a function that returns it")
    with users_code(f"example_inputs of {location} cannot be read"):
        beside = getattr(loaded, "example_inputs", None)
    kept: WeakKeyDictionary[nn.Module, Inputs] = WeakKeyDictionary()

    def called() -> tuple[Any, Any]:
        with _importing_from(folder):
            value = _called(function, overrides, text)
            if isinstance(value, tuple) and len(value) == 2:
                return value
            return value, getattr(value, EXAMPLE, None)

    def construct(dtype: torch.dtype) -> nn.Module:
        with written() as memory:
            value, example = called()
        model = _module(value, text, dtype)
        if example is not None:
            weight_bytes = sum(p.nbytes for p in model.parameters())
            kept[model] = with_values_of(memory.marked(called_with(example)), lambda: called()[1], weight_bytes)
        return model

    def examples(model: nn.Module, request: InputRequest) -> Inputs:
        if request.input_shape is None:
            longer = request.seq_len is not None and callable(beside) and getattr(model, EXAMPLE, None) is not None
            if model in kept and not longer:  # a module's example has a length of its own
                return _of_its_own(text, kept[model], request)
            if callable(beside):
                with _importing_from(folder):
                    return called_with(_ask(beside, request, text))
        if _is_transformers(model):
            return transformers_inputs(model, request)
        return _by_shape(text, model, request)

    return Source(text, construct, examples, brings=kept.get)


def _of_its_own(name: str, own: Inputs, request: InputRequest) -> Inputs:
    """The inputs that came with a network, in the batch that is asked for; raises InputError for a length."""
    if request.seq_len is not None:
        raise InputError(
            f"seq_len is {request.seq_len}, but {name} brings its inputs; leave seq_len out, or let it return the module "
            "alone, with an example_inputs(batch_size, seq_len) beside it"
        )
    shapes_only = torch.get_default_device().type == "meta"
    return in_batches(own if shapes_only else own.mapped(with_values), request.batch_size)


def _ask(make: Callable[..., Any], request: InputRequest, text: str) -> Any:
    """What an `example_inputs` function gives; it may take `seq_len` beside the batch size."""
    keywords = {}
    if request.seq_len is not None:
        if "seq_len" not in inspect.signature(make).parameters:
            raise InputError(
                f"seq_len is {request.seq_len}, but the inputs of {text} have a length of their own; leave seq_len out, or let "
                "example_inputs take it"
            )
        keywords["seq_len"] = request.seq_len
    call = f"example_inputs({request.batch_size}) of {text}"
    with users_code(f"{call} failed"), written() as memory:
        made = make(request.batch_size, **keywords)
    check_computed(made, call)
    memory.marked(called_with(made))
    return made


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """Let the user's code import what lies beside it; what it prints is no result."""
    sys.path.insert(0, str(folder))
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))


def _loaded_file(location: str) -> ModuleType:
    """The module in a file, loaded afresh."""
    path = _path_of(location)
    if not is_file(path):
        raise ModelError(f"there is no file {shown(location)}; give an existing path/file.py:function")
    path = path.resolve()
    name = f"neuralpower_model_{path.stem}_{abs(hash(path))}"
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        raise ModelError(f"{location} is no Python file; give path/file.py:function")
    loaded = importlib.util.module_from_spec(specification)
    sys.modules[name] = loaded  # dataclasses look their module up
    try:
        with users_code(f"{location} cannot be imported"), _importing_from(path.parent):
            specification.loader.exec_module(loaded)
    except UsersError:  # a script's own parser of arguments ends the program
        del sys.modules[name]
        raise
    return loaded


def _imported(text: str, location: str) -> ModuleType:
    """An installed module, or one of the working folder."""
    try:
        with users_code(f"{location} cannot be imported"), _importing_from(Path.cwd()):
            return importlib.import_module(location)
    except UsersError as error:
        name = error.error.name if isinstance(error.error, ModuleNotFoundError) else None
        if name is not None and (location == name or location.startswith(name + ".")):
            raise ModelError(f"there is no module {location!r} for {text!r}; {GRAMMAR}") from error
        raise


# ---- exported programs ----


def _exported_source(text: str, path: Path, overrides: dict[str, Any]) -> Source:
    """A .pt2 file: its shapes are those of the export, except where these were dynamic."""
    if overrides:
        raise ModelError(f"{text!r} has overrides, but an exported program is fixed; export it again with other sizes")
    if not is_file(path):
        raise ModelError(f"there is no file {shown(path)}; give an existing .pt2, written by torch.export.save")
    check_exported(path)  # loading it unpickles and evaluates what it holds
    try:
        with quiet("torch.export"):
            program = torch.export.load(path)
    except Exception as error:
        raise no_program(path) from error

    def construct(dtype: torch.dtype) -> nn.Module:
        if torch.get_default_device().type == "meta":
            raise NotImplementedError("an exported graph names its devices")
        return program.module()

    def examples(model: nn.Module, request: InputRequest) -> Inputs:
        return _exported_inputs(text, program, request)

    def brings(model: nn.Module) -> Inputs | None:
        return None if program.example_inputs is None else Inputs(*program.example_inputs)

    return Source(text, construct, examples, brings=brings)


def _exported_inputs(text: str, program: Any, request: InputRequest) -> Inputs:
    """The inputs of the export; raises ModelError where another batch size or shape is asked for and fixed."""
    if program.example_inputs is None:
        raise ModelError(f"{text} was saved without its example inputs; export it again with torch.export.save")
    args, kwargs = program.example_inputs
    inputs = Inputs(tuple(args), dict(kwargs))
    example = batch_of(inputs)
    if request.input_shape is not None or request.seq_len is not None:
        raise ModelError(f"{text} is exported for fixed shapes; leave input_shape and seq_len out, or export it again")
    if request.batch_size != example and not _has_dynamic_batch(program):
        raise ModelError(
            f"batch size is {request.batch_size}, but {text} is exported for a batch of {example}; "
            "give this one, or export it with a dynamic batch (torch.export.Dim)"
        )
    return in_batches(inputs, request.batch_size)


def _has_dynamic_batch(program: Any) -> bool:
    """Whether the first size of the first input is a symbol."""
    names = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and node.name in names and isinstance(value, Tensor) and value.dim():
            return isinstance(value.shape[0], torch.SymInt)
    return False


_PREFIXES: Mapping[str, Callable[[str, str, dict[str, Any]], Source]] = {
    "transformers": _transformers_source,
    "torchvision": _torchvision_source,
    "timm": _timm_source,
    "zoo": _zoo_source,
}
