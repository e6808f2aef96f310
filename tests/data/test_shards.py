"""Datasets of one device become shards of one folder, whole or not at all, and teach the same."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from neuralpower.data.dataset import merge, read_dataset, shard_folders
from neuralpower.data.journal import Journal
from neuralpower.data.schema import write_meta
from neuralpower.data.sealing import merge_folders
from neuralpower.errors import DatasetError
from neuralpower.layers import KINDS
from neuralpower.layers.rows import to_row
from neuralpower.learn.files.predictor_json import to_json
from neuralpower.learn.train import train
from neuralpower.measure.collect.plan import draw
from tests.program import done, run


def dataset(folder: Path, seed: int, rows: int = 30, device: str = "x", **meta: Any) -> Path:
    """A sealed collection of softmax, half of it backward passes."""
    folder.mkdir(parents=True)
    layers = list(draw(KINDS["softmax"], rows, seed))
    table = pd.DataFrame(
        [{**to_row(layer), "runtime_s": 5e-6 + sum(layer.bytes()) / 1e10} for layer in layers]
    )
    table["phase"] = ["forward", "backward"] * (rows // 2)
    names = [f"{folder.name}-{number}" for number in range(rows)]
    table.assign(config_id=names, replicate=0, status="ok").to_parquet(
        folder / "softmax.parquet", index=False
    )
    write_meta(
        folder,
        {"device": device, "sessions": [{"session_id": folder.name, "utc": f"2026-01-0{seed}"}], **meta},
    )
    return folder


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    """Collections of one device, the later of which says what autograd's start took."""
    first = dataset(tmp_path / "mine", 1, hardware={"cores": 2})
    return [first, dataset(tmp_path / "mine-later", 2, autograd_start_s=2e-6, protocol_version=5)]


def files(folder: Path) -> dict[str, bytes]:
    """What a folder holds, by relative name; locks aside."""
    found = (file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != ".lock")
    return {str(file.relative_to(folder)): file.read_bytes() for file in found}


def test_merged_datasets_are_one_of_the_same_rows_in_the_same_order(two: list[Path], tmp_path: Path) -> None:
    (apart,) = merge([read_dataset(folder) for folder in two])
    rows = merge_folders(two, tmp_path / "out" / "mine")
    assert rows == {"shard-001-first": {"softmax": 30}, "shard-002-later": {"softmax": 30}}
    found = read_dataset(tmp_path / "out" / "mine")
    pd.testing.assert_frame_equal(found.tables["softmax"], apart.tables["softmax"])
    assert found.meta == apart.meta
    assert "autograd_start_s" not in found.meta
    assert found.name == "mine"
    for folder, shard in zip(two, rows, strict=True):
        assert files(tmp_path / "out" / "mine" / shard) == files(folder)


def test_what_is_trained_on_shards_is_what_the_folders_teach(two: list[Path], tmp_path: Path) -> None:
    merge_folders(two, tmp_path / "out")
    given = (read_dataset(tmp_path / "out"), [read_dataset(folder) for folder in two])
    one, other = (to_json(train(some, "lasso", jobs=1).predictor) for some in given)
    for trained in (one, other):
        trained["dataset"] = {k: v for k, v in trained["dataset"].items() if k not in ("name", "trained")}
    assert one == other


def test_autograd_s_start_is_taken_from_the_shard_that_has_it_alone(two: list[Path], tmp_path: Path) -> None:
    merge_folders(two, tmp_path / "out")
    table = read_dataset(tmp_path / "out").tables["softmax"]
    raw = pd.concat([read_dataset(folder).tables["softmax"] for folder in two], ignore_index=True)
    start_s = np.where((raw["phase"] == "backward") & (raw.index >= 30), 2e-6, 0.0)
    np.testing.assert_allclose(table["runtime_s"], raw["runtime_s"] - start_s)


def test_the_command_says_the_rows_of_each_shard_and_writes_one_card(two: list[Path], tmp_path: Path) -> None:
    text = done("merge", *two, "--out", tmp_path / "out")
    assert text.splitlines() == [
        "shard-001-mine: 30 rows (softmax 30)",
        "shard-002-mine-later: 30 rows (softmax 30)",
    ]
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith("# Dataset `out`\n\nWritten by `neuralpower merge`.")
    assert (
        "| `shard-002-mine-later` | 2026-01-02 (None, ) | 5 | backward, forward | 30 | softmax 30 |" in card
    )
    assert "| `softmax` | 60 |" in card
    assert run("train-predictor", tmp_path / "out", "--jobs", 1, "--out", tmp_path / "p.json").code == 0


