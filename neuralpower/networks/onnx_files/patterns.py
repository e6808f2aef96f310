"""Operators that exporters take apart, put together again: what runs ONNX files does so, too.

Each rule gives the node that stands for several, by the last of them; the others go where nothing else needs
their results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuralpower.networks.onnx_files.reading import Graph, Node, Weight

FUSED_ATTENTION = "(attention)"  # an operator of `operators.OPERATORS` that no file has
STACKED = "(stacked)"  # another: recurrent layers one after the other, which torch runs in one call
UNROLLED = "(unrolled)"  # another: a recurrent layer of torch whose steps an exporter wrote one by one
RECURRENT = ("GRU", "LSTM", "RNN")
# Operators that take vectors which training changes: each has its own, also where an exporter has joined
# equal ones, such as the zero biases of a network that was not trained.
TAKING_VECTORS = frozenset(
    """
    Add BatchNormalization Conv ConvTranspose Gemm GroupNormalization InstanceNormalization
    LayerNormalization Mul PRelu
    """.split()
)
OWN = "#"  # before the number of a node's own copy of a vector
OF_LAYER = 4  # inputs that a layer of these has besides x and its states
NEAR = 1e-3  # of a constant


def put_together(graph: Graph) -> Graph:
    """The graph with the nodes of RULES, and without those that nothing needs any more."""
    graph = _with_own_vectors(graph)
    view = _View.of(graph)
    changed: dict[str, Node] = {}
    for node in graph.nodes:
        for rule in RULES:
            if (made := rule(view, node)) is not None:
                changed[made.outputs[0]] = made
    if not changed:
        return graph
    inner = {name for made in changed.values() for name in made.attributes.get("instead", ())}
    nodes = [changed.get(one.outputs[0], one) for one in graph.nodes if one.outputs[0] not in inner]
    kept = tuple(_needed(nodes, graph.outputs))
    unused = _taken(graph.nodes) - _taken(kept)  # what one node takes once, many took in parts
    weights = tuple(one for one in graph.weights if one.name not in unused)
    return replace(graph, nodes=kept, weights=weights)


def _taken(nodes: Sequence[Node]) -> set[str]:
    """Names that nodes and the graphs in them take."""
    return {name for node in nodes for name in (*node.inputs, *_inside(node))}


def _with_own_vectors(graph: Graph) -> Graph:
    """The graph with a vector for each node of TAKING_VECTORS that takes a joined one."""
    floating = [one for one in graph.weights if "float" in one.dtype]
    vectors = {one.name: one for one in floating if len(one.sizes) == 1 and one.sizes[0] > 1}
    taken: set[str] = set()
    nodes, more = list[Node](), list[Weight]()
    for node in graph.nodes:
        names = list(node.inputs)
        for place, name in enumerate(names):
            if name not in vectors or node.op not in TAKING_VECTORS:
                continue
            if name in taken:
                names[place] = f"{name}{OWN}{len(more)}"
                more.append(replace(vectors[name], name=names[place]))
            taken.add(name)
        nodes.append(replace(node, inputs=tuple(names)))
    return replace(graph, nodes=tuple(nodes), weights=(*graph.weights, *more)) if more else graph


def _needed(nodes: list[Node], outputs: tuple[str, ...]) -> list[Node]:
    """The nodes that an output follows from."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        inner = any(isinstance(value, Graph) for value in node.attributes.values())
        if inner or wanted & set(node.outputs):
            kept.append(node)
            wanted |= set(node.inputs) | _inside(node)
    return kept[::-1]


def _inside(node: Node) -> set[str]:
    """Names that the graphs of a branch or a loop take from outside."""
    names: set[str] = set()
    for value in node.attributes.values():
        if isinstance(value, Graph):
            names |= set(value.outputs)
            for inner in value.nodes:
                names |= set(inner.inputs) | _inside(inner)
    return names


@dataclass(frozen=True)
class _View:
    """Who makes and who takes each result."""

    makers: Mapping[str, Node]
    takers: Mapping[str, tuple[Node, ...]]
    numbers: Mapping[str, float]  # constants of one number

    @classmethod
    def of(cls, graph: Graph) -> _View:
        makers = {name: node for node in graph.nodes for name in node.outputs}
        takers: dict[str, tuple[Node, ...]] = {}
        for node in graph.nodes:
            for name in dict.fromkeys(node.inputs):
                takers[name] = (*takers.get(name, ()), node)
        numbers = {one.name: _number(one.values) for one in graph.weights if one.values is not None}
        for node in graph.nodes:
            value = node.attributes.get("value")
            if node.op == "Constant" and isinstance(value, Weight) and value.values is not None:
                numbers[node.outputs[0]] = _number(value.values)
        return cls(makers, takers, {name: one for name, one in numbers.items() if not math.isnan(one)})

    def maker(self, name: str, *ops: str) -> Node | None:
        """The node of one of these operators that makes a result."""
        node = self.makers.get(name)
        return node if node is not None and node.op in ops else None

    def taker(self, name: str, *ops: str) -> Node | None:
        """The only node that takes a result, if it is of one of these operators."""
        takers = self.takers.get(name, ())
        return takers[0] if len(takers) == 1 and takers[0].op in ops else None

    def is_number(self, name: str, value: float) -> bool:
        return abs(self.numbers.get(name, math.inf) - value) < NEAR

    def apart(self, node: Node) -> tuple[str, str] | None:
        """(operand, constant) of a node with one constant number."""
        pairs = (node.inputs, node.inputs[::-1])
        return next(((a, b) for a, b in pairs if b in self.numbers and a not in self.numbers), None)


