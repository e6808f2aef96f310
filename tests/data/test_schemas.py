"""The declared formats: their JSON Schemas are up to date, and what is written keeps to them."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]  # no stubs among the requirements
import msgspec
import pytest

from neuralpower.data import columns
from neuralpower.data.columns import COLUMNS, READ
from neuralpower.data.schema import RECORDS, DatasetMeta
from tests.fake_worker import Fake, run
from tests.schemas import ANSWERS, DECLARED, FOLDER, answers, of_values, schema_of
from tests.tracked import tracked

OTHERS = {  # than the schemas come from
    "prediction": (
        "predict zoo:mnist_cnn --device rtx-4090 --phase training -b 4",
        "predict zoo:mnist_cnn --device mi300x --by layer",
        "predict transformers:bert?num_hidden_layers=1&hidden_size=64&num_attention_heads=2 --device l40s",
    ),
    "fit": ("fit zoo:mnist_cnn --device t4 --phase training", "fit zoo:mnist_cnn --device 8GB"),
    "gate-report": ("gate zoo:deep_mnist --baseline baseline.json --max-memory 1KB",),
    "explanation": ("explain trace.json --device a100-sxm4-80gb",),
}


@pytest.mark.parametrize("name", [*DECLARED, *ANSWERS])
def test_a_schema_is_up_to_date(name: str) -> None:
    assert json.loads((FOLDER / f"{name}.json").read_text()) == json.loads(schema_of(name)), (
        "python -m tests.schemas"
    )


def test_there_is_a_schema_of_each_declared_file_and_no_other() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == {*DECLARED, *ANSWERS}


@pytest.mark.parametrize("name", OTHERS)
def test_other_answers_keep_to_the_schema(name: str) -> None:
    schema = json.loads((FOLDER / f"{name}.json").read_text())
    for answer in answers(OTHERS[name]):
        jsonschema.validate(answer, schema)
        assert answer["neuralpower_version"]


def test_a_schema_refuses_other_types_and_missing_fields() -> None:
    schema = of_values([{"a": 1, "b": None, "c": [0.5]}, {"a": 2.0, "b": "x"}])
    jsonschema.validate({"a": 3.5, "b": "y"}, schema)
    for wrong in ({"a": "1", "b": "x"}, {"a": 1}, {"a": 1, "b": "x", "c": ["y"]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_a_collection_writes_the_records_and_the_description_that_are_declared(
    fake: Callable[..., Fake], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run(fake(count=5), out)
    records = []
    for line in gzip.decompress((out / "journal.jsonl.gz").read_bytes()).splitlines():
        records.append(msgspec.json.decode(line.partition(b" ")[2], type=RECORDS))
    assert [record.seq for record in records] == [*range(len(records))]
    assert {type(record).__name__ for record in records} == {
        *("SessionRecord", "StartRecord", "ResultRecord", "EventRecord")
    }
    msgspec.json.decode((out / "dataset.json").read_bytes(), type=DatasetMeta)


@pytest.mark.parametrize("file", tracked("datasets/**/dataset.json"), ids=lambda file: file.parent.name)
def test_a_shipped_description_is_as_declared(file: Path) -> None:
    msgspec.json.decode(file.read_bytes(), type=DatasetMeta)


def test_a_column_has_one_entry_and_only_quantities_have_units() -> None:
    assert len(COLUMNS) == len(columns._COLUMNS), "a name stands twice"
    measured = {name for name, column in COLUMNS.items() if column.scales}
    assert measured == {"runtime_s", "power_w", "energy_j"} and measured <= {*READ}
    assert all(COLUMNS[name].low <= COLUMNS[name].high and COLUMNS[name].called for name in measured)
