"""Datasets: a journal that survives crashes, tables that survive sealing, and rows that no fit may see."""

import errno
import gzip
import json
import math
import os
import random
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from neuralpower.data.dataset import Dataset, merge, read_dataset
from neuralpower.data.journal import Journal, read_journal
from neuralpower.data.schema import config_id, write_meta
from neuralpower.data.screening import Rejected, Rows, averaged, screen, summarised
from neuralpower.data.sealing import seal
from neuralpower.data.tables import without_comments
from neuralpower.errors import DatasetError, DeviceError, InputError, writing
from neuralpower.files.atomic import replace_file
from neuralpower.layers import KINDS
from neuralpower.layers.attention import Attention
from neuralpower.layers.base import OperatorNames
from neuralpower.layers.columns import fingerprint
from neuralpower.layers.rows import defaults, field_names, from_row, to_row
from neuralpower.learn.rows import hardware_from
from neuralpower.learn.train import train
from neuralpower.measure.collect.plan import draw
from neuralpower.measure.collect.request import PRESETS

ROOT = Path(__file__).parents[2]
DEVICE = '{"schema": 1, "device": "x"}'


def softmax(number: int, **columns: Any) -> dict[str, Any]:
    """A row as a collection writes it; 8 rows a step, so that no two are the same configuration."""
    return {
        "dtype": "float32",
        "phase": "forward",
        "rows": 8 * (number + 1),
        "width": 16,
        "strided": bool(number % 2),
        "source": "sweep",
        "session_id": "s1",
        "config_id": f"c{number}",
        "status": "ok",
        "flops": 640 * (number + 1),
        "runtime_s": 1e-6 * (number + 1),
        "samples_s": [1e-6 * (number + 1), 2e-6],
        **columns,
    }


def failed(number: int, status: str) -> dict[str, Any]:
    """The row of a configuration that was never timed."""
    names = ("dtype", "phase", "rows", "width", "strided", "source", "session_id", "config_id")
    return {**{name: softmax(number)[name] for name in names}, "status": status}


def written(folder: Path, rows: list[dict[str, Any]], kind: str = "softmax") -> Path:
    """A folder with these rows in its journal."""
    with Journal(folder) as journal:
        if not (folder / "dataset.json").exists():
            write_meta(folder, {"device": "x"})
        for row in rows:
            journal.append({"type": "result", "kind": kind, "row": row})
    return folder


# ---- the journal ----


def test_what_was_appended_is_read_back_in_order(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {"type": "session", "text": "line\nbreak, \r, é"},
        {"type": "result", "value": [1, 2.5, None, True]},
    ]
    with Journal(tmp_path / "new" / "folder") as journal:
        for record in records:
            journal.append(record)
        assert journal.records() == records
    assert read_journal(tmp_path / "new" / "folder") == records
    with Journal(tmp_path / "new" / "folder") as journal:
        journal.append({"more": 1})
    assert read_journal(tmp_path / "new" / "folder") == [*records, {"more": 1}]


def test_a_folder_that_was_made_for_nothing_is_removed(tmp_path: Path) -> None:
    with Journal(tmp_path / "new" / "folder"):
        pass
    assert list(tmp_path.iterdir()) == []
    with Journal(tmp_path / "first"), Journal(tmp_path / "first" / "second") as second:
        second.append({"value": 1})
    assert (tmp_path / "first" / "second" / "journal.jsonl").exists()


def test_a_folder_without_a_journal_has_no_records(tmp_path: Path) -> None:
    assert read_journal(tmp_path) == []


@pytest.mark.parametrize(
    "torn",
    [b'1234abcd {"value": 3', b"12", b"\x00" * 64, b'00000000 {"value":3}\n', b"\xff\xfe no text\n"],
    ids=["half a record", "half a checksum", "zeros", "another checksum", "no text"],
)
def test_a_torn_last_line_is_moved_aside_and_the_rest_kept(tmp_path: Path, torn: bytes) -> None:
    with Journal(tmp_path) as journal:
        journal.append({"value": 1})
        journal.append({"value": 2})
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(torn)
    assert [record["value"] for record in read_journal(tmp_path)] == [1, 2]
    with Journal(tmp_path) as journal:
        assert torn.rstrip(b"\n") in (tmp_path / "journal.torn").read_bytes()
        journal.append({"value": 3})
    assert [record["value"] for record in read_journal(tmp_path)] == [1, 2, 3]


