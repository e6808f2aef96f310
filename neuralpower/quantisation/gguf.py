"""Mixtures of llama.cpp's files: Q4_K_M and its like give each tensor a type by what it is and where.

Source: `llama_tensor_get_type_impl` and `tensor_type_fallback` of llama.cpp's src/llama-quant.cpp (ggml-org),
without the exceptions for Falcon. Files of IQ types are taken to be made with an importance matrix, as most
are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from neuralpower.dtypes import DTYPES
from neuralpower.quantisation.formats import Format
from neuralpower.quantisation.weights import EMBEDDING, EXPERTS, HEAD, LINEAR, Matrices, Weight

# Mixture -> the type that most of its tensors have.
MIXTURES = {
    **{name: name for name in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q6_k", "iq4_nl", "iq4_xs", "iq3_s")},
    **{"q2_k": "q2_k", "q2_k_s": "q2_k", "q3_k_s": "q3_k", "q3_k_m": "q3_k", "q3_k_l": "q3_k"},
    **{"q4_k_s": "q4_k", "q4_k_m": "q4_k", "q5_k_s": "q5_k", "q5_k_m": "q5_k"},
    **{"iq3_xs": "iq3_s", "iq3_m": "iq3_s"},
}
# Type -> the one for products whose inputs its blocks do not divide; if that does not either, float16.
FALLBACKS = {
    **{"q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"},
    **{"iq3_xxs": "iq4_nl", "iq3_s": "iq4_nl", "iq4_xs": "iq4_nl"},
}
VALUE, KEY, QUERY, TOGETHER, OUT, DOWN, UP, ELSE = "value key query together out down up else".split()
# What a module is, by the last name of its path; Mixture of Experts' tensors by their own.
ROLES = {
    VALUE: r"v_proj|value|kv_b_proj|to_v",
    KEY: r"k_proj|key|to_k",
    QUERY: r"q_proj|query|to_q",
    TOGETHER: r"qkv_proj|query_key_value|c_attn|W_pack|qkv|Wqkv",
    OUT: r"o_proj|out_proj",
    DOWN: r"down_proj|fc2|dense_4h_to_h|w2|wo",
    UP: r"gate_up_proj|gate_proj|up_proj|fc1|dense_h_to_4h|c_fc|w1|w3",
}
EIGHT_EXPERTS, SHARED_KEYS, LARGE_LAYERS = 8, 4, 80  # models that the rules treat apart


@dataclass(frozen=True)
class _Place:
    """Where a tensor stands: how many of its role are before it, of how many, and what the model is like."""

    role: str
    at: int
    of: int
    shared: bool  # whether four query heads or more share a head of keys
    experts: int
    layers: int

    @property
    def early(self) -> bool:
        """Among the first eighth."""
        return self.at < self.of // 8

    @property
    def matters(self) -> bool:
        """Whether it gets more bits in a mixture: the first and the last eighth, and every third between."""
        return self.early or self.at >= 7 * self.of // 8 or (self.at - self.of // 8) % 3 == 2


STORED = {  # last name of a module's path -> GGUF's of the tensor in that block
    **{"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"},
    **{"qkv_proj": "attn_qkv", "query_key_value": "attn_qkv", "c_attn": "attn_qkv", "dense": "attn_output"},
    **{"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down", "gate_up_proj": "ffn_up"},
    **{"c_fc": "ffn_up", "fc1": "ffn_up", "fc2": "ffn_down", "c_proj": "ffn_down"},
    **{"dense_h_to_4h": "ffn_up", "dense_4h_to_h": "ffn_down"},
}
TABLE, OUTPUT = "token_embd", "output"


def mixed(
    mixture: str,
    weights: Sequence[Weight],
    matrices: Mapping[str, Matrices],
    types: Mapping[str, str] | None = None,
) -> dict[str, Format | None]:
    """The type of each tensor of a file, by its name; all but matrices is float32.

    A tensor whose name `types` has keeps the type that it has there, as far as that is priced.

    Args:
        mixture: one of MIXTURES.
        weights: all of the network.
        matrices: (matrices, outputs, inputs) by name, of those that products have read.
        types: GGUF's name of a tensor, without its ending -> its type.
    """
    most = MIXTURES[mixture]
    places = dict(_places(weights, matrices))
    heads = any(weight.sort == HEAD for weight in weights)
    forms: dict[str, Format | None] = {}
    for weight in weights:
        stored = (types or {}).get(_stored(weight), "")
        if stored in DTYPES:
            forms[weight.name] = Format(dtype=stored)
            continue
        _, outputs, inputs = matrices.get(weight.name, weight.matrices)
        if weight.sort == HEAD or (weight.sort == EMBEDDING and (weight.tied or not heads)):
            kind = "q8_0" if most == "q8_0" or inputs % DTYPES[most].group else "q6_k"
        elif weight.sort == EMBEDDING:
            kind = most
        elif weight.name in places:
            kind = _type(mixture, most, places[weight.name])
        else:  # norms, biases and routers
            forms[weight.name] = Format(dtype="float32") if "float" in weight.dtype else None
            continue
        forms[weight.name] = Format(dtype=_fitting(kind, inputs))
    return forms


def _stored(weight: Weight) -> str:
    """GGUF's name of a matrix, without its ending; "" where the table has none."""
    if weight.sort == EMBEDDING:
        return TABLE
    if weight.sort == HEAD:
        return OUTPUT
    last = weight.name.removesuffix(".weight").rpartition(".")[2]
    role = STORED.get(last, "")
    if last == "c_proj" and "att" in weight.name:
        role = "attn_output"
    experts = "_exps" if weight.sort == EXPERTS else "_shexp" if "shared" in weight.name else ""
    return f"blk.{_layer(weight.name)}.{role}{experts}" if role else ""


