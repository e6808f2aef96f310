"""Files of strangers, broken in every way: the answer holds finite numbers, or one line says what is wrong.

Warnings are errors, and what is no `SystemExit` goes through `run`: neither can be missed.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuralpower.data.dataset import Dataset, read_dataset
from neuralpower.data.screening import screen
from neuralpower.errors import DatasetError, PredictorError
from neuralpower.files.json_files import not_finite
from neuralpower.layers import KINDS, Hardware, columns_of
from neuralpower.layers.linear import Linear
from neuralpower.learn.files.predictor_json import from_json, to_json
from neuralpower.learn.files.predictor_lookup import load
from neuralpower.learn.fitting.problem import describe
from neuralpower.learn.fitting.trees import Trees, right_children
from neuralpower.learn.rows import hardware_from
from neuralpower.learn.train import train
from tests.program import Ran, run

bounded = settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
NETWORK = "zoo:deep_mnist"  # three products and their activations
# What a field may hold instead: other types, signs, sizes and spellings.
INSTEAD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        0.5,
        -0.5,
        2,
        64,
        1e-9,
        1e9,
        -1e30,
        1e30,
        1e300,
        5e-324,
        2**53,
        2**70,
        10**400,
    ),
    *(
        "",
        " ",
        "x",
        "linear",
        "float32",
        "forward",
        "-1",
        "NaN",
        "1e999",
        "\u0661\u0662",
        "a\nb",
        "\0",
        "\ud800",
    ),
    *([], {}, [[]], [1, 2], ["x"], [None], {"a": 1}, {"": {}}),
)
LITERALS = (
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e999",
    b"-1e999",
    b"9" * 400,
    b'"\\ud800"',
    b"[" * 3000,
    b"01",
    b"",
)


# ---- the judge ----


def judged(ran: Ran, answers: bool = True) -> None:
    """Hold an outcome to the contract: finite numbers if it `answers` in JSON, or one line with code 2."""
    if ran.code == 0:
        found = json.loads(ran.out) if answers else None
        assert [*not_finite(found)] == []
        assert "Traceback" not in ran.err
        return
    assert ran.code == 2, ran.err
    assert ran.out == ""
    assert len(ran.err.splitlines()) == 1, ran.err
    assert ran.err.startswith("error: ")


# ---- mutations ----


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every node of plain values but the whole, as the steps that lead there."""
    steps = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for step in steps:
        yield (*at, step)
        yield from places(value[step], (*at, step))


def at(value: Any, place: tuple[Any, ...]) -> Any:
    for step in place:
        value = value[step]
    return value


def retyped(value: Any) -> Any:
    """The same said in another type: "5" for 5, [5], {"5": 5}, 5.0 for 5."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, int):
        return float(value)
    return [value] if isinstance(value, (float, dict)) else {"0": value}


@st.composite
def mutated(draw: st.DrawFn, document: Any) -> Any:
    """A document of which one node or two are replaced, deleted, repeated, swapped, retyped or scaled."""
    changed = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 2))):
        nodes = [*places(changed)]
        place, other = draw(st.sampled_from(nodes)), draw(st.sampled_from(nodes))
        parent, value = at(changed, place[:-1]), at(changed, place)
        how = draw(
            st.sampled_from(
                ["replace", "replace", "replace", "delete", "repeat", "copy", "retype", "scale", "name"]
            )
        )
        if how == "replace":
            parent[place[-1]] = draw(st.sampled_from(INSTEAD))
        elif how == "delete":
            del parent[place[-1]]
        elif how == "repeat" and isinstance(parent, list):
            parent.append(copy.deepcopy(value))
        elif how == "copy":
            parent[place[-1]] = copy.deepcopy(at(changed, other))
        elif how == "retype":
            parent[place[-1]] = retyped(value)
        elif how == "scale" and isinstance(value, (int, float)) and not isinstance(value, bool):
            parent[place[-1]] = value * draw(st.sampled_from([-1, 0, 1e-40, 1e12, 1e40]))
        elif isinstance(parent, dict):
            parent[draw(st.sampled_from(["x", "", "weight", "special", "kind"]))] = value
        if not [*places(changed)]:
            break
    return changed


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes cut off, flipped, moved, or with an inserted literal that is not JSON."""
    start = draw(st.integers(0, len(data) - 1))
    stop = min(start + draw(st.integers(1, 40)), len(data))
    how = draw(
        st.sampled_from(["cut", "drop", "flip", "zero", "twice", "literal", "literal", "mark", "utf16"])
    )
    return {
        "cut": lambda: data[:start],
        "drop": lambda: data[:start] + data[stop:],
        "flip": lambda: (
            data[:start] + bytes([data[start] ^ (1 << draw(st.integers(0, 7)))]) + data[start + 1 :]
        ),
        "zero": lambda: data[:start] + bytes(stop - start) + data[stop:],
        "twice": lambda: data[:stop] + data[start:],
        "literal": lambda: with_literal(data, start, draw(st.sampled_from(LITERALS))),
        "mark": lambda: b"\xef\xbb\xbf" + data,
        "utf16": lambda: data.decode("utf-8", "replace").encode("utf-16"),
    }[how]()