def test_a_record_whose_line_was_not_ended_does_not_swallow_the_next_one(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append({"value": 1})
        journal.append({"value": 2})
    path = tmp_path / "journal.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    with Journal(tmp_path) as journal:
        journal.append({"value": 3})
    values = [record["value"] for record in read_journal(tmp_path)]
    assert values in ([1, 3], [1, 2, 3])


def test_a_damaged_line_in_the_middle_costs_that_record_alone(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for value in (111, 222, 333):
            journal.append({"value": value})
    path = tmp_path / "journal.jsonl"
    path.write_bytes(path.read_bytes().replace(b"222", b"229"))
    assert [record["value"] for record in read_journal(tmp_path)] == [111, 333]
    with Journal(tmp_path) as journal:  # opening it to go on must not cost more than reading it
        journal.append({"value": 444})
    assert [record["value"] for record in read_journal(tmp_path)] == [111, 333, 444]
    assert b"229" in (tmp_path / "journal.torn").read_bytes()
    assert b"333" not in (tmp_path / "journal.torn").read_bytes()


def test_a_second_writer_is_refused_until_the_first_is_done(tmp_path: Path) -> None:
    program = "import sys; from pathlib import Path; from neuralpower.data.journal import Journal\n"
    program += "with Journal(Path(sys.argv[1])): pass"
    command = [sys.executable, "-c", program, str(tmp_path)]
    with Journal(tmp_path) as journal:
        with pytest.raises(DatasetError, match="another run is writing to it; wait for it, or"):
            Journal(tmp_path).__enter__()
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == 1
        assert "another run is writing to it" in done.stderr
        journal.append({"value": 1})
    with Journal(tmp_path) as journal:
        assert journal.records() == [{"value": 1}]


@pytest.mark.parametrize("place", ["file", "file/folder", "taken"])
def test_a_folder_that_cannot_be_written_is_refused_with_a_way_out(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("a regular file")
    (tmp_path / "taken" / "journal.jsonl").mkdir(parents=True)
    with pytest.raises(DatasetError, match=rf"{place}.*cannot be written \(.*\); choose another --out"):
        Journal(tmp_path / place).__enter__()


FULL_DISK = """
import json, resource, signal, sys
from pathlib import Path
from neuralpower.errors import DeviceError
from neuralpower.data.journal import Journal

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
count = 0
with Journal(Path(sys.argv[1])) as journal:
    try:
        while count < 1000:
            journal.append({"value": count, "ballast": "x" * 300})
            count += 1
    except DeviceError as error:
        print(json.dumps({"count": count, "error": str(error)}))
"""


def test_a_full_disk_is_said_and_leaves_the_earlier_records(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(folder)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    answer = json.loads(done.stdout)
    # 4000 B hold eleven records of some 350 B, not a thousand
    assert 5 < answer["count"] < 13
    assert "could not be written" in answer["error"]
    assert "earlier measurements are safe; free some space" in answer["error"]
    assert [record["value"] for record in read_journal(folder)] == list(range(answer["count"]))
    with Journal(folder) as journal:  # nothing half-written is left behind
        journal.append({"value": "again"})
    assert len(read_journal(folder)) == answer["count"] + 1
    assert not (folder / "journal.torn").exists()


def test_what_append_returns_from_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sizes() -> list[int]:
        """The sizes of the journal at each fsync."""
        return [size for name, size in forced if name == "journal.jsonl"]

    forced: list[tuple[str, int]] = []
    monkeypatch.setattr("neuralpower.data.journal.os.fsync", lambda file: forced.append(described(file)))
    with Journal(tmp_path) as journal:
        assert forced[-1][0] == tmp_path.name  # that the journal is there
        for value in range(3):
            journal.append({"value": value}, sync=False)  # may wait
            assert len(sizes()) == value
            journal.append({"value": value}, {"value": value})
            assert sizes()[-1] == journal.path.stat().st_size
            assert len(sizes()) == value + 1


def test_a_replaced_file_is_on_the_disk_before_and_after_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[tuple[str, int]] = []
    monkeypatch.setattr("neuralpower.files.atomic.os.fsync", lambda file: forced.append(described(file)))
    replace_file(tmp_path / "plan.json", "four")
    (aside, size), (folder, _) = forced
    assert aside.startswith(".plan.json.") and aside.endswith(".new") and size == 4
    assert folder == tmp_path.name


def described(descriptor: int) -> tuple[str, int]:
    """Name and size of an open file."""
    return Path(f"/proc/self/fd/{descriptor}").readlink().name, os.fstat(descriptor).st_size


# ---- sealing ----


def test_sealing_turns_the_journal_into_a_table_per_kind(tmp_path: Path) -> None:
    written(tmp_path, [softmax(i) for i in range(4)])
    linear = {
        "rows": 2,
        "in_features": 3,
        "out_features": 4,
        "bias": True,
        "config_id": "l",
        "runtime_s": 1e-6,
    }
    written(tmp_path, [linear], "linear")
    lines = (tmp_path / "journal.jsonl").read_bytes()
    before = read_dataset(tmp_path)
    assert seal(tmp_path) == {"softmax": 4, "linear": 1}
    after = read_dataset(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.parquet*")) == ["linear.parquet", "softmax.parquet"]
    assert not (tmp_path / "journal.jsonl").exists()
    assert gzip.decompress((tmp_path / "journal.jsonl.gz").read_bytes()) == lines
    for kind, table in before.tables.items():
        kept = after.tables[kind]
        assert list(kept.columns) == list(table.columns)
        for column in table.columns.drop("samples_s", errors="ignore"):
            assert kept[column].tolist() == table[column].tolist(), column
    for kept, fresh in zip(
        after.tables["softmax"]["samples_s"], before.tables["softmax"]["samples_s"], strict=True
    ):
        assert list(kept) == pytest.approx(fresh)


def test_sealing_keeps_counters_to_the_joule_and_whole_numbers_whole(tmp_path: Path) -> None:
    # float32 counts in steps of 32 above 2^28, and 2^24 + 1 is the first whole number that it lacks
    start_j, flops = 4e8 + 1.25, 2**24 + 1
    energies = {"counter_start_j": start_j, "counter_end_j": start_j + 100, "idle_w_used": 75.123456789}
    ticks = {"flops": flops, "bytes": flops, "ticks": flops}
    written(
        tmp_path, [softmax(0, **energies, **ticks, window_s=0.1), {**failed(1, "crashed"), "wall_s": 0.1}]
    )
    seal(tmp_path)
    for _ in range(2):  # and when it is sealed again
        table = read_dataset(tmp_path).tables["softmax"]
        assert table.loc[0, list(energies)].to_dict() == energies
        assert table.loc[0, list(ticks)].to_dict() == ticks
        assert {str(table[name].dtype) for name in ticks} == {"Int64"}
        assert table.loc[1, list(ticks)].isna().all()
        assert {str(table[name].dtype) for name in ("window_s", "wall_s")} == {"float32"}
        assert len(screen("softmax", table)) == 1
        written(tmp_path, [failed(2, "oom")])
        seal(tmp_path)


def test_a_sealed_dataset_can_be_continued_and_sealed_again(tmp_path: Path) -> None:
    written(tmp_path, [softmax(0), softmax(1)])
    seal(tmp_path)
    written(tmp_path, [softmax(2)])
    assert read_dataset(tmp_path).tables["softmax"]["config_id"].tolist() == ["c0", "c1", "c2"]
    assert seal(tmp_path) == {"softmax": 3}
    assert read_dataset(tmp_path).tables["softmax"]["config_id"].tolist() == ["c0", "c1", "c2"]
    assert gzip.decompress((tmp_path / "journal.jsonl.gz").read_bytes()).count(b"\n") == 3


def test_a_crash_between_the_tables_and_the_journals_end_counts_nothing_twice(tmp_path: Path) -> None:
    written(tmp_path, [softmax(i) for i in range(3)])
    lines = (tmp_path / "journal.jsonl").read_bytes()
    seal(tmp_path)
    (tmp_path / "journal.jsonl").write_bytes(lines)  # as if its removal had not been reached
    assert seal(tmp_path) == {"softmax": 3}
    assert len(screen("softmax", read_dataset(tmp_path).tables["softmax"])) == 3


@pytest.mark.parametrize("status", ["crashed", "timeout", "oom", "error"])
def test_configurations_that_failed_are_sealed_beside_those_that_did_not(tmp_path: Path, status: str) -> None:
    written(tmp_path, [softmax(0), failed(1, status), softmax(2)])
    assert seal(tmp_path) == {"softmax": 3}
    data = read_dataset(tmp_path)
    assert data.tables["softmax"]["status"].tolist() == ["ok", status, "ok"]
    rows = screen("softmax", data.tables["softmax"])
    assert len(rows) == 2
    assert rows.rejected == (Rejected("softmax", 3, f"status {status}"),)


def test_a_kind_of_which_every_configuration_failed_does_not_stop_the_others(tmp_path: Path) -> None:
    written(tmp_path, [softmax(i) for i in range(12)])
    written(
        tmp_path, [{"function": "relu", "elements": 4, "config_id": "a", "status": "crashed"}], "activation"
    )
    for data in (read_dataset(tmp_path), seal(tmp_path) and read_dataset(tmp_path)):
        assert isinstance(data, Dataset)
        trained = train(data, "lasso", jobs=1)
        assert [key[0] for key in trained.predictor.regressors] == ["softmax"]
        assert [row.reason for row in trained.rejected] == ["status crashed"]


def test_tables_that_cannot_be_written_leave_the_journal_as_it_was(tmp_path: Path) -> None:
    written(tmp_path, [softmax(0), softmax(1)])
    (tmp_path / "softmax.parquet.new").mkdir()
    lines = (tmp_path / "journal.jsonl").read_bytes()
    with pytest.raises(DatasetError, match="softmax.parquet.new"):
        seal(tmp_path)
    assert (tmp_path / "journal.jsonl").read_bytes() == lines
    assert len(read_dataset(tmp_path)) == 2


# a table, the folder with its name, the kept journal
@pytest.mark.parametrize("point", [0, 1, 2])
def test_a_disk_that_is_full_at_any_point_of_sealing_costs_nothing_and_is_no_fault_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: int
) -> None:
    written(tmp_path, [softmax(0)])
    seal(tmp_path)
    kept = (tmp_path / "journal.jsonl.gz").read_bytes()
    written(tmp_path, [softmax(1)])
    lines = (tmp_path / "journal.jsonl").read_bytes()
    forced: list[str] = []

    def full(path: Path) -> None:
        forced.append(path.name)
        if len(forced) > point:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("neuralpower.data.sealing.force", full)
        with pytest.raises(
            DeviceError, match="No space left on device.*; the journal holds everything"
        ) as error:
            seal(tmp_path)
    assert error.value.exit_code == 4
    assert forced == ["softmax.parquet.new", tmp_path.name, "journal.jsonl.gz.new"][: point + 1]
    assert (tmp_path / "journal.jsonl").read_bytes() == lines
    assert (tmp_path / "journal.jsonl.gz").read_bytes() == kept  # never a part of the next
    assert not list(tmp_path.glob("*.new"))
    assert seal(tmp_path) == {"softmax": 2}
    assert gzip.decompress((tmp_path / "journal.jsonl.gz").read_bytes()).count(b"\n") == 2


def test_ones_own_rows_beside_a_collection_are_all_kept(tmp_path: Path) -> None:
    written(tmp_path, [softmax(0), softmax(1)])
    seal(tmp_path)
    mine = pd.DataFrame([{"rows": 100 + i, "width": 7, "runtime_s": 1e-3 + i} for i in range(3)])
    mine.to_csv(tmp_path / "softmax.csv", index=False)
    assert len(screen("softmax", read_dataset(tmp_path).tables["softmax"])) == 5
    written(tmp_path, [softmax(2)])
    assert seal(tmp_path) == {"softmax": 6}
    kept = read_dataset(tmp_path).tables["softmax"]
    assert sorted(kept["rows"]) == [8, 16, 24, 100, 101, 102]
    assert len(screen("softmax", kept)) == 6


def attention(number: int) -> dict[str, Any]:
    sizes = {
        "batch": 1,
        "query_heads": 4,
        "key_heads": 4,
        "query_length": 64,
        "key_length": 64,
        "head_size": 8,
    }
    shape = {"dtype": "float32", "phase": "forward", **sizes, "causal": False, "masked": False}
    return {**shape, "status": "ok", "runtime_s": 1e-6, "session_id": "s1", "config_id": f"c{number}"}


@pytest.mark.parametrize(
    ("platform", "library"), [("nvidia", "torch"), ("accelerator", "torch"), ("cpu", "")]
)
def test_attention_that_was_collected_on_a_gpu_is_torchs(tmp_path: Path, platform: str, library: str) -> None:
    folder = written(tmp_path, [attention(0), attention(1)], "attention")
    write_meta(folder, {"device": "x", "hardware": {"platform": platform}})
    table = read_dataset(folder).tables["attention"]
    assert [from_row(Attention, row).library for row in table.to_dict("records")] == [library] * 2
    assert table["config_id"].tolist() == ["c0", "c1"]


def test_attention_in_a_table_of_ones_own_is_what_its_column_says(tmp_path: Path) -> None:
    write_meta(tmp_path, {"device": "x", "hardware": {"platform": "nvidia"}})
    rows = [{**attention(i), "library": name} for i, name in enumerate(("", "torch"))]
    pd.DataFrame(rows).drop(columns="config_id").to_csv(tmp_path / "attention.csv", index=False)
    table = read_dataset(tmp_path).tables["attention"]
    assert [from_row(Attention, row).library for row in table.to_dict("records")] == ["", "torch"]


def test_two_datasets_merge_by_concatenating_their_tables(tmp_path: Path) -> None:
    a = written(tmp_path / "a", [softmax(0), softmax(1), softmax(2)])
    b = written(tmp_path / "b", [softmax(2, replicate=1, runtime_s=2.5e-6), softmax(3, replicate=0)])
    merged = tmp_path / "merged"
    merged.mkdir()
    (merged / "dataset.json").write_text(DEVICE)
    for folder in (a, b):
        seal(folder)
    parts = [pd.read_parquet(folder / "softmax.parquet") for folder in (a, b)]
    pd.concat(parts).to_parquet(merged / "softmax.parquet")
    rows = screen("softmax", read_dataset(merged).tables["softmax"])
    assert len(rows) == 5
    assert rows.rejected == ()
    assert len(np.unique(fingerprint(rows.layer))) == 4  # c2 was measured again: one configuration, two rows


def keyed(number: int, runtime_s: float, **columns: Any) -> dict[str, Any]:
    keys = {"device_key": "d", "software_key": "s", "protocol_version": 1, "replicate": 0}
    return {**softmax(number, runtime_s=runtime_s), **keys, **columns}


def test_of_equal_keys_the_latest_that_is_ok_counts(tmp_path: Path) -> None:
    first = written(
        tmp_path / "a", [keyed(0, 1e-6), keyed(1, 1e-6), keyed(2, 1e-6), keyed(3, 1e-6, status="noisy")]
    )
    again = [
        keyed(0, 2e-6),
        keyed(1, 2e-6, status="crashed"),
        keyed(2, 2e-6, replicate=1),
        keyed(3, 2e-6, status="crashed"),
        keyed(4, 2e-6),
    ]
    second = written(tmp_path / "b", again)
    third = written(tmp_path / "c", [keyed(0, 3e-6, software_key="other")])
    (merged,) = merge([read_dataset(folder) for folder in (first, second, third)])
    table = merged.tables["softmax"]
    found = sorted(
        zip(table["config_id"], table["replicate"], table["status"], table["runtime_s"], strict=True)
    )
    assert found == [
        ("c0", 0, "ok", 2e-6),
        ("c0", 0, "ok", 3e-6),  # by other software
        ("c1", 0, "ok", 1e-6),
        ("c2", 0, "ok", 1e-6),
        ("c2", 1, "ok", 2e-6),
        ("c3", 0, "crashed", 2e-6),
        ("c4", 0, "ok", 2e-6),
    ]
    assert (merged.name, merged.device) == ("a + b + c", "x")


def test_datasets_of_several_devices_and_tables_of_ones_own_stay_apart(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "dataset.json").write_text(DEVICE)
    pd.DataFrame({"rows": [7, 8], "width": 4, "runtime_s": 1e-5}).to_csv(mine / "softmax.csv", index=False)
    other = written(tmp_path / "other", [keyed(0, 1e-6)])
    write_meta(other, {"device": "y"})
    parts = [read_dataset(mine), read_dataset(written(tmp_path / "a", [keyed(0, 1e-6)])), read_dataset(other)]
    assert [dataset.device for dataset in merge([*parts, parts[1]])] == ["x", "x", "y"]


def test_datasets_of_two_cpus_of_one_name_are_not_merged(tmp_path: Path) -> None:
    parts = []
    for name, hardware in (
        ("a", {"cores": 2, "l1d_bytes": 32768}),
        ("b", {"cores": 2, "l1d_bytes": 49152}),
        ("c", {}),
    ):
        parts.append(written(tmp_path / name, [keyed(0, 1e-6)]))
        write_meta(parts[-1], {"device": "x", "hardware": hardware})
    first, second, unknown = (read_dataset(part) for part in parts)
    assert len(merge([first, unknown])) == 1
    with pytest.raises(
        DatasetError, match=r"from two devices: l1d_bytes 32768 there, 49152 here; train a predictor of each"
    ):
        merge([unknown, first, second])


def test_raw_times_are_read_where_they_are_wanted_only(tmp_path: Path) -> None:
    written(tmp_path, [softmax(0), softmax(1)])
    for _ in ("journal", "table"):
        assert "samples_s" in read_dataset(tmp_path).tables["softmax"]
        assert "samples_s" not in read_dataset(tmp_path, samples=False).tables["softmax"]
        seal(tmp_path)


def test_shards_of_several_devices_are_refused(tmp_path: Path) -> None:
    for number, device in ((1, "x"), (2, "y")):
        write_meta(written(tmp_path / f"shard-{number}-of-2", [keyed(number, 1e-6)]), {"device": device})
    with pytest.raises(DatasetError, match="its shards are of x, y; give one folder per device"):
        read_dataset(tmp_path)


def test_the_sentinel_of_a_dataset_is_its_usual_speed(tmp_path: Path) -> None:
    written(tmp_path, [softmax(i, sentinel_s=1e-3 * (1 + i)) for i in range(11)])
    data = read_dataset(tmp_path)
    # 1 to 11 ms: the median is the sixth, 6 ms
    assert data.sentinel_s == pytest.approx(6e-3)
    rows = screen("softmax", data.tables["softmax"], data.sentinel_s)
    assert rows.slowdown == pytest.approx([(1 + i) / 6 for i in range(11)])


# ---- a user's own folder ----


def columns(rows: Rows) -> Any:
    """The fields of the rows, each an array."""
    return rows.layer


def own(folder: Path, table: pd.DataFrame, kind: str = "softmax", meta: str = DEVICE) -> Path:
    """A user's dataset: one csv file and a description."""
    folder.mkdir(exist_ok=True)
    (folder / "dataset.json").write_text(meta)
    table.to_csv(folder / f"{kind}.csv", index=False)
    return folder


def needed(count: int = 5) -> pd.DataFrame:
    """Only what the softmax kind cannot do without."""
    return pd.DataFrame(
        [{"rows": 8 + i, "width": 16 * (i + 1), "runtime_s": 1e-6 * (3 + i)} for i in range(count)]
    )


def test_the_columns_a_kind_needs_and_a_device_are_enough_to_train(tmp_path: Path) -> None:
    layers = list(draw(KINDS["softmax"], 20, 0, PRESETS["quick"]))
    table = pd.DataFrame(
        [{**to_row(layer), "runtime_s": 5e-6 + sum(layer.bytes()) / 1e10} for layer in layers]
    )
    data = read_dataset(own(tmp_path / "mine", table[["rows", "width", "runtime_s"]]))
    assert (data.name, data.device, len(data), data.sentinel_s) == ("mine", "x", 20, None)
    trained = train(data, "lasso", jobs=1)
    assert trained.rejected == ()
    assert trained.predictor.device == "x"
    assert list(trained.predictor.regressors) == [("softmax", "float32", "forward", "all")]
    straight = [layer for layer in layers if not getattr(layer, "strided", False)]
    seconds = [5e-6 + sum(layer.bytes()) / 1e10 for layer in straight]
    assert trained.predictor.estimate(straight).runtime_s == pytest.approx(seconds, rel=0.1)


def test_optional_columns_have_defaults(tmp_path: Path) -> None:
    rows = screen("softmax", read_dataset(own(tmp_path, needed())).tables["softmax"])
    assert set(columns(rows).dtype) == {"float32"}
    assert set(columns(rows).phase) == {"forward"}
    assert columns(rows).strided.tolist() == [0] * 5
    assert rows.slowdown.tolist() == [1] * 5


@pytest.mark.parametrize("gaps", [[1], [0, 1, 2, 3, 4]], ids=["one gap", "an empty column"])
def test_a_gap_in_an_optional_column_is_its_default(tmp_path: Path, gaps: list[int]) -> None:
    table = needed().assign(dtype="bfloat16", phase="forward", strided=True).astype({"strided": object})
    table.loc[gaps, ["dtype", "phase", "strided"]] = None
    rows = screen("softmax", read_dataset(own(tmp_path, table)).tables["softmax"])
    assert rows.rejected == ()
    assert columns(rows).dtype.tolist() == ["float32" if i in gaps else "bfloat16" for i in range(5)]
    assert set(columns(rows).phase) == {"forward"}
    assert columns(rows).strided.tolist() == [0 if i in gaps else 1 for i in range(5)]


def test_truth_may_be_spelt_in_any_way(tmp_path: Path) -> None:
    (tmp_path / "dataset.json").write_text(DEVICE)
    lines = [
        f"{8 + i}, 16, 1e-{i + 3}, {word}"
        for i, word in enumerate(["True", "true", "1", "False", "false", "0"])
    ]
    (tmp_path / "softmax.csv").write_text("rows, width, runtime_s, strided\n" + "\n".join(lines))
    rows = screen("softmax", read_dataset(tmp_path).tables["softmax"])
    assert rows.rejected == ()
    assert columns(rows).strided.tolist() == [1, 1, 1, 0, 0, 0]


def test_a_table_from_another_program_is_read_or_what_is_wrong_with_it_is_said(tmp_path: Path) -> None:
    text = needed(12).assign(dtype="float32").to_csv(index=False)
    (tmp_path / "dataset.json").write_bytes(DEVICE.encode("utf-8-sig"))
    file = tmp_path / "softmax.csv"
    for given in (
        text.encode("utf-8-sig"),
        text.replace("\n", "\r\n").encode(),
        text.replace(",", " , ").encode(),
    ):
        file.write_bytes(given)
        rows = screen("softmax", read_dataset(tmp_path).tables["softmax"])
        assert (rows.rejected, rows.runtime_s.tolist()) == ((), needed(12)["runtime_s"].tolist())
    for mark in ";\t":
        file.write_text(text.replace(",", mark))
        with pytest.raises(
            DatasetError, match=r"softmax.csv: cannot be read \(its values must be separated by commas\)"
        ):
            read_dataset(tmp_path)
    for name in ("runtime_s", "energy_u_rel", "status"):
        file.write_text(
            needed(12)
            .assign(energy_u_rel=0.1, status="ok", twice="")
            .to_csv(index=False)
            .replace("twice", name)
        )
        with pytest.raises(DatasetError, match=f"column {name} is there twice"):
            read_dataset(tmp_path)
    file.unlink()
    (tmp_path / "network.csv").write_text(
        "model,batch,dtype,dtype,runtime_s\nzoo:deep_mnist,1,float32,float64,1\n"
    )
    with pytest.raises(DatasetError, match="column dtype is there twice"):
        read_dataset(tmp_path)


@pytest.mark.parametrize("blank", [0, 2])
@pytest.mark.parametrize("row", [1, 5])
def test_a_row_of_too_many_values_is_told_by_its_line(tmp_path: Path, blank: int, row: int) -> None:
    lines = needed().to_csv(index=False).splitlines()
    lines[row] += ",7"
    (tmp_path / "dataset.json").write_text(DEVICE)
    (tmp_path / "softmax.csv").write_text("\n" * blank + "\n".join(lines))
    said = f"line {blank + row + 1} holds more values than line {blank + 1} names columns"
    with pytest.raises(DatasetError, match=rf"softmax.csv: cannot be read \({said}\)"):
        read_dataset(tmp_path)


def test_a_comma_at_the_end_of_every_row_is_no_value(tmp_path: Path) -> None:
    header, *rows = needed().to_csv(index=False).splitlines()
    (tmp_path / "dataset.json").write_text(DEVICE)
    (tmp_path / "softmax.csv").write_text("\n".join([header, *(f"{row}," for row in rows)]))
    assert read_dataset(tmp_path).tables["softmax"].equals(needed())


def test_a_column_is_called_as_it_is_documented_and_once(tmp_path: Path) -> None:
    table = needed().assign(Dtype="bfloat16")
    file = own(tmp_path, table) / "softmax.csv"
    with pytest.raises(DatasetError, match="column Dtype is written dtype"):
        read_dataset(tmp_path)
    file.write_text(table.to_csv(index=False).replace("Dtype", "runtime_s "))
    with pytest.raises(DatasetError, match="column runtime_s is there twice"):
        read_dataset(tmp_path)
    file.write_text(table.assign(dtype="float32").to_csv(index=False))  # one's own word beside it
    assert len(read_dataset(tmp_path).tables["softmax"]) == 5


def test_a_dtype_whose_peak_is_not_known_is_not_held_to_anothers(tmp_path: Path) -> None:
    meta = '{"schema": 1, "device": "mine", "hardware": {"peak_flops_per_s": {"float32": 1e12}}}'
    table = pd.DataFrame(
        {"rows": 4096, "in_features": 4096, "out_features": [4096, 4096], "bias": True, "runtime_s": 0.01}
    )
    own(tmp_path, table.assign(dtype=["float16", "float32"]), "linear", meta)
    data = read_dataset(tmp_path)
    rows = screen(
        "linear", data.tables["linear"], None, hardware_from(data.meta)
    )  # 137 GFLOP in 10 ms: 14 TFLOP/s
    assert [(row.line, row.reason) for row in rows.rejected] == [(3, "faster than the device's peak")]


@pytest.mark.parametrize("change", [pd.to_timedelta, pd.to_datetime])
def test_durations_and_moments_are_no_seconds(change: Any) -> None:
    table = needed().assign(runtime_s=change(needed()["runtime_s"], unit="s"))
    assert {row.reason for row in screen("softmax", table).rejected} == {"runtime_s is not a number"}


# ---- rows that no fit may see ----

WHOLE = "{} is not a whole number, 0 or more"


def screened(folder: Path, table: pd.DataFrame, kind: str = "softmax") -> Rows:
    return screen(kind, read_dataset(own(folder, table, kind)).tables[kind])


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("rows", "many", WHOLE.format("rows")),
        ("rows", -8, WHOLE.format("rows")),
        ("rows", 8.5, WHOLE.format("rows")),
        ("rows", "inf", WHOLE.format("rows")),
        ("rows", None, WHOLE.format("rows")),
        ("width", "16 wide", WHOLE.format("width")),
        ("strided", "perhaps", "strided is neither true nor false"),
        ("strided", 7, "strided is neither true nor false"),
        ("runtime_s", "fast", "runtime_s is not a number"),
        ("runtime_s", None, "runtime_s is not a number"),
        ("runtime_s", "nan", "runtime_s is not a number"),
        ("runtime_s", "inf", "runtime_s is not a number"),
        ("runtime_s", 0, "runtime_s is not above 0"),
        ("runtime_s", -1e-5, "runtime_s is not above 0"),
        ("runtime_s", 1e-9, "runtime_s is outside 1e-08 to 10000 s"),
        ("runtime_s", 12_000, "runtime_s is outside 1e-08 to 10000 s"),
        ("rows", 1e30, "rows is above 9007199254740992"),
        ("rows", 10**11, "more than 1e+17 FLOP/s"),  # 5 FLOP * 1e11 * 48 in 5 us: 4.8e18 FLOP/s
        ("dtype", "float33", "unknown dtype 'float33': did you mean float32, float64, float16, bfloat16?"),
        ("status", "noisy", "status noisy"),
        ("phase", "fwd", "unknown phase 'fwd': did you mean forward?"),
        ("power_w", "120 W", "power_w is not a number"),
        ("power_w", "inf", "power_w is not a number"),
        ("energy_j", "little", "energy_j is not a number"),
        ("energy_u_rel", "2 %", "energy_u_rel is not a number"),
        ("energy_u_rel", -0.02, "energy_u_rel is below 0"),
    ],
)
def test_a_bad_value_is_left_out_with_its_line_and_the_reason(
    tmp_path: Path, column: str, value: Any, reason: str
) -> None:
    given = needed().assign(strided=False, dtype="float32", phase="forward", status="ok")
    table = given.assign(power_w=None, energy_j=None, energy_u_rel=None).astype({column: object})
    table.loc[2, column] = value
    rows = screened(tmp_path, table)
    assert rows.rejected == (Rejected("softmax", 4, reason),)  # the header is line 1, the third row line 4
    assert rows.runtime_s == pytest.approx([3e-6, 4e-6, 6e-6, 7e-6])
    assert columns(rows).rows.tolist() == [8, 9, 11, 12]
    assert columns(rows).width.tolist() == [16, 32, 64, 80]
    assert columns(rows).strided.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        # its weights are read all the same
        ("linear", {"rows": 0, "in_features": 64, "out_features": 64, "bias": True}),
        ("matmul", {"batch": 4, "rows": 8, "inner": 0, "columns": 8}),
        ("embedding", {"tokens": 0, "vocabulary": 100, "width": 8}),
    ],
)
def test_a_row_without_work_is_left_out(kind: str, row: dict[str, Any]) -> None:
    rows = screen(kind, pd.DataFrame([{**row, "runtime_s": 1e-5}]))
    assert rows.rejected == (Rejected(kind, 2, "the fields describe no possible layer"),)


