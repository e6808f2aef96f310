"""The learner on strangers' rows: no warning, no base of 0, no worse than ten lines."""

import json
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LassoCV
from sklearn.preprocessing import PolynomialFeatures

from neuralpower.data.dataset import Dataset
from neuralpower.layers import KINDS, Hardware, Layer
from neuralpower.layers.columns import as_columns
from neuralpower.layers.rows import defaults, field_names, from_row, plain_dimensions, to_row
from neuralpower.learn.fitting import fit as regress
from neuralpower.learn.fitting.lasso import plain_terms
from neuralpower.learn.fitting.problem import describe
from neuralpower.learn.networks.whole_networks import common_factor
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.regressor import Regressor
from neuralpower.learn.train import train
from tests.program import run

Array = np.ndarray
PEAK, MEMORY, LAUNCH_S = 2e11, 2e10, 1e-5


def whole(generator: np.random.Generator, low: float, high: float, count: int) -> Array:
    """Whole numbers, uniform in their logarithm."""
    return np.exp(generator.uniform(np.log(low), np.log(high), count)).round()


def table(kind: str, count: int, seed: int = 0) -> pd.DataFrame:
    """Random layers of a kind, as a dataset has them."""
    g = np.random.default_rng(seed)
    if kind == "activation":
        return pd.DataFrame({"function": "relu", "elements": whole(g, 1e2, 1e8, count)})
    if kind == "linear":
        sides = {name: whole(g, 1, 4096, count) for name in ("in_features", "out_features")}
        return pd.DataFrame({"rows": whole(g, 17, 1024, count), **sides, "bias": True})
    side, kernel = g.integers(12, 129, count), g.integers(1, 8, count)
    padding = dict.fromkeys(("padding_height", "padding_width"), 0)
    map_ = {"in_height": side, "in_width": side, "kernel_height": kernel, "kernel_width": kernel}
    if kind == "pool2d":
        strides = dict.fromkeys(("stride_height", "stride_width"), 2)
        return pd.DataFrame(
            {
                "function": "max",
                "batch": 8,
                "channels": g.integers(1, 129, count),
                **map_,
                **strides,
                **padding,
            }
        )
    channels = {name: g.integers(1, 129, count) for name in ("in_channels", "out_channels")}
    ones = dict.fromkeys(("groups", "stride_height", "stride_width", "dilation_height", "dilation_width"), 1)
    return pd.DataFrame(
        {"batch": g.integers(1, 33, count), **channels, "bias": True, **map_, **ones, **padding}
    )


def layers(kind: str, rows: pd.DataFrame) -> Layer:
    """The rows as columns of a layer."""
    fields = defaults(KINDS[kind]) | {name: rows[name].to_numpy() for name in rows}
    full = {
        name: np.broadcast_to(np.asarray(fields[name]), (len(rows),)) for name in field_names(KINDS[kind])
    }
    return as_columns(KINDS[kind], full)


def work(columns: Layer) -> tuple[Array, Array]:
    """FLOP and bytes, each [rows]."""
    return np.asarray(columns.flops(), float), np.asarray(sum(columns.bytes()), float)


def roofline(columns: Layer) -> Array:
    flops, size = work(columns)
    return LAUNCH_S + np.maximum(flops / PEAK, size / MEMORY)


def polynomial(columns: Any) -> Array:
    """A sum of terms in the sizes of the table alone: none of FLOP, none of bytes, one of them a square."""
    return np.asarray(
        1e-5
        + 2e-6 * columns.batch
        + 3e-7 * columns.in_height
        + 1e-6 * columns.batch * columns.kernel_height
        + 2e-7 * columns.batch**2
    )


def knee(columns: Layer) -> Array:
    """Nothing takes less than 20 us; bytes cost five times as much once the cache is full."""
    flops, size = work(columns)
    return np.maximum(2e-5, flops / PEAK + size / (5 * MEMORY) + np.maximum(size - 8e6, 0) / MEMORY)


def dirty(seconds: Array, seed: int = 1) -> Array:
    """Noise of 3 %, a quarter of the rows slower with a heavy tail, all rounded to whole microseconds."""
    g = np.random.default_rng(seed)
    slow = np.where(g.random(len(seconds)) < 0.25, 1 + g.pareto(1.5, len(seconds)), 1.0)
    return np.round(seconds * np.exp(0.03 * g.normal(size=len(seconds))) * slow, 6)


def fitted(kind: str, rows: pd.DataFrame, seconds: Array, learner: str = "lasso") -> Regressor:
    return regress.fit(describe(layers(kind, rows), Hardware(), target=seconds), learner).regressor