def with_literal(data: bytes, start: int, literal: bytes) -> bytes:
    """The literal in place of the first value after `start`."""
    colon = data.find(b":", start)
    end = min((e for e in (data.find(mark, colon) for mark in (b",", b"}")) if e > 0), default=len(data))
    return data[: colon + 1] + literal + data[end:]


def text_of(value: Any) -> bytes:
    return json.dumps(value).encode()


# ---- predictors ----


def table(rows: int = 16) -> pd.DataFrame:
    """Products that take 5 us, and a second for 100 GFLOP."""
    generator = np.random.default_rng(0)
    sizes = generator.integers(20, 4000, (3, rows))
    runtime_s = 5e-6 + 2.0 * sizes.prod(axis=0) / 1e11
    names = ("rows", "in_features", "out_features")
    return pd.DataFrame({**dict(zip(names, sizes, strict=True)), "bias": True, "runtime_s": runtime_s})


@pytest.fixture(scope="module")
def predictor() -> dict[str, Any]:
    """A small predictor with all that a file can hold: trees, power, launch overhead, the networks' speed."""
    measured = table().assign(power_w=50.0, sentinel_s=1e-3)
    meta = {"schema": 1, "device": "x", "hardware": {"cores": 2, "limit_w": 100, "flags": ["avx2"]}}
    trained = train(Dataset(Path("x"), meta, {"linear": measured}), learner="lasso", jobs=1).predictor
    layer = Linear(rows=8, in_features=8, out_features=8, bias=True)
    names = (*describe(columns_of(KINDS["linear"], [layer]), Hardware()).feature_names, "log2_base")
    feature, number = np.array([-1, 0, -1, 1, -1, -1]), np.array([0.01, 6.0, 0.1, 5.0, -0.1, 0.2])
    trees = Trees(names, np.array([0, 1]), feature, right_children(feature), number)
    (key, regressor), *others = trained.regressors.items()
    regressors = {key: dataclasses.replace(regressor, trees=trees, reach=1.0), **dict(others)}
    data: dict[str, Any] = json.loads(
        json.dumps(to_json(dataclasses.replace(trained, regressors=regressors)))
    )
    cost = {"kind": "linear", "phase": "forward", "function": "", "call_s": 1e-6, "launch_s": 0.0, "rows": 9}
    data["dispatch"] = {"other_s": 1e-6, "deviation": 0.1, "factor": 1.0, "costs": [cost], "walk_s": 0.0}
    data["network_speed"] = {
        "sentinel_s": 1e-3,
        "exponent": 0.5,
        "again_s": 1e-3,
        "slowest": 1.2,
    }
    return data


def predict(file: Path) -> Ran:
    return run("predict", NETWORK, "--predictor", file, "--json")


