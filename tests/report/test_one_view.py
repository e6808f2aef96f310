"""One entry makes a column part of every form of a result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn

import neuralpower
from neuralpower.cli import formats
from neuralpower.cli.predict import prediction_answer
from neuralpower.prediction import rows
from neuralpower.prediction.rows import Column
from neuralpower.report.page import html_text
from neuralpower.report.pictures import prediction_page
from neuralpower.report.shown import html
from neuralpower.report.tables import prediction_table


def test_a_column_is_one_entry_and_stands_in_every_form(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    each = Column("each_s", "each call", "s", 1.5, lambda row: row.runtime_s / row.count)
    monkeypatch.setattr(rows, "COLUMNS", (*rows.COLUMNS, each))
    prediction = neuralpower.load("amd-epyc-2c").predict(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), (4, 8))

    answer = prediction_answer(prediction, lambda: prediction_table(prediction, "kind", 3, 15))
    forms = {}
    for form in (formats.TABLE, formats.CSV, formats.MARKDOWN, formats.HTML, formats.JSON):
        formats.give(answer, form, tmp_path / form)
        forms[form] = (tmp_path / form).read_text()

    table, csv, markdown = (
        forms[form].splitlines() for form in (formats.TABLE, formats.CSV, formats.MARKDOWN)
    )
    header = next(line for line in table if line.startswith("kind"))
    assert " ".join(header.split()).startswith("kind calls each call latency")
    assert csv[0].endswith(",step,each_s")
    assert float(csv[1].split(",")[-1]) == prediction.rows[0].runtime_s / prediction.rows[0].count
    assert any(line.startswith("| kind | calls | each call | latency") for line in markdown)
    pages = forms[formats.HTML], html_text(prediction_page(prediction)), html(prediction)
    assert all("each call</th>" in page for page in pages)
    written = json.loads(forms[formats.JSON])
    assert all("each_s" in row for row in (*written["layers"], *written["by_kind"]))
    assert "each_s" in prediction.to_pandas()