def test_a_bad_word_among_truths_costs_its_own_row_alone(tmp_path: Path) -> None:
    rows = screened(tmp_path, needed().assign(strided=["True", "False", "maybe", "False", "True"]))
    assert rows.rejected == (Rejected("softmax", 4, "strided is neither true nor false"),)
    assert columns(rows).strided.tolist() == [1, 0, 0, 1]


def test_repeated_rows_are_one_row_with_their_mean_and_their_spread(tmp_path: Path) -> None:
    table = needed()
    again = table.loc[[1, 1]].assign(runtime_s=[4e-6, 7e-6], power_w=[np.nan, 50.0])
    rows = screened(tmp_path, pd.concat([table, again]))
    assert (len(rows), rows.rejected) == (7, ())
    found = averaged(rows)
    assert found.line.tolist() == [2, 3, 4, 5, 6]  # the first row of a configuration is where it stands
    assert found.repeats.tolist() == [1, 3, 1, 1, 1]
    # 4, 4 and 7 us: mean 5 us, deviations 1, 1 and 2 us, sqrt(6 / 2) = 1.73 us
    assert found.runtime_s == pytest.approx([3e-6, 5e-6, 5e-6, 6e-6, 7e-6])
    assert found.spread[1] == pytest.approx(3**0.5 / 5)
    assert np.isnan(found.spread[[0, 2, 3, 4]]).all()
    assert found.power_w[1] == 50
    assert len(set(fingerprint(found.layer))) == 5


