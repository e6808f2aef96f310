"""Sequence ranks and ranks of guidance: what they exchange while a picture is denoised.

Ulysses    queries, keys and values of all tokens for a part of the heads: four exchanges of all to all
ring       keys and values of the other ranks, one part after the other, while the part before is attended to;
           results of two parts are merged by their sums of exponentials, in float32
linear     attention exchanges the same: each part of the keys gives a state, and results are added (xDiT)
windows    of a convolution get the rows of both neighbours, which it then runs over, besides
guidance   each rank makes one of the two predictions, and gets the other
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from neuralpower.devices.cluster import GUIDANCE, RING, ULYSSES, nodes_of
from neuralpower.errors import InputError
from neuralpower.layers import Layer
from neuralpower.layers.attention import Attention
from neuralpower.layers.base import FORWARD
from neuralpower.layers.collective import Collective
from neuralpower.layers.convolution import Conv2d
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.matmul import Matmul
from neuralpower.layers.movement import Movement
from neuralpower.networks.diffusion.pictures import CONTROLNET, Picture
from neuralpower.trace.parts.exchanges import library_of, per_node
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import Question
from neuralpower.trace.records import Task, Trace

MERGED = 3  # kernels over all results of two parts that are merged: a difference, a product, a difference
SUMS = 5  # kernels over their sums of exponentials


def _shared(trace: Trace, question: Question) -> bool:
    picture = trace.picture
    if picture is None or question.phase != FORWARD:
        return False
    return picture.layout.sequences > 1 or picture.layout.guidance > 1


@trace_pass(place="micro-batches", applies=_shared)
def sequence_ranks(trace: Trace, question: Question) -> Trace:
    """Add the exchanges of ranks that share a picture's tokens, or the passes of a guided step.

    Raises:
        InputError: Ulysses ranks that do not divide the heads.
    """
    assert trace.picture is not None  # it applies to pictures alone
    ranks = _Ranks(trace.picture, question)
    tasks: list[Task] = []
    last = {task.path.partition(".")[0]: i for i, task in enumerate(trace.tasks)}
    steps = (*ranks.picture.denoisers, CONTROLNET)
    for i, task in enumerate(trace.tasks):
        part = task.path.partition(".")[0]
        tasks += ranks.of(task) if part in steps else (task,)
        if part in ranks.picture.denoisers and last[part] == i:
            tasks += ranks.ends(task, part)
    return replace(trace, tasks=tuple(tasks))


@dataclass(frozen=True)
class _Ranks:
    """The exchanges of one rank."""

    picture: Picture
    question: Question

    def of(self, task: Task) -> Iterator[Task]:
        """A task of the denoiser, with its exchanges."""
        layer = task.layer
        if self.picture.layout.sequences == 1:
            yield task
        elif isinstance(layer, Attention) and layer.query_length == layer.key_length:
            yield from self._attention(task, layer)
        elif isinstance(layer, Matmul) and layer.inner == self.picture.tokens:
            yield from self._linear_attention(task, layer)
        elif isinstance(layer, Conv2d) and layer.kernel_height > layer.stride_height:
            yield task
            yield from self._window(task, layer)
        else:
            yield task

    def ends(self, task: Task, part: str) -> Iterator[Task]:
        """What follows a pass of the denoiser: its result comes together."""
        latents, layout = self.picture.latents, self.picture.layout
        dtype = self.question.dtype
        end = Task(part, task.layer, share=task.share, at=task.at)
        if layout.sequences > 1:
            yield replace(end, layer=self._exchange("all_gather", dtype, latents))
        if layout.guidance > 1:
            yield replace(end, layer=self._exchange("all_gather", dtype, 2 * latents, GUIDANCE))

    def _attention(self, task: Task, layer: Attention) -> Iterator[Task]:
        layout = self.picture.layout
        if layer.query_heads % layout.ulysses or layer.key_heads % layout.ulysses:
            heads = layer.key_heads
            divisors = ", ".join(str(size) for size in range(1, heads + 1) if heads % size == 0)
            raise InputError(
                f"--ulysses-degree {layout.ulysses}: attention has {heads} heads, which these ranks do not "
                f"divide; choose one of {divisors}, and --ring-degree for more ranks"
            )
        whole = max(layer.query_length - self.picture.tokens, 0)  # of the text, which each rank has
        own = layer.query_length - whole
        part = replace(
            layer,
            query_heads=layer.query_heads // layout.ulysses,
            key_heads=layer.key_heads // layout.ulysses,
            query_length=own * layout.ulysses + whole,
            key_length=own * layout.ulysses + whole,
        )
        queries = layer.batch * own * layer.head_size * layer.query_heads
        keys = layer.batch * own * layer.head_size * layer.key_heads
        if layout.ulysses > 1:
            for numbers in (queries, keys, keys):
                yield from self._turned(task, layer.dtype, numbers)
        yield from self._ring(task, part, whole) if layout.ring > 1 else (replace(task, layer=part),)
        if layout.ulysses > 1:
            yield from self._turned(task, layer.dtype, queries)

    def _linear_attention(self, task: Task, state: Matmul) -> Iterator[Task]:
        """The state of a rank's keys [head size, head size], then those of the others' keys."""
        layout, dtype = self.picture.layout, self.question.dtype
        size, more = sorted((state.rows, state.columns))  # one more: the sum of the weights
        numbers = state.batch * state.inner * size
        if layout.ulysses > 1:
            for _ in range(4):
                yield from self._turned(task, dtype, numbers)
        yield task
        keys, product = _cast("float32", numbers), replace(state, rows=more, inner=size, columns=state.inner)
        added = _pointwise("add", state.batch * state.inner * more)
        for number in range(1, layout.ring):
            event = f"{RING} {task.at} {number}"
            yield replace(
                task, layer=self._exchange("send_recv", dtype, 2 * numbers, RING), stream=RING, event=event
            )
            yield replace(task, layer=keys, waits=(event,))
            yield from (replace(task, layer=layer) for layer in (keys, state, product, added))

    def _window(self, task: Task, layer: Conv2d) -> Iterator[Task]:
        """What a convolution whose windows reach into the parts of two neighbours runs for each of them."""
        rows = layer.kernel_height // 2
        sent = layer.batch * layer.in_channels * layer.in_width * rows
        sizes: dict[str, Any] = {"in_height": rows, "padding_height": layer.kernel_height - 1, "bias": False}
        edge = replace(layer, **sizes)
        made = layer.batch * layer.out_channels * layer.in_width * rows
        for _ in range(2):
            yield replace(task, layer=Movement(dtype=layer.dtype, function="copy", elements=sent))
            yield replace(task, layer=self._exchange("send_recv", layer.dtype, sent))
            yield replace(task, layer=edge)
            yield replace(task, layer=_pointwise("add", made, layer.dtype))

    def _turned(self, task: Task, dtype: str, numbers: int) -> Iterator[Task]:
        """Tokens for heads, or back: what goes to each rank is put together before, and apart afterwards."""
        copy = replace(task, layer=Movement(dtype=dtype, function="copy", elements=numbers))
        yield copy
        yield replace(task, layer=self._exchange("all_to_all", dtype, numbers, ULYSSES))
        yield copy

    def _ring(self, task: Task, layer: Attention, whole: int) -> Iterator[Task]:
        """Attention to the keys of one rank after the other; the next ones come meanwhile."""
        ranks, dtype = self.picture.layout.ring, layer.dtype
        sent = 2 * layer.batch * layer.key_heads * (layer.key_length - whole) * layer.head_size
        made = layer.batch * layer.query_heads * layer.query_length
        for number in range(ranks):
            ends = number == ranks - 1
            if not ends:
                send = self._exchange("send_recv", dtype, sent, RING)
                yield replace(task, layer=send, stream=RING, event=f"{RING} {task.at} {number}")
            waits = (f"{RING} {task.at} {number - 1}",) if number else ()
            keys = layer.key_length if ends else layer.key_length - whole
            yield replace(task, layer=replace(layer, key_length=keys), waits=waits)
            yield replace(task, layer=_cast("float32", made * layer.head_size))
            if number:
                for function in ("sub", "mul", "sub")[:MERGED]:
                    yield replace(task, layer=_pointwise(function, made * layer.head_size))
                yield from (replace(task, layer=_pointwise("sigmoid", made)) for _ in range(SUMS))
        yield replace(task, layer=_cast(dtype, made * layer.head_size))

    def _exchange(self, function: str, dtype: str, elements: int, group: str = "") -> Collective:
        """An exchange of a group, or of all ranks that share the tokens."""
        layout = self.picture.layout
        size = layout.size(group) if group else layout.sequences
        stride = layout.stride(group or ULYSSES)
        ranks = 2 if function == "send_recv" else size
        return Collective(
            dtype=dtype,
            function=function,
            elements=elements,
            ranks=ranks,
            nodes=min(nodes_of(size, stride, per_node(self.question)), ranks),
            library=library_of(self.question),
        )


def _cast(dtype: str, numbers: int) -> Layer:
    return Movement(dtype=dtype, function="copy", elements=numbers)


def _pointwise(function: str, numbers: int, dtype: str = "float32") -> Layer:
    return Elementwise(dtype=dtype, function=function, elements=numbers, operands=2, broadcast=False)
