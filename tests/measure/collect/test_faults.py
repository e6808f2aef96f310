"""What a collection survives, one test per fault of the protocol: real kills, real full disks, real hangs."""

import datetime
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from neuralpower.data.dataset import read_dataset
from neuralpower.data.journal import Journal, read_journal
from neuralpower.errors import DatasetError, DeviceError, LostDeviceError
from neuralpower.measure.collect.process import Local, Worker
from neuralpower.measure.collect.schedule import PROTOCOL_VERSION, RUNTIME, Batch, Task
from tests.fake_worker import Fake, is_gone, names, rows, run, statuses, waited

ROOT = Path(__file__).parents[3]
METERED = {"meter": True}


@pytest.fixture(autouse=True)
def _a_machine_of_known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the first batch as long as all others."""
    monkeypatch.setattr("neuralpower.measure.collect.schedule.FIRST_TASKS", 60)


def events(out: Path) -> list[str]:
    return [record["event"] for record in read_journal(out) if record["type"] == "event"]


def sealed_events(out: Path) -> list[str]:
    """Events of a journal that has been put away."""
    import gzip

    lines = gzip.decompress((out / "journal.jsonl.gz").read_bytes()).splitlines()
    records = [json.loads(line.partition(b" ")[2]) for line in lines]
    return [record["event"] for record in records if record["type"] == "event"]


# ---- the configuration's fault ----


@pytest.mark.parametrize("block", [5, 1])
@pytest.mark.parametrize("way", ["dies", "aborts", "half"])
def test_the_configuration_that_ends_its_process_twice_is_skipped_and_all_others_measured(
    fake: Callable[..., Fake], tmp_path: Path, way: str, block: int
) -> None:
    worker = fake(count=12, block=block, **{way: ["c0006", "c0011"]})
    seen = run(worker, tmp_path / "data")
    crashed = {"c0006": "crashed", "c0011": "crashed"}
    assert statuses(tmp_path / "data") == {**dict.fromkeys(names(12), "ok"), **crashed}
    assert (seen[-1].measured, seen[-1].failed) == (12, 2)
    assert worker.log().count("c0006") == 2


def test_a_process_that_dies_only_in_company_costs_nothing(fake: Callable[..., Fake], tmp_path: Path) -> None:
    run(fake(count=7, dies_in_company=["c0003"], block=5), tmp_path / "data")
    assert statuses(tmp_path / "data") == dict.fromkeys(names(7), "ok")


def test_what_ran_out_of_memory_is_tried_once_more_in_a_fresh_process(
    fake: Callable[..., Fake], tmp_path: Path
) -> None:
    worker = fake(count=6, block=3, oom_once=["c0001"], fails={"c0004": "oom"})
    run(worker, tmp_path / "data")
    assert statuses(tmp_path / "data") == {**dict.fromkeys(names(6), "ok"), "c0004": "oom"}
    assert [worker.log().count(name) for name in names(6)] == [1, 2, 1, 1, 2, 1]
    # the first, one for c0001, which goes on with the second batch, and one for c0004
    assert len(worker.log("start ")) == 3


@pytest.mark.parametrize("block", [4, 1])
def test_a_poisoned_device_condemns_nobody_else(
    fake: Callable[..., Fake], tmp_path: Path, block: int
) -> None:
    worker = fake(count=9, block=block, poisons=["c0002"])
    run(worker, tmp_path / "data")
    assert statuses(tmp_path / "data") == dict.fromkeys(names(9), "ok")
    assert worker.log().count("c0003") == 2


def test_the_configuration_that_poisons_the_device_at_once_is_the_culprit(
    fake: Callable[..., Fake], tmp_path: Path
) -> None:
    worker = fake(count=5, block=1, poisons_at_once=["c0002"])
    worker.settings["poisons"] = ["c0002"]
    # poisons: the first call goes through; its successors fail until the process is another
    run(worker, tmp_path / "data")
    assert set(statuses(tmp_path / "data").values()) == {"ok"}
    worker = fake(count=8, block=1, fails={"c0006": "poisoned"})
    run(worker, tmp_path / "data", seed=1)
    assert statuses(tmp_path / "data") == {**dict.fromkeys(names(8), "ok"), "c0006": "crashed"}


def test_a_hanging_call_is_ended_with_its_whole_group_although_it_ignores_term(
    fake: Callable[..., Fake],
) -> None:
    worker = fake(count=3, hangs=["c0001"], ignores_term=True)
    local = Local(Worker(1, worker.command, term_s=0.1, kill_s=5))
    plan = local.ask({"do": "plan"})["plan"]
    batch = Batch(tuple(Task(item, RUNTIME) for item in plan), patience_s=0.3)
    start = time.monotonic()
    results = local.measure(batch)
    assert [result["status"] for result in results] == ["ok", "timeout", "ok"]
    # twice 0.3 s of patience and 0.1 s until KILL
    assert 0.8 <= time.monotonic() - start < 4
    local.close()


def test_a_hanging_configuration_ends_as_timeout_in_the_dataset(
    fake: Callable[..., Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neuralpower.measure.collect.schedule.LEAST_PATIENCE_S", 0.3)
    monkeypatch.setattr("neuralpower.measure.collect.schedule.PATIENCE", 0.0)
    run(fake(count=5, block=3, hangs=["c0001"]), tmp_path / "data")
    assert statuses(tmp_path / "data") == {**dict.fromkeys(names(5), "ok"), "c0001": "timeout"}


def test_a_process_that_is_slow_to_start_is_waited_for(fake: Callable[..., Fake]) -> None:
    worker = fake(count=2, hangs=["c0000"], open_s=0.4)
    local = Local(Worker(1, worker.command))
    plan = local.ask({"do": "plan"})["plan"]
    # patience is for a batch: less than a process's start, which follows the hang
    results = [local.measure(Batch((Task(item, RUNTIME),), patience_s=0.2))[0]["status"] for item in plan]
    assert results == ["timeout", "ok"]
    local.close()


@pytest.mark.parametrize("way", ["dies", "dies_powered", "hangs"])
def test_what_the_self_test_found_outlives_its_process(
    fake: Callable[..., Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr("neuralpower.measure.collect.schedule.LEAST_PATIENCE_S", 0.3)
    monkeypatch.setattr("neuralpower.measure.collect.schedule.PATIENCE", 0.0)
    worker = fake(count=4, block=1, **{way: ["c0002"]}, **METERED)
    run(worker, tmp_path / "data")
    starts = len(worker.log("start "))
    assert starts > 1
    assert (len(worker.log("tested")), len(worker.log("resumed"))) == (1, starts - 1)


@pytest.mark.parametrize(
    ("way", "asked_for"), [("open_s", "open"), ("test_s", "self_test"), ("plan_s", "plan")]
)
def test_a_process_that_never_answers_at_all_is_said(
    fake: Callable[..., Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, asked_for: str
) -> None:
    for name in ("START_S", "SELF_TEST_S", "PLAN_S"):
        monkeypatch.setattr(f"neuralpower.measure.collect.process.{name}", 0.5)
    with pytest.raises(DeviceError, match=f"gave no answer at '{asked_for}'; run `neuralpower devices`"):
        run(fake(count=2, **{way: 60}), tmp_path / "data")


def test_a_configuration_that_takes_the_machine_down_twice_is_skipped(
    fake: Callable[..., Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MACHINE_RESTARTS", "1")
    out, acknowledged = tmp_path / "data", tmp_path / "acknowledged"
    worker = fake(count=9, kills_its_parent=["c0004"])
    deaths = 0
    while started(worker, out, acknowledged).wait(60) != 0:
        deaths += 1
        assert deaths < 6
    # twice with its batch of four, which makes all four suspects, then twice alone
    assert deaths == 4
    assert statuses(out) == {**dict.fromkeys(names(9), "ok"), "c0004": "crashed"}


def test_what_a_killed_collection_was_measuring_is_not_at_fault(
    fake: Callable[..., Fake], tmp_path: Path
) -> None:
    out, acknowledged = tmp_path / "data", tmp_path / "acknowledged"
    worker = fake(count=8, kills_its_parent=["c0004"], kills=5)
    for _ in range(5):  # always in the same batch, while the machine stays up
        assert started(worker, out, acknowledged).wait(60) == -signal.SIGKILL
    assert started(worker, out, acknowledged).wait(60) == 0
    assert statuses(out) == dict.fromkeys(names(8), "ok")
    assert "batch 1" not in worker.log("batch")  # nothing was measured one by one


def test_what_is_no_number_is_null_and_stops_nothing(fake: Callable[..., Fake], tmp_path: Path) -> None:
    run(fake(count=4, odd={"c0001": "nan", "c0002": "inf"}), tmp_path / "data")
    known = {
        row["config_id"]: (row["runtime_s"] is not None, row["steal"]) for row in rows(tmp_path / "data")
    }
    assert known == {**dict.fromkeys(names(4), (True, 0.0)), "c0001": (False, None), "c0002": (False, None)}


# ---- the device's, the meter's ----


def test_a_lost_device_leaves_the_rest_for_another_time(fake: Callable[..., Fake], tmp_path: Path) -> None:
    out = tmp_path / "data"
    with pytest.raises(
        LostDeviceError, match="stopped answering; check it, then run the same command again"
    ) as lost:
        run(fake(count=20, block=4, loses_device=["c0009"]), out)
    assert lost.value.exit_code == 4
    assert events(out) == ["device_lost"]
    assert statuses(out) == dict.fromkeys(names(8), "ok")
    run(fake(count=20, block=4), out)
    assert statuses(out) == dict.fromkeys(names(20), "ok")


def test_where_no_process_starts_any_more_nobody_is_condemned(
    fake: Callable[..., Fake], tmp_path: Path
) -> None:
    out = tmp_path / "data"
    with pytest.raises(LostDeviceError, match="no measuring process starts any more"):
        run(fake(count=20, block=4, dies=["c0009"], no_start_after=["c0009"]), out)
    assert events(out) == ["device_lost"]
    assert statuses(out) == dict.fromkeys(names(8), "ok")


def test_power_is_measured_after_all_runtimes_and_stands_beside_them(
    fake: Callable[..., Fake], tmp_path: Path
) -> None:
    worker = fake(count=70, **METERED)
    seen = run(worker, tmp_path / "data")
    # one kind: the quick preset's 100 are more than there are
    assert (seen[-1].measured, seen[-1].powered) == (70, 70)
    assert worker.log("power")[0] > max(worker.log())
    assert [line.split()[0][0] for line in worker.log("") if line[0] in "cp" and line != "plan"] == [
        "c"
    ] * 70 + ["p"] * 70
    for row in rows(tmp_path / "data"):
        assert (row["power_w"], row["power_source"], row["power_reason"]) == (
            100.0,
            "nvml_energy_counter",
            None,
        )
        assert row["runtime_s"] > 0
    assert run(worker, tmp_path / "data")[-1].powered == 0


def test_a_call_that_takes_another_time_while_its_power_is_measured_is_flagged(
    fake: Callable[..., Fake], tmp_path: Path
) -> None:
    # runtimes are 10.000, 10.001, ... us
    seconds = {"c0000": 1.08e-5, "c0001": 1.12e-5, "c0002": 0.92e-5, "c0003": 0.88e-5}
    run(fake(count=5, exact=True, window_s=seconds, **METERED), tmp_path / "data")
    flags = {row["config_id"]: row["flags"] for row in rows(tmp_path / "data")}
    assert {name for name, found in flags.items() if found is not None} == {"c0001", "c0003"}
    assert [*flags["c0001"]] == [*flags["c0003"]] == ["window_mismatch"]


def test_without_a_meter_power_is_null_with_the_reason(fake: Callable[..., Fake], tmp_path: Path) -> None:
    run(fake(count=3), tmp_path / "data")
    expected = (None, None, "none", "no meter was read")
    for row in rows(tmp_path / "data"):
        assert (row["power_w"], row["energy_j"], row["power_source"], row["power_reason"]) == expected


def test_a_meter_that_comes_later_is_used(fake: Callable[..., Fake], tmp_path: Path) -> None:
    run(fake(count=5), tmp_path / "data")
    before = {row["config_id"]: row["runtime_s"] for row in rows(tmp_path / "data")}
    run(fake(count=5, **METERED), tmp_path / "data")
    assert {row["config_id"]: row["runtime_s"] for row in rows(tmp_path / "data")} == pytest.approx(before)
    assert {row["power_w"] for row in rows(tmp_path / "data")} == {100.0}


def test_a_counter_that_was_reset_costs_one_power(fake: Callable[..., Fake], tmp_path: Path) -> None:
    run(fake(count=5, resets=["c0002"], **METERED), tmp_path / "data", power="nvml")
    found = {row["config_id"]: (row["power_w"], row["power_reason"]) for row in rows(tmp_path / "data")}
    assert found == {**dict.fromkeys(names(5), (100.0, None)), "c0002": (None, "counter_reset")}


def test_a_call_without_power_for_a_reason_of_its_own_is_not_tried_again(
    fake: Callable[..., Fake], tmp_path: Path
) -> None:
    worker = fake(count=5, host_bound=["c0001"], fails_powered={"c0003": "oom"}, **METERED)
    run(worker, tmp_path / "data")
    found = {row["config_id"]: (row["power_w"], row["power_reason"]) for row in rows(tmp_path / "data")}
    expected = {
        **dict.fromkeys(names(5), (100.0, None)),
        "c0001": (None, "host_bound"),
        "c0003": (None, "oom"),
    }
    assert found == expected
    assert statuses(tmp_path / "data") == dict.fromkeys(names(5), "ok")
    asked_before = len(worker.log("power"))
    assert asked_before == 6  # c0003 once more in a fresh process
    run(worker, tmp_path / "data")
    assert len(worker.log("power")) == asked_before
    # a meter that was lost is asked again by the next run
    out = tmp_path / "lost"
    run(fake(count=3, loses_meter=["c0001"], **METERED), out)
    run(fake(count=3, **METERED), out)
    assert {row["power_w"] for row in rows(out)} == {100.0}


def test_a_process_that_dies_over_its_power_keeps_its_runtime(
    fake: Callable[..., Fake], tmp_path: Path
) -> None:
    run(fake(count=4, dies_powered=["c0002"], **METERED), tmp_path / "data")
    found = {row["config_id"]: (row["power_w"], row["power_reason"]) for row in rows(tmp_path / "data")}
    assert found == {**dict.fromkeys(names(4), (100.0, None)), "c0002": (None, "crashed")}
    assert statuses(tmp_path / "data") == dict.fromkeys(names(4), "ok")


@pytest.mark.parametrize("power", ["auto", "nvml"])
def test_a_lost_meter_costs_power_alone_and_fails_only_who_asked_for_it(
    fake: Callable[..., Fake], tmp_path: Path, power: str
) -> None:
    out, worker = tmp_path / "data", fake(count=12, loses_meter=["c0005"], **METERED)
    if power == "auto":
        run(worker, out)
    else:
        with pytest.raises(
            DeviceError, match="power nvml: the meter has stopped answering; runtimes are kept"
        ) as error:
            run(worker, out, power=power)
        assert error.value.exit_code == 4
    assert statuses(out) == dict.fromkeys(names(12), "ok")
    powers = {row["config_id"]: (row["power_w"], row["power_reason"]) for row in rows(out)}
    measured = worker.log("power")
    assert measured[-1] == "power c0005"
    assert powers["c0005"] == (None, "meter_lost")
    assert {name for name in names(12) if powers[name] == (100.0, None)} == {
        w.split()[1] for w in measured[:-1]
    }
    assert set(powers.values()) == {(100.0, None), (None, "meter_lost"), (None, "not measured")}
    assert sealed_events(out) == ["meter_lost", "stop"]


def test_a_meter_that_is_asked_for_and_not_there_is_said_before_anything_is_measured(
    fake: Callable[..., Fake], tmp_path: Path
) -> None:
    worker = fake(count=3)
    with pytest.raises(DeviceError, match="power nvml: no meter was read; correct that, or give"):
        run(worker, tmp_path / "data", power="nvml")
    assert worker.log() == []


@pytest.mark.parametrize("power", ["auto", "nvml"])
def test_a_meter_that_a_new_process_cannot_open_is_lost_and_asked_again_by_the_next_run(
    fake: Callable[..., Fake], tmp_path: Path, power: str
) -> None:
    out, died = tmp_path / "data", "c0002"
    worker = fake(count=12, block=4, dies=[died], shared_after_start=1, **METERED)
    if power == "auto":
        run(worker, out)
    else:
        with pytest.raises(DeviceError, match="the meter has stopped answering"):
            run(worker, out, power=power)
    assert sealed_events(out) == ["meter_lost", "stop"]
    assert len(worker.log("power")) == 1
    assert {row["power_w"] for row in rows(out)} == {None}
    run(fake(count=12, block=4, **METERED), out)
    assert {row["config_id"]: row["power_w"] for row in rows(out)} == {
        **dict.fromkeys(names(12), 100.0),
        died: None,
    }


def test_a_reason_that_is_the_meters_is_no_verdict_on_a_call(
    fake: Callable[..., Fake], tmp_path: Path
) -> None:
    worker = fake(count=4, busy_once=["c0001"], **METERED)
    run(worker, tmp_path / "data")
    assert {row["config_id"]: row["power_reason"] for row in rows(tmp_path / "data")}["c0001"] == "nvml_error"
    run(worker, tmp_path / "data")
    assert {row["power_w"] for row in rows(tmp_path / "data")} == {100.0}
    assert len(worker.log("power")) == 5


def test_a_call_whose_power_takes_the_machine_down_twice_keeps_its_runtime(
    fake: Callable[..., Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MACHINE_RESTARTS", "1")
    out, worker = tmp_path / "data", fake(count=5, kills_its_parent_powered=["c0003"], **METERED)
    deaths = 0
    while started(worker, out, tmp_path / "acknowledged").wait(20) != 0:
        deaths += 1
        assert deaths < 4
    assert deaths == 2
    found = {row["config_id"]: (row["power_w"], row["power_reason"]) for row in rows(out)}
    assert found == {**dict.fromkeys(names(5), (100.0, None)), "c0003": (None, "crashed")}
    assert statuses(out) == dict.fromkeys(names(5), "ok")


# ---- the machine's ----


def test_a_clock_that_is_set_back_changes_no_result(
    fake: Callable[..., Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(fake(count=8, exact=True, block=2), tmp_path / "before")

    now = datetime.datetime.now

    class Back(datetime.datetime):
        shift = datetime.timedelta(hours=1)

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            cls.shift = -cls.shift
            return now(tz) + cls.shift

    wall = time.time
    hours = iter([3600.0, -3600.0] * 10_000)
    monkeypatch.setattr(datetime, "datetime", Back)
    monkeypatch.setattr(time, "time", lambda: wall() + next(hours))
    seen = run(fake(count=8, exact=True, block=2), tmp_path / "after")
    runtimes = [
        {row["config_id"]: row["runtime_s"] for row in rows(tmp_path / n)} for n in ("before", "after")
    ]
    assert runtimes[0] == runtimes[1]
    assert all(0 <= progress.spent_s < 60 for progress in seen)
    assert all(0 <= row["wall_s"] < 60 for row in rows(tmp_path / "after"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 800 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=800k", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_stops_the_collection_with_all_that_was_measured(
    fake: Callable[..., Fake], small_disk: Path
) -> None:
    out, worker = small_disk / "data", fake(count=1500, block=20)
    with pytest.raises(
        DeviceError, match="could not be written .*free some space and run the same command again"
    ) as error:
        run(worker, out)
    assert error.value.exit_code == 4
    kept = statuses(out)
    assert kept == dict.fromkeys(names(len(kept)), "ok")
    # 800 KiB, less 256 KiB of ballast and an equal plan, hold some hundreds; ballast made room for the last
    assert len(kept) > 100
    assert events(out) == ["stop"]
    assert len(worker.log()) == len(kept)
    assert not (out / "journal.torn").exists()
    bigger = small_disk.parent / "bigger"
    shutil.copytree(out, bigger)
    run(fake(count=1500, block=500), bigger)
    assert statuses(bigger) == dict.fromkeys(names(1500), "ok")
    assert worker.log().count(names(1)[0]) == 1


LIMITED = """
import resource, sys
from pathlib import Path
from neuralpower import cli
from neuralpower.measure.collect.process import Worker
from neuralpower.measure.collect.process import Local

