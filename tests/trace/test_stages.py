"""A trace cut into pipeline stages, and the exchanges of replicas."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from neuralpower.devices.cluster import Layout
from neuralpower.errors import InputError
from neuralpower.layers.collective import Collective
from neuralpower.trace.parts.stages import blocks_of, cut, shares_of
from neuralpower.trace.passes import applied
from neuralpower.trace.passes.checkpointing import scores
from neuralpower.trace.question import Question
from neuralpower.trace.recipe import Recipe, default_loss
from neuralpower.trace.records import Task, Trace
from neuralpower.trace.tracer import trace

WIDTH, BLOCKS, ROWS = 16, 6, 8


class Block(nn.Module):
    """Two products, a residual sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.down(torch.relu(self.up(x)))
        return found


class Net(nn.Module):
    """An embedding, blocks and a head."""

    def __init__(self, blocks: int = BLOCKS) -> None:
        super().__init__()
        self.words = nn.Embedding(50, WIDTH)
        self.blocks = nn.ModuleList([Block(WIDTH) for _ in range(blocks)])
        self.head = nn.Linear(WIDTH, 50)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.head(x)
        return found


@cache
def recorded(training: bool = True) -> Trace:
    with torch.device("meta"):
        net, ids = Net(), torch.zeros(ROWS, dtype=torch.int64)
    return trace(net, (ids,), training=training, loss=default_loss if training else None)


def step(layout: Layout, accumulation: int = 1) -> tuple[Task, ...]:
    recipe = Recipe("adamw", "fused", accumulation)
    return applied(recorded(), Question("training", recipe=recipe, layout=layout)).tasks


def exchanges(tasks: tuple[Task, ...], function: str = "") -> list[Collective]:
    layers = [task.layer for task in tasks if isinstance(task.layer, Collective)]
    return [layer for layer in layers if not function or layer.function == function]


def test_blocks_are_the_outermost_numbered_modules() -> None:
    assert blocks_of(recorded()) == [f"blocks.{i}" for i in range(BLOCKS)]


@pytest.mark.parametrize(
    ("blocks", "parts", "shares"), [(6, 3, [2, 2, 2]), (7, 3, [2, 3, 2]), (6, 4, [1, 2, 2, 1])]
)
def test_uneven_shares_lie_in_the_middle(blocks: int, parts: int, shares: list[int]) -> None:
    assert shares_of(blocks, parts) == shares


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("stages", [2, 4, 6])
def test_the_stages_of_a_network_are_the_whole_of_it(training: bool, stages: int) -> None:
    whole, phase = recorded(training), "training" if training else "forward"
    parts = cut(whole, Layout(pipeline=stages))
    assert [block for part in parts for block in part.blocks] == blocks_of(whole)
    assert sum((part.trace.calls for part in parts), ()) == whole.calls
    assert sum(part.trace.parameters for part in parts) == whole.parameters
    assert sum(part.trace.parameter_bytes for part in parts) == whole.parameter_bytes
    assert sum((part.trace.trained_names for part in parts), ()) == whole.trained_names
    held = [sum(one.bytes for one in some.storages) for some in (*(part.trace for part in parts), whole)]
    assert sum(held[:-1]) == held[-1]
    question = Question(phase, recipe=Recipe("adamw", "fused"))
    tasks = [task for part in parts for task in applied(part.trace, question).tasks]
    alone = [task for task in applied(whole, question).tasks if task.layer.kind != "optimizer"]
    assert Counter(t.layer for t in tasks if t.layer.kind != "optimizer") == Counter(t.layer for t in alone)


def test_a_stage_sends_the_hidden_state_alone() -> None:
    parts = cut(recorded(False), Layout(pipeline=3))
    assert [part.output for part in parts] == [("float32", ROWS * WIDTH)] * 2 + [("", 0)]


def test_more_stages_than_blocks_are_refused() -> None:
    with pytest.raises(InputError, match="pipeline 7: the network has 6 repeated blocks.*choose 6 stages"):
        cut(recorded(), Layout(pipeline=7))
    with pytest.raises(InputError, match="choose 3 stages"):
        cut(recorded(), Layout(pipeline=4, schedule="interleaved", interleave=2))


def test_buckets_of_gradients_hold_each_of_them_once() -> None:
    tasks = step(Layout(data=4))
    summed = exchanges(tasks, "all_reduce")
    assert sum(layer.elements for layer in summed) == recorded().parameters
    assert {(layer.ranks, layer.nodes, layer.library) for layer in summed} == {(4, 1, "gloo")}
    assert {task.stream for task in tasks if task.layer in summed} == {"data"}
    (update,) = (task for task in tasks if task.step == "optimizer")
    assert update.waits == ("data",)


def test_micro_batches_but_the_last_exchange_no_gradients() -> None:
    assert exchanges(step(Layout(data=4), 3)) == exchanges(step(Layout(data=4)))
    gathered = [len(exchanges(step(Layout(data=4, shard="zero3"), n), "all_gather")) for n in (1, 3)]
    assert gathered[1] == 3 * gathered[0]


@pytest.mark.parametrize("shard", ["zero1", "zero2", "zero3"])
def test_shared_states_are_stepped_in_parts(shard: str) -> None:
    tasks, numbers = step(Layout(data=4, shard=shard)), recorded().parameters
    assert sum(layer.elements for layer in exchanges(tasks, "reduce_scatter")) == numbers
    (update,) = (task.layer for task in tasks if task.layer.kind == "optimizer")
    assert getattr(update, "elements", 0) == -(-numbers // 4)
    gathered = sum(layer.elements for layer in exchanges(tasks, "all_gather"))
    block = 2 * 4 * WIDTH * WIDTH + 5 * WIDTH
    # zero3: all of them forward, all blocks but the last backward; else all after the step
    assert gathered == (numbers + (BLOCKS - 1) * block if shard == "zero3" else numbers)


def test_weights_are_gathered_one_block_ahead() -> None:
    tasks = step(Layout(data=4, shard="zero3"))
    names = [task.event if task.stream else task.path for task in tasks if task.step == "forward"]
    assert names.index("forward weights of blocks.3") < names.index("blocks.2.up")
    assert names.index("forward weights of blocks.3") > names.index("blocks.1.down")
    copies = {task.waits[0] for task in tasks if task.step == "forward" and task.waits}
    assert copies == {task.event for task in tasks if task.step == "forward" and task.stream}


def test_checkpointed_blocks_run_again_right_before_their_backward_pass() -> None:
    recipe = Recipe("adamw", "fused", checkpointing=True)
    tasks = applied(recorded(), Question("training", recipe=recipe)).tasks
    backward = [(task.path, task.again) for task in tasks if task.step == "backward" and "up" in task.path]
    assert backward[:4] == [
        ("blocks.5.up", True),
        ("blocks.5.up", False),
        ("blocks.4.up", True),
        ("blocks.4.up", False),
    ]


class Scores(nn.Module):
    """One block with attention written out."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, 3 * WIDTH)])

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.blocks[0](x).chunk(3, -1)
        return (q @ k.mT).softmax(-1) @ v


def test_selective_runs_the_scores_of_attention_again() -> None:
    with torch.device("meta"):
        found = trace(Scores(), (torch.empty(2, 4, WIDTH),), training=True, loss=default_loss)
    (core,) = scores(found.calls)
    assert [call.layer.kind for call in core] == ["matmul", "softmax", "matmul"]
    with pytest.raises(InputError, match="choose checkpointing"):
        Recipe(selective=True)