def test_rows_that_are_means_already_keep_their_count_and_spread(tmp_path: Path) -> None:
    table = needed().assign(repeats=[1, 4, 1, np.nan, 1], runtime_spread=[np.nan, 0.2, *[np.nan] * 3])
    rows = averaged(screened(tmp_path, table))
    assert rows.repeats.tolist() == [1, 4, 1, 1, 1]
    assert rows.spread[1] == 0.2
    again = averaged(screened(tmp_path, pd.concat([table, table.loc[[1]].assign(runtime_s=9e-6)])))
    assert again.repeats[1] == 8
    assert again.runtime_s[1] == pytest.approx(6.5e-6)


def test_rows_of_a_collection_are_not_averaged_but_counted_once(tmp_path: Path) -> None:
    table = needed().assign(config_id=list("abcde"), replicate=range(5))
    rows = screened(tmp_path, pd.concat([table, table.loc[[1]].assign(replicate=7)]))
    assert rows.rejected == (Rejected("softmax", 7, "repeats an earlier row"),)


def test_a_good_row_that_repeats_one_that_was_left_out_is_kept(tmp_path: Path) -> None:
    table = needed().assign(status="ok")
    twice = pd.concat([table.loc[[1]].assign(status="noisy"), table])
    rows = screened(tmp_path, twice)
    assert rows.rejected == (Rejected("softmax", 2, "status noisy"),)
    assert len(rows) == 5