def _number(values: np.ndarray) -> float:
    return float(values.reshape(-1)[0]) if values.size == 1 else math.nan


def _gelu(view: _View, erf: Node) -> Node | None:
    """X / 2 * (1 + erf(x / sqrt(2))), in each order."""
    if erf.op != "Erf":
        return None
    inner = view.maker(erf.inputs[0], "Div", "Mul")
    parts = None if inner is None else view.apart(inner)
    if inner is None or parts is None:
        return None
    x, constant = parts
    if not view.is_number(constant, math.sqrt(2) if inner.op == "Div" else math.sqrt(0.5)):
        return None
    node = view.taker(erf.outputs[0], "Add")
    if node is None or (held := view.apart(node)) is None or not view.is_number(held[1], 1.0):
        return None
    halved = scaled = False
    while not (halved and scaled):
        product = view.taker(node.outputs[0], "Mul")
        if product is None:
            return None
        other = product.inputs[1] if product.inputs[0] == node.outputs[0] else product.inputs[0]
        half = view.maker(other, "Mul")
        if view.is_number(other, 0.5):
            halved = True
        elif other == x:
            scaled = True
        elif (
            half is not None and (held := view.apart(half)) and held[0] == x and view.is_number(held[1], 0.5)
        ):
            halved = scaled = True
        else:
            return None
        node = product
    return Node("Gelu", erf.name, (x,), node.outputs)


def _attention(view: _View, softmax: Node) -> Node | None:
    """softmax(Q K^T + mask) V, with what keeps rows without keys from being no number."""
    if softmax.op != "Softmax":
        return None
    scores, mask = view.makers.get(softmax.inputs[0]), ""
    if scores is not None and scores.op == "Add":
        products = [view.maker(name, "MatMul", "Mul", "Div") for name in scores.inputs]
        place = next((i for i, one in enumerate(products) if one is not None), None)
        if place is None:
            return None
        mask = scores.inputs[1 - place]
        scores = products[place]
    if scores is not None and scores.op in ("Mul", "Div") and (held := view.apart(scores)) is not None:
        scores = view.makers.get(held[0])
    if scores is None or scores.op != "MatMul" or len(view.takers.get(scores.outputs[0], ())) != 1:
        return None
    last = _second(view, softmax)
    if last is None:
        return None
    product, values = last
    turned = _unscaled(view, scores.inputs[1])  # [..., head size, keys]
    keys = _turned(view, turned)
    inputs = (_unscaled(view, scores.inputs[0]), keys or turned, values, mask)
    return Node(FUSED_ATTENTION, softmax.name, inputs, product.outputs, {"turned": keys is None})


def _second(view: _View, softmax: Node) -> tuple[Node, str] | None:
    """(the product with the values, these)."""
    name = softmax.outputs[0]
    takers = {one.op: one for one in view.takers.get(name, ())}
    if set(takers) == {"IsNaN", "Where"}:
        name = takers["Where"].outputs[0]
    product = view.taker(name, "MatMul")
    return (product, product.inputs[1]) if product is not None and product.inputs[0] == name else None


def _unscaled(view: _View, name: str) -> str:
    """The operand of a product by a constant, which softmax's scale is."""
    node = view.maker(name, "Mul", "Div")
    held = None if node is None else view.apart(node)
    return name if held is None else held[0]


def _turned(view: _View, name: str) -> str | None:
    """The keys whose last axes are exchanged, perhaps with the first axes taken together meanwhile."""
    node = view.maker(name, "Transpose")
    whole = view.maker(name, "Reshape")
    if whole is not None:
        node = view.maker(whole.inputs[0], "Transpose")
    perm = [] if node is None else list(node.attributes.get("perm") or [])
    if node is None or perm != [*range(len(perm) - 2), len(perm) - 1, len(perm) - 2]:
        return None
    if whole is None:
        return node.inputs[0]
    before = view.maker(node.inputs[0], "Reshape")
    return None if before is None else before.inputs[0]