def test_the_small_predictor_predicts(predictor: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_bytes(text_of(predictor))
    ran = predict(file)
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["runtime_s"]["value"] > 1e-6


def test_what_was_read_is_written_the_same(predictor: dict[str, Any]) -> None:
    assert json.loads(text_of(to_json(from_json(predictor)))) == predictor


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("terms 0 weight", None, "terms[0].weight is null, but must be a number"),
        ("terms 0 weight", -1.0, "terms[0].weight is -1.0, but must be a number >= 0"),
        ("terms 0 powers", {"rows": 4}, "a value of terms[0].powers must be a whole number <= 3"),
        ("terms 0", {"weight": 1.0}, "terms[0] must have powers or special, one of them"),
        ("factor", 0, "factor is 0, but must be a number >= 1e-30"),
        ("short", -2.0, "short is -2.0, but must be more than -factor"),
        ("degree", 7, "degree is 7, but must be a whole number <= 3"),
        ("alpha", 2, "alpha is 2, but must be a number <= 1"),
        ("phase", "sideways", "unknown phase 'sideways'"),
        ("dtype", "float23", "unknown dtype 'float23'"),
        ("group", "matrices", "unknown group of linear 'matrices'"),
        ("target", "joules", 'target is "joules", but must be one that this version knows'),
        ("box_log2 rows", [5, 4], "box_log2.rows is [5.0, 4.0], but must be low and high"),
        ("spread low 0", 0.5, "spread.low is 0.5, but must be at most 0"),
        ("spread edges", [1.0], "spread has 1 edges, 1 low and 1 high bounds"),
        ("measured count", -1, "measured.count is -1, but must be a whole number >= 0"),
        ("measured count", 2**40, "measured.count is 1099511627776, but must be a whole number <= 16777216"),
        ("measured bits", 33, "measured.bits is 33, but must be a whole number <= 32"),
        ("measured steps", "abc", "measured.steps must be base 64"),
        ("measured steps", "AAA=", "measured.steps holds 2 bytes, but must hold 16 numbers of"),
        (
            "measured",
            {"count": 2, "bits": 32, "steps": "//////////8="},
            "measured.steps add up to 8589934590, but must",
        ),
        ("residual nodes", 0, "residual.nodes is 0, but must be a whole number >= 1"),
        ("residual nodes", 9, "residual.splits holds 1 bytes, but must hold 9 numbers of 1 bits each"),
        ("residual nodes", 5, "residual.splits must be those of whole trees"),
        ("residual splits", "UA=", "residual.splits must be base 64"),
        ("residual splits", "fA==", "residual.splits must be those of whole trees"),
        ("residual features", [], "residual.cuts has"),
        ("residual cuts 0", [7.0, 6.0], "residual.cuts must be in ascending order for each feature"),
        ("residual cuts 0 0", 1e31, "residual.cuts[0][0] is 1e+31, but must be a number <= 1e+30"),
        ("residual cuts 0 0", "6", 'residual.cuts[0][0] is "6", but must be a number'),
        ("residual cuts 1", [], "residual.cut is 1, but must be the place of one of 1 cuts"),
        ("residual cut", "", "residual.cut holds 0 bytes, but must hold 2 numbers of 1 bits each"),
        ("residual exponents", [-20], "residual has 1 exponents, but must have one for each of 2 trees"),
        ("residual exponents 1", 3, "residual.exponents[1] is 3, but must be a whole number <= 0"),
        ("residual exponents 1", -3, "residual.leaves is "),
        ("residual leaves", "AAAA", "residual.leaves holds 3 bytes, but must hold 4 numbers of 16 bits each"),
        ("scores inside", 1.5, "scores.inside is 1.5, but must be a number <= 1"),
        ("colour", 1, "it has colour, which is not a field of it"),
    ],
)
def test_a_rule_that_a_regressor_breaks_is_said_with_its_name(
    predictor: dict[str, Any], place: str, value: Any, said: str
) -> None:
    check_refused(predictor, place, value, said)


def check_refused(predictor: dict[str, Any], place: str, value: Any, said: str) -> None:
    """A wrong value in the first regressor is refused with the file, the regressor and the rule."""
    data = copy.deepcopy(predictor)
    *steps, last = (int(step) if step.isdigit() else step for step in place.split())
    at(data["regressors"][0], tuple(steps))[last] = value
    with pytest.raises(PredictorError) as refused:
        from_json(data, "p", "p.json")
    names = [str(data["regressors"][0][name]) for name in ("kind", "dtype", "phase", "group")]
    assert str(refused.value).startswith(
        f"p.json: regressor {' '.join(names)} ({data['regressors'][0]['target']}): {said}"
    )
    assert str(refused.value).endswith(
        "train it again with train-predictor, or take another copy of the file"
    )


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("sentinel_s", 0, "sentinel_s is 0, but must be a number >= 1e-30"),
        ("resident", -1, "resident is -1, but must be a number > -1"),
        ("learner", "magic", 'learner is "magic", but must be one that'),
        ("rooflines", {}, "rooflines is {}, but must be one or more"),
        ("hardware cores", 0, "hardware.cores is 0, but must be a whole number >= 1"),
        ("hardware idle_w", 200, "hardware.idle_w is 200.0, but must be less than limit_w, which is 100"),
        ("hardware", [], "hardware is [], but must be an object or null"),
        ("hardware", None, "hardware is null, but must be an object where the predictor is of one device"),
        ("dataset hardware", [], "dataset.hardware is [], but must be an object or null"),
        ("dataset rows", "many", 'dataset.rows is "many", but must be a whole number'),
        ("dispatch costs 0 kind", "lineal", "unknown layer kind of dispatch 'lineal'"),
        ("dispatch costs 0 rows", 0, "dispatch.costs[0].rows is 0, but must be a whole number >= 1"),
        ("network_speed exponent", -1, "network_speed.exponent is -1, but must be a number >= 0"),
        ("units runtime", "ms", "units is"),
    ],
)
def test_a_rule_that_a_predictor_breaks_is_said(
    predictor: dict[str, Any], place: str, value: Any, said: str
) -> None:
    data = copy.deepcopy(predictor)
    *steps, last = (int(step) if step.isdigit() else step for step in place.split())
    at(data, tuple(steps))[last] = value
    with pytest.raises(PredictorError) as refused:
        from_json(data, "p", "p.json")
    assert str(refused.value).startswith(f"p.json: {said}")


