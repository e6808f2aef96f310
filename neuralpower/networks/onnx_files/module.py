"""A graph of an ONNX file as a module: its weights are parameters, its nodes run in order; and its source.

Sizes and other numbers that follow from constants and shapes are computed apart, as ONNX's runtimes fold
them: no layer comes of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from neuralpower.errors import (
    FixedSizeError,
    InputError,
    ModelError,
    NeuralPowerError,
    is_count,
    quoted,
    unknown,
)
from neuralpower.networks.inputs.inputs import Inputs
from neuralpower.networks.inputs.known_values import RANDOM, say_made_up
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.onnx_files.operators import Call
from neuralpower.networks.onnx_files.patterns import put_together
from neuralpower.networks.onnx_files.rare import OPERATORS
from neuralpower.networks.onnx_files.reading import Graph, Input, Node, Weight, read_graph
from neuralpower.networks.source import Source

SIZES = frozenset(("Shape", "Size"))  # operators whose result follows from sizes alone
VIEWS = frozenset("Transpose Reshape Unsqueeze Squeeze Flatten Identity Slice Split Gather Expand".split())
MADE = frozenset("ConstantOfShape RandomNormal RandomUniform".split())  # of weights, in files without data
SETTINGS = dict.fromkeys(("Clip", "Pad", "Resize", "Upsample"), 1)  # the first input that says how it runs
STATES = {
    "BatchNormalization": 3,
    "GRU": 5,
    "LSTM": 5,
    "RNN": 5,
}  # the first that a network keeps or begins with
NO_WEIGHTS: Mapping[str, int] = {**SETTINGS, **STATES}
MOST_INPUTS = 2**31
MOST_TURNS = 10_000  # of loops
BRANCHES = "If"
SUPPRESSES = "NonMaxSuppression"
MOST_BOXES = f"{SUPPRESSES} is taken to keep the most boxes that the file lets it keep; pictures have fewer"
Values = dict[str, tuple[Any, bool]]  # name -> (tensor, whether it follows from weights and sizes alone)


class OnnxModule(nn.Module):
    """The main graph; weights of floating numbers are in `dtype` where the file has its main type."""

    def __init__(self, graph: Graph, dtype: torch.dtype) -> None:
        super().__init__()
        self.graph = graph = put_together(graph)
        self.main: torch.dtype = getattr(torch, graph.main)
        self.dtype = dtype
        self.taken_for_granted = (MOST_BOXES,) if any(n.op == SUPPRESSES for n in graph.nodes) else ()
        self._names: dict[str, str] = {}  # of a weight -> of its parameter or buffer
        self._constants: dict[str, Tensor] = {}
        besides = {
            name
            for node in graph.nodes
            for name in node.inputs[node.attributes.get("states", NO_WEIGHTS.get(node.op, MOST_INPUTS)) :]
        }
        for weight in graph.weights:
            self._hold(weight, weight.name in besides)
        for node in graph.nodes:
            if node.op == "Constant" and isinstance(value := _constant(node), Weight):
                self._hold(value, True, node.outputs[0])
            elif node.op in MADE and (filled := self._made(node)) is not None:
                self._hold(filled, filled.name in besides)

    def _made(self, node: Node) -> Weight | None:
        """A weight that a node makes of known sizes, as files without data have them."""
        value = node.attributes.get("value")
        sizes = node.attributes.get("shape")
        if node.op == "ConstantOfShape":
            held = self._constants.get(node.inputs[0])
            sizes = None if held is None else [int(one) for one in held.flatten().tolist()]
        if sizes is None or math.prod(sizes) > 2**40 or math.prod(sizes) < 2:
            return None
        dtype = value.dtype if isinstance(value, Weight) else "float32"
        return Weight(node.outputs[0], tuple(sizes), dtype) if "float" in dtype else None

    def _hold(self, weight: Weight, is_buffer: bool = False, name: str = "") -> None:
        name = name or weight.name
        dtype = self.cast(getattr(torch, weight.dtype))
        if weight.values is not None:
            with torch.device("cpu"):
                known = torch.from_numpy(weight.values.copy()).to(getattr(torch, weight.dtype))
            self._constants[name] = known.to(dtype) if dtype.is_floating_point else known
        if math.prod(weight.sizes) < 2 or (weight.values is not None and not dtype.is_floating_point):
            return
        held = torch.empty(weight.sizes, dtype=dtype)
        if held.device.type != "meta":
            held = torch.zeros_like(held)
        self._names[name] = f"weight_{len(self._names)}"
        if is_buffer or not dtype.is_floating_point:
            self.register_buffer(self._names[name], held)
        else:
            self.register_parameter(self._names[name], nn.Parameter(held))

    def cast(self, dtype: torch.dtype) -> torch.dtype:
        """The type of the run for a type of the file."""
        return self.dtype if dtype == self.main else dtype

    def forward(self, *inputs: Tensor) -> Any:
        """The graph's outputs."""
        values: Values = {}
        for one, given in zip(self.graph.inputs, inputs, strict=True):
            values[one.name] = given, False
        found = self._run(self.graph, values)
        return found[0] if len(found) == 1 else tuple(found)

    def _run(self, graph: Graph, values: Values) -> list[Any]:
        """The outputs of a graph, given its inputs and what surrounds it."""
        for weight in graph.weights:
            if weight.name not in self._names and weight.name not in self._constants:
                self._inner(weight)
        uses = Counter(name for node in graph.nodes for name in node.inputs)
        biases = self._biases(graph, uses)
        for node in graph.nodes:
            if all(one in values or not one for one in node.outputs):  # a bias that a product has taken
                continue
            with_bias = biases.get(node.outputs[0])
            self._node(node, values, graph.opset, with_bias)
        return [self._value(name, values)[0] for name in graph.outputs]

    def _inner(self, weight: Weight) -> None:
        """A constant of a branch's graph."""
        if weight.values is None:
            raise ModelError(f"weight {weight.name:.60} lies within a branch or a loop, which is not read")
        self._constants[weight.name] = torch.from_numpy(weight.values.copy())

    def _biases(self, graph: Graph, uses: Mapping[str, int]) -> dict[str, Node]:
        """Output of a product with a matrix -> the node that alone takes it, and adds a vector of weights."""
        adds: dict[str, Node] = {}
        for node in graph.nodes:
            if node.op == "Add" and len(node.inputs) == 2:
                for one in node.inputs:
                    adds.setdefault(one, node)
        found = {}
        for node in graph.nodes:
            add = adds.get(node.outputs[0]) if node.op == "MatMul" else None
            if add is None or uses[node.outputs[0]] != 1 or node.outputs[0] in graph.outputs:
                continue
            weight, bias = (
                self._weight(name) for name in (node.inputs[1], self._other(add, node.outputs[0]))
            )
            if (
                weight is not None
                and bias is not None
                and weight.dim() == 2
                and bias.shape == weight.shape[1:]
            ):
                found[node.outputs[0]] = add
        return found

    def _other(self, add: Node, name: str) -> str:
        return add.inputs[1] if add.inputs[0] == name else add.inputs[0]

    def _weight(self, name: str) -> Tensor | None:
        held: Tensor | None = getattr(self, self._names[name]) if name in self._names else None
        return held

    def _value(self, name: str, values: Values) -> tuple[Any, bool]:
        if not name:
            return None, True
        if name in values:
            return values[name]
        if (weight := self._weight(name)) is not None:
            return weight, True
        return self._constants[name], True

    def _node(self, node: Node, values: Values, opset: int, add: Node | None) -> None:
        if node.op == "Constant":
            if node.outputs[0] not in self._names and node.outputs[0] not in self._constants:
                self._constants[node.outputs[0]] = torch.as_tensor(_constant(node))
            return
        if node.op in MADE and node.outputs[0] in self._names:
            return
        if node.op in (BRANCHES, "Loop"):
            outputs = self._branch(node, values) if node.op == BRANCHES else self._loop(node, values)
            values.update((name, (one, False)) for name, one in zip(node.outputs, outputs, strict=False))
            return
        if node.op not in OPERATORS:
            raise unknown(f"operator of ONNX at node {node.name:.60}:", node.op, OPERATORS, ModelError)
        given = [self._value(name, values) for name in node.inputs]
        static = node.op in SIZES or all(known for _, known in given)
        call = Call(node, opset, self.cast)
        first = SETTINGS.get(node.op, MOST_INPUTS)
        tensors = [
            self._known(name, one, i >= first)
            for i, (name, (one, _)) in enumerate(zip(node.inputs, given, strict=True))
        ]
        if add is not None:
            tensors = [given[0][0], given[1][0], self._value(self._other(add, node.outputs[0]), values)[0]]
        # a view of a weight is seen as such; other results of weights alone are kept ready
        views = node.op in VIEWS and any(name in self._names for name in node.inputs)
        outputs = self._outputs(call, tensors, static and not views)
        values.update((name, (one, static)) for name, one in zip(node.outputs, outputs, strict=False) if name)
        if add is not None:
            values[add.outputs[0]] = outputs[0], False

    def _known(self, name: str, held: Any, says_how: bool) -> Any:
        """A weight's numbers in place of the weight, if it has only one, or says how an operator runs."""
        numbers = self._constants.get(name)
        return numbers if numbers is not None and (says_how or numbers.numel() == 1) else held

    def _outputs(self, call: Call, tensors: list[Any], static: bool) -> tuple[Any, ...]:
        function = OPERATORS[call.node.op]
        try:
            if static:
                with _disable_current_modes(), torch.device("cpu"):
                    found = function(call, *tensors)
            else:
                found = function(call, *tensors)
        except NeuralPowerError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError, KeyError) as error:
            shapes = ", ".join(str(tuple(one.shape)) for one in tensors if isinstance(one, Tensor))
            what = f"node {call.node.name:.60} ({call.node.op})"
            raise ModelError(f"{what} does not take inputs of {shapes}: {quoted(error)}") from error
        return tuple(found) if isinstance(found, (tuple, list)) else (found,)

    def _branch(self, node: Node, values: Values) -> Any:
        """The branch that runs where that is known, else the costlier one, as `torch.cond` is followed."""
        condition, static = self._value(node.inputs[0], values)
        ways = [node.attributes[name] for name in ("then_branch", "else_branch")]
        if static and not condition.is_meta:
            return self._run(ways[0 if bool(condition) else 1], dict(values))

        def way(graph: Graph) -> Callable[[], tuple[Any, ...]]:
            return lambda: tuple(self._run(graph, dict(values)))

        return torch.ops.higher_order.cond(condition.reshape(()), way(ways[0]), way(ways[1]), ())

    def _loop(self, node: Node, values: Values) -> list[Any]:
        """All turns of a loop whose number is known."""
        count, known = self._value(node.inputs[0], values)
        body: Graph = node.attributes["body"]
        if count is None or not known or int(count) > MOST_TURNS:
            raise ModelError(
                f"node {node.name:.60}: a loop whose turns only a run counts is not read; export it with a "
                f"fixed number of up to {MOST_TURNS:,}"
            )
        carried = [self._value(name, values) for name in node.inputs[2:]]
        scanned: list[list[Any]] = [[] for _ in body.outputs[1 + len(carried) :]]
        for turn in range(int(count)):
            inner = dict(values)
            names = [one.name for one in body.inputs]
            inner[names[0]] = torch.tensor(turn), True
            inner[names[1]] = torch.tensor(True), True
            inner.update(zip(names[2:], carried, strict=True))
            found = self._run(body, inner)
            carried = [(one, False) for one in found[1 : 1 + len(carried)]]
            for some, one in zip(scanned, found[1 + len(carried) :], strict=True):
                some.append(one)
        return [*(one for one, _ in carried), *(torch.stack(some) for some in scanned)]