def _stacked(view: _View, last: Node) -> Node | None:
    """Recurrent layers of which each takes the results of the one before, and nothing else does."""
    if last.op not in RECURRENT or _next(view, last) is not None:
        return None
    layers = [last]
    while (before := _before(view, layers[0])) is not None:
        layers.insert(0, before)
    if len(layers) == 1:
        return None
    padded = [(*one.inputs, *[""] * (3 + OF_LAYER))[: 3 + OF_LAYER] for one in layers]
    inputs = [padded[0][0], *(name for one in padded for name in one[1 : 1 + OF_LAYER])]
    states = [one[place] for place in (5, 6) for one in padded]
    ends, instead = list[str](), [one.outputs[0] for one in layers[:-1]]
    for place in range(1, len(last.outputs)):  # the layers' last states, which the next node mostly joins
        names = tuple(one.outputs[place] if len(one.outputs) > place else "" for one in layers)
        joined = view.taker(names[0], "Concat")
        if joined is not None and joined.inputs == names:
            ends.append(joined.outputs[0])
            instead.append(joined.outputs[0])
        elif any(view.takers.get(name) for name in names):
            return None
        else:
            ends.append("")
    about = {**last.attributes, "of": last.op, "states": len(inputs), "instead": tuple(instead)}
    return Node(STACKED, last.name, (*inputs, *states), (last.outputs[0], *ends), about)


def _before(view: _View, node: Node) -> Node | None:
    """The layer whose results, with its directions side by side, a recurrent layer takes."""
    made = view.maker(node.inputs[0], "Reshape", "Squeeze")
    while made is not None and made.op in ("Reshape", "Squeeze", "Transpose"):
        made = view.makers.get(made.inputs[0])
    return made if made is not None and _next(view, made) is node else None


def _next(view: _View, node: Node) -> Node | None:
    """The like layer that alone takes a recurrent layer's results."""
    taker, name = None, node.outputs[0] if node.op in RECURRENT else ""
    while name:
        taker = view.taker(name, "Reshape", "Squeeze", "Transpose", *RECURRENT)
        name = taker.outputs[0] if taker is not None and taker.op not in RECURRENT else ""
    if taker is None or taker.op != node.op or taker.inputs[0] == node.outputs[0]:
        return None
    like = all(
        taker.attributes.get(name) == node.attributes.get(name) for name in ("hidden_size", "direction")
    )
    plain = not (node.attributes.get("layout", 0) or taker.attributes.get("layout", 0))
    return (
        taker if like and plain and node.attributes.get("direction") not in ("reverse", b"reverse") else None
    )


def _unrolled(view: _View, joined: Node) -> Node | None:
    """Steps that each add a product of the step before and a part of one projection, joined along time.

    h[t] = tanh(h[t-1] R + b + (x W + c)[t]): the first step may have its first part as a constant.
    """
    if joined.op != "Concat" or joined.attributes.get("axis") != 0 or len(joined.inputs) < 3:
        return None
    steps = [view.maker(name, "Tanh", "Relu") for name in joined.inputs]
    adds = [None if one is None else view.maker(one.inputs[0], "Add") for one in steps]
    found = [
        None if add is None else _step(view, add, before)
        for add, before in zip(adds[1:], joined.inputs, strict=False)
    ]
    equal = {None if one is None else (one[0], one[1].split(OWN)[0], one[2]) for one in found}
    if len({one.op for one in steps if one is not None}) != 1 or len(equal) != 1 or found[0] is None:
        return None
    weights, bias, projected = found[0]
    whole = _affine(view, projected)
    if whole is None or adds[0] is None or projected not in {_part(view, name) for name in adds[0].inputs}:
        return None
    x, inward, other = whole
    kind = "rnn_tanh" if steps[0] is not None and steps[0].op == "Tanh" else "rnn_relu"
    inputs, ends = (x, inward, weights, other, bias), joined.inputs[-1]
    about = {"kind": kind, "states": len(inputs), "instead": tuple(joined.inputs)}
    return Node(UNROLLED, joined.name, inputs, (joined.outputs[0], ends), about)


def _step(view: _View, add: Node, before: str) -> tuple[str, str, str] | None:
    """(recurrent weights, their bias, the whole projection) of a step that follows another."""
    for product, part in (add.inputs, add.inputs[::-1]):
        whole, own = _affine(view, product), _part(view, part)
        if whole is not None and own and whole[0] == before:
            return whole[1], whole[2], own
    return None


def _affine(view: _View, name: str) -> tuple[str, str, str] | None:
    """(x, weights, bias) of x W + b; the bias is "" where there is none."""
    node, bias = view.maker(name, "MatMul", "Add"), ""
    if node is not None and node.op == "Add":
        pairs = (node.inputs, node.inputs[::-1])
        product, bias = next(((a, b) for a, b in pairs if view.maker(a, "MatMul")), ("", ""))
        node = view.maker(product, "MatMul")
    return None if node is None else (node.inputs[0], node.inputs[1], bias)


def _part(view: _View, name: str) -> str:
    """What a step is cut out of; "" where nothing cuts it."""
    node = view.maker(name, "Squeeze", "Slice", "Gather", "Split")
    while node is not None and node.op == "Squeeze":
        node = view.maker(node.inputs[0], "Slice", "Gather", "Split")
    return "" if node is None else node.inputs[0]


RULES: tuple[Callable[[_View, Node], Node | None], ...] = (_gelu, _attention, _stacked, _unrolled)