def test_a_function_that_is_not_named_is_left_out(tmp_path: Path) -> None:
    table = pd.DataFrame(
        {"function": ["relu", None, "gelu"], "elements": [64, 65, 66], "runtime_s": [1e-6, 2e-6, 3e-6]}
    )
    rows = screened(tmp_path, table, "activation")
    assert [row.line for row in rows.rejected] == [3]
    assert columns(rows).function.tolist() == ["relu", "gelu"]


def test_fields_that_no_layer_can_have_are_left_out(tmp_path: Path) -> None:
    layers = list(draw(KINDS["pool2d"], 4, 0, PRESETS["quick"]))
    table = pd.DataFrame([{**to_row(layer), "runtime_s": 1e-3 * (i + 1)} for i, layer in enumerate(layers)])
    table.loc[1, "stride_width"] = 0
    rows = screened(tmp_path, table, "pool2d")
    assert rows.rejected == (Rejected("pool2d", 3, "the fields describe no possible layer"),)


@pytest.mark.parametrize("sentinel", [0.0, -1e-3, np.nan, np.inf])
def test_a_broken_sentinel_never_makes_a_time_infinite(sentinel: float) -> None:
    table = needed().assign(sentinel_s=[1e-3, 1e-3, sentinel, 2e-3, 1e-3])
    rows = screen("softmax", table, 1e-3)
    assert rows.slowdown.tolist() == [1, 1, 1, 2, 1]
    assert np.isfinite(rows.runtime_s / rows.slowdown).all()