def _constant(node: Node) -> Any:
    """The value of a node without inputs."""
    for name in ("value", "value_float", "value_int", "value_floats", "value_ints"):
        if name in node.attributes:
            return node.attributes[name]
    raise ModelError(f"node {node.name:.60}: a constant of texts or of sparse numbers is not read")


# The network of an ONNX file, and the sizes of its inputs.

MOST_ID = 100  # below which made-up ids lie: all vocabularies have as many


def onnx_source(text: str, path: Path, sizes: Mapping[str, Any]) -> Source:
    """The network of a file; `sizes` by the names of those that vary. Raises ModelError."""
    graph = read_graph(path)
    known = {name for one in graph.inputs for name in one.sizes if isinstance(name, str) and name}
    for name, size in sizes.items():
        if name not in known:
            has = f"it has {', '.join(sorted(known))}" if known else "all its sizes are fixed"
            raise ModelError(f"{text:.200}: no size of an input is called {name:.60}; {has}")
        if not is_count(size):
            raise ModelError(f"{text:.200}: size {name:.60} is {size!r:.40}; write a whole number, 1 or more")

    def construct(dtype: torch.dtype) -> nn.Module:
        return OnnxModule(graph, dtype)

    def brings(model: nn.Module) -> Inputs | None:
        fixed = all(isinstance(size, int) for one in graph.inputs for size in one.sizes)
        return _inputs(text, graph, {}, InputRequest()) if fixed else None

    def examples(model: nn.Module, request: InputRequest) -> Inputs:
        return _inputs(text, graph, sizes, request)

    def untyped() -> nn.Module:
        return OnnxModule(graph, getattr(torch, graph.main))

    return Source(text, construct, examples, brings=brings, untyped=untyped)


