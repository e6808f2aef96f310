"""What a training says of itself."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from neuralpower.data.dataset import read_dataset
from neuralpower.data.screening import Rejected
from neuralpower.learn.train import Trained, train
from neuralpower.report.results.training import (
    alike,
    kinds_table,
    notes_of,
    sentence,
    skipped_lines,
    warnings_of,
)


def table(factor: float = 1.0, **columns: object) -> pd.DataFrame:
    """Twelve softmaxes that take 5 us and 1 ns per row, every other one `factor` times as long."""
    rows = pd.DataFrame({"rows": 1000 * np.arange(1, 13), "width": 64})
    rows["runtime_s"] = (5e-6 + 1e-9 * rows.rows) * np.where(np.arange(12) % 2, factor, 1.0)
    return rows.assign(**columns)


def trained(folder: Path, rows: pd.DataFrame) -> Trained:
    folder.mkdir(exist_ok=True)
    (folder / "dataset.json").write_text(json.dumps({"schema": 1, "device": "x"}))
    rows.to_csv(folder / "softmax.csv", index=False)
    return train(read_dataset(folder), "lasso", jobs=1)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(tmp_path_factory.mktemp("plain"), table())


def test_the_sentence_says_why_power_was_not_trained(plain: Trained) -> None:
    assert re.fullmatch(r"Typical error on held-out rows: [\d.]+ %\. Power not .*", sentence(plain))
    assert sentence(plain).endswith("Power not trained: no row has power_w or energy_j.")
    some = dataclasses.replace(plain, powers={"softmax": 7})
    assert sentence(some).endswith("Power not trained: 7 rows of 100 us or more, 10 needed.")
    more = dataclasses.replace(plain, powers={"softmax": 7, "linear": 1})
    assert sentence(more).endswith("Power not trained: 7 rows of a kind of 100 us or more, 10 needed.")
    pooled = dataclasses.replace(plain, predictor=dataclasses.replace(plain.predictor, trained_on=2))
    assert sentence(pooled).endswith("predictors of several devices only predict time.")


def test_power_that_was_trained_is_in_the_sentence_and_the_table(plain: Trained) -> None:
    key, regressor = next(iter(plain.predictor.regressors.items()))
    known = dataclasses.replace(plain.predictor, power={key: regressor})
    found = dataclasses.replace(plain, predictor=known, powers={"softmax": 12})
    error = sentence(plain).split()[5]
    assert sentence(found).endswith(f"Power trained, typical error {error} %.")
    header, _, line, _ = kinds_table(found).splitlines()
    assert header.endswith("error of power")
    assert line.endswith(f"{error} %")


def test_few_rows_of_a_kind_have_no_error_that_is_known(plain: Trained) -> None:
    key, regressor = next(iter(plain.predictor.regressors.items()))
    unknown = dataclasses.replace(regressor.scores, median_base=np.nan, median=np.nan)
    known = dataclasses.replace(
        plain.predictor, regressors={key: dataclasses.replace(regressor, scores=unknown)}
    )
    found = dataclasses.replace(plain, predictor=known)
    assert sentence(found).startswith("Typical error on held-out rows: unknown (too few rows). ")
    assert kinds_table(found).splitlines()[2].split() == ["softmax", "12", "-", "-"]
    assert list(warnings_of(found)) == []


def test_large_errors_are_warned_of(tmp_path: Path, plain: Trained) -> None:
    assert list(warnings_of(plain)) == []
    (line,) = warnings_of(trained(tmp_path, table(factor=4.0)))
    assert re.match(r"Warning: typical errors are large: softmax \d+ %\. Fix: measure more rows", line)


def test_noisy_data_are_warned_of(tmp_path: Path) -> None:
    steady = trained(
        tmp_path / "steady", pd.concat([table(), table().assign(runtime_s=table().runtime_s * 1.02)])
    )
    assert steady.noise == pytest.approx(0.02 / 1.01 / 2**0.5, rel=1e-6)  # of two values, half apart
    assert list(warnings_of(steady)) == []
    noisy = trained(tmp_path / "noisy", table(runtime_q25_s=1e-6, runtime_q75_s=2e-6))
    (line,) = warnings_of(noisy)
    assert line.startswith("Warning: the data are noisy: one measurement varies by 74 % (median). Fix: stop ")


def test_groups_of_too_few_rows_are_skipped_in_plain_words(plain: Trained) -> None:
    skipped = {
        ("movement", "float32", "forward", name): n for n, name in enumerate(("sort", "topk", "pad"), 1)
    }
    found = dataclasses.replace(plain, skipped=skipped)
    first, *more = skipped_lines(found)
    assert first == "movement sort (float32, forward): skipped, 1 row; 10 needed."
    assert len(more) == 2
    assert list(notes_of(found, verbose=False)) == [
        "3 groups skipped: fewer than 10 rows each; -v lists them"
    ]
    assert list(notes_of(found, verbose=True)) == [first, *more]


def test_lines_that_differ_in_names_and_numbers_are_one_with_a_count() -> None:
    lines = [
        f"{kind}: power not trained: {n} of 12 powers are usable, 10 needed" for n, kind in enumerate("abcd")
    ]
    other = "a: 3 skipped, too odd (line 2, 3, 4)"
    assert list(alike([*lines, other])) == [f"{lines[0]} (3 more like it; -v lists them)", other]
    assert list(alike(lines[:2])) == lines[:2]
    left = [f"{kind}: {n} skipped, too odd (line {', '.join('234'[:n])})" for n, kind in enumerate("abc", 1)]
    assert list(alike(left)) == [f"{left[0]} (2 more like it; -v lists them)"]


def test_groups_whose_names_have_digits_are_alike() -> None:
    lines = [
        f"{name} (float32, forward): held-out rows are missed by {error}%"
        for name, error in (
            ("conv1d dense", 40),
            ("movement sort+topk", 118),
            ("conv3d depthwise+grouped", 230),
        )
    ]
    assert list(alike(lines)) == [f"{lines[0]} (2 more like it; -v lists them)"]


def test_rows_skipped_for_several_reasons_are_one_line_with_counts(plain: Trained) -> None:
    reasons = ["no kernel ran"] * 3 + ["status crashed"] + ["status 'x'", "status 'y'"] + ["rows is 0"]
    rejected = tuple(Rejected("softmax", line, reason) for line, reason in enumerate(reasons, 2))
    found = dataclasses.replace(plain, rejected=rejected)
    (line,) = notes_of(found, verbose=False)
    most = "no kernel ran (3), status '' (2), status crashed (1)"
    assert line == f"7 rows skipped: {most}, other reasons (1); -v lists them"
    assert len(list(notes_of(found, verbose=True))) == 4


def test_rows_left_out_for_one_reason_are_one_line(plain: Trained) -> None:
    rejected = tuple(Rejected("softmax", line, "runtime_s is not above 0") for line in range(2, 30))
    (line,) = notes_of(dataclasses.replace(plain, rejected=rejected), verbose=False)
    assert line == "softmax: 28 skipped, runtime_s is not above 0 (line 2, 3, 4, 5, 6, ...)"