@pytest.mark.parametrize("before", [0, 2])
def test_blank_lines_are_no_rows_and_count_as_lines(before: int, tmp_path: Path) -> None:
    own(tmp_path, needed())
    lines = (tmp_path / "softmax.csv").read_text().splitlines()
    lines[3] = lines[3].rpartition(",")[0] + ",-1"
    (tmp_path / "softmax.csv").write_text(
        "\n".join([*before * [" "], lines[0], "", "", *lines[1:4], "", *lines[4:], "", ""])
    )
    rows = screen("softmax", read_dataset(tmp_path).tables["softmax"])
    assert rows.rejected == (Rejected("softmax", before + 6, "runtime_s is not above 0"),)
    assert rows.line.tolist() == [before + line for line in (4, 5, 8, 9)]


def test_missing_columns_are_named_with_those_that_are_needed() -> None:
    with pytest.raises(
        DatasetError, match="softmax: column width missing; the table needs rows, width and runtime_s"
    ):
        screen("softmax", needed().drop(columns="width"))
    with pytest.raises(DatasetError, match="softmax: columns rows, runtime_s missing"):
        screen("softmax", needed().drop(columns=["rows", "runtime_s"]))


def test_an_empty_table_has_no_rows(tmp_path: Path) -> None:
    rows = screened(tmp_path, needed().head(0))
    assert len(rows) == 0
    assert rows.rejected == ()


def test_reasons_are_summed_up_with_their_first_lines() -> None:
    rejected = [Rejected("softmax", line, "too odd") for line in range(2, 9)] + [
        Rejected("linear", 5, "too even")
    ]
    assert list(summarised(rejected)) == [
        "softmax: 7 skipped, too odd (line 2, 3, 4, 5, 6, ...)",
        "linear: 1 skipped, too even (line 5)",
    ]


def test_reasons_that_differ_in_a_value_are_one_line() -> None:
    reasons = [f"unknown dtype 'float{i}': did you mean float{i + 1}?" for i in range(33, 53)]
    rejected = [Rejected("softmax", line, reason) for line, reason in enumerate(reasons, 2)]
    assert list(summarised(rejected)) == [
        "softmax: 20 skipped, unknown dtype 'float33': did you mean float34? (and 19 values like it) "
        "(line 2, 3, 4, 5, 6, ...)"
    ]


def test_lines_that_begin_with_a_hash_are_comments(tmp_path: Path) -> None:
    file = own(tmp_path, needed().assign(note='say "#"')) / "softmax.csv"
    lines = file.read_text().splitlines()
    lines[2] = lines[2].replace("3e-06", "-1").replace("4e-06", "-1")
    file.write_text("\n".join(["# made here", " # it's by hand", *lines[:2], "#1,2,3,4", *lines[2:]]))
    rows = screen("softmax", read_dataset(tmp_path).tables["softmax"])
    assert rows.rejected == (Rejected("softmax", 6, "runtime_s is not above 0"),)
    assert rows.line.tolist() == [4, 7, 8, 9]


def test_a_hash_within_quotes_begins_no_comment() -> None:
    assert without_comments(b'a,b\n"x\n#y",1\n#z\n') == b'a,b\n"x\n#y",1\n\n'


def test_a_missing_column_names_what_may_stand_for_it() -> None:
    table = needed().rename(columns={"runtime_s": "Latency (ms)"})
    said = r"Latency \(ms\): did you mean runtime_s \(seconds\)\? Fix: neuralpower dataset check FILE --map "
    with pytest.raises(DatasetError, match=said + """'runtime_s="Latency \\(ms\\)"/1000'"""):
        screen("softmax", table)


def test_of_several_datasets_a_row_is_named_with_its_own(tmp_path: Path) -> None:
    table, other = needed(40), needed(40).assign(width=lambda rows: rows["width"] + 1)
    table.loc[3, "runtime_s"], other.loc[4, "runtime_s"], other.loc[30, "runtime_s"] = -1.0, -1.0, 1.0
    data = [read_dataset(own(tmp_path / name, some)) for name, some in (("one", table), ("two", other))]
    assert list(summarised(train(data, "lasso", jobs=1).rejected)) == [
        "one: softmax: 1 skipped, runtime_s is not above 0 (line 5)",
        "two: softmax: 1 skipped, runtime_s is not above 0 (line 6)",
        "two: softmax: 1 skipped, runtime_s contradicts its neighbours (line 32)",
    ]


def test_what_one_dataset_says_of_a_device_holds_for_the_others_of_it(tmp_path: Path) -> None:
    said = {
        "accelerator": True,
        "cores": 40,
        "peak_flops_per_s": {"float32": 1e13},
        "memory_bytes_per_s": 3e11,
    }
    metas = [
        {"schema": 1, "device": "x", "hardware": {"cores": None}},
        {"schema": 1, "device": "x", "hardware": said},
    ]
    data = [
        read_dataset(own(tmp_path / str(i), needed(12).assign(width=16 + i), meta=json.dumps(meta)))
        for i, meta in enumerate(metas)
    ]
    fitted = [train(some, "lasso", jobs=1).predictor for some in (data, data[::-1])]
    assert [one.hardware and one.hardware.cores for one in fitted] == [40, 40]
    other = json.dumps({**metas[1], "hardware": {**said, "cores": 41}})
    with pytest.raises(DatasetError, match="cores of 'x' is 41, but another dataset has 40; correct one"):
        train([*data, read_dataset(own(tmp_path / "other", needed(12), meta=other))], jobs=1)


# ---- folders that are no dataset ----


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        (
            '{"schema": 2, "device": "x"}',
            'schema is 2, but this version reads 1; write at least ."schema": 1, "device": "..."',
        ),
        ('{"schema": 1}', "names no device; write at least"),
        ('{"device": "x"}', "has no schema; write at least"),
        ("[1, 2]", "holds .1, 2., but must be an object; write"),
        ("{", "is not JSON .*; write it again"),
        ("\ufffe", "is not JSON"),
        pytest.param("[" * 100_000, "is not JSON", id="nested"),
        ('{"schema": 1, "device": ["x"]}', r"device is \['x'\], but must be a name"),
        ('{"schema": 1, "device": " "}', "device is ' ', but must be a name"),
        (
            '{"schema": 1, "device": "x", "includes_launch": "no"}',
            "includes_launch is 'no', but must be true or false",
        ),
        (
            '{"schema": 1, "device": "x", "include_launch": true}',
            "unknown field 'include_launch': did you mean",
        ),
        ('{"schema": 1, "device": "x", "Hardware": {}}', "unknown field 'Hardware': did you mean hardware"),
        (
            '{"schema": 1, "device": "x", "autograd_start_s": "27 us"}',
            "autograd_start_s is '27 us', but must be seconds",
        ),
        (
            '{"schema": 1, "device": "x", "sessions": "one"}',
            "sessions is 'one', but must be a list of objects",
        ),
        (
            '{"schema": 1, "device": "x", "sessions": [{"idle_w": NaN}]}',
            "holds NaN or Infinity, which JSON does not have",
        ),
    ],
)
def test_a_description_that_cannot_be_used_is_refused(tmp_path: Path, meta: str, said: str) -> None:
    with pytest.raises(DatasetError, match=f"dataset.json: .*{said}"):
        read_dataset(own(tmp_path, needed(), meta=meta))


