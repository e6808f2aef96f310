"""Linear attention and scans as engines run them: one kernel, where Python loops over tokens or chunks.

They are found by what they compute: a module convolves each channel over tokens, and changes a state that the
cache holds, [batch, heads, ...] or, in Mamba's first kind, [batch, channels, ...].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neuralpower.layers import Layer
from neuralpower.layers.collective import Collective
from neuralpower.layers.convolution import Conv1d
from neuralpower.layers.linear import Linear
from neuralpower.layers.linear_attention import GATED_DELTA, KIMI_DELTA, LinearAttention
from neuralpower.layers.matmul import Matmul
from neuralpower.layers.scan import MAMBA, MAMBA2, Scan
from neuralpower.networks.phases import DECODE
from neuralpower.trace.dataflow import Dataflow, Edit, Node
from neuralpower.trace.lifetimes import Flow
from neuralpower.trace.parts.serving import border, layer_of, served, weights_read
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import Question
from neuralpower.trace.records import LayerCall, Trace

CHUNK, MAMBA_CHUNK = 64, 256  # tokens of engines' chunks: flash-linear-attention; mamba_ssm's usual
OWN_DECAYS = 2  # weights of a module with one decay for a head: its rate and its bias
SKIPPED = 3  # Mamba-2 adds its input, times a weight
ONE_KERNEL = "recurrences over tokens are assumed to run as one kernel a layer"


@trace_pass(place="blocks", applies=lambda trace, asked: served(trace, asked) and bool(_modules(trace)))
def recurrent_blocks(trace: Trace, question: Question) -> Trace:
    """Make one call of the convolution and the recurrence of linear attention or a scan."""
    flow = Dataflow(trace)
    edit = Edit(flow)
    by_path: dict[str, list[int]] = {path: [] for path in _modules(trace)}
    for i, node in enumerate(flow.nodes):
        if node.call is not None and node.call.path in by_path:
            by_path[node.call.path].append(i)
    for path, nodes in by_path.items():
        block = _block(flow, path, nodes)
        if block is not None:
            _replace(flow, block, edit)
    return edit.made(granted=(*trace.granted, ONE_KERNEL)) if edit.gone else trace


@dataclass(frozen=True)
class _Block:
    path: str
    nodes: Sequence[int]  # all that the kernel stands for
    conv: int  # the node that convolves
    layer: Layer


def _modules(trace: Trace) -> tuple[str, ...]:
    """Paths of modules that convolve each channel by itself, in order."""
    return tuple({call.path: None for call in trace.calls if _depthwise(call.layer)})


def _depthwise(layer: Layer | None) -> bool:
    return isinstance(layer, Conv1d) and layer.groups == layer.in_channels > 1


def _block(flow: Dataflow, path: str, nodes: Sequence[int]) -> _Block | None:
    """The recurrence that a module runs; None where it keeps no state."""
    conv = next(i for i in nodes if _depthwise(layer_of(flow.nodes[i])))
    states = [i for i in nodes if i > conv and _keeps_state(flow.nodes[i])]
    if not states:
        return None
    inside = set(nodes)
    outside = (
        i
        for i in range(states[-1] + 1, len(flow.nodes))
        if i not in inside and any(j in inside for j in flow.nodes[i].sources)
    )
    end = next(outside, len(flow.nodes))
    own = [i for i in nodes if i < end and not _runs_apart(flow, flow.nodes[i])]
    layer = _layer(flow, flow.nodes[conv], flow.nodes[states[-1]], own)
    return None if layer is None else _Block(path, own, conv, layer)


def _keeps_state(node: Node) -> bool:
    """Whether a node writes a state of three axes or four to where it is kept."""
    call = node.call
    if not isinstance(call, LayerCall) or call.operator != "aten.copy_" or len(call.inputs) != 2:
        return False
    return call.inputs[0] == call.inputs[1] and len(call.inputs[0]) in (3, 4) and node.final


def _runs_apart(flow: Dataflow, node: Node) -> bool:
    """Whether a node is a product with weights, or an exchange with other ranks."""
    layer = layer_of(node)
    if isinstance(layer, Collective):
        return True
    return isinstance(layer, Linear) or (isinstance(layer, Matmul) and any(weights_read(flow, node)))


def _layer(flow: Dataflow, conv: Node, state: Node, nodes: Sequence[int]) -> Layer | None:
    """The kernel, by the shapes of the convolution and of the state; None where they do not agree."""
    convolved = layer_of(conv)
    assert isinstance(convolved, Conv1d) and isinstance(state.call, LayerCall)  # as they were found
    about, channels = flow.trace.about, convolved.in_channels
    batch, heads, *sizes = state.call.inputs[0]
    step = about.phase == DECODE
    common: dict[str, Any] = {
        "dtype": convolved.dtype,
        "batch": batch,
        "length": about.tokens,
        "conv": convolved.sizes("kernel")[0],
        "chunk": 0 if step else CHUNK,
    }
    if len(sizes) == 1:  # the product that makes B and C stands behind the convolution, which stays a call
        common["conv"] = 0
        made: Layer = Scan(function=MAMBA, heads=heads, head_size=1, state_size=sizes[0], **common)
        return made if heads == channels else None
    weights = {
        access.storage
        for i in nodes
        if flow.nodes[i] is not conv
        for _, access in weights_read(flow, flow.nodes[i])
    }
    first, second = sizes
    if len(weights) >= SKIPPED:
        groups, rest = divmod(channels - heads * first, 2 * second)
        common["chunk"] = 0 if step else _chunk(flow, nodes)
        shape: dict[str, Any] = {"heads": heads, "head_size": first, "state_size": second, "groups": groups}
        made = Scan(function=MAMBA2, **shape, **common)
        return made if groups > 0 and not rest and heads % groups == 0 else None
    groups, rest = divmod(channels - heads * second, 2 * first)
    function = GATED_DELTA if len(weights) >= OWN_DECAYS else KIMI_DELTA
    shape = {"key_heads": groups, "value_heads": heads, "key_size": first, "value_size": second}
    made = LinearAttention(function=function, **shape, **common)
    return made if groups > 0 and not rest and heads % groups == 0 else None


def _chunk(flow: Dataflow, nodes: Sequence[int]) -> int:
    """Tokens of a chunk: the side of its causal mask."""
    for i in nodes:
        call = flow.nodes[i].call
        if isinstance(call, LayerCall) and call.operator == "aten.tril" and call.outputs:
            return call.outputs[0][-1]
    return MAMBA_CHUNK


def _replace(flow: Dataflow, block: _Block, edit: Edit) -> None:
    """Put the kernel in the place of the last call that it stands for; first, maybe, the convolution."""
    nodes = set(block.nodes)
    if isinstance(block.layer, Scan) and block.layer.function == MAMBA:
        before = _convolution(flow, block, edit)
        nodes -= before
    edit.gone |= nodes
    name = str(getattr(block.layer, "function", ""))
    edit.add(flow.nodes[max(nodes)], block.path, block.layer, border(flow, nodes), (name,))


def _convolution(flow: Dataflow, block: _Block, edit: Edit) -> set[int]:
    """The convolution, its state and the activation behind it as one call; the nodes that it stands for."""
    last = block.conv
    readers = [i for i in flow.nodes[last].readers if i in block.nodes]
    if len(readers) == 1:
        last = readers[0]
    made = [i for i in block.nodes if i <= last and any(c.inputs for c in _calls(flow.nodes[i]))]
    held = {i for i in made if i == last or i == block.conv or _of_its_state(flow, i, block.conv)}
    layer = layer_of(flow.nodes[block.conv])
    assert layer is not None  # as it was found
    edit.gone |= held
    kept = border(flow, held)
    edit.add(flow.nodes[last], block.path, layer, Flow(kept.reads, kept.writes), ("convolution",))
    return held


def _calls(node: Node) -> list[LayerCall]:
    return [call for call in node.calls if isinstance(call, LayerCall)]


def _of_its_state(flow: Dataflow, i: int, conv: int) -> bool:
    """Whether a node makes what is convolved, or keeps the last tokens for the next pass."""
    node = flow.nodes[i]
    call = node.call
    if not isinstance(call, LayerCall) or i > conv:
        return False
    return call.operator in ("aten.cat", "aten.copy_") and any(len(shape) == 3 for shape in call.inputs)
