"""What was recorded of a pass as plain values, and back: reading it runs nothing.

A layer is the number of its place in a list of the different ones. Everything else is written field by field,
in the order of its class, and read by the types of the fields.
"""

from __future__ import annotations

import base64
import json
import types
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from neuralpower.errors import InputError
from neuralpower.files.json_files import json_text
from neuralpower.layers import KINDS, Layer
from neuralpower.layers.rows import field_names
from neuralpower.networks.passes import Pass
from neuralpower.quantisation.formats import Format
from neuralpower.quantisation.schemes import Scheme
from neuralpower.trace.followed import Outline, Recorded
from neuralpower.trace.lifetimes import StepLifetimes
from neuralpower.trace.records import Trace

OF_PASS = "name context tokens batch_size".split()
"""Fields of a pass that are kept; its weights and the bytes of its cache are kept besides."""
Read = Callable[[Any, Sequence[Layer]], Any]


def plain(recorded: Recorded) -> dict[str, Any] | None:
    """What was recorded as JSON values; None for passes that need their network to be priced."""
    one = recorded.asked
    if one.lengths or one.sharding is not None or one.longer is not None or one.step is not None:
        return None
    layers: dict[Layer, int] = {}
    parts = {name: getattr(one, name) for name in OF_PASS}
    parts |= {"weights": _plain(one.weights, layers), "held": one.cache_bytes}
    whole = {
        "pass": parts,
        "trace": _plain(recorded.trace, layers),
        "outline": _plain(recorded.outline, layers),
        "lifetimes": _plain(recorded.lifetimes, layers),
        "notes": [*recorded.notes],
    }
    whole["layers"] = [
        [_name(type(one)), *(getattr(one, n) for n in field_names(type(one)))] for one in layers
    ]
    return whole


def recorded_in(whole: Mapping[str, Any]) -> Recorded | None:
    """What `plain` was given; None where it cannot be read."""
    try:
        layers = [_layer(*one) for one in whole["layers"]]
        parts = dict(whole["pass"])
        weights = _reading(Scheme | None)(parts.pop("weights"), layers)
        nothing: dict[str, Any] = {"module": None, "inputs": None}
        return Recorded(
            Pass(**nothing, **parts, weights=weights),
            _reading(Trace)(whole["trace"], layers),
            _reading(Outline)(whole["outline"], layers),
            _reading(StepLifetimes | None)(whole["lifetimes"], layers),
            tuple(whole["notes"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return None


def packed(whole: Any) -> dict[str, Any] | None:
    """JSON values as a short JSON object; None where a number is one that JSON cannot hold."""
    try:
        text = json_text(whole, compact=True).encode()
    except InputError:
        return None
    return {"packed": base64.b64encode(zlib.compress(text, 1)).decode()}


def unpacked(answer: Mapping[str, Any]) -> Any:
    """What `packed` was given; None where it cannot be read."""
    try:
        return json.loads(zlib.decompress(base64.b64decode(answer["packed"])))
    except (ValueError, KeyError, TypeError, RecursionError, zlib.error):
        return None


def _name(kind: type[Layer]) -> str:
    """A kind, or a form of it that other operators are read as."""
    return f"{kind.kind}:{kind.__name__}"


@cache
def _kinds() -> dict[str, type[Layer]]:
    found, left = {}, [*KINDS.values()]
    while left:
        kind = left.pop()
        found[_name(kind)] = kind
        left += kind.__subclasses__()
    return found


def _layer(kind: str, *values: Any) -> Layer:
    made = _kinds()[kind]
    return made(**dict(zip(field_names(made), values, strict=True)))


def _plain(value: Any, layers: dict[Layer, int]) -> Any:
    """A value in the types of JSON."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Layer):
        return layers.setdefault(value, len(layers))
    if is_dataclass(value):
        return [_plain(getattr(value, field.name), layers) for field in fields(value)]
    if isinstance(value, Mapping):
        return [[_plain(key, layers), _plain(one, layers)] for key, one in value.items()]
    if isinstance(value, frozenset):
        return sorted(value)
    return [_plain(one, layers) for one in value]


@cache
def _reading(hint: Any) -> Read:
    """What reads values of a type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (some,) = (one for one in inner if one is not type(None))
        read = _reading(some)
        return lambda value, layers: None if value is None else read(value, layers)
    if origin is tuple and inner[1:] != (...,):
        parts = [_reading(one) for one in inner]
        return lambda value, layers: tuple(r(v, layers) for r, v in zip(parts, value, strict=True))
    if origin in (tuple, frozenset):
        return _several(origin, inner[0])
    if origin is not None:  # a mapping
        names, values = map(_reading, inner)
        return lambda value, layers: {names(k, layers): values(v, layers) for k, v in value}
    if hint is Layer:
        return lambda value, layers: layers[value]
    if is_dataclass(hint) or hasattr(hint, "_fields"):
        hints = get_type_hints(hint, localns={"Format": Format})
        order = [field.name for field in fields(hint)] if is_dataclass(hint) else hint._fields
        make: Any = _by_names(hint, order) if is_dataclass(hint) and fields(hint)[0].kw_only else hint
        kinds = [hints[name] for name in order]  # read when they are met: a scheme's parts are schemes
        return lambda value, layers: make(
            *(_reading(k)(v, layers) for k, v in zip(kinds, value, strict=True))
        )
    return lambda value, layers: value


def _by_names(make: Any, names: Sequence[str]) -> Callable[..., Any]:
    return lambda *values: make(**dict(zip(names, values, strict=True)))


def _several(make: Any, hint: Any) -> Read:
    """What reads a tuple or a set; plain values need no look at each."""
    if hint in (int, str, float, bool):
        return lambda value, layers: make(value)
    return lambda value, layers: make([_reading(hint)(one, layers) for one in value])