resource.setrlimit(resource.RLIMIT_FSIZE, (80_000, 80_000))
out, *command = sys.argv[1:]
cli.collect = None
import neuralpower.cli.collect as collect
collect._executor = lambda *_: Local(Worker(1, command))
sys.argv = ["neuralpower", "collect-data", "--out", out]
cli.main()
"""


def test_a_file_that_may_not_grow_ends_in_one_line_and_code_4(
    fake: Callable[..., Fake], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "data"), *fake(count=300, block=5).command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 4, done.stderr
    errors = [line for line in done.stderr.splitlines() if "error: " in line]
    assert len(errors) == 1
    assert "could not be written (File too large)" in errors[0]
    assert "Traceback" not in done.stderr
    kept = statuses(tmp_path / "data")
    assert 50 < len(kept) < 250
    run(fake(count=300), tmp_path / "data")
    assert statuses(tmp_path / "data") == dict.fromkeys(names(300), "ok")


# ---- what is refused ----


def files(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}


def test_other_software_is_refused(fake: Callable[..., Fake], tmp_path: Path) -> None:
    out = tmp_path / "data"
    run(fake(count=3), out)
    before = files(out)
    with pytest.raises(
        DatasetError, match="was measured with torch 2.13.0.*, but this is torch 2.14.0; choose another --out"
    ):
        run(fake(count=5, versions={"torch": "2.14.0"}), out)
    with pytest.raises(DatasetError, match="and another driver"):
        run(fake(count=5, hardware={"driver": "580.1"}), out)
    assert files(out) == before


def test_another_protocol_is_refused(
    fake: Callable[..., Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "data"
    run(fake(count=3), out)
    before = files(out)
    monkeypatch.setattr("neuralpower.measure.collect.resume.PROTOCOL_VERSION", PROTOCOL_VERSION + 1)
    with pytest.raises(
        DatasetError,
        match=f"by protocol {PROTOCOL_VERSION}, but this is {PROTOCOL_VERSION + 1}; choose another --out",
    ):
        run(fake(count=5), out)
    assert files(out) == before


@pytest.mark.parametrize("text", ['00000000 {"type": "result"}\n', '{"type": "result"}\n'])
def test_a_journal_of_another_kind_is_refused_and_left_as_it_is(
    fake: Callable[..., Fake], tmp_path: Path, text: str
) -> None:
    out = tmp_path / "data"
    out.mkdir()
    (out / "journal.jsonl").write_text(text)
    with pytest.raises(
        DatasetError,
        match="is a journal of another version .no checksums, this one writes 1.; choose another",
    ):
        run(fake(count=3), out)
    assert (out / "journal.jsonl").read_text() == text
    assert not (out / "journal.torn").exists()


def test_a_journal_of_another_version_is_refused_and_left_as_it_is(
    fake: Callable[..., Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "data"
    with monkeypatch.context() as patch, Journal(out) as journal:
        patch.setattr("neuralpower.data.journal.SCHEMA", 7)
        journal.append({"type": "session"})
    before = (out / "journal.jsonl").read_bytes()
    with pytest.raises(DatasetError, match="another version .schema 7, this one writes 1."):
        run(fake(count=3), out)
    assert (out / "journal.jsonl").read_bytes() == before


# ---- kills ----

DRIVER = """
import os, sys
from pathlib import Path
from types import ModuleType

