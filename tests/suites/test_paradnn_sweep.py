"""Sweeps: what is kept when they end, however they end, and the tables that come of them."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from neuralpower.data.journal import Journal
from neuralpower.errors import DatasetError, DeviceError, InputError
from neuralpower.suites.paradnn.points import FAMILIES, Point, described, walk
from neuralpower.suites.paradnn.sweep import (
    HEADERS,
    Result,
    Setup,
    Sweep,
    array_script,
    csv_frame,
    csv_text,
    frame,
    merged,
    read_csv,
    read_results,
    states_of,
)

SETUP = Setup(warmup_steps=3, steps=10)
POINTS = walk(Point.of("fc", "pytorch", {**FAMILIES["fc"].defaults, "layers": 1, "nodes": 2}))[:6]
HEADER = "device,input_type,layers,nodes,batch_size,input_size,output_size,#params,duration,tflops"


class Meter:
    """Returns a time without running anything, and records the request."""

    def __init__(self, states: dict[str, str] | None = None) -> None:
        self.asked: list[str] = []
        self.states = states or {}

    def __call__(self, point: Point) -> Result:
        self.asked.append(point.label)
        known = Result(point=point, setup=SETUP, machine="here-cpu", **described(point, SETUP.mode))
        state = self.states.get(point.label, "ok")
        if state != "ok":
            return replace(known, state=state, reason="as was asked for")
        return replace(known, duration_s=0.5, steps=10, warmup_steps=3)


def sweep(folder: Path, points: list[Point] = POINTS, setup: Setup = SETUP, **more: tuple[str, ...]) -> Sweep:
    return Sweep(points, setup, folder, **more)


def states(results: list[Result]) -> list[str]:
    return [result.state for result in results]


def test_points_done_are_skipped(tmp_path: Path) -> None:
    first, second = Meter(), Meter()
    sweep(tmp_path, POINTS[:4]).run(first)
    results = sweep(tmp_path).run(second)
    assert first.asked == [p.label for p in POINTS[:4]]
    assert second.asked == [p.label for p in POINTS[4:]]
    assert states(results) == ["ok"] * 6


def test_another_setup_is_another_measurement(tmp_path: Path) -> None:
    meter = Meter()
    sweep(tmp_path).run(meter)
    sweep(tmp_path, setup=replace(SETUP, mode="infer")).run(meter)
    assert len(meter.asked) == 12


def test_errors_are_stored_states_and_are_not_tried_again_unasked(tmp_path: Path) -> None:
    failing = Meter({POINTS[1].label: "oom", POINTS[2].label: "failed"})
    assert states(sweep(tmp_path).run(failing)) == ["ok", "oom", "failed", "ok", "ok", "ok"]
    again = Meter()
    assert states(sweep(tmp_path).run(again)) == ["ok", "oom", "failed", "ok", "ok", "ok"]
    assert again.asked == []
    assert states(sweep(tmp_path, again=("oom",)).run(again)) == ["ok", "ok", "failed", "ok", "ok", "ok"]
    assert again.asked == [POINTS[1].label]


def test_every_point_has_its_json_with_its_state(tmp_path: Path) -> None:
    sweep(tmp_path).run(Meter({POINTS[1].label: "oom"}), budget_s=3.5, clock_s=itertools.count().__next__)
    found = json.loads((tmp_path / "results.json").read_text())
    assert [r["labels"] for r in found] == [p.label for p in POINTS]
    # the clock moves 1 s whenever it is asked: at the begin, and before each of three points
    assert [r["states"] for r in found] == ["ok", "oom", "ok", "not_run", "not_run", "not_run"]
    assert found[1]["err_jobs"] == [POINTS[1].label]
    names = "labels intensity flops params step_per_sec fl example_per_sec err_jobs states".split()
    assert set(names) <= set(found[0])
    assert found[0]["step_per_sec"] == 20


def test_a_spent_budget_leaves_the_rest_to_the_next_run(tmp_path: Path) -> None:
    meter = Meter()
    results = sweep(tmp_path).run(meter, budget_s=2.5, clock_s=itertools.count().__next__)
    assert states_of(results) == "2 ok, 4 not_run"
    assert states_of(sweep(tmp_path).run(meter)) == "6 ok"
    assert len(meter.asked) == len(set(meter.asked)) == 6


def interrupted_at(count: int, error: BaseException) -> Callable[[Point], Result]:
    meter = Meter()

    def measure(point: Point) -> Result:
        if len(meter.asked) == count:
            raise error
        return meter(point)

    return measure


def test_an_interruption_keeps_what_was_measured_and_blames_no_point(tmp_path: Path) -> None:
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            sweep(tmp_path, POINTS[:1]).run(interrupted_at(0, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path).run(interrupted_at(2, KeyboardInterrupt()))
    assert [row[4] for row in read_csv(tmp_path / "results.csv")[1]] == ["64", "64"]
    rest = Meter()
    assert states(sweep(tmp_path).run(rest)) == ["ok"] * 6
    assert rest.asked == [p.label for p in POINTS[2:]]


PROGRAM = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.suites.test_paradnn_sweep import POINTS, Meter, sweep

meter, kill_at = Meter(), {kill_at!r}

def measure(point):
    if point.label == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return meter(point)

sweep(Path({folder!r})).run(measure)
"""


