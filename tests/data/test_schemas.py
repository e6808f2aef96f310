"""The declared formats: their JSON Schemas are up to date, and what is written keeps to them."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from neuralpower.data import columns
from neuralpower.data.columns import COLUMNS, READ
from neuralpower.data.schema import RECORDS, DatasetMeta
from tests.fake_worker import Fake, run
from tests.schemas import DECLARED, FOLDER, schema_of
from tests.tracked import tracked


@pytest.mark.parametrize("name", DECLARED)
def test_a_schema_is_up_to_date(name: str) -> None:
    assert json.loads((FOLDER / f"{name}.json").read_text()) == json.loads(schema_of(name)), (
        "python -m tests.schemas"
    )


def test_there_is_a_schema_of_each_declared_file_and_no_other() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == set(DECLARED)


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