def _inputs(text: str, graph: Graph, sizes: Mapping[str, Any], request: InputRequest) -> Inputs:
    """An input for each of the graph's, of the requested sizes."""
    shape = request.input_shape
    if shape is not None and len(graph.inputs) != 1:
        names = ", ".join(one.name for one in graph.inputs)[:200]
        raise InputError(
            f"input_shape is {shape}, but {text:.200} has the inputs {names}; give sizes with --dim"
        )
    generator = torch.Generator().manual_seed(0)
    missing: dict[str, None] = {}
    tensors = []
    for one in graph.inputs:
        asked = [*_asked(text, one, sizes, request, holds_batch=one is graph.inputs[0])]
        missing |= dict.fromkeys(name for name in asked if isinstance(name, str))
        if not missing:
            tensors.append(_tensor(one, [int(size) for size in asked], request.dtype, graph.main, generator))
    if missing:
        written = ",".join(f"{name or 'NAME'}=N" for name in missing)
        names = ", ".join(name or "(without a name)" for name in missing)
        raise ModelError(
            f"{text:.200}: sizes {names} of its inputs vary; add --dim {written}, or --input-shape"
        )
    return Inputs(tuple(tensors))


def _asked(
    text: str, one: Input, sizes: Mapping[str, Any], request: InputRequest, *, holds_batch: bool
) -> Iterator[int | str]:
    """The sizes of an input; a text is the name of one that nothing says.

    `holds_batch`: its first size, if it is fixed, is the batch; that of edges or states is none.
    """
    whole = None if request.input_shape is None else (request.batch_size, *request.input_shape)
    if whole is not None and len(whole) != len(one.sizes):
        raise InputError(
            f"input_shape is {request.input_shape}, but {one.name:.60} of {text:.200} has {len(one.sizes)} "
            f"sizes with the batch: {', '.join(map(str, one.sizes))}"
        )
    for i, size in enumerate(one.sizes):
        asked = sizes.get(size) if isinstance(size, str) else None
        if asked is None and whole is not None:
            asked = whole[i]
        elif (
            asked is None and i == 0 and (isinstance(size, str) or (holds_batch and request.batch_size != 1))
        ):
            asked = request.batch_size
        elif asked is None and i == 1 and len(one.sizes) == 2:
            asked = request.seq_len
        if isinstance(size, int) and asked not in (None, size):
            what = "batch" if i == 0 else f"size {i}"
            raise FixedSizeError(
                f"{what} is {asked}, but {one.name:.60} of {text:.200} is exported for {size}; give this "
                "one, or export it with dynamic sizes"
            )
        yield size if isinstance(size, int) else size if asked is None else int(asked)


def _tensor(
    one: Input, sizes: list[int], dtype: torch.dtype, main: str, generator: torch.Generator
) -> Tensor:
    kind: torch.dtype = getattr(torch, one.dtype)
    if kind.is_floating_point:
        drawn = torch.randn(sizes, generator=generator).to(dtype if one.dtype == main else kind)
    elif kind == torch.bool:
        return torch.ones(sizes, dtype=kind)
    else:
        drawn = torch.randint(0, MOST_ID, sizes, generator=generator).to(kind)
    return say_made_up(drawn, RANDOM)
