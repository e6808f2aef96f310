"""Trace passes: their order, what they do to a trace, and that one file is enough to add one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from neuralpower.errors import InputError
from neuralpower.layers.attention import Attention
from neuralpower.layers.rows import to_row
from neuralpower.networks.running import META
from neuralpower.platforms import platform_named
from neuralpower.trace.passes import ORDER, PASSES, applied, in_order, passes_in, trace_pass
from neuralpower.trace.question import Question
from neuralpower.trace.recipe import Recipe, default_loss
from neuralpower.trace.records import Trace
from neuralpower.trace.tracer import trace

RECIPE = Recipe("adam", "loop")


def traced(training: bool) -> Trace:
    """Three blocks of a linear layer and an activation."""
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3))).to(META)
    loss = default_loss if training else None
    return trace(blocks, (torch.empty(4, 8, device=META),), training=training, loss=loss)


def steps(found: Trace) -> list[str]:
    return [task.step for task in found.tasks]


def test_each_file_has_passes_that_are_found_and_say_their_places_and_what_they_do() -> None:
    folder = Path(sys.modules["neuralpower.trace.passes"].__path__[0])
    files = {file.stem for file in folder.glob("*.py")} - {"__init__", "base"}
    assert {one.change.__module__.rpartition(".")[2] for one in PASSES} == files
    assert len({one.name for one in PASSES}) == len(PASSES)
    for one in PASSES:
        assert one.place in ORDER
        assert one.summary.endswith(".")


def test_passes_run_by_their_places_whatever_the_order_in_which_they_are_found() -> None:
    names = ["checkpointing", "forward", "backward", "accumulation", "optimizer", "tensorfloat32"]
    found = in_order(reversed(PASSES))
    assert [one.name for one in found if one.name in names] == names
    places = [list(ORDER).index(one.place) for one in found]
    assert places == sorted(places)


def test_a_forward_pass_takes_the_first_alone_and_a_backward_pass_no_forward_tasks() -> None:
    forward = applied(traced(False), Question())
    assert forward.passes == ("forward",)
    assert [task.layer for task in forward.tasks] == list(forward.layers)
    backward = applied(traced(True), Question("backward"))
    assert backward.passes == ("backward",)
    assert set(steps(backward)) == {"backward"}


@pytest.mark.parametrize(
    ("recipe", "names"),
    [
        (RECIPE, ("forward", "backward", "optimizer")),
        (Recipe("adam", "loop", 3), ("forward", "backward", "accumulation", "optimizer")),
        (Recipe("adam", "loop", 1, True), ("checkpointing", "forward", "backward", "optimizer")),
        (
            Recipe("adam", "loop", 2, True),
            ("checkpointing", "forward", "backward", "accumulation", "optimizer"),
        ),
    ],
    ids=str,
)
def test_a_step_takes_the_passes_that_its_recipe_asks_for(recipe: Recipe, names: tuple[str, ...]) -> None:
    found = applied(traced(True), Question("training", recipe=recipe))
    assert found.passes == names
    blocks = [step for i, step in enumerate(steps(found)) if not i or step != steps(found)[i - 1]]
    assert blocks == ["forward", "backward"] * recipe.accumulation + ["optimizer"]
    assert any(task.again for task in found.tasks) == recipe.checkpointing


@pytest.mark.parametrize(("dtype", "scaled"), [(torch.float16, True), (torch.bfloat16, False)], ids=str)
@pytest.mark.parametrize("batches", [1, 3])
def test_masters_add_gradients_as_they_are_made_and_float16_scales_them_back(
    dtype: torch.dtype, scaled: bool, batches: int
) -> None:
    net = nn.Linear(8, 4).to(META, dtype)
    found = trace(net, (torch.empty(2, 8, device=META, dtype=dtype),), training=True, loss=default_loss)
    recipe = Recipe("adam", "loop", batches, masters=True)
    work = applied(found, Question("training", recipe=recipe))
    numbers = 8 * 4 + 4
    added = [task.layer for task in work.tasks if task.layer.kind == "fused"]
    # 4 bytes in and out instead of 2 out
    assert [layer.bytes()[::2] for layer in added] == [(4 * numbers, 2 * numbers)] * batches
    in_place = [(t.step, to_row(t.layer)["elements"]) for t in work.tasks if to_row(t.layer).get("inplace")]
    assert in_place == [("optimizer", numbers)] * scaled  # nothing else is added to gradients
    assert ("loss_scaling" in work.passes) == scaled


@pytest.mark.parametrize(
    ("platform", "run", "library"),
    [
        ("nvidia", "eager", "torch"),
        ("nvidia", "compile", "torch"),
        ("nvidia", "engine", ""),
        ("cpu", "eager", ""),
    ],
)
def test_attention_is_torchs_on_an_accelerator_but_for_engines(platform: str, run: str, library: str) -> None:
    encoder = nn.TransformerEncoderLayer(8, 2, batch_first=True).to(META)
    found = trace(encoder, (torch.empty(4, 6, 8, device=META),), training=True, loss=default_loss)
    phase = "forward" if run == "engine" else "training"
    question = Question(phase, recipe=RECIPE, platform=platform_named(platform), run=run)
    tasks = [one.layer for one in applied(found, question).tasks if isinstance(one.layer, Attention)]
    assert len(tasks) == (1 if run == "engine" else 2)  # forward and backward
    assert {one.library for one in tasks} == {library}


def test_products_compute_in_tensorfloat32_where_that_is_asked_for() -> None:
    found = applied(traced(False), Question(dtype="tensorfloat32"))
    assert found.passes == ("forward", "tensorfloat32")
    assert {(task.layer.kind, task.layer.dtype) for task in found.tasks} == {
        ("linear", "tensorfloat32"),
        ("activation", "float32"),
    }
    assert {layer.dtype for layer in found.layers} == {"float32"}  # the calls stay as they were recorded


def test_a_pass_gives_a_trace_of_its_own_and_leaves_the_other_as_it_was() -> None:
    before = traced(True)
    calls, unmodelled = before.calls, before.unmodelled
    after = applied(before, Question("training", recipe=Recipe("adam", "loop", 2, True)))
    assert (before.calls, before.unmodelled, before.tasks, before.passes) == (calls, unmodelled, (), ())
    assert after.calls != calls and [call.layer for call in after.calls] == [call.layer for call in calls]


def test_what_is_not_trained_is_refused() -> None:
    found = trace(nn.ReLU(), (torch.empty(4, 8, device=META),), training=True)
    with pytest.raises(InputError, match="no parameter of the model requires a gradient"):
        applied(found, Question("training", recipe=RECIPE))


def test_one_file_is_enough_to_add_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "more_passes"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "twice.py").write_text(
        "from dataclasses import replace\n"
        "from neuralpower.trace.passes.base import trace_pass\n\n\n"
        "@trace_pass(place='calls', applies=lambda trace, question: question.phase == 'forward')\n"
        "def twice(trace, question):\n"
        '    """Call everything twice."""\n'
        "    return replace(trace, calls=trace.calls * 2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (twice,) = passes_in("more_passes", [str(folder)])
    assert (twice.name, twice.place, twice.summary) == ("twice", "calls", "Call everything twice.")
    found = traced(False)
    more = applied(found, Question(), in_order((*PASSES, twice)))
    assert more.passes == ("twice", "forward")  # before the tasks are made
    assert len(more.tasks) == 2 * len(found.calls)


def test_a_place_that_is_not_in_the_order_is_refused_with_those_that_are() -> None:
    with pytest.raises(
        ValueError, match="place 'late' of a trace pass: choose one of weights, calls, blocks"
    ):
        trace_pass(place="late", applies=lambda found, question: True)
