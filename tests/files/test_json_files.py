"""One reader for JSON that strangers wrote, and one writer that holds no NaN."""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuralpower.errors import InputError, PredictorError
from neuralpower.files import atomic as files
from neuralpower.files.json_files import Declared, json_text, named, nullable, parse_json, read_json
from neuralpower.layers import KINDS, columns_of
from neuralpower.layers.base import Draw
from neuralpower.learn.files.file_struct import packed, unpacked, width
from neuralpower.learn.files.predictor_lookup import load
from neuralpower.learn.fitting.trees import right_children, starts


@pytest.mark.parametrize(
    "value",
    [
        5,
        "a",
        None,
        [],
        {},
        {"a": {"b": [1, {"c": 2.5}]}},
        {'a": ': '": "'},
        [[{"a": 1}], {"a": 1}],
        "\U0001f600",
        2**70,
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (" , ", " : ")], ids=["tight", "spaced"])
def test_what_is_json_is_read(value: Any, separators: tuple[str, str]) -> None:
    assert parse_json(json.dumps(value, separators=separators)) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        ('{"a":1,"a":2}', '"a" is twice in an object'),
        ('[{"b":{"a":1, "a" :2}}]', '"a" is twice in an object'),
        ('{"a":"\\":","a":1}', '"a" is twice in an object'),
        ("[NaN]", "NaN stands for a number"),
        ('{"a":[1,-Infinity]}', "-Infinity stands for a number"),
        ('{"a":[1,1e999]}', r"a\[1\] is a number that is too large"),
        ("9" * 400, "it is a number that is too large"),
        ("9" * 5000, "Exceeds the limit"),
        ("[" * 100_000, "nested too deep"),
        ('["\\ud800"]', "half a letter"),
        ("\ufeff{}", "BOM"),
        ("1 2", "Extra data"),
    ],
)
def test_what_is_no_json_is_said(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_json(text)


def test_an_integer_beyond_all_floats_is_seen_wherever_it_stands() -> None:
    for start in range(300):
        with pytest.raises(ValueError, match="too large"):
            parse_json(" " * start + "2" + "0" * 308)  # 2e308, of 309 digits; the largest float is 1.8e308
    assert parse_json("1" + "0" * 308) == 10**308


def test_a_file_whose_end_may_never_come_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "empty").touch()
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(5 * 2**30)
    places = [(tmp_path, "a folder"), (tmp_path / "pipe", "a pipe"), (Path("/dev/zero"), "a device")]
    places += [
        (tmp_path / "empty", "is empty"),
        (tmp_path / "sparse", "5,368,709,120 bytes, more than the 67,108,864"),
    ]
    for place, said in places:
        with pytest.raises(ValueError, match=said):
            read_json(place)
        with pytest.raises(PredictorError, match=said):
            load(place)
    for place in (tmp_path / "loop", tmp_path / "missing"):
        with pytest.raises(OSError, match="symbolic links|No such file"):
            read_json(place)
        with pytest.raises(PredictorError, match="symbolic links|unknown predictor"):
            load(place)


