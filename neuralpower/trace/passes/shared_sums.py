"""One sum over tensor ranks for a mixture, as engines make it.

A mixture adds what its shared expert makes to what the chosen ones make. Both are parts on a rank, so that
one exchange of their sum is enough. vLLM makes its shared experts with `reduce_results=False` and sums once
(vllm/model_executor/models/deepseek_v2.py, qwen2_moe.py). So does SGLang (sglang/srt/models/deepseek_v2.py,
`forward_normal` and `forward_normal_dual_stream`; llama4.py), unless a later exchange sums for it: that of
the next norm, or a reduce-scatter. With DeepEP each of its ranks holds the shared experts whole.
"""

from __future__ import annotations

from collections.abc import Iterator

from neuralpower.layers.collective import Collective
from neuralpower.layers.experts import Experts
from neuralpower.trace.dataflow import Dataflow, Edit, Node
from neuralpower.trace.parts.serving import served
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import Question
from neuralpower.trace.records import LayerCall, Trace


@trace_pass(place="blocks", applies=lambda trace, asked: served(trace, asked) and bool(_mixtures(trace)))
def shared_sums(trace: Trace, question: Question) -> Trace:
    """Sum what the experts of a mixture make over tensor ranks in one exchange, not in two."""
    edit = Edit(Dataflow(trace))
    for path in _mixtures(trace):
        for i in [*_sums(edit.flow, path)][:-1]:
            edit.skip(i)
    return edit.made() if edit.gone else trace


def _mixtures(trace: Trace) -> set[str]:
    """Paths of the modules that hold experts."""
    return {call.path.rpartition(".")[0] for call in trace.calls if isinstance(call.layer, Experts)} - {""}


def _sums(flow: Dataflow, path: str) -> Iterator[int]:
    """Exchanges of a mixture that sum a whole tensor of outputs, in order."""
    for i, node in enumerate(flow.nodes):
        if _sum_of(node, path):
            yield i


def _sum_of(node: Node, path: str) -> bool:
    call = node.call
    if not isinstance(call, LayerCall) or not isinstance(call.layer, Collective):
        return False
    inside = call.path == path or call.path.startswith(f"{path}.")
    return (
        inside and call.layer.function == "all_reduce" and len(node.flow.reads) == len(node.flow.writes) == 1
    )