def test_a_regressor_that_stands_twice_is_refused(predictor: dict[str, Any]) -> None:
    data = {**predictor, "regressors": [*predictor["regressors"], predictor["regressors"][0]]}
    with pytest.raises(PredictorError, match="linear float32 forward .*: stands twice in the file"):
        from_json(data, "p")


def test_numbers_that_fit_their_fields_and_make_no_time_are_said(
    predictor: dict[str, Any], tmp_path: Path
) -> None:
    data = copy.deepcopy(predictor)
    for term in data["regressors"][0]["terms"]:  # 1e30 s for each unit of each term
        term["weight"] = 1e30
    file = tmp_path / "p.json"
    file.write_bytes(text_of(data))
    ran = predict(file)
    assert ran.code == 2
    assert "which is impossible; train it again" in ran.err


def test_a_broken_predictor_is_refused_or_answers_in_finite_numbers(
    predictor: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "p.json"

    @settings(bounded, max_examples=100)
    @given(mutated(predictor))
    def holds(data: Any) -> None:
        file.write_bytes(text_of(data))
        judged(predict(file))

    holds()


def test_bytes_of_a_predictor_that_were_damaged_are_refused_or_harmless(
    predictor: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "p.json"

    @settings(bounded, max_examples=50)
    @given(damaged(text_of(predictor)))
    def holds(data: bytes) -> None:
        file.write_bytes(data)
        judged(predict(file))

    holds()


# ---- datasets ----

META = {
    "schema": 1,
    "device": "x",
    "hardware": {
        "cores": 2,
        "l2_bytes": 2**20,
        "peak_flops_per_s": {"float32": 1e12},
        "flags": ["avx2"],
        "name": "x",
    },
    "includes_launch": False,
    "autograd_start_s": 0.0,
    "sessions": [{"session_id": "a", "dtypes": ["float32"], "self_test": {}, "utc": "2026-01-01"}],
}


def judged_rows(folder: Path) -> None:
    """A dataset is refused in one line, or each row is rejected with a reason or good enough to train on."""
    try:
        data = read_dataset(folder, samples=False)
        rows = screen("linear", data.tables["linear"], data.sentinel_s, hardware_from(data.meta))
    except DatasetError as error:
        assert len(str(error).splitlines()) == 1
        return
    assert all(row.reason for row in rows.rejected)
    assert len(rows) + len(rows.rejected) <= len(data)
    for numbers in (
        rows.runtime_s,
        rows.slowdown,
        *(getattr(rows.layer, name) for name in rows.layer.dimensions),
    ):
        assert np.isfinite(numbers).all()
        assert (numbers > 0).all()
    assert not np.isinf(rows.power_w).any()


def judged_training(folder: Path) -> None:
    """A dataset teaches a predictor that can be read, or is refused in one line."""
    target = folder.parent / "p.json"
    target.unlink(missing_ok=True)
    ran = run("train-predictor", folder, "--learner", "lasso", "--jobs", 1, "--out", target)
    judged(ran, answers=False)
    if ran.code == 0:
        load(target)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "d"
    made.mkdir()
    (made / "dataset.json").write_bytes(text_of(META))
    return made


def test_a_broken_description_is_refused_or_taught_from(folder: Path) -> None:
    table().to_parquet(folder / "linear.parquet")

    @settings(bounded, max_examples=60)
    @given(st.one_of(mutated(META).map(text_of), damaged(text_of(META))))
    def holds(data: bytes) -> None:
        (folder / "dataset.json").write_bytes(data)
        judged_rows(folder)

    holds()


CELLS: tuple[Callable[[pd.Series], Any], ...] = (
    lambda column: [None] * len(column),
    lambda column: [str(value) for value in column],
    lambda column: [f"{value:,}" for value in column],
    lambda column: [[value] for value in column],
    lambda column: [{"a": value} for value in column],
    lambda column: [True] * len(column),
    lambda column: pd.Series(["x"] * len(column), dtype="category"),
    lambda column: pd.to_datetime([0] * len(column)),
    lambda column: pd.to_timedelta([1] * len(column)),
    lambda column: column * -1.0,
    lambda column: column * 0.0,
    lambda column: [1e300] * len(column),
    lambda column: [5e-324] * len(column),
    lambda column: [float("nan")] * len(column),
    lambda column: [float("inf")] * len(column),
    lambda column: [b"5"] * len(column),
    lambda column: [column.iloc[0]] * len(column),
    lambda column: [*column[:-1], 1e300],
)
COLUMNS = (
    *("rows", "in_features", "out_features", "bias", "runtime_s"),
    *("dtype", "phase", "recurs", "status", "power_w", "energy_j", "energy_u_rel", "dispatch_s"),
    *("sentinel_s", "config_id", "replicate", "session_id", "samples_s"),
)


def test_a_column_of_anything_is_refused_or_taught_from(folder: Path) -> None:
    whole = table()

    @settings(bounded, max_examples=80)
    @given(st.sampled_from(COLUMNS), st.sampled_from(CELLS), st.booleans())
    def holds(name: str, cells: Callable[[pd.Series], Any], as_text: bool) -> None:
        for file in folder.glob("linear.*"):
            file.unlink()
        given = whole[name].astype(float) if name in whole else whole["runtime_s"]
        changed = whole.assign(**{name: cells(given)})
        if as_text:
            changed.to_csv(folder / "linear.csv", index=False)
        else:
            changed.to_parquet(folder / "linear.parquet", index=False)
        judged_rows(folder)

    holds()


def test_bytes_of_a_table_that_were_damaged_are_refused_or_taught_from(folder: Path) -> None:
    files = {"linear.csv": table().to_csv(index=False).encode()}
    table().to_parquet(folder / "linear.parquet", compression=None)
    files["linear.parquet"] = (folder / "linear.parquet").read_bytes()

    @settings(bounded, max_examples=60)
    @given(st.data(), st.sampled_from([*files]))
    def holds(data: st.DataObject, name: str) -> None:
        for file in folder.glob("linear.*"):
            file.unlink()
        (folder / name).write_bytes(data.draw(damaged(files[name])))
        judged_rows(folder)

    holds()


@pytest.mark.parametrize(
    ("name", "cells"),
    [("power_w", CELLS[12]), ("sentinel_s", CELLS[11]), ("runtime_s", CELLS[5]), ("dispatch_s", CELLS[12])],
    ids=[
        "watts that nothing draws",
        "a sentinel without end",
        "times that are truths",
        "a host that takes no time",
    ],
)
def test_what_a_broken_column_teaches_can_be_read(
    folder: Path, name: str, cells: Callable[[pd.Series], Any]
) -> None:
    table().assign(**{name: cells(table()["runtime_s"])}).to_parquet(folder / "linear.parquet", index=False)
    judged_training(folder)


# ---- configurations of networks, and spec sheets ----

CONFIG = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "id2label": {"0": "a", "1": "b"},
}


def test_a_broken_configuration_is_refused_or_predicted(predictor: dict[str, Any], tmp_path: Path) -> None:
    trained, model = tmp_path / "p.json", tmp_path / "config.json"
    trained.write_bytes(text_of(predictor))

    @settings(bounded, max_examples=60)
    @given(st.one_of(damaged(text_of(CONFIG)), mutated(CONFIG).map(text_of)))
    def holds(data: bytes) -> None:
        model.write_bytes(data)
        judged(run("predict", model, "--predictor", trained, "--seq-len", 8, "--json"))

    holds()


SHEET = {
    "schema": 1,
    "name": "My GPU",
    "class": "gpu",
    "vendor": "me",
    "year": 2024,
    "aliases": ["mine"],
    "values": {
        "peak_flops_float32": {"value": 1e13, "source": "its sheet"},
        "memory_bytes_per_s": 1e12,
        "cores": 40,
        "limit_w": 100,
        "idle_w": 10,
    },
}


def test_a_broken_sheet_is_refused_or_shown(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"

    @settings(bounded, max_examples=120)
    @given(st.one_of(mutated(SHEET).map(text_of), damaged(text_of(SHEET))))
    def holds(data: bytes) -> None:
        file.write_bytes(data)
        judged(run("devices", "--spec", file, "--json"))

    holds()