def test_later_shards_stand_behind_those_that_are_there(two: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    merge_folders(two[:1], out)
    assert [*merge_folders(two[1:], out)] == ["shard-002-mine-later"]
    again = tmp_path / "again"
    for number in (10, 2):
        dataset(again / f"shard-{number}-of-12", number)
    merged = tmp_path / "all"
    assert [*merge_folders([out, again], merged)] == [
        *("shard-001-mine", "shard-002-mine-later", "shard-003-again-2-of-12", "shard-004-again-10-of-12")
    ]
    assert [*merge_folders(two[:1], again)] == ["shard-011-mine"]
    assert [shard.name for shard in shard_folders(again)] == [
        "shard-2-of-12",
        "shard-10-of-12",
        "shard-011-mine",
    ]


def test_a_collection_of_a_folder_with_shards_is_read_behind_them(two: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    merge_folders(two[:1], out)
    for name in ("dataset.json", "softmax.parquet"):
        shutil.copy(two[1] / name, out / name)
    assert read_dataset(out).tables["softmax"]["config_id"].tolist()[::30] == ["mine-0", "mine-later-0"]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"device": "y"}, "cannot hold datasets of x, y; make one folder for each device"),
        ({"hardware": {"cores": 4}}, "but from two devices: cores 2 there, 4 here"),
        (
            {"sessions": [{"session_id": "mine"}]},
            "its measurements are in .*shard-001-mine already; leave it out",
        ),
    ],
)
def test_what_does_not_belong_together_is_refused(
    two: list[Path], tmp_path: Path, made: Any, said: str
) -> None:
    other = dataset(tmp_path / "other", 3, **made)
    with pytest.raises(DatasetError, match=said):
        merge_folders([*two, other], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_collection_under_way_is_refused(two: list[Path], tmp_path: Path) -> None:
    with Journal(two[0]) as journal:
        journal.append({"type": "event", "event": "stop", "reason": "test"})
        with pytest.raises(DatasetError, match="mine: its collection has not ended"):
            merge_folders(two, tmp_path / "out")
    with pytest.raises(DatasetError, match=r"mine: its collection has not ended \(journal.jsonl is there\)"):
        merge_folders(two, tmp_path / "out")


def test_a_shard_that_is_there_already_is_refused(two: list[Path], tmp_path: Path) -> None:
    merge_folders(two, tmp_path / "out")
    before = files(tmp_path / "out")
    with pytest.raises(
        DatasetError, match="out: has a shard mine-later already; leave it out, or rename its folder"
    ):
        merge_folders(two[1:], tmp_path / "out")
    with pytest.raises(DatasetError, match="mine: is a dataset itself; choose another --out"):
        merge_folders(two[1:], two[0])
    assert files(tmp_path / "out") == before


def test_tables_of_one_s_own_and_folders_that_are_none_are_refused(two: list[Path], tmp_path: Path) -> None:
    table = pd.read_parquet(two[1] / "softmax.parquet").drop(columns="config_id")
    table.to_parquet(two[1] / "softmax.parquet")
    with pytest.raises(DatasetError, match="rows without config_id cannot be compared"):
        merge_folders(two, tmp_path / "out")
    ran = run("merge", tmp_path / "nowhere", "--out", tmp_path / "out")
    assert (ran.code, ran.out) == (2, "")
    assert "unknown dataset" in ran.err


@pytest.mark.parametrize("point", ["copyfile", "rename"])
def test_what_ends_it_early_leaves_no_part_of_a_shard(
    two: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    out = tmp_path / "out"
    merge_folders([dataset(tmp_path / "there", 4)], out)
    before = files(out)
    owner: Any = shutil if point == "copyfile" else Path
    real, calls = getattr(owner, point), []

    def interrupted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(owner, point, interrupted)
    with pytest.raises(KeyboardInterrupt):
        merge_folders(two, out)
    monkeypatch.undo()
    assert files(out) == before
    (out / ".shard-002-mine.new").mkdir()  # by a run that was killed
    assert [*merge_folders(two, out)] == ["shard-002-mine", "shard-003-mine-later"]
    assert not [*out.glob(".*.new")]
