"""Candidates in bulk: what each would be alone, broken lines told, all others ranked."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuralpower.errors import InputError
from neuralpower.layers import KINDS
from neuralpower.layers.rows import to_row
from neuralpower.learn.files import predictor_lookup
from neuralpower.learn.fitting.intervals import scores_of
from neuralpower.learn.fitting.problem import Term
from neuralpower.learn.keys import whole_kind
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.regressor import Regressor, Spread
from neuralpower.measure.collect.plan import draw
from neuralpower.prediction.case import predict_request
from neuralpower.prediction.compose import compose
from neuralpower.prediction.explore.score import score
from neuralpower.prediction.request import Request
from neuralpower.trace.records import LayerCall, Trace
from tests.program import done, run

MODEL = "transformers:llama"
ROW = {"kind": "linear", "rows": 8, "in_features": 16, "out_features": 32, "bias": True}
RECURRENT = {
    **dict.fromkeys(("batch", "steps", "input_size", "hidden_size", "num_layers"), 4),
    **{"kind": "recurrent", "function": "lstm", "bidirectional": False},
}
CONVOLUTION = {
    **{"kind": "conv1d", "batch": 1, "in_channels": 4, "in_length": 8, "out_channels": 4, "kernel_length": 3},
    **{"stride_length": 1, "padding_length": 0, "dilation_length": 1, "groups": 1, "bias": True},
}


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return predictor_lookup.load("amd-epyc-2c")


def candidates(count: int) -> list[dict[str, Any]]:
    """Llamas of changed widths, depths and heads."""
    choose, found = random.Random(0), []
    for _ in range(count):
        heads, size = choose.choice((2, 4, 6, 8)), choose.choice((8, 16, 32))
        changes = {
            "hidden_size": heads * size,
            "num_attention_heads": heads,
            "num_key_value_heads": choose.choice([k for k in (1, 2) if heads % k == 0]),
            "intermediate_size": choose.choice((48, 64, 100, 333)),
            "num_hidden_layers": choose.randint(1, 12),
            "vocab_size": choose.choice((50, 100)),
        }
        found.append(
            {"model": MODEL, "changes": changes, "seq_len": choose.choice((8, 16, 24)), "batch_size": 2}
        )
    return found


@pytest.mark.slow
def test_changed_configurations_are_what_each_is_alone(predictor: Predictor) -> None:
    many = candidates(100)
    found = score(many, predictor)
    assert not any(s.error for s in found)
    assert {s.basis for s in found} == {"formula"}
    one_block = [
        s.basis == "formula" and m["changes"]["num_hidden_layers"] == 1
        for s, m in zip(found, many, strict=True)
    ]
    for i in (0, 17, 60, 99, one_block.index(True)):
        query = "&".join(f"{name}={value}" for name, value in many[i]["changes"].items())
        alone, traced = predict_request(Request(f"{MODEL}?{query}", 2, many[i]["seq_len"]), predictor)
        assert found[i].runtime_s == pytest.approx(alone.runtime_s.value, rel=1e-9)
        assert (found[i].low_s, found[i].high_s) == pytest.approx(
            (alone.runtime_s.low, alone.runtime_s.high), rel=1e-9
        )
        assert found[i].parameters == traced.parameters
        assert alone.memory is not None
        # the peak of one block may lie elsewhere than two blocks say
        assert found[i].memory_bytes == (None if one_block[i] else alone.memory.needed_bytes)
    ranked = sorted(found, key=lambda s: s.rank or 0)
    assert [s.runtime_s for s in ranked] == sorted(s.runtime_s or 0 for s in found)


def test_a_list_of_layers_is_the_sum_of_its_layers(predictor: Predictor) -> None:
    anywhere = replace(predictor, resident=0.0)  # no matter how much of the cache they fill
    one, three = score(
        [{"layers": [ROW]}, {"name": "thrice", "layers": [{**ROW, "count": 2}, ROW]}], anywhere
    )
    assert one.runtime_s is not None
    assert three.runtime_s == pytest.approx(3 * one.runtime_s)
    assert (one.rank, three.rank, three.name) == (1, 2, "thrice")
    assert one.parameters == 16 * 32 + 32
    # one regressor, one layer: its error is in all three alike
    assert three.high_s == pytest.approx(3 * (one.high_s or 0))


def drawing(watts: float) -> Regressor:
    """A power that is always the same, give or take a tenth."""
    spread = Spread([], [-0.1], [0.1], 0.5, 0.05, 0.05)
    scores = scores_of(np.array([watts]), np.array([watts]))
    return Regressor((Term(),), np.array([watts]), 0, 0.0, {}, None, 0.0, spread, scores)


@pytest.mark.slow
def test_energies_are_those_of_single_predictions(predictor: Predictor) -> None:
    power = {whole_kind(kind): drawing(20.0 + 5 * place) for place, kind in enumerate(KINDS)}
    metered, many = replace(predictor, power=power), candidates(20)
    found = score(many, metered, by="energy")
    for i in (0, 11, len(many) - 1):
        query = "&".join(f"{name}={value}" for name, value in many[i]["changes"].items())
        alone, _ = predict_request(Request(f"{MODEL}?{query}", 2, many[i]["seq_len"]), metered)
        assert alone.energy_j is not None
        assert found[i].runtime_s == pytest.approx(alone.runtime_s.value, rel=1e-9)
        assert found[i].energy_j == pytest.approx(alone.energy_j.value, rel=1e-9)


def test_lists_are_what_each_of_them_is_alone(predictor: Predictor) -> None:
    draws = [list(draw(KINDS[kind], 6, 3)) for kind in ("conv2d", "linear", "activation", "norm", "softmax")]
    pool, choose = [layer for some in draws for layer in some], random.Random(1)
    networks = [choose.choices(pool, k=choose.randint(1, 40)) for _ in range(30)]
    found = score(
        [{"layers": [{"kind": layer.kind, **to_row(layer)} for layer in network]} for network in networks],
        predictor,
    )
    for network, said in zip(networks, found, strict=True):
        calls = tuple(LayerCall("", layer) for layer in network)
        alone = compose(Trace(calls), predictor, model="", batch_size=1)
        assert said.runtime_s == pytest.approx(alone.runtime_s.value, rel=1e-9)
        assert (said.low_s, said.high_s) == pytest.approx(
            (alone.runtime_s.low, alone.runtime_s.high), rel=1e-9
        )
        assert said.parameters == sum(layer.parameters() for layer in network)


BROKEN = [
    ("{", "is not JSON"),
    ("[1]", "is [1], but must be an object"),
    ("{}", "has neither a model nor layers"),
    ('{"model": "transformers:llama", "changes": [1]}', "changes is [1], but must be an object"),
    (
        '{"model": "transformers:llama", "changes": {"hidden": 8}, "seq_len": 8}',
        "unknown field of LlamaConfig",
    ),
    ('{"model": "zoo:alexnot"}', "unknown zoo network 'alexnot'"),
    ('{"model": "zoo:alexnet", "batch_size": 0}', "batch_size is 0, but must be a whole number, 1 or more"),
    ('{"model": "zoo:alexnet", "dtype": "float8"}', "was not trained on dtype 'float8'"),
    ('{"layers": []}', "layers must be a list of one object or more"),
    ('{"layers": [3]}', "a layer is 3, but must be an object with a kind"),
    ('{"layers": [{"kind": []}]}', "kind of a layer is [], but must be a number, a text, true or false"),
    ("[" * 100_000, "is not JSON"),
    (json.dumps({"layers": [{**ROW, "rows": 10**400}]}), "must be a number"),
    ('{"layers": [{"kind": "linar"}]}', "unknown layer kind 'linar': did you mean linear"),
    ('{"layers": [{"kind": "linear", "rows": 8}]}', "no value for 'in_features'"),
    (json.dumps({"layers": [{**ROW, "row": 1}]}), "unknown field of linear 'row'"),
    (json.dumps({"layers": [{**ROW, "count": 0}]}), "count is 0, but must be a whole number, 1 or more"),
    (json.dumps({"layers": [{**ROW, "count": 10**400}]}), "must be a whole number, 1 or more"),
    (
        '{"model": "transformers:bert", "changes": {"num_hidden_layers": Infinity}}',
        "is inf, but must be a number up to 9007199254740992",
    ),
    (json.dumps({"model": "zoo:alexnet", "batch_size": 10**30}), "must be a whole number, 1 or more"),
    (json.dumps({"layers": [{**RECURRENT, "num_layers": 0}]}), "recurrent: its output is empty"),
    (json.dumps({"layers": [{**RECURRENT, "hidden_size": 0}]}), "recurrent: its output is empty"),
    (
        json.dumps({"layers": [{**CONVOLUTION, "groups": 0}]}),
        "conv1d: its fields contradict each other; groups must",
    ),
    (
        json.dumps({"layers": [{**CONVOLUTION, "groups": 5}]}),
        "conv1d: its fields contradict each other; groups must",
    ),
    (
        json.dumps({"layers": [{**CONVOLUTION, "stride_length": 0}]}),
        "conv1d: its fields contradict each other",
    ),
    (json.dumps({"layers": [{**ROW, "rows": 2**60}]}), "must be a whole number from 0 to 9007199254740992"),
    (json.dumps({"layers": [{**ROW, "bias": 7}]}), "linear: bias is 7, but must be true or false"),
    (
        json.dumps({"layers": [{"kind": "activation", "function": "GELU", "elements": 8}]}),
        "'GELU': did you mean gelu",
    ),
    (
        json.dumps(
            {
                "layers": [
                    {"kind": "elementwise", "function": "nope", "elements": 8, "operands": 1, "broadcast": 0}
                ]
            }
        ),
        "unknown function of elementwise 'nope'",
    ),
    (json.dumps({"layers": [ROW, {**ROW, "dtype": "float16"}]}), "was not trained on dtype 'float16'"),
    (json.dumps({"layers": [{**ROW, "dtype": "foo"}]}), "unknown dtype of linear 'foo'"),
    (
        json.dumps({"layers": [{**ROW, "phase": "foo"}]}),
        "unknown phase of linear 'foo': known: backward, forward",
    ),
    (json.dumps({"layers": [ROW], "batch_size": 2}), "unknown field of a list of layers 'batch_size'"),
    (
        '{"model": "zoo:alexnet", "batchsize": 2}',
        "unknown field of a model 'batchsize': did you mean batch_size",
    ),
    (
        '{"model": "zoo:alexnet", "input_shape": [3, 0]}',
        "input_shape is [3, 0], but must be a list of whole numbers",
    ),
    (
        '{"model": "zoo:alexnet", "input_shape": 224}',
        "input_shape is 224, but must be a list of whole numbers",
    ),
    (
        '{"model": "transformers:llama", "changes": {"num_hidden_layers": 1.5}, "seq_len": 8}',
        "expected int, got float",
    ),
]


@pytest.mark.parametrize("value", [{2}, np.ones(2), ([2],), bytearray(2)])
def test_what_is_no_value_of_a_field_is_named_where_python_gives_it(value: Any, predictor: Predictor) -> None:
    wrong, right = score([{"layers": [{**ROW, "rows": value}]}, {"layers": [ROW]}], predictor)
    assert wrong.error.startswith(f"rows of a layer is {value!r:.40}, but must be a number")
    assert right.error == ""


def test_a_dtype_may_be_written_as_torch_prints_it(predictor: Predictor) -> None:
    plain, printed = score(
        [{"layers": [{**ROW, "dtype": dtype}]} for dtype in ("float32", "torch.float32")], predictor
    )
    assert plain.runtime_s
    assert (printed.runtime_s, printed.error) == (plain.runtime_s, "")


def test_a_count_is_judged_by_itself_whatever_was_read_before(predictor: Predictor) -> None:
    found = score([{"layers": [{**ROW, "count": count}]} for count in (True, 1, True, 1.0)], predictor)
    assert [one.error.partition(",")[0] for one in found] == [
        "count is True",
        "",
        "count is True",
        "count is 1.0",
    ]


@pytest.mark.parametrize(("line", "message"), BROKEN)
def test_a_broken_line_is_told_and_the_rest_is_scored(line: str, message: str, predictor: Predictor) -> None:
    bad, good = score([line, json.dumps({"layers": [ROW]})], predictor)
    assert message in bad.error
    assert (bad.rank, bad.runtime_s, bad.basis) == (None, None, None)
    assert (good.rank, good.basis, good.error) == (1, "layers", "")


def test_a_fraction_of_a_block_is_told_beside_whole_ones(predictor: Predictor) -> None:
    size = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    bad, *good = score(
        [{"model": MODEL, "changes": {**size, "num_hidden_layers": n}, "seq_len": 8} for n in (3.5, 2, 3, 5)],
        predictor,
    )
    assert "expected int, got float" in bad.error
    assert [(one.error, one.basis) for one in good] == [("", "formula")] * 3


def test_a_depth_that_is_no_number_is_the_candidates_own_error(predictor: Predictor) -> None:
    depths = ("deep", None, [2], 2)
    *bad, good = score(
        [{"model": "transformers:bert", "changes": {"num_hidden_layers": n}, "seq_len": 8} for n in depths],
        predictor,
    )
    assert ["expected int" in one.error for one in bad] == [True] * 3
    assert not good.error


def test_a_model_takes_the_shape_of_one_sample(predictor: Predictor) -> None:
    (found,) = score([{"model": "zoo:squeezenet", "input_shape": [3, 64, 64]}], predictor)
    alone, _ = predict_request(Request("zoo:squeezenet", 1, input_shape=(3, 64, 64)), predictor)
    assert found.runtime_s == pytest.approx(alone.runtime_s.value, rel=1e-9)


@pytest.mark.slow
def test_a_candidate_whose_numbers_do_not_divide_is_its_own_error(predictor: Predictor) -> None:
    many = candidates(12)
    many[7]["changes"] |= {"num_attention_heads": 3, "hidden_size": 64, "num_key_value_heads": 2}
    found = score(many, predictor)
    alone = found[7].error or found[7].basis or ""
    assert alone == "traced" or "heads" in alone or "size" in alone or "shape" in alone
    assert sum(bool(s.error) for s in found) <= 1


def test_by_memory_and_unknown_orders(predictor: Predictor) -> None:
    small, large = ({"model": "zoo:deep_mnist", "batch_size": b} for b in (1, 64))
    assert [s.rank for s in score([large, small], predictor, by="memory")] == [2, 1]
    assert [s.rank for s in score([{"layers": [ROW]}], predictor, by="energy")] == [None]
    with pytest.raises(InputError, match="unknown score 'size'"):
        score([small], predictor, by="size")
    with pytest.raises(InputError, match="no candidate: give one JSON object a line"):
        score(["", "  "], predictor)


def test_the_command_warns_of_broken_lines_and_scores_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    file.write_text('{"layers": 3}\n\n' + json.dumps({"name": "good", "layers": [ROW]}) + "\n")
    ran = run("score", file, "--predictor", "amd-epyc-2c")
    assert ran.code == 0
    assert f"Warning: {file} line 1: layers must be a list" in ran.err
    assert ran.out.startswith("2 candidates, forward, by latency, on AMD EPYC (amd-epyc-2c)\n")
    assert "good" in ran.out
    told = [
        json.loads(line) for line in done("score", file, "--predictor", "amd-epyc-2c", "--json").splitlines()
    ]
    assert [(one["schema"], one["line"]) for one in told] == [(1, 1), (1, 3)]


def test_where_nothing_can_be_scored_the_command_ends_with_2(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    for text, more, message in (
        (None, (), "cannot be read"),
        ("{}\n", (), "none of 1 candidates could be scored"),
        (json.dumps({"layers": [ROW]}), ("--by", "energy"), "energy is not known of any candidate"),
    ):
        if text:
            file.write_text(text)
        ran = run("score", file, "--predictor", "amd-epyc-2c", *more)
        assert ran.code == 2
        assert message in ran.err