layers = ModuleType("neuralpower.layers")  # sealing asks for the kinds; the real module imports torch
layers.KINDS = {"softmax": None}
sys.modules["neuralpower.layers"] = layers

from neuralpower.measure.collect.process import Worker
from neuralpower.measure.collect.process import Local
from neuralpower.measure.collect.request import Request
from neuralpower.measure.collect.collection import collect
from neuralpower.data.journal import Journal

if "MACHINE_RESTARTS" in os.environ:  # between two collections
    from neuralpower.measure.collect import collection

    collection.up_since = lambda started=os.urandom(4).hex(): started

out, acknowledged, budget_s, failpoint, nth, *command = sys.argv[1:]
file = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
append, write, fsync = Journal.append, os.write, os.fsync
seen = 0


def reached(point):
    global seen
    seen += point == failpoint
    return point == failpoint and seen > int(nth)


def noted(self, *records, sync=True):
    append(self, *records, sync=sync)
    if records[0]["type"] == "start" and reached("after_start"):
        os.kill(os.getpid(), 9)
    for record in records:
        if record["type"] == "result":
            write(file, ("%s %r\\n" % (record["row"]["config_id"], record["row"].get("runtime_s"))).encode())


def written(descriptor, data):
    if reached("mid_write"):
        write(descriptor, data[: len(data) // 2])
        os.kill(os.getpid(), 9)
    return write(descriptor, data)


def synced(descriptor):
    if reached("before_fsync"):
        os.kill(os.getpid(), 9)
    return fsync(descriptor)


Journal.append, os.write, os.fsync = noted, written, synced
request = Request(
    "quick", ("softmax",), ("none",), ("float32",), 0, float(budget_s), Path(out), replicates=0.0
)
collect(request, lambda progress: None, Local(Worker(1, command)))
"""
# kills in all, of both processes, at failpoints, and while the tables are written
KILLS = [(12, 4, 3, 1), pytest.param((50, 12, 9, 4), marks=pytest.mark.full)]


def started(
    worker: Fake, out: Path, acknowledged: Path, budget_s: float = 600, failpoint: str = "none", nth: int = 0
) -> subprocess.Popen[bytes]:
    """A collection in a process of its own, which notes what has been acknowledged."""
    if "block" not in worker.settings:
        worker.settings["block"] = 4
    arguments = [str(out), str(acknowledged), str(budget_s), failpoint, str(nth), *worker.command]
    with (out.parent / "said").open("ab") as errors:
        return subprocess.Popen([sys.executable, "-c", DRIVER, *arguments], stderr=errors, cwd=ROOT)


@pytest.mark.parametrize("kills", KILLS, ids=lambda kills: kills[0])
def test_kills_lose_nothing_that_was_acknowledged(
    kills: tuple[int, int, int, int], fake: Callable[..., Fake], tmp_path: Path
) -> None:
    in_all, of_both, at_failpoints, while_sealing = kills
    out, acknowledged = tmp_path / "data", tmp_path / "acknowledged"
    count, generator = 1500, random.Random(0)
    worker = fake(count=count, item_s=0.004)
    begin = partial(started, worker, out, acknowledged)

    def heard() -> dict[str, float]:
        lines = acknowledged.read_text().splitlines()
        pairs = [line.split() for line in lines]
        assert len({name for name, _ in pairs}) == len(pairs), "measured again after it was acknowledged"
        return {name: float(runtime) for name, runtime in pairs}

    def check() -> None:
        recorded = {r["row"]["config_id"] for r in read_journal(out) if r["type"] == "result"}
        assert heard().keys() <= recorded

    def lasts(budget_s: float, end: Callable[[subprocess.Popen[bytes]], bool]) -> float:
        """Seconds from the start until `end`; the process is killed then."""
        start = time.monotonic()
        process = begin(budget_s)
        waited(lambda: end(process), 60)
        process.kill()
        process.wait()
        return time.monotonic() - start

    start_s = lasts(600, lambda process: acknowledged.exists() and acknowledged.stat().st_size > 0)
    for number in range(in_all - at_failpoints - while_sealing):
        known, begun = acknowledged.stat().st_size, time.monotonic()
        process = begin()
        if number % 2:  # mostly while it starts
            time.sleep(generator.uniform(0, start_s))
        else:  # while it measures, after so many lines of some 28 characters
            waited(lambda: acknowledged.stat().st_size > known, 60)  # noqa: B023  # called here and now
            start_s = min(start_s, time.monotonic() - begun)
            wanted = known + 28 * generator.randrange(1, 25)
            waited(lambda: acknowledged.stat().st_size >= wanted, 60)  # noqa: B023  # as above
            time.sleep(generator.uniform(0, 0.02))
        if number < of_both and (workers := worker.log("start ")):
            os.kill(int(workers[-1].split()[1]), signal.SIGKILL) if not is_gone(
                workers[-1].split()[1], str(tmp_path)
            ) else None
        process.kill()
        assert process.wait() == -signal.SIGKILL
        check()
    for number in range(at_failpoints):
        point = ("after_start", "mid_write", "before_fsync")[number % 3]
        process = begin(600, point, generator.randrange(2, 12))
        assert process.wait(60) == -signal.SIGKILL
        check()
    assert (out / "journal.torn").exists()  # what was written in half
    assert 2 * in_all < len(heard()) < count  # the kills came while it measured

    # a spent budget: one task, then the tables are written
    whole_s = lasts(0, lambda process: process.poll() is not None)
    killed = 0
    while killed < while_sealing:
        process = begin(0)
        try:
            assert process.wait(generator.uniform(0.5 * whole_s, whole_s)) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            killed += 1

    before = heard()
    worker.settings["item_s"] = 0
    assert begin().wait(60) == 0
    assert statuses(out) == dict.fromkeys(names(count), "ok")
    table = read_dataset(out).tables["softmax"].set_index("config_id")
    assert table.loc[list(before), "runtime_s"].tolist() == list(before.values())
    assert set(table["session_id"]) <= {
        session["session_id"] for session in read_dataset(out).meta["sessions"]
    }
    assert "Traceback" not in (tmp_path / "said").read_text()
    assert len(before) < count


def test_a_run_that_is_killed_on_a_slow_machine_keeps_rows_each_time(
    fake: Callable[..., Fake], tmp_path: Path
) -> None:
    # a batch of 60 would take half a minute; and every row is noisy there, which is tried again at the end
    out = tmp_path / "data"
    worker = fake(count=200, block=60, item_s=0.5, noisy=dict.fromkeys(names(200), 99))
    kept = 0
    for number in (signal.SIGKILL, signal.SIGTERM):
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, str(out), *worker.command],
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        known = worker.log().copy()
        waited(lambda: len(worker.log()) >= len(known) + 4, 60)  # noqa: B023  # called here and now
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
        found = [r["row"] for r in read_journal(out) if r["type"] == "result"]
        now = len({row["config_id"] for row in found})
        assert now >= kept + 2
        kept = now
    assert f"{kept} rows kept in {out}; run the same command again to resume" in said
    run(fake(count=200), out)
    assert statuses(out) == dict.fromkeys(names(200), "ok")
    table = read_dataset(out).tables["softmax"]
    assert len(table) == 200 and sorted(table["attempt"])[-kept:] == [2] * kept


COMMAND = """
import sys
import neuralpower.cli.collect as collect
from neuralpower import cli
from neuralpower.measure.collect.process import Worker
from neuralpower.measure.collect.process import Local

out, *command = sys.argv[1:]
collect._executor = lambda *_: Local(Worker(1, command))
sys.argv = ["neuralpower", "collect-data", "--out", out]
cli.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_loses_nothing(
    fake: Callable[..., Fake], tmp_path: Path, number: signal.Signals
) -> None:
    out, worker = tmp_path / "data", fake(count=400, item_s=0.005, block=4)
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(out), *worker.command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    waited(lambda: sum(record["type"] == "result" for record in read_journal(out)) > 10)
    process.send_signal(number)
    printed, said = process.communicate(timeout=20)
    assert process.returncode == 130, said
    assert printed == ""
    assert f" rows kept in {out}; run the same command again to resume" in said
    assert "Traceback" not in said
    assert events(out) == ["stop"]
    kept = {r["row"]["config_id"]: r["row"]["runtime_s"] for r in read_journal(out) if r["type"] == "result"}
    assert 8 < len(kept) < 400
    with pytest.raises(ProcessLookupError):  # the worker is gone, too
        os.kill(int(worker.log("start ")[-1].split()[1]), 0)
    # what had been asked and was not yet answered is a batch at most
    assert len(worker.log()) - len(kept) <= 4
    run(fake(count=400), out)
    assert statuses(out) == dict.fromkeys(names(400), "ok")
    table = read_dataset(out).tables["softmax"].set_index("config_id")
    assert table.loc[list(kept), "runtime_s"].tolist() == list(kept.values())


def test_the_supervisor_does_not_import_torch_while_it_measures(
    fake: Callable[..., Fake], tmp_path: Path
) -> None:
    program = """
import os, sys
from pathlib import Path
from neuralpower.measure.collect.process import Worker
from neuralpower.measure.collect.process import Local
from neuralpower.measure.collect.request import Request
from neuralpower.measure.collect.collection import collect

out, *command = sys.argv[1:]

def show(progress):
    if progress.powered:
        print("torch" in sys.modules, flush=True)
        os._exit(0)

request = Request("quick", ("softmax",), ("none",), ("float32",), 0, 600, Path(out))
collect(request, show, Local(Worker(1, command)))
"""
    out = tmp_path / "data"
    run(fake(count=3), out)  # also where there are tables already
    worker = fake(count=5, **METERED)
    (out / "plan.json").unlink()
    done = subprocess.run(
        [sys.executable, "-c", program, str(out), *worker.command],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout == "False\n"