def killed(folder: Path, label: str) -> int:
    root = str(Path(__file__).parents[2])
    program = PROGRAM.format(root=root, folder=str(folder), kill_at=label)
    environment = {**os.environ, "PYTHONPATH": root}
    return subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode


@pytest.mark.slow
def test_a_killed_sweep_goes_on_and_a_point_that_kills_twice_is_passed_over(tmp_path: Path) -> None:
    assert killed(tmp_path, POINTS[3].label) == -9
    journal = tmp_path / "journal.jsonl"
    with journal.open("ab") as file:
        file.write(journal.read_bytes().splitlines()[-1][:40])  # what a crash in the middle of a line leaves
    assert killed(tmp_path, POINTS[3].label) == -9
    assert (tmp_path / "journal.torn").stat().st_size > 0
    meter = Meter()
    results = sweep(tmp_path).run(meter)
    assert states(results) == ["ok", "ok", "ok", "not_finished", "ok", "ok"]
    assert meter.asked == [p.label for p in POINTS[4:]]
    assert "begun 2 times" in results[3].reason


def test_a_torn_last_line_is_measured_again(tmp_path: Path) -> None:
    sweep(tmp_path, POINTS[:3]).run(Meter())
    journal = tmp_path / "journal.jsonl"
    data = journal.read_bytes()
    journal.write_bytes(data[:-25])
    meter = Meter()
    assert states(sweep(tmp_path, POINTS[:3]).run(meter)) == ["ok"] * 3
    assert meter.asked == [POINTS[2].label]


def test_a_full_disk_loses_nothing_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Journal._write
    left = [5]

    def limited(self: Journal, lines: bytes, sync: bool) -> None:
        left[0] -= 1
        if left[0] < 0 and self.ballast.exists():
            raise OSError(28, "No space left on device")
        written(self, lines, sync)

    monkeypatch.setattr(Journal, "_write", limited)
    with pytest.raises(DeviceError, match="No space left on device"):
        sweep(tmp_path).run(Meter())
    monkeypatch.setattr(Journal, "_write", written)
    meter = Meter()
    assert states(sweep(tmp_path).run(meter)) == ["ok"] * 6
    # two points' start and result, and the third's start, fitted; its result took the place of the ballast
    assert meter.asked == [p.label for p in POINTS[3:]]


def test_a_device_that_answers_no_more_ends_the_sweep(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="run the same command again"):
        sweep(tmp_path).run(Meter({POINTS[1].label: "unhealthy"}))
    meter = Meter()
    assert states(sweep(tmp_path).run(meter)) == ["ok"] * 6
    assert meter.asked == [p.label for p in POINTS[1:]]


