"""Datasets at places that fsspec knows: its file systems in memory and on the local disk."""

import json
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from neuralpower.data.dataset import continue_from, is_remote, publish, read_dataset
from neuralpower.data.journal import Journal
from neuralpower.data.sealing import seal
from neuralpower.errors import DatasetError
from tests.fake_worker import Fake, statuses
from tests.program import Ran, run


@pytest.fixture(params=["memory", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A location that holds nothing yet."""
    if request.param == "file":
        yield f"file://{tmp_path}/far/away"
        return
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    yield "memory://far/away"
    memory.store.clear()


def sealed(folder: Path, device: str = "x", count: int = 3) -> Path:
    with Journal(folder) as journal:
        (folder / "dataset.json").write_text(json.dumps({"schema": 1, "device": device}))
        for number in range(count):
            row = {
                "rows": number + 1,
                "width": 8,
                "config_id": f"c{number}",
                "runtime_s": 1e-5,
                "replicate": 0,
            }
            journal.append({"type": "result", "kind": "softmax", "row": row})
    seal(folder)
    return folder


def test_only_a_protocol_makes_a_place_remote() -> None:
    assert is_remote("s3://bucket/name")
    assert not is_remote("datasets/name")
    assert not is_remote(Path("/datasets/name"))


def test_what_is_published_reads_as_it_does_in_its_folder(place: str, tmp_path: Path) -> None:
    folder = sealed(tmp_path / "here")
    publish(folder, place)
    there, here = read_dataset(place), read_dataset(folder)
    assert (there.name, there.device) == ("away", "x")
    assert there.tables["softmax"].equals(here.tables["softmax"])
    sealed(folder, count=5)  # measured on
    publish(folder, place)
    assert len(read_dataset(place)) == 5


def test_published_shards_read_as_one(place: str, tmp_path: Path) -> None:
    for number, count in ((1, 2), (2, 4)):
        publish(sealed(tmp_path / f"s{number}", count=count), f"{place}/shard-{number}-of-2")
    assert sorted(read_dataset(place).tables["softmax"]["config_id"]) == ["c0", "c1", "c2", "c3"]


def test_a_folder_goes_on_with_what_was_published(place: str, tmp_path: Path) -> None:
    continue_from(place, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    publish(sealed(tmp_path / "here"), place)
    continue_from(place, tmp_path / "new")
    assert len(read_dataset(tmp_path / "new")) == 3
    sealed(tmp_path / "other", device="y")
    with pytest.raises(DatasetError, match="holds measurements of 'x', .*other of 'y'; choose another --out"):
        continue_from(place, tmp_path / "other")
    (tmp_path / "other" / "dataset.json").write_text("{")
    with pytest.raises(DatasetError, match="other: cannot be read .*; correct that"):
        continue_from(place, tmp_path / "other")


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("memory://nothing/here", "there is no dataset; collect-data --out memory://nothing/here makes one"),
        ("nosuch://bucket/name", "cannot be opened .*; correct that, or give a local folder"),
    ],
)
def test_a_place_that_holds_nothing_is_one_line(location: str, words: str) -> None:
    with pytest.raises(DatasetError, match=f"^{location}: {words}$"):
        read_dataset(location)


def test_the_command_collects_here_and_publishes_there(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fake = Fake(tmp_path, {"count": 30, "block": 10})
    monkeypatch.setattr("neuralpower.cli.collect._executor", lambda *_: fake.executor())

    def collected(*more: str) -> Ran:
        ran = run("collect-data", "--out", place, *more)
        assert ran.code == 0, ran.err
        return ran

    assert collected().out == f"{place}\n"
    assert set(statuses(tmp_path / "datasets" / "away").values()) == {"ok"}
    first = read_dataset(place)
    assert set(first.tables["softmax"]["config_id"]) == {f"c{number:04}" for number in range(30)}
    with fsspec.open(f"{place}/README.md", "rt") as card:
        assert "# Dataset `away`" in card.read()
    before = len(fake.log())
    collected()
    assert len(fake.log()) == before
    assert len(read_dataset(place)) == len(first)


def test_a_shard_of_a_command_has_a_folder_of_its_own_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fsspec.filesystem("memory").store.clear()
    fake = Fake(tmp_path, {"count": 30, "block": 10})
    monkeypatch.setattr("neuralpower.cli.collect._executor", lambda *_: fake.executor())
    for number in (1, 2):
        ran = run("collect-data", "--out", "memory://far/away", "--shard", f"{number}/2")
        assert ran.code == 0, ran.err
        assert ran.out == f"memory://far/away/shard-{number}-of-2\n"
    table = read_dataset("memory://far/away").tables["softmax"]
    assert sorted(table["config_id"][table["replicate"] == 0]) == [f"c{number:04}" for number in range(30)]
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize("text", ["0/2", "3/2", "2", "a/b", "1/0"])
def test_a_shard_that_cannot_be_is_one_line(text: str, tmp_path: Path) -> None:
    ran = run("collect-data", "--out", tmp_path / "data", "--shard", text)
    assert ran.code == 2
    assert f"error: shard '{text}': write I/N with I from 1 to N, such as 2/8" in ran.err