def predicted(regressor: Regressor, columns: Layer) -> Array:
    asked = describe(columns, Hardware(), also=regressor.dimensions())
    return regressor.predict(asked)[0]


def ten_lines(known: Layer, seconds: Array, asked: Layer, with_work: bool) -> Array:
    """What scikit-learn's manual suggests: a quadratic polynomial, non-negative weights, relative error."""

    def sizes(columns: Layer) -> Array:
        plain = [np.asarray(getattr(columns, name), float) for name in plain_dimensions(KINDS[columns.kind])]
        return np.column_stack([*plain, *(work(columns) if with_work else ())])

    power = PolynomialFeatures(2).fit(sizes(known))
    matrix = power.transform(sizes(known)) / seconds[:, None]
    scale = np.where(matrix.any(axis=0), np.sqrt(np.mean(matrix**2, axis=0)), 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the polynomial's columns are nearly collinear
        lasso = LassoCV(positive=True, fit_intercept=False, cv=10, alphas=10, max_iter=1000)
        lasso.fit(matrix / scale, np.ones(len(seconds)))
    return np.asarray(power.transform(sizes(asked)) @ (lasso.coef_ / scale))


@pytest.mark.parametrize(
    ("kind", "truth"),
    [
        ("conv2d", roofline),
        ("conv2d", polynomial),
        ("conv2d", knee),
        ("linear", roofline),
        ("activation", knee),
    ],
)
def test_no_held_out_row_is_missed_by_more_than_by_ten_plain_lines(
    kind: str, truth: Callable[[Any], Array]
) -> None:
    rows, asked = table(kind, 300), layers(kind, table(kind, 300, seed=9))
    columns, true = layers(kind, rows), truth(asked)
    seconds = dirty(truth(columns))
    own = np.mean(np.abs(predicted(fitted(kind, rows, seconds), asked) / true - 1))
    plain = [np.mean(np.abs(ten_lines(columns, seconds, asked, both) / true - 1)) for both in (False, True)]
    assert own < min(plain) + 0.01


def test_a_plain_polynomial_is_chosen_where_it_wins_and_nowhere_else() -> None:
    rows = table("conv2d", 300)
    plain = fitted("conv2d", rows, polynomial(layers("conv2d", rows)))
    assert (plain.basis(), plain.scores.mape < 0.01) == ("polynomial", True)
    assert {
        "kernel_height",
        "in_height",
    } <= plain.dimensions()  # which the kind's own polynomial does not have
    own = fitted("conv2d", rows, roofline(layers("conv2d", rows)))
    assert not {"kernel_height", "in_height"} & own.dimensions()


def test_alike_columns_and_sizes_that_do_not_vary_are_one_plain_term() -> None:
    # batch, in, out, side, kernel: 1 + FLOP + bytes + 5 + 5 * 6 / 2; of a map's two sides, and all that is 1
    # or 0, none more
    columns = layers("conv2d", table("conv2d", 100))
    terms = plain_terms(describe(columns, Hardware()))
    assert len(terms) == 23
    assert {"batch^2", "in_height kernel_height", "bytes"} <= {str(term) for term in terms}
    assert not [term for term in terms if "width" in str(term) or "groups" in str(term)]


def test_flat_times_with_outliers_are_a_constant() -> None:
    # a quarter of the rows is too fast by up to 9 e-folds; the median row is 1 ms
    g = np.random.default_rng(1)
    seconds = 1e-3 * np.exp(0.03 * g.normal(size=200))
    seconds = np.where(g.random(200) < 0.25, seconds * np.exp(-g.pareto(0.7, 200).clip(0, 9)), seconds)
    found = fitted("activation", table("activation", 200), seconds)
    assert found.basis() == "constant"
    assert float(found.weights[0]) == pytest.approx(1e-3, rel=0.02)


def test_slow_rows_do_not_pull_the_level_to_theirs() -> None:
    # two rows in five take 30 times as long: the level stays that of the three
    rows = table("activation", 300)
    seconds = roofline(layers("activation", rows))
    slow = np.random.default_rng(1).random(300) < 0.4
    found = fitted("activation", rows, np.where(slow, 30 * seconds, seconds))
    asked = layers("activation", table("activation", 300, seed=9))
    assert np.median(predicted(found, asked) / roofline(asked)) == pytest.approx(1.0, abs=0.1)


def test_no_base_is_below_half_the_least_row_even_where_all_terms_are_0() -> None:
    rows = table("linear", 40)
    g = np.random.default_rng(2)
    seconds = np.exp(g.standard_cauchy(40).clip(-12, 9)) * 1e-3
    found = fitted("linear", rows, seconds)
    bare = replace(found, terms=(), weights=np.zeros(0), trees=None, alignment=None)
    assert predicted(bare, layers("linear", rows)) == pytest.approx(found.least)
    kept = np.isin(describe(layers("linear", rows), Hardware()).config >> np.uint64(32), found.measured)
    assert found.least == pytest.approx(seconds[kept].min() / 2)


def of_size(columns: Layer, power: float) -> Array:
    """From 0.1 us to 100 s, as a power of the bytes."""
    size = np.log(work(columns)[1])
    share = (size - size.min()) / np.ptp(size)
    return np.asarray(1e-7 * 1e9 ** (share**power))


def device(name: str, kind: str, count: int) -> pd.DataFrame:
    """A table whose times are odd in one way."""
    rows, g = table(kind, count), np.random.default_rng(3)
    columns = layers(kind, rows)
    plain, some, noise = roofline(columns), g.random(count), np.exp(0.03 * g.normal(size=count))
    times = {
        "tails": plain * np.exp(g.standard_cauchy(count).clip(-7, 7)),
        "outliers": np.where(some < 0.25, plain * np.exp(1.5 * g.standard_t(2, count)), plain),
        "microseconds": np.round(plain / 100, 6),
        "equal": np.full(count, 1e-3),
        "clusters": np.where(some < 0.5, 1e-5, 1e-1) * noise,
        "twice": plain * noise,
        "one huge row": np.where(np.arange(count) == 3, 9e3, plain),
        "some tiny rows": np.where(some < 0.03, 2e-8, plain),
        "wide": of_size(columns, 1.0),
        "wide and shuffled": g.permutation(of_size(columns, 1.0)),
        "faster when larger": 1e-2 / np.sqrt(work(columns)[1]),
        "cubic": (work(columns)[1] / work(columns)[1].max()) ** 3 + 1e-8,
        "one constant column": plain,
        "negative, missing, words": np.where(some < 0.1, -1.0, np.where(some < 0.2, np.nan, plain)),
    }
    rows = rows.assign(runtime_s=times[name].clip(-1, 9.9e3))
    if name == "twice":  # each configuration in several rows, with different times
        rows = pd.concat(
            [rows.iloc[: count // 2], rows.iloc[: count // 2].assign(runtime_s=3 * plain[: count // 2])]
        )
    if name == "one constant column" and kind == "linear":
        rows["in_features"] = 64
    if name == "negative, missing, words":
        rows["runtime_s"] = rows["runtime_s"].astype(object)
        rows.loc[rows.index[:2], "runtime_s"] = "?"
        rows["energy_j"] = np.where(some > 0.9, -1312.0, 1.0)
    return rows


NAMES = (
    "tails",
    "outliers",
    "microseconds",
    "equal",
    "clusters",
    "twice",
    "one huge row",
    "some tiny rows",
    "wide",
    "wide and shuffled",
    "faster when larger",
    "cubic",
    "one constant column",
    "negative, missing, words",
)


@pytest.mark.parametrize(
    ("name", "learner"), [*((name, "lasso") for name in NAMES), ("outliers", "hybrid"), ("wide", "hybrid")]
)
def test_odd_times_are_trained_without_a_warning_and_every_prediction_is_a_time(
    name: str, learner: str
) -> None:
    # warnings are errors here
    kinds = ("linear",) if learner == "hybrid" else ("activation", "conv2d")
    tables = {kind: device(name, kind, 60 if learner == "hybrid" else 42) for kind in kinds}
    trained = train(Dataset(Path("odd"), {"schema": 1, "device": "odd"}, tables), learner, jobs=1)
    for kind in trained.predictor.kinds:
        asked = table(kind, 20, seed=5)
        asked = pd.concat(
            [asked, asked.replace({column: 1 << 14 for column in asked.select_dtypes("number")}).iloc[:1]]
        )
        each = trained.predictor.estimate([from_row(KINDS[kind], row) for row in typed_rows(kind, asked)])
        assert (each.low_s > 0).all()
        assert (each.low_s <= each.runtime_s).all()
        assert (each.runtime_s <= each.high_s).all()
        assert np.isfinite(each.high_s).all()


def typed_rows(kind: str, rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a table with plain integers, flags and words."""
    return [
        {str(n): v if isinstance(v, str) else bool(v) if n == "bias" else int(v) for n, v in row.items()}
        for row in rows.astype(object).to_dict("records")
    ]


@pytest.mark.parametrize("count", [10, 12, 29])
def test_a_few_rows_with_an_outlier_in_four_are_trained_without_a_warning(count: int) -> None:
    rows = table("activation", count)
    seconds = roofline(layers("activation", rows))
    seconds[::4] *= 7.0
    found = fitted("activation", rows, seconds)
    assert found.scores.rows >= count / 2
    assert (predicted(found, layers("activation", table("activation", 50, 3))) > 0).all()


def test_a_strangers_folder_is_trained_and_predicts_without_a_warning(tmp_path: Path) -> None:
    for kind in ("linear", "activation"):
        rows = device("negative, missing, words", kind, 40)
        (tmp_path / "mine").mkdir(exist_ok=True)
        rows.to_csv(tmp_path / "mine" / f"{kind}.csv", index=False)
    (tmp_path / "mine" / "dataset.json").write_text(json.dumps({"schema": 1, "device": "a stranger's"}))
    out = tmp_path / "mine.json"
    ran = run(
        "train-predictor", tmp_path / "mine", "--learner", "lasso", "--out", out, "--jobs", 1, "--verbose"
    )
    assert (ran.code, re.search(r"\wWarning", ran.err)) == (0, None)  # none of Python's
    assert re.search(r"Warning: typical errors are large: activation \(power\) \d+ %\.", ran.err)
    assert "runtime_s is not above 0" in ran.err
    assert "| base |" in out.with_suffix(".md").read_text()
    assert " base " in ran.out.splitlines()[0]
    ran = run("predict", "zoo:deep_mnist", "--predictor", out)
    assert (ran.code, "Warning" in ran.err) == (0, False)


def network(
    names: tuple[str, ...], factors: tuple[float, ...], known: Predictor, seed: int = 0
) -> pd.DataFrame:
    """Networks of ten random layers each, that take `factors` times what is predicted of them."""
    rows = []
    for i, (name, factor) in enumerate(zip(names, factors, strict=True)):
        chosen = [
            from_row(KINDS["linear"], row) for row in typed_rows("linear", table("linear", 10, seed + i))
        ]
        listed = json.dumps([["linear", to_row(layer), 2] for layer in chosen])
        runtime_s = 2 * factor * float(known.estimate(chosen).runtime_s.sum())
        rows.append({"model": name, "batch": 1, "layers": listed, "runtime_s": runtime_s})
    return pd.DataFrame(rows)


def test_two_or_three_networks_correct_all_layers_by_one_factor() -> None:
    rows = table("linear", 40)
    rows["runtime_s"] = roofline(layers("linear", rows))
    data = Dataset(Path("mine"), {"schema": 1, "device": "mine"}, {"linear": rows})
    alone = train(data, "lasso", jobs=1)
    asked = [from_row(KINDS["linear"], row) for row in typed_rows("linear", table("linear", 9, 77))]

    def factor(*given: float) -> tuple[float, Any]:
        networks = network(("a", "b", "c")[: len(given)], given, alone.predictor)
        found = train(replace(data, tables={**data.tables, "network": networks}), "lasso", jobs=1)
        return float(
            np.median(found.predictor.estimate(asked).runtime_s / alone.predictor.estimate(asked).runtime_s)
        ), found

    slower, found = factor(0.72, 0.78, 0.75)
    assert slower == pytest.approx(0.75, abs=0.02)
    assert found.correction.after < 0.2 * found.correction.before
    assert found.predictor.system >= alone.predictor.system
    assert factor(1.5, 1.5)[0] == pytest.approx(1.5, rel=0.03)
    same, found = factor(0.6, 1.6)  # which agree on nothing: none predicts the other
    assert (same, found.correction) == (1.0, None)
    assert found.doubts[-1].startswith("network: no correction trained from 2 whole networks")
    assert factor(0.5)[0] == 1.0  # nobody can tell it from one that is odd


@pytest.mark.parametrize(
    ("ratios", "factor"),
    [
        # two that agree: variance 2 * 0.1^2 / 3 = 0.00667, of the mean 0.00333; log 0.8 = -0.2231 / (1 +
        # 0.00333 / 0.16)
        ((0.8, 0.8), 0.8037),
        # log 0.6 = -0.511, log 1.5 = 0.405: mean -0.0527, squares about it 0.420; variance (0.02 + 0.420) / 3
        # = 0.1466
        ((0.6, 1.5), 0.9645),
    ],
)
def test_a_common_factor_is_drawn_to_1_the_more_the_less_networks_agree(
    ratios: tuple[float, ...], factor: float
) -> None:
    assert common_factor(np.log(ratios)) == pytest.approx(factor, abs=2e-4)
