"""Columns from other columns: what an expression may hold, and what names are taken for."""

import pandas as pd
import pytest

from neuralpower.data.columns import Meant, mapped, mapping, meant_by, quantity_of
from neuralpower.errors import InputError

TABLE = pd.DataFrame({"ms": [1.0, 2.0, None], "batch": [2, 3, None], "seq len": [8, 9, None], "kind": "a"})
TABLE.loc[2, "kind"] = None


@pytest.mark.parametrize(
    ("expression", "values"),
    [
        ("ms/1000", [0.001, 0.002]),
        ("ms", [1, 2]),
        ("batch * 'seq len'", [16, 27]),
        ("-(batch + 1) / 2 - ms", [-2.5, -4]),
        ("+1e3*ms", [1000, 2000]),
        ("7", [7, 7]),
    ],
)
def test_an_expression_is_computed_row_by_row(expression: str, values: list[float]) -> None:
    found = mapped(TABLE, {"new": expression})
    assert found["new"][:2].tolist() == pytest.approx(values)
    assert found.loc[2].isna().all()  # a blank line stays one


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "ms.values",
        "ms[0]",
        "ms**9",
        "ms if batch else 1",
        "[ms]",
        "lambda: 1",
        "ms; batch",
        "ms and batch",
        "~batch",
        "1j",
        "None",
        "ms <",
        "(" * 400,
        "9" * 501,
        "1e999*ms",
        "1/0",
    ],
)
def test_anything_else_is_refused_in_one_line(expression: str) -> None:
    with pytest.raises(InputError, match="--map") as refused:
        mapped(TABLE, {"new": expression})
    assert "\n" not in str(refused.value)


def test_a_column_that_is_not_there_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown column 'bacth': did you mean batch"):
        mapped(TABLE, {"new": "bacth*2"})


def test_a_word_is_written_into_a_column_of_words() -> None:
    found = mapped(TABLE, {"dtype": "bfloat16", "function": "kind"}, words=("dtype", "function"))
    assert found["dtype"][:2].tolist() == ["bfloat16"] * 2
    assert found["function"][:2].tolist() == ["a"] * 2
    with pytest.raises(InputError, match="unknown column 'bfloat16'"):
        mapped(TABLE, {"rows": "bfloat16"})


def test_a_text_in_a_sum_is_no_number() -> None:
    assert mapped(TABLE, {"new": "kind*2"})["new"].isna().all()


def test_a_mapping_names_a_column_once() -> None:
    assert mapping(["a = b/2", "c=d"]) == {"a": "b/2", "c": "d"}
    for wrong in (["runtime_s"], ["=3"], ["a="], [""]):
        with pytest.raises(InputError, match="must be COLUMN=EXPRESSION"):
            mapping(wrong)
    with pytest.raises(InputError, match="a is mapped twice"):
        mapping(["a=b", "a=c"])


@pytest.mark.parametrize(
    ("name", "mapping"),
    [
        ("latency_ms", "runtime_s=latency_ms/1000"),
        ("time_us", "runtime_s=time_us/1e6"),
        ("gpu_time_ns", "runtime_s=gpu_time_ns/1e9"),
        ("Duration", "runtime_s=Duration"),
        ("avg latency [s]", """'runtime_s="avg latency [s]"'"""),
        ("power_mw", "power_w=power_mw/1000"),
        ("energy_wh", "'energy_j=energy_wh*3600'"),
    ],
)
def test_a_quantity_is_known_by_its_name_and_unit(name: str, mapping: str) -> None:
    found = quantity_of(name)
    assert found is not None
    assert found.mapping == mapping


@pytest.mark.parametrize(
    "name", ["rows", "time_steps", "timestamp", "power_source", "latency_fortnights", ""]
)
def test_other_names_are_no_quantity(name: str) -> None:
    assert quantity_of(name) is None


def test_names_of_others_stand_for_fields_that_are_missing() -> None:
    given = ["M", "in_feature", "N", "latency_ms", "time_us", "colour"]
    assert list(meant_by(given, ["rows", "in_features", "out_features", "runtime_s"])) == [
        Meant("M", "rows", "M"),
        Meant("in_feature", "in_features", "in_feature"),
        Meant("N", "out_features", "N"),
        Meant("latency_ms", "runtime_s", "latency_ms/1000"),  # the second time stands for nothing more
    ]
    assert list(meant_by(given, ["width"])) == []