def test_text_in_another_encoding_is_said(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_bytes('{"a": "é"}'.encode("latin-1"))
    with pytest.raises(ValueError, match="byte 7 is not UTF-8"):
        read_json(file)
    file.write_text('{"a": 1}', encoding="utf-8-sig")
    assert read_json(file, mark=True) == {"a": 1}


def test_what_has_no_number_is_not_written() -> None:
    assert json_text({"a": [1, 2.5]}, compact=True) == '{"a":[1,2.5]}'
    for number in (math.nan, math.inf, -math.inf):
        with pytest.raises(InputError, match=rf"layers\[1\]\.runtime_s is {number}: the sizes, or"):
            json_text({"layers": [{"runtime_s": 1.0}, {"runtime_s": number}]})
    assert nullable({"a": (1.0, math.nan, "x"), "b": math.inf}) == {"a": [1.0, None, "x"], "b": None}


def test_no_other_module_writes_json_that_may_hold_nan() -> None:
    """`json.dumps` elsewhere makes keys, requests and names of what never was a measurement."""
    package = Path(files.__file__).parents[1]
    found = {
        str(file.relative_to(package)): file.read_text(encoding="utf-8").count("json.dumps(")
        for file in package.rglob("*.py")
        if "json.dumps(" in file.read_text(encoding="utf-8")
    }
    del found["files/json_files.py"]
    allowed = (
        "data/schema.py",
        "files/cache.py",
        "measure/collect/process.py",
        "measure/collect/plan.py",
        "measure/collect/resume.py",
        "measure/collect/schedule.py",
        "prediction/explore/space.py",
    )
    assert found.keys() <= set(allowed)


@pytest.mark.parametrize(
    ("feature", "roots"),
    [
        ([-1], [0]),
        ([-1, 0, -1, -1], [0, 1]),
        ([0, 1, -1, -1, -1], [0]),
        ([-1, -1], [0, 1]),
        ([0, -1], None),  # its right child is missing
        ([-1, 0, -1], None),
        ([], None),
    ],
)
def test_trees_are_whole_where_each_inner_node_has_two_children(
    feature: list[int], roots: list[int] | None
) -> None:
    found = starts(np.array(feature, dtype=int) >= 0)
    assert (found is None and roots is None) or np.array_equal(found, roots)


def test_right_children_follow_from_the_order() -> None:
    # 0 ( 1 ( 2, 3 ), 4 ( 5, 6 ) ) and after it 7 ( 8, 9 )
    feature = np.array([0, 0, -1, -1, 0, -1, -1, 0, -1, -1])
    assert right_children(feature).tolist() == [4, 3, -1, -1, 6, -1, -1, 9, -1, -1]
    assert right_children(np.zeros(0, dtype=int)).tolist() == []


@pytest.mark.parametrize(("bits", "count"), [(1, 0), (1, 9), (3, 8), (11, 5), (16, 4), (32, 3)])
def test_packed_numbers_are_read_as_they_were(bits: int, count: int) -> None:
    numbers = np.random.default_rng(0).integers(0, 2**bits, count)
    text = packed(numbers, bits)
    assert np.array_equal(unpacked(text, bits, count), numbers)
    with pytest.raises(
        ValueError, match=f"holds {-(-count * bits // 8)} bytes, but must hold {count + 8} numbers"
    ):
        unpacked(text, bits, count + 8)


def test_a_number_takes_as_many_bits_as_the_highest() -> None:
    assert [width(highest) for highest in (-1, 0, 1, 2, 255, 256, 2**32 - 1)] == [1, 1, 1, 2, 8, 9, 32]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_group_of_a_kind_is_one_of_its_names(kind: Any) -> None:
    draw = Draw(0)
    layers = [kind.sample(draw) for _ in range(200)]
    made = kind.samples.get("training")
    layers += [made(kind, draw) for _ in range(50)] if made else []
    columns = columns_of(kind, layers)
    for view in (kind.views.cpu, kind.views.kernels, kind.views.pooled):
        assert {str(name) for name in np.ravel(view.group(columns))} <= set(kind.group_names)


# ---- objects by their attributes ----


@dataclass(frozen=True)
class Span(Declared):
    in_json = "schema low high"

    low: int
    high: int


@dataclass(frozen=True)
class Place:
    name: str
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Result:
    span: Span
    place: Place | None
    reason: str = ""
    parts: tuple[Span, ...] = ()


def test_a_result_is_written_by_the_names_of_its_attributes() -> None:
    result = Result(Span(1, 2), Place("here", (3, 4)), "why", (Span(5, 6),))
    assert named(result, "of=place.name span reason? place parts") == {
        "of": "here",
        "span": {"schema": 1, "low": 1, "high": 2},
        "reason": "why",
        "place": {"name": "here", "sizes": [3, 4]},
        "parts": [{"schema": 1, "low": 5, "high": 6}],
    }
    assert list(named(result, "reason span of=place.name")) == ["reason", "span", "of"]


def test_what_is_not_there_is_null_and_another_name_is_an_error() -> None:
    nothing = Result(Span(1, 2), None)
    assert named(nothing, "of=place.name place reason reason_or_null=reason?") == {
        "of": None,
        "place": None,
        "reason": "",
        "reason_or_null": None,
    }
    with pytest.raises(AttributeError, match="sizes"):
        named(nothing, "span.sizes")