@pytest.mark.parametrize(
    ("hardware", "said"),
    [
        ([1], r"hardware is \[1\], but must be an object"),
        ({"cores": "40"}, "cores is '40', but must be a whole number from 1 to 1e[+]06 cores"),
        ({"cores": 0}, "cores is 0"),
        ({"cores": 2.5}, "cores is 2.5, but must be a whole number"),
        ({"core": 40}, "unknown value of hardware 'core': did you mean cores"),
        ({"L2_bytes": 40}, "unknown value of hardware 'L2_bytes': did you mean l2_bytes"),
        ({"idle_w": 100, "limit_w": 10}, "idle_w is 100, but must be less than limit_w, which is 10"),
        ({"peak_flops_per_s": {"fp32": 8e12}}, "unknown dtype of peak_flops_per_s 'fp32'"),
        ({"l2_bytes": 0}, "l2_bytes is 0"),
        ({"accelerator": "yes"}, "accelerator is 'yes', but must be true or false"),
        ({"memory_bytes_per_s": -3}, "memory_bytes_per_s is -3"),
        ({"memory_bytes_per_s": float("nan")}, "memory_bytes_per_s is nan"),
        (
            {"peak_flops_per_s": 8.1e12},
            "peak_flops_per_s is 8100000000000.0, but must be an object of FLOP/s by dtype",
        ),
        ({"peak_flops_per_s": {"float32": 8.1}}, "peak_flops_per_s of float32 is 8.1"),
        ({"year": True}, "year is True"),
        ({"lanes_per_scheduler": 0}, "lanes_per_scheduler is 0"),
        ({"base_clock": 1.5}, "base_clock is 1.5"),
    ],
)
def test_hardware_that_no_device_has_is_refused(tmp_path: Path, hardware: Any, said: str) -> None:
    meta = json.dumps({"schema": 1, "device": "x", "hardware": hardware})
    with pytest.raises(DatasetError, match=f"{tmp_path}/dataset.json: {said}"):
        read_dataset(own(tmp_path, needed(12), meta=meta))


def test_where_nothing_can_be_trained_the_reasons_are_said(tmp_path: Path) -> None:
    data = read_dataset(own(tmp_path, needed(12).assign(dtype="fp32")))
    with pytest.raises(
        DatasetError,
        match=r"0 usable rows, 12 skipped.*; softmax: 12 skipped, unknown dtype 'fp32'.*line 2, 3",
    ):
        train(data, jobs=1)


ACTIVATION = {"elements": range(8, 13), "runtime_s": 1e-5}
SUMS = {**ACTIVATION, "outputs": 1}
CONV1D = {
    **dict.fromkeys(("batch", "stride_length", "dilation_length"), 1),
    **{
        "in_channels": 12,
        "out_channels": 12,
        "groups": range(1, 6),
        "bias": True,
        "in_length": 64,
        "kernel_length": 3,
    },
    **{"padding_length": 1, "runtime_s": 1e-4},
}
ATTENTION = {
    **{
        "batch": 1,
        "query_heads": 4,
        "key_heads": range(1, 6),
        "query_length": 8,
        "key_length": 8,
        "head_size": 16,
    },
    **{"causal": False, "masked": False, "runtime_s": 1e-4},
}


@pytest.mark.parametrize(
    ("kind", "columns", "lines", "reason"),
    [
        ("activation", {**ACTIVATION, "function": "gelu GELU gelu relu ReLU".split()}, [3, 6],
         "unknown function 'G"),
        ("reduction", {**SUMS, "function": "sum nansum Sum mean my.sum".split()}, [4],
         "unknown function 'Sum'"),
        ("reduction", {**SUMS, "function": "aten.sum __class__ 3.5 name sum".split()}, [2, 3, 4, 5],
         "unknown function"),
        ("conv1d", CONV1D, [6], "groups must divide the channels"),
        ("conv1d", {**CONV1D, "groups": [0, 1, 2, 3, 4]}, [2], "the fields describe no possible layer"),
        ("conv1d", {**CONV1D, "groups": 1, "dilation_length": range(5)}, [2], "groups must divide"),
        ("attention", ATTENTION, [4, 6], "key_heads must divide query_heads"),
    ],
)  # fmt: skip
def test_what_names_or_describes_no_layer_is_left_out(
    tmp_path: Path, kind: str, columns: dict[str, Any], lines: list[int], reason: str
) -> None:
    rows = screened(tmp_path, pd.DataFrame(columns), kind)
    assert [row.line for row in rows.rejected] == lines
    assert rows.rejected[0].reason.startswith(reason)
    assert len(rows) == 5 - len(lines)


def test_words_are_taken_as_torch_and_people_write_them(tmp_path: Path) -> None:
    table = needed().assign(dtype="torch.float32", status="OK")
    rows = screened(tmp_path, table)
    assert (len(rows), rows.rejected) == (5, ())
    assert set(rows.layer.dtype) == {"float32"}
    table.set_index("rows").to_parquet(tmp_path / "softmax.parquet")
    (tmp_path / "softmax.csv").unlink()
    assert len(screen("softmax", read_dataset(tmp_path).tables["softmax"])) == 5


def test_energy_over_power_is_a_time(tmp_path: Path) -> None:
    table = needed().assign(energy_j=needed().runtime_s * 20, power_w=20.0)
    for given in (table.drop(columns="runtime_s"), table.assign(runtime_s=None)):
        rows = screened(tmp_path, given)
        np.testing.assert_allclose(rows.runtime_s, needed().runtime_s)
        assert rows.power_w.tolist() == [20.0] * 5
    table.loc[1, ["runtime_s", "energy_j"]] = None
    assert [(row.line, row.reason) for row in screened(tmp_path, table).rejected] == [
        (3, "runtime_s is not a number")
    ]
    with pytest.raises(
        DatasetError, match="runtime_s missing; the table needs .* and runtime_s, or energy_j and power_w"
    ):
        screened(tmp_path, table.drop(columns=["runtime_s", "power_w"]))


def hand_made(count: int = 25) -> pd.DataFrame:
    """Rows of `linear` by a law with 2 % of noise."""
    draw, rows = random.Random(1), []
    for _ in range(count):
        m, k, n = (round(2 ** draw.uniform(low, high)) for low, high in ((0, 10), (4, 12), (4, 12)))
        runtime = 5e-6 + 2 * m * k * n / 1e11 + 4 * (m * k + k * n + m * n) / 2e10
        runtime *= math.exp(draw.gauss(0, 0.02))
        rows.append({"rows": m, "in_features": k, "out_features": n, "bias": True, "runtime_s": runtime})
    return pd.DataFrame(rows)


@pytest.mark.parametrize("factor", [1e-3, 1e-2])
def test_good_rows_that_a_wrong_one_made_look_wrong_come_back(tmp_path: Path, factor: float) -> None:
    good = hand_made()
    wrong = good.iloc[[12]].assign(rows=316, runtime_s=factor * good.runtime_s[12])
    mixed = train(read_dataset(own(tmp_path / "mixed", pd.concat([good, wrong]), "linear")), jobs=1)
    alone = train(read_dataset(own(tmp_path / "alone", good, "linear")), jobs=1)
    assert [row.line for row in mixed.rejected] == [27]
    found, reference = (
        {k: r.weights.tolist() for k, r in p.predictor.regressors.items()} for p in (mixed, alone)
    )
    assert found == reference


def test_rows_that_predict_none_of_each_other_are_asked_about(tmp_path: Path) -> None:
    rows = hand_made(60)
    every_second = np.where(np.arange(60) % 2, 1e3, 1.0)
    found = train(
        read_dataset(own(tmp_path, rows.assign(runtime_s=rows.runtime_s * every_second), "linear")), jobs=1
    )
    assert any("of held-out rows are" in doubt and "in seconds" in doubt for doubt in found.doubts)
    plain = train(read_dataset(own(tmp_path, rows, "linear")), jobs=1)
    assert plain.doubts == ()