def _fitting(kind: str, inputs: int) -> str:
    """The type, or another where its blocks do not divide the inputs."""
    for name in (kind, FALLBACKS.get(kind, kind)):
        if inputs % DTYPES[name].group == 0:
            return name
    return "float16"


def _places(weights: Sequence[Weight], matrices: Mapping[str, Matrices]) -> Iterator[tuple[str, _Place]]:
    """(name, place) of each matrix of a layer."""
    roles = {weight.name: _role(weight) for weight in weights if weight.sort in (LINEAR, EXPERTS)}
    outputs: dict[str, int] = {}
    for weight in weights:
        outputs.setdefault(roles.get(weight.name, ""), matrices.get(weight.name, weight.matrices)[1])
    shared = outputs.get(QUERY, 0) >= SHARED_KEYS * outputs.get(VALUE, outputs.get(QUERY, 1))
    experts = max((w.matrices[0] for w in weights if w.sort == EXPERTS), default=1)
    numbers = {name: _layer(name) for name in roles}
    layers = len(set(numbers.values()))
    for role in dict.fromkeys(roles.values()):
        names = [name for name in roles if roles[name] == role]
        order = sorted({numbers[name] for name in names})
        for name in names:
            yield name, _Place(role, order.index(numbers[name]), len(order), shared, experts, layers)


def _role(weight: Weight) -> str:
    path = weight.name.removesuffix(".weight")
    last, in_attention = path.rpartition(".")[2], "att" in path
    if last in ("c_proj", "dense"):
        return OUT if in_attention else DOWN
    return next((role for role, names in ROLES.items() if re.fullmatch(names, last)), ELSE)


def _layer(name: str) -> int:
    """The number of the block that a tensor is in."""
    found = re.search(r"(?<=\.)\d+(?=\.)", name)
    return int(found.group()) if found else -1


def _type(mixture: str, most: str, place: _Place) -> str:
    """The type of a tensor in a mixture."""
    return RULES[place.role](mixture, place) or most if place.role in RULES else most


def _value(mixture: str, place: _Place) -> str:
    larger = {
        "q2_k": "q4_k" if place.shared else "q3_k",
        "q2_k_s": "q4_k" if place.shared else "",
        "q3_k_m": "q5_k" if place.at < 2 else "q4_k",
        "q3_k_l": "q5_k",
        "q4_k_s": "q5_k" if place.at < 4 else "",
        "q4_k_m": "q6_k" if place.matters else "",
        "q5_k_m": "q6_k" if place.matters else "",
        "iq4_nl": "q5_k" if place.shared else "",
        "iq4_xs": "q5_k" if place.shared else "",
        "iq3_xs": "q4_k" if place.shared else "",
        "iq3_s": "q4_k" if place.shared else "",
        "iq3_m": "q4_k",
    }.get(mixture, "")
    if place.experts == EIGHT_EXPERTS:
        return "q8_0"
    large = place.layers == LARGE_LAYERS and place.shared
    return "q5_k" if large and (larger or MIXTURES[mixture]) in ("q3_k", "q4_k") else larger


def _key(mixture: str, place: _Place) -> str:
    return "q8_0" if place.experts == EIGHT_EXPERTS else _query(mixture, place)


def _query(mixture: str, place: _Place) -> str:
    return "iq3_xxs" if mixture == "iq3_xs" else ""


def _down(mixture: str, place: _Place) -> str:
    many = place.experts == EIGHT_EXPERTS and place.matters
    return {
        "q2_k": "q3_k",
        "q2_k_s": "q4_k" if place.early else "",
        "q3_k_m": "q5_k" if place.at < place.of // 16 else "q4_k",
        "q3_k_l": "q5_k",
        "q4_k_s": "q5_k" if place.early else "",
        "q4_k_m": "q6_k" if place.matters else "",
        "q5_k_m": "q6_k" if place.matters else "",
        "iq3_m": "q4_k" if place.early or many else "",
    }.get(mixture, "")


def _out(mixture: str, place: _Place) -> str:
    if place.experts == EIGHT_EXPERTS:
        more = "q2_k iq3_xs q3_k_s q3_k_m iq4_nl q4_k_s q4_k_m iq3_s iq3_m iq4_xs".split()
        return "q5_k" if mixture in more else ""
    return {"q2_k": "q3_k", "q3_k_m": "q4_k", "q3_k_l": "q5_k", "iq3_m": "q4_k"}.get(mixture, "")


def _up(mixture: str, place: _Place) -> str:
    middle = place.of // 8 <= place.at < 7 * place.of // 8
    return "iq3_xxs" if mixture == "iq3_xs" and middle else ""


RULES: Mapping[str, Callable[[str, _Place], str]] = {
    VALUE: _value,
    KEY: _key,
    QUERY: _query,
    TOGETHER: _value,  # values are among its outputs
    OUT: _out,
    DOWN: _down,
    UP: _up,
}
