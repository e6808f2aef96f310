"""The table of options: what commands, Python and docstrings have of it, and that they mean the same."""

from __future__ import annotations

import copy
import inspect
import random
from typing import Any

import pytest

import neuralpower
from neuralpower import cli
from neuralpower.api.loaded import LoadedPredictor
from neuralpower.ask import options, output, words
from neuralpower.ask.keywords import keywords
from neuralpower.ask.options import Option, options_of
from neuralpower.errors import InputError
from neuralpower.prediction.case import predict_request
from neuralpower.prediction.memory.engines import ENGINES
from neuralpower.prediction.memory.engines import OPTIONS as ENGINE_OPTIONS
from neuralpower.prediction.request import Request, request_of
from neuralpower.trace.operators.memory_formats import FORMATS

ASKING = {  # command -> (its table, that of the function)
    "predict": (output.Predict, options.Predicting),
    "compare": (output.Compare, options.Comparing),
    "rank": (output.Rank, options.Standings),
    "fit": (output.Fit, options.Fitting),
    "gate": (output.Gate, options.Gating),
    "sweep": (output.Sweep, options.Sweeping),
    "parallel": (output.Parallel, options.Laying),
    "evaluate": (output.Evaluate, options.Evaluating),
    "traffic": (output.Traffic, options.Serving),
    "plan": (output.Plan, options.Planning),
}
NET = "zoo:deep_mnist"
LLAMA = "transformers:llama?num_hidden_layers=1&hidden_size=64&num_attention_heads=4&intermediate_size=64"
# groups of options that go together, as Python has them
CHOSEN: list[dict[str, Any]] = [
    {"batch_size": 3},
    {"seq_len": 16},
    {"dtype": "bfloat16"},
    {"run": "eager"},
    {"routing": "worst"},
    {"margin": 0.25},
    {"weights": "int8"},
    {"phase": "training", "optimizer": "momentum", "accumulation": 2},
    {"phase": "training", "checkpointing": True, "lora": "4"},
    {"phase": "training", "optimizer": "mine", "optimizer_states": "2:bfloat16"},
    {"phase": "decode", "context": 32},
    {"phase": "generate", "prompt": 8, "new_tokens": 4},
    {"phase": "prefill", "lengths": "4,8"},
    {"phase": "step", "contexts": "4,8", "chunks": "16@0,8@4"},
    {"devices": "4xh100-sxm", "tensor_parallel": 2, "pipeline_parallel": 2, "require_plan": True},
    {"devices": "4xh100-sxm", "nodes": 2, "data_parallel": 8, "zero": "1", "phase": "training"},
    {"devices": "2xh100-sxm", "data_parallel": 2, "fsdp": True, "phase": "training"},
    {"input_shape": "1x28x28"},
    {"memory_format": "channels_last"},
]


def flags(given: dict[str, Any]) -> list[str]:
    named = {name: f"--{name.replace('_', '-')}" for name in given}
    return [f"{named[n]}={value}" if value is not True else named[n] for n, value in given.items()]


def parsed(command: str, *arguments: str) -> dict[str, Any]:
    """The options that a command takes from its arguments."""
    alone = copy.copy(cli.command_of(command))  # click keeps the names of --help of its first context
    found: dict[str, Any] = alone.make_context(command, [*arguments]).params
    return found


@pytest.mark.parametrize("command", ASKING)
def test_what_a_command_has_python_has_and_the_other_way_round(command: str) -> None:
    table, python = ASKING[command]
    known = options_of(python, command)
    taken = {p.name for p in cli.command_of(command).params}
    assert {name for name, one in known.items() if one.flags != "-"} <= taken
    apart = {name for name, one in options_of(table, command).items() if one.panel != words.OUTPUT}
    own = set(inspect.signature(getattr(neuralpower, command)).parameters)
    assert apart - {*known} - own <= {"device_spec", "measured", "device", "trust_code", "memory"}


@pytest.mark.parametrize("function", ["predict", "sweep", "fit", "parallel", "evaluate", "traffic", "plan"])
def test_a_docstring_lists_every_keyword(function: str) -> None:
    text = inspect.getdoc(getattr(neuralpower, function)) or ""
    for name, one in options_of(ASKING[function][1], function).items():
        assert f"`{name}`: {one.help}" in text
    assert "{options}" not in text + (inspect.getdoc(LoadedPredictor.predict) or "")


@pytest.mark.parametrize("seed", range(6))
def test_a_command_asks_what_the_same_keywords_ask(seed: int) -> None:
    draw = random.Random(seed)
    agreed = 0
    for _ in range(25):
        given: dict[str, Any] = {}
        for some in draw.sample(CHOSEN, draw.randint(1, 4)):
            given |= some
        python, command = given, parsed("predict", LLAMA, *flags(given))
        made = []
        for said in (keywords("option", python, options.Predicting), command):
            try:
                made.append(request_of(LLAMA, said, dtype=said.get("dtype") or "float32"))
            except InputError as error:
                made.append(str(error))
        assert made[0] == made[1], given
        agreed += isinstance(made[0], Request)
    assert agreed > 3


def test_grouped_values_of_python_say_the_same_as_their_options() -> None:
    training = request_of(LLAMA, {"phase": "training", "optimizer": "lion:loop", "accumulation": 3})
    recipe = neuralpower.Recipe("lion", "loop", 3)
    assert request_of(LLAMA, {"phase": "training", "recipe": recipe}) == training
    spread = {"devices": "4xh100-sxm", "tensor_parallel": 4, "phase": "decode", "context": 8}
    layout, phase = neuralpower.Layout(tensor=4), neuralpower.Phase.decode(context=8)
    assert request_of(LLAMA, {"devices": "4xh100-sxm", "layout": layout, "phase": phase}) == request_of(
        LLAMA, spread
    )
    with pytest.raises(InputError, match="recipe and accumulation both say how the network is trained"):
        request_of(LLAMA, {"phase": "training", "recipe": recipe, "accumulation": 2})


def test_the_margin_of_a_prediction_is_kept_free() -> None:
    predictor = neuralpower.load("nvidia-t4").predictor
    usual, _ = predict_request(Request(NET), predictor)
    kept, _ = predict_request(Request(NET, margin=0.97), predictor)
    assert not any("memory" in text for text in usual.warned)
    assert any("may run out of memory" in text and "97% to keep free" in text for text in kept.warned)


def test_a_grid_may_be_a_text_or_a_list() -> None:
    grid: Any = {"device": "t4", "batch_size": "1:4", "dtype": "float32"}
    texts = neuralpower.sweep(NET, **grid)
    assert texts.points == neuralpower.sweep(NET, **{**grid, "batch_size": (1, 2, 4)}).points
    with pytest.warns(FutureWarning, match="batch_sizes is now batch_size; the old name goes in 0.3"):
        assert neuralpower.sweep(NET, device="t4", **{"batch_sizes": (1, 2, 4)}).points == texts.points


def test_the_engines_options_are_those_of_the_table() -> None:
    assert {*options_of(options.Engine)} == {"engine", "concurrency", *ENGINE_OPTIONS}
    assert options_of(options.Engine)["engine"].words == (*ENGINES,)
    assert {str(one).removeprefix("torch.") for one in FORMATS.values()} >= {*words.MEMORY_FORMATS}


def test_every_entry_says_what_it_is() -> None:
    tables = [one for pair in ASKING.values() for one in pair]
    for table in tables:
        for name, one in options_of(table).items():
            assert isinstance(one, Option) and (one.help or one.hidden), name
            assert not one.what or one.words, name