def test_a_hosts_part_in_another_unit_is_not_trained_on(tmp_path: Path) -> None:
    rows = hand_made(40)
    for dispatch_s, known in ((5e-6, True), (5.0, False), (-1.0, False)):
        found = train(
            read_dataset(own(tmp_path, rows.assign(dispatch_s=dispatch_s), "linear")), "lasso", jobs=1
        )
        assert (found.predictor.dispatch is not None) is known
        assert [doubt.partition("dispatch_s of ")[2][:7] for doubt in found.doubts] == (
            [] if known else ["40 rows"]
        )


def test_times_in_another_unit_are_asked_about(tmp_path: Path) -> None:
    hardware = {"peak_flops_per_s": {"float32": 1e12}, "memory_bytes_per_s": 1e11}
    meta = json.dumps({"schema": 1, "device": "x", "hardware": hardware})
    # 2,000 rows of 1,024: 16 MB in 200 us, 80 % of the bandwidth
    table = pd.DataFrame(
        [{"rows": 2000 + i, "width": 1024, "runtime_s": 1e-7 * (2000 + i)} for i in range(12)]
    )
    for factor, doubts in ((1, 0), (1e3, 1), (1e6, 1)):
        given = table.assign(runtime_s=factor * table.runtime_s)
        found = train(read_dataset(own(tmp_path, given, meta=meta)), "lasso", jobs=1)
        assert len(found.doubts) == doubts
        assert all("softmax: no row reaches more than 0.0" in doubt for doubt in found.doubts)


def test_rows_that_are_launches_alone_are_said_to_tell_nothing_of_larger_layers(tmp_path: Path) -> None:
    table = pd.DataFrame(
        [{"rows": 2**i, "width": 64 + i, "runtime_s": 6e-6 + 2**i * 1e-9} for i in range(16)]
    )
    for largest, doubts in ((12, 1), (16, 0)):  # 2 us beside a launch of 6 us; 33 us
        found = train(read_dataset(own(tmp_path / str(largest), table.head(largest))), "lasso", jobs=1).doubts
        assert len(found) == doubts
        assert all(
            "softmax: rows of all sizes take nearly the same time (6e-06 to " in doubt for doubt in found
        )


def documented_fields() -> dict[str, tuple[list[str], dict[str, str]]]:
    """By kind of the documentation's table: fields that are needed, and the others' defaults."""
    text = (ROOT / "docs" / "datasets.md").read_text()
    _, _, table = text.partition("| kind | fields | optional fields |\n")
    rows = [line.strip("|").split("|") for line in table.partition("\n\n")[0].splitlines()[1:]]
    return {
        kind.strip(" `"): (
            needed.strip().split(", "),
            dict(part.split("=") for part in others.split(",") if part.strip()),
        )
        for kind, needed, others in ([cell.strip() for cell in row] for row in rows if len(row) == 3)
    }


def test_the_documented_fields_are_those_of_the_kinds() -> None:
    documented = documented_fields()
    assert set(documented) == set(KINDS)
    for name, kind in KINDS.items():
        needed, others = documented[name]
        usual = {
            field: str(value)
            for field, value in defaults(kind).items()
            if field not in ("dtype", "phase", "recurs")
        }
        assert needed == [field for field in field_names(kind) if field not in defaults(kind)]
        assert {field.strip(): value for field, value in others.items()} == usual


def test_the_documented_functions_are_those_of_the_kinds() -> None:
    text = (ROOT / "docs" / "datasets.md").read_text()
    rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line[:3] == "| `"
    ]
    documented = {kind: functions.split(", ") for kind, functions in (row for row in rows if len(row) == 2)}
    known = {name: kind.words["function"] for name, kind in KINDS.items() if "function" in kind.words}
    open_ = {name for name, functions in known.items() if isinstance(functions, OperatorNames)}
    assert set(documented) == set(known) - open_
    assert all(set(documented[name]) == set(known[name]) for name in documented)
    assert open_ == {"elementwise", "reduction"}


def test_the_documented_description_can_be_used(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "datasets.md").read_text()
    (meta,) = re.findall(r"```json\n(.*?)```", text, re.S)
    trained = train(read_dataset(own(tmp_path, needed(12), meta=meta)), "lasso", jobs=1)
    hardware = trained.predictor.hardware
    assert hardware is not None
    assert (hardware.platform, hardware.cores, hardware.limit_w) == ("nvidia", 40, 70)
    assert hardware.peak_flops_per_s == {"float32": 8.1e12, "bfloat16": 6.5e13}


def test_a_folder_without_a_description_is_told_the_least_it_needs(tmp_path: Path) -> None:
    with pytest.raises(
        DatasetError, match=r'has no dataset.json; it needs at least \{"schema": 1, "device": "..."\}'
    ):
        read_dataset(tmp_path)


def test_a_folder_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    own(tmp_path / "laptop", needed())
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match=r"unknown dataset '.*/labtop': .*laptop") as raised:
        read_dataset(tmp_path / "labtop")
    assert "empty" not in str(raised.value)
    with pytest.raises(DatasetError, match="is a file, and a dataset is a folder. Fix: give its folder"):
        read_dataset(tmp_path / "laptop" / "dataset.json")
    with pytest.raises(DatasetError, match="unknown dataset .*: none exist"):
        read_dataset(tmp_path / "nowhere" / "at all")


def test_a_table_of_an_unknown_kind_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(
        DatasetError, match="unknown layer kind of .*softmaks.csv 'softmaks': did you mean softmax"
    ):
        read_dataset(own(tmp_path, needed(), "softmaks"))


@pytest.mark.parametrize(("name", "content"), [("softmax.parquet", b"PAR1 no more"), ("softmax.csv", b"")])
def test_a_table_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / "dataset.json").write_text(DEVICE)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError, match=rf"{name}: cannot be read \(.*\); write it again"):
        read_dataset(tmp_path)


def test_a_dataset_without_tables_says_what_fills_it(tmp_path: Path) -> None:
    (tmp_path / "dataset.json").write_text(DEVICE)
    with pytest.raises(
        DatasetError, match="holds no table of any layer kind; collect-data --out .* fills it"
    ):
        read_dataset(tmp_path)


# ---- small things ----


def test_a_configuration_has_the_same_name_whatever_the_order_of_its_fields() -> None:
    fields: Mapping[str, Any] = {"kind": "softmax", "rows": 8, "width": 16, "strided": False}
    assert config_id(fields) == config_id(dict(reversed(list(fields.items()))))
    assert config_id(fields) != config_id({**fields, "width": 17})
    # the start of the SHA-256 of {"kind":"softmax"}; tables of all machines and years hold such names
    assert config_id({"kind": "softmax"}) == "b8c14af85f84a447"


@pytest.mark.parametrize(("place", "fault"), [("/dev/full", DeviceError), ("absent/file", InputError)])
def test_a_full_disk_is_no_fault_of_the_place(place: str, fault: type[Exception]) -> None:
    with (
        pytest.raises(fault, match=f"{place}: cannot be written .*; choose another file"),
        writing(place, "file"),
    ):
        Path(place).write_text("text")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    replace_file(file, "old")
    with monkeypatch.context() as patch:
        patch.setattr(
            "neuralpower.files.atomic.force",
            lambda path: (_ for _ in ()).throw(OSError(errno.EROFS, "read-only")),
        )
        with pytest.raises(DatasetError, match="file: cannot be written .*; choose another place"):
            replace_file(file, "new")
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(DatasetError, match="cannot be written"):
        replace_file(file / "below", "text")
