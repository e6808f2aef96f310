"""Exchanges between devices, as layers of a question's layout."""

from __future__ import annotations

from neuralpower.devices.cluster import DATA, EXPERT, PIPELINE, USUAL_PER_NODE, nodes_of
from neuralpower.layers.collective import Collective
from neuralpower.platforms import CPU
from neuralpower.trace.question import Question


def per_node(question: Question) -> int:
    """Devices of one node: those of the cluster, else as many as is usual."""
    return USUAL_PER_NODE if question.cluster is None else question.cluster.per_node


def library_of(question: Question) -> str:
    """Who moves data between replicas and stages: an engine's own kernels serve tensor ranks alone."""
    return "gloo" if question.platform.family == CPU.family else "nccl"


def exchanged(
    question: Question, function: str, dtype: str, elements: int, *, experts: bool = False
) -> Collective:
    """An exchange of replicas, which hold the same weights: of all weights, or of experts' alone.

    Args:
        question: its layout and its cluster say how many ranks there are, and how far apart.
        function: one of `layers.collective.FUNCTIONS`.
        dtype: of the numbers.
        elements: of the whole buffer, as `Collective` counts them.
        experts: whether the numbers belong to parameters that expert ranks share out.
    """
    layout = question.layout
    ranks, stride = layout.data, layout.stride(DATA)
    if experts and layout.expert > 1:
        ranks, stride = layout.expert_replicas, layout.stride(EXPERT) * layout.expert
    return Collective(
        dtype=dtype,
        function=function,
        elements=elements,
        ranks=ranks,
        nodes=nodes_of(ranks, stride, per_node(question)),
        library=library_of(question),
    )


def sent(question: Question, stage: int, dtype: str, elements: int) -> Collective:
    """What a pipeline stage, by its number from 0, sends to the next one; the last sends to the first."""
    stride = question.layout.stride(PIPELINE)
    ends = [place * stride // per_node(question) for place in (stage, (stage + 1) % question.layout.pipeline)]
    return Collective(
        dtype=dtype,
        function="send_recv",
        elements=elements,
        ranks=2,
        nodes=len(set(ends)),
        library=library_of(question),
    )


def exchanged_by_ends(question: Question, dtype: str, elements: int) -> Collective:
    """The sum of the gradients that the first and the last stage have of a weight of both."""
    layout = question.layout
    away = layout.stride(PIPELINE) * (layout.pipeline - 1)
    return Collective(
        dtype=dtype,
        function="all_reduce",
        elements=elements,
        ranks=2,
        nodes=nodes_of(2, away, per_node(question)),
        library=library_of(question),
    )