def test_two_sweeps_cannot_share_a_folder(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(DatasetError, match="another run is writing to it"):
        sweep(tmp_path).run(Meter())


def test_results_of_shards_are_read_together(tmp_path: Path) -> None:
    for number, points in ((1, POINTS[:3]), (2, POINTS[3:])):
        sweep(tmp_path / f"shard-{number}-of-2", points).run(Meter())
    assert sorted(r.point.label for r in read_results(tmp_path)) == sorted(p.label for p in POINTS)
    with pytest.raises(DatasetError, match="has no results"):
        read_results(tmp_path / "nowhere")


# ---- tables ----


def test_the_csv_is_that_of_the_older_program(tmp_path: Path) -> None:
    sweep(tmp_path).run(Meter({POINTS[5].label: "oom"}))
    lines = (tmp_path / "results.csv").read_text().splitlines()
    assert lines[0] == HEADER == ",".join(HEADERS["fc"])
    assert len(lines) == 6
    # Phi: 2^2 * (1 - 1) + 2 * (2000 + 200) = 4400; 6 * 4400 * 64 * 10 steps / 0.5 s = 33,792,000 FLOP/s
    assert lines[1] == "here-cpu,f32,1,2,64,2000,200,4400,0.5,3.3792e-05"


def test_blanks_after_commas_are_no_part_of_a_cell(tmp_path: Path) -> None:
    path = tmp_path / "old.csv"
    path.write_text(
        HEADER.replace(",", ", ") + "\n\nNVIDIA A100,  f16, 8, 1024, 64, 1000, 100, 8000, 1.5,  214.4\n"
    )
    family, rows = read_csv(path)
    assert (family, rows) == (
        "fc",
        [["NVIDIA A100", "f16", "8", "1024", "64", "1000", "100", "8000", "1.5", "214.4"]],
    )
    table = csv_frame(path)
    assert table.flops_per_s.tolist() == [pytest.approx(214.4e12)]
    assert table["dtype"].tolist() == ["float16"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "its header is ''"),
        ("a,b\n1,2\n", "its header is 'a,b'; it must be 'device,input_type,layers"),
        (HEADER + "\nhere,f32,1\n", "row 2 has 3 cells, the header 10"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(DatasetError, match=message):
        read_csv(path)


def test_a_cell_that_is_no_number_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(HEADER + "\nhere,f32,1,2,64,2000,200,4400,fast,1\n")
    with pytest.raises(DatasetError, match="could not convert string to float: 'fast'"):
        csv_frame(path)


def test_merging_keeps_the_later_of_equal_points() -> None:
    def row(device: str, batch: str, tflops: str) -> list[str]:
        return [device, "f32", "8", "1024", batch, "1000", "100", "8000", "1", tflops]

    text = merged(
        [
            ("fc", [row("a", "64", "1"), row("b", "64", "2")]),
            ("fc", [row("a", "64", "3"), row("a", "128", "4")]),
        ]
    )
    rows = list(csv.reader(io.StringIO(text)))
    assert ",".join(rows[0]) == HEADER
    assert [(r[0], r[4], r[-1]) for r in rows[1:]] == [("a", "64", "3"), ("b", "64", "2"), ("a", "128", "4")]
    with pytest.raises(DatasetError, match="tables of cnn and fc: merge tables of one family"):
        merged([("fc", []), ("cnn", [])])
    with pytest.raises(DatasetError, match="tables of nothing"):
        merged([])


def test_a_device_s_name_with_a_comma_is_one_cell(tmp_path: Path) -> None:
    result = replace(Meter()(POINTS[0]), machine="GPU, fast")
    path = tmp_path / "x.csv"
    path.write_text(csv_text("fc", [result]))
    assert read_csv(path)[1][0][0] == "GPU, fast"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_its_table(family: str, tmp_path: Path) -> None:
    point = Point.of(family, FAMILIES[family].kinds[-1], FAMILIES[family].defaults)
    result = Meter()(point)
    path = tmp_path / "x.csv"
    path.write_text(csv_text(family, [result]))
    assert read_csv(path)[0] == family
    table = csv_frame(path)
    assert table.flops_per_s[0] == pytest.approx(result.flops_per_s, rel=1e-5)
    assert {name: int(table[name][0]) for name in point.named} == point.named
    assert frame([replace(result, setup=Setup(tf32=True))])["dtype"][0] == "tensorfloat32"
    both = frame([result])
    assert both["batch_size"][0] == point.batch_size and both["state"][0] == "ok"


# ---- job arrays ----


def test_a_job_array_measures_shards_of_the_same_command() -> None:
    arguments = "paradnn fc --grid --input_type f16 --use_gpu 1 --slurm 8 --shard 1/2 --out".split() + [
        "my results"
    ]
    script = array_script(arguments, 8, gpu=True)
    assert script.startswith("#!/bin/bash\n")
    assert "#SBATCH --array=1-8\n" in script and "#SBATCH --gres=gpu:1\n" in script
    command = shlex.split(script.splitlines()[-1])
    assert command[:3] == ["srun", "neuralpower", "paradnn"]
    assert command[-4:] == ["--out", "my results", "--shard", "$SLURM_ARRAY_TASK_ID/8"]
    assert "--slurm" not in command and "1/2" not in command
    assert "gres" not in array_script(["paradnn", "fc", "--grid", "--slurm=4"], 4, gpu=False)
    with pytest.raises(InputError, match="array of 0 jobs"):
        array_script([], 0, gpu=False)
