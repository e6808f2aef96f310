"""The benchmark's options, result lines, grid, logs, tables and configuration file; what a batch may take."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from neuralpower.devices.machine import available_bytes
from neuralpower.errors import DatasetError, DeviceError, InputError, OutOfMemory
from neuralpower.measure.meters import MeterUnavailable, Reading
from neuralpower.measure.meters.base import Description
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.processes.tether import python, tethered
from neuralpower.suites.bench.distributed import World, device_of, failure_of, torchrun, world_of
from neuralpower.suites.bench.network import Case, Network, Scores, TooLarge, check_host_memory
from neuralpower.suites.bench.options import (
    IMAGE,
    SETTINGS,
    Options,
    arguments,
    boolean,
    container_command,
    options_of,
    read_config,
)
from neuralpower.suites.bench.results import (
    SUMMARIES,
    Ended,
    Log,
    axes_of,
    exploration,
    parse,
    points_of,
    read_logs,
    result_line,
    run_grid,
    values_of,
    write_csv,
)
from neuralpower.suites.bench.run import Bench, Monitor, PowerReader, ProcessReader, results
from neuralpower.suites.steps import Precision, Times

# ---- options ----


def test_the_command_line_has_its_defaults_and_the_library_shorter_ones() -> None:
    options = options_of({"model": "alexnet", "batch_size": "32"})
    assert (options.num_batches, options.num_warmup_batches, options.num_gpus) == (100, 1, 1)
    assert (options.device, options.dtype, options.numbers, options.data) == (
        "cpu",
        "float",
        "float32",
        "synthetic",
    )
    assert (options.data_backend, options.num_loader_threads, options.dist_backend) == (
        "caffe_lmdb",
        4,
        "nccl",
    )
    assert (options.cudnn_benchmark, options.cudnn_fastest, options.data_shuffle) == (True, False, False)
    assert options.phase == "training"
    library = Options("alexnet")
    assert (library.batch_size, library.num_batches, library.num_warmup_batches) == (16, 10, 10)


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("ON", True), ("t", True), ("1", True), ("off", False)]
)
def test_truths_have_four_spellings(text: str, value: bool) -> None:
    assert boolean(text) is value


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"batch_size": "1.5"}, "batch_size '1.5': must be a whole number"),
        ({"batch_size": "0"}, "batch_size 0: must be 1 or more"),
        ({"num_batches": "0"}, "num_batches 0: must be 1 or more"),
        ({"num_warmup_batches": "-1"}, "num_warmup_batches -1: must be 0 or more"),
        ({"monitor_frequency": "often"}, "monitor_frequency 'often': must be a number"),
        ({"forward_only": "yes"}, "'yes' is not a boolean: write true, on, t, 1"),
        ({"dtype": "float12"}, "unknown dtype 'float12': did you mean"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"data": "synthetic/disk"}, "unknown data 'synthetic/disk'"),
        ({"data_backend": "hdf5"}, "unknown data backend 'hdf5'"),
        ({"dist_backend": "mpi"}, "unknown distributed backend 'mpi'"),
        ({"data_loader_only": "1"}, "data_loader_only without a data_dir"),
        ({"forward_only": "1", "num_gpus": "2"}, "inference on 2 GPUs: it runs on one"),
        (
            {"device": "cuda:1", "num_gpus": "2"},
            "device cuda:1 for 2 processes: each has its own; choose --device gpu",
        ),
        ({"master_port": "70000"}, "master_port 70000: a port is below 65536"),
        ({"speed": "9"}, "unknown option 'speed'"),
    ],
)
def test_options_that_make_no_sense_are_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        options_of({"model": "alexnet", "batch_size": "2", **given})


def test_what_is_required_is_asked_for() -> None:
    with pytest.raises(InputError, match="no model: it is required; add --model"):
        options_of({"batch_size": 2})
    with pytest.raises(InputError, match="no batch_size"):
        options_of({"model": "alexnet"})


def test_a_command_line_stands_for_its_options() -> None:
    options = options_of(
        {"model": "m", "batch_size": 2, "autocast": "on", "input_shape": "3x8x9", "seq_len": 5}
    )
    words = arguments(options)
    assert words == ["--model=m", "--batch_size=2", "--autocast=true", "--input_shape=3x8x9", "--seq_len=5"]
    assert options_of(dict(word[2:].split("=", 1) for word in words)) == options


# ---- result lines ----


def test_a_result_line_is_read_as_it_was_written() -> None:
    values = {
        "results.time": 12.5,
        "exp.model_title": "A = B",
        "results.time_data": [1.0, 2.5],
        "a": None,
        "b": True,
    }
    text = "noise\n" + "\n".join(result_line(n, v) for n, v in values.items()) + "\nmore __init__ noise"
    assert parse(text) == Log("", values)


def test_lines_of_older_logs_are_read() -> None:
    found = parse('  __results.status__ = "failure"\n\t__results.throughput__=1234\n__results.time__= 7.25\n')
    assert found.values == {"results.status": "failure", "results.throughput": 1234, "results.time": 7.25}


def test_numbers_that_are_not_finite_are_null_and_torn_lines_are_named() -> None:
    assert result_line("x", [float("nan"), {"y": float("inf")}]) == '__x__= [null, {"y": null}]'
    assert parse("__a__= 1\n__b__= [1, 2").unreadable == ("__b__= [1, 2",)


def test_results_of_times() -> None:
    # 0.1 and 0.3 s: mean 200 ms, deviation 100 ms; 8 samples in 0.2 s
    found = results(Times((0.5,), (0.1, 0.3), (0.01, 0.02)), 8)
    assert found["results.time"] == pytest.approx(200)
    assert found["results.time_std"] == pytest.approx(100)
    assert (found["results.throughput"], type(found["results.throughput"])) == (40, int)
    assert found["results.time_data"] == pytest.approx([100, 300])
    assert found["results.data_wait_s"] == pytest.approx(0.03)
    assert results(Times(), 8)["results.time"] is None


# ---- what fits ----


@pytest.mark.parametrize("limit", [0, 1, 5, 63, 64, 99])
def test_the_largest_batch_is_found_by_trying(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def fits(case: Case, size: int) -> bool:
        tried.append(size)
        return size <= limit

    monkeypatch.setattr(Case, "fits", fits)
    assert case_of(InputRequest(100)).largest_batch() == limit
    assert len(tried) < 15 and max(tried) < 100


def test_a_search_for_a_large_batch_stops_early_and_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Case, "fits", lambda case, size: size <= 9000)
    assert 9000 - 10_000 / 16 <= case_of(InputRequest(20_000)).largest_batch() <= 9000


def case_of(request: InputRequest, precision: Precision | None = None, training: bool = False) -> Case:
    return Case(Network("sensor_net"), request, precision or Precision(), torch.device("cpu"), training)


def test_peak_memory_of_a_perceptron() -> None:
    # sensor_net: 784 -> 1024 -> 1024 -> 1024 -> 16 with ReLU in place or not; 2,919,440 weights of 4 bytes
    at = [case_of(InputRequest(1)).peak_bytes(n) for n in (10, 20, 30)]
    assert all(isinstance(v, int) and v > 2_919_440 * 4 for v in at)
    assert at[2] - at[1] == at[1] - at[0]  # type: ignore[operator]
    # training holds weights, gradients and momentum at the least
    training = case_of(InputRequest(1), training=True).peak_bytes(10)
    assert training is not None and training > 3 * 2_919_440 * 4
    halves = case_of(
        InputRequest(1, dtype=torch.float16), Precision(torch.float16, masters=True), True
    ).peak_bytes(10)
    # 2 + 2 bytes of weights and gradients, 4 + 4 + 4 of masters, their gradients and momentum
    assert halves is not None and halves > 16 * 2_919_440


def test_a_batch_that_the_memory_does_not_hold_is_refused_with_the_largest_that_it_does() -> None:
    def peak(batch: int) -> int:
        return 10_000 + 100 * batch

    # three quarters of 100,000 less 10,000 is 65,000, and 650 samples fit
    assert check_host_memory(peak, 650, "Net", 100_000) == 75_000
    with pytest.raises(
        TooLarge, match="^batch size 651 of Net: .*; the largest that fits is 650; choose --batch-size 650$"
    ):
        check_host_memory(peak, 651, "Net", 100_000)
    with pytest.raises(TooLarge, match="not even a batch of 1 fits"):
        check_host_memory(peak, 2, "Net", 11_000)
    assert check_host_memory(lambda batch: None, 801, "Net", 1) is None
    assert check_host_memory(peak, 801, "Net", None) == 90_100


def test_available_memory_is_the_lesser_of_system_and_group(tmp_path: Path) -> None:
    assert available_bytes(tmp_path, tmp_path) is None
    (tmp_path / "meminfo").write_text("MemTotal: 4000 kB\nMemAvailable:  3000 kB\n")
    assert available_bytes(tmp_path, tmp_path) == 3000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert available_bytes(tmp_path, tmp_path) == 3000 * 1024
    (tmp_path / "memory.max").write_text("1500000\n")
    assert available_bytes(tmp_path, tmp_path) == 500_000


# ---- scores ----


def test_labels_are_drawn_once_and_for_the_axis_of_classes() -> None:
    scores = Scores(5)
    rows = torch.zeros(2, 7, 5)  # as of a language model: 5 words
    assert scores(rows, None).item() == pytest.approx(1.6094379)  # log 5
    drawn = scores._drawn
    scores(rows, None)
    assert scores._drawn is drawn and drawn is not None and drawn.shape == (2, 7)
    assert Scores(5)(torch.zeros(2, 5, 3, 3), torch.zeros(2, 3, 3, dtype=torch.long)).item() == pytest.approx(
        1.6094379
    )
    assert Scores(None)(torch.full((2, 7, 5), 2.0, requires_grad=True), None).item() == 4.0


# ---- the grid ----


class Program:
    """`neuralpower bench` as it would be: alexnet fits up to 32, fails with dtype bfloat16."""

    def __init__(self, interrupt_at: int | None = None) -> None:
        self.ran: list[str] = []
        self.interrupt_at = interrupt_at

    def __call__(self, command: Sequence[str]) -> Ended:
        self.ran.append(" ".join(command))
        if len(self.ran) == self.interrupt_at:
            raise KeyboardInterrupt
        given = dict(word[2:].split("=") for word in command)
        batch = int(given["batch_size"])
        head = result_line("exp.model_title", given["model"].title()) + "\n"
        if given.get("dtype") == "bfloat16":
            return Ended(
                command,
                2,
                head,
                "Warning: x\nerror: dtype bfloat16: cpu lacks it\n",
            )
        if batch > 32:
            return Ended(
                command, 4, head + result_line("results.reason", "oom"), "error: batch size: out of memory\n"
            )
        lines = {"results.time": batch / 10, "results.throughput": 10_000, "results.status": "ok"}
        return Ended(command, 0, head + "\n".join(result_line(n, v) for n, v in lines.items()), "")


def grid_of(*texts: str) -> list[Options]:
    return points_of({"model": "alexnet", "num_batches": "5"}, axes_of(texts))


def test_a_grid_is_the_product_of_its_axes_with_batches_rising() -> None:
    points = points_of({"model": "a"}, axes_of(["batch-size=32,8", "dtype=float32,float16"]))
    assert [(p.batch_size, p.dtype) for p in points] == [
        (8, "float32"),
        (8, "float16"),
        (32, "float32"),
        (32, "float16"),
    ]


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["batch_size"], "grid 'batch_size': write NAME=VALUE,VALUE"),
        (["batch_size="], "write NAME=VALUE,VALUE"),
        (["batch_size=1,1"], "names a value twice"),
        (["batch_size=1", "batch-size=2"], "grid batch_size: given twice"),
        (["batch_size=1,x"], "batch_size 'x': must be a whole number"),
        (["batch_size=1", "colour=red"], "unknown option 'colour'"),
        (
            ["batch_size=" + ",".join(map(str, range(1, 401))), "seed=" + ",".join(map(str, range(300)))],
            "120,000 points",
        ),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(texts: list[str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        grid_of(*texts)


def test_larger_batches_are_skipped_after_one_that_does_not_fit(tmp_path: Path) -> None:
    program, told = Program(), list[str]()
    points = grid_of("batch_size=16,64,128", "dtype=float32,bfloat16")
    records = run_grid(points, tmp_path, told.append, run=program)
    assert [(r["options"]["batch_size"], r["status"]) for r in records] == [
        (16, "ok"),
        (16, "failed"),
        (64, "oom"),
        (64, "failed"),
        (128, "skipped"),
        (128, "failed"),
    ]
    assert records[4]["error"] == "batch size 64 did not fit into memory"
    assert records[1]["error"] == "dtype bfloat16: cpu lacks it"
    assert len(program.ran) == 5 and len(told) == 6


def test_a_grid_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    points = grid_of("batch_size=1,2,4,64,128")
    with pytest.raises(KeyboardInterrupt):
        run_grid(points, tmp_path, lambda text: None, run=Program(interrupt_at=3))
    again = Program()
    records = run_grid(points, tmp_path, lambda text: None, run=again)
    assert again.ran == [f"--model=alexnet --batch_size={n} --num_batches=5" for n in (4, 64)]
    assert [r["status"] for r in records] == ["ok", "ok", "ok", "oom", "skipped"]
    last = Program()
    run_grid(grid_of("batch_size=1,64,256"), tmp_path, lambda text: None, run=last)
    assert last.ran == []  # 256 is skipped for what the journal says of 64


def test_failed_points_are_run_again_when_asked(tmp_path: Path) -> None:
    points = grid_of("batch_size=1", "dtype=bfloat16")
    for retry, count in ((False, 1), (False, 0), (True, 1)):
        program = Program()
        run_grid(points, tmp_path, lambda text: None, run=program, retry_failed=retry)
        assert len(program.ran) == count


def test_a_process_that_was_killed_ran_out_of_memory(tmp_path: Path) -> None:
    records = run_grid(
        grid_of("batch_size=1"), tmp_path, lambda text: None, run=lambda command: Ended(command, -9, "", "")
    )
    assert (records[0]["status"], records[0]["error"]) == ("oom", "killed, probably for lack of memory")


def test_two_grids_do_not_share_a_folder(tmp_path: Path) -> None:
    def inner(command: Sequence[str]) -> Ended:
        run_grid(grid_of("batch_size=2"), tmp_path, lambda text: None, run=Program())
        raise AssertionError("not refused")

    with pytest.raises(DatasetError, match="another run is writing to it"):
        run_grid(grid_of("batch_size=1"), tmp_path, lambda text: None, run=inner)


# ---- logs and summaries ----


def result(
    model: str = "AlexNet", devices: int = 1, batch: int = 8, time_ms: float = 4.0, **more: Any
) -> dict[str, Any]:
    return {
        "exp.model_title": model,
        "exp.device_title": "H200",
        "exp.phase": "training",
        "exp.dtype": "float32",
        "exp.num_gpus": devices,
        "exp.replica_batch": batch,
        "exp.effective_batch": batch * devices,
        "results.time": time_ms,
        "results.throughput": int(1000 * batch * devices / time_ms),
        "results.status": "ok",
        **more,
    }


def test_logs_and_grids_are_read_and_written_as_csv(tmp_path: Path) -> None:
    (tmp_path / "one.log").write_text(
        "\n".join(result_line(n, v) for n, v in result().items()) + "\n__a__= [1"
    )
    run_grid(grid_of("batch_size=8,64"), tmp_path / "grid", lambda text: None, run=Program())
    logs = [log for name in ("one.log", "grid", "") for log in read_logs(tmp_path / name)]
    assert [log.values["exp.replica_batch"] for log in logs] == [8, 8, 64, 8]
    assert logs[0].unreadable == ("__a__= [1",)
    assert logs[2].values["results.status"] == "oom"
    write_csv([logs[0]._replace(values={**logs[0].values, "list": [1, 2]}), logs[2]], tmp_path / "all.csv")
    with (tmp_path / "all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert (rows[0]["results.time"], rows[0]["list"], rows[1]["results.time"]) == ("4.0", "[1, 2]", "")


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="missing.log: cannot be read"):
        read_logs(tmp_path / "missing.log")
    with pytest.raises(InputError, match="contains no logs"):
        read_logs(tmp_path)
    (tmp_path / "a.log").write_text("nothing")
    with pytest.raises(InputError, match=r"a\.log: contains no result line such as"):
        read_logs(tmp_path)
    with pytest.raises(InputError, match="cannot be written"):
        write_csv([], tmp_path / "a.log" / "all.csv")


def test_exploration_shows_every_run_and_what_went_wrong() -> None:
    failed = {"exp.model": "vgg16", "exp.replica_batch": 512, "results.status": "oom"}
    table = exploration([result(batch=16), failed, result(batch=8)])
    assert [(row[0], row[5], row[8]) for row in table.rows] == [
        ("AlexNet", 8, "ok"),
        ("AlexNet", 16, "ok"),
        ("vgg16", 512, "oom"),
    ]
    assert table.texts()[2][6] == "-"
    assert table.to_json()["rows"][0]["batch time ms"] == 4.0


def test_weak_scaling() -> None:
    # 8 samples in 4 ms on one device, 32 in 5 ms on four: 2000/s and 6400/s, 3.2 times, 80 % of 4
    table = SUMMARIES["weak"]([result(devices=4, time_ms=5.0), result(), result(batch=16)])
    assert [row[4:] for row in table.rows] == [
        (8, 1, 4.0, 2000, 1.0, 1.0),
        (8, 4, 5.0, 6400, pytest.approx(3.2), pytest.approx(0.8)),
        (16, 1, 4.0, 4000, 1.0, 1.0),
    ]


def test_networks_below_a_sample_a_second_scale_too() -> None:
    # 2 samples in 2.5 s, and 4 in the same time: throughputs of 0 and 1 as whole numbers
    slow = {devices: result(devices=devices, batch=2, time_ms=2500.0) for devices in (1, 2)}
    assert [v["results.throughput"] for v in slow.values()] == [0, 1]
    for name, gains in (("weak", [1.0, 2.0]), ("strong", [1.0, 1.0])):
        table = SUMMARIES[name](slow.values())
        assert [row[-2] for row in table.rows] == gains


def test_strong_scaling() -> None:
    # 32 samples: 16 ms on one device, 5 ms on four: 3.2 times
    table = SUMMARIES["strong"]([result(devices=4, time_ms=5.0), result(batch=32, time_ms=16.0)])
    assert [row[4:] for row in table.rows] == [
        (32, 1, 16.0, 2000, 1.0, 1.0),
        (32, 4, 5.0, 6400, pytest.approx(3.2), pytest.approx(0.8)),
    ]


def test_statistics_and_time_analysis() -> None:
    timed = {"results.time_data": [1.0, 2.0, 3.0, 4.0]}
    spent = {"results.wall_s": 10.0, "results.setup_s": 5.0, "results.warmup_s": 1.0, "results.timed_s": 2.0}
    v = result(**timed, **spent, **{"results.data_wait_s": 0.5})
    # deviation: sqrt((1.5^2 + 0.5^2) / 2) = sqrt(1.25)
    assert SUMMARIES["statistics"]([v, result()]).rows[0][5:] == pytest.approx(
        (4, 2.5, 1.25**0.5, 1.25**0.5 / 2.5, 1.0, 1.75, 2.5, 3.25, 4.0)
    )
    assert SUMMARIES["time"]([v, result()]).rows[0][5:] == pytest.approx(
        (10.0, 5.0, 1.0, 2.0, 2.0, 0.5, 0.25)
    )


# ---- configuration and container ----


def config(tmp_path: Path, content: Any) -> Path:
    file = tmp_path / "config.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_a_configuration_is_dotted_or_nested_and_lists_are_axes(tmp_path: Path) -> None:
    content = {
        "exp.model": ["alexnet", "vgg16"],
        "exp.phase": "inference",
        "exp": {"replica_batch": 4, "device_type": "gpu", "num_local_gpus": 1, "dtype": "float16"},
        "pytorch": {"data_shuffle": True, "num_loader_threads": 2, "env": "export A=1", "launcher": "x.sh"},
        "pytorch.args": ["--model=${exp.model}", "--num_batches=7", "--autocast"],
        "monitor": {"frequency": 0.5},
    }
    found = read_config(config(tmp_path, content))
    assert found.axes == {"model": ["alexnet", "vgg16"]}
    options = options_of({**found.options, "model": "alexnet"})
    expected = Options(
        "alexnet", 4, True, 7, 1, 1, "gpu", "float16", True, data_shuffle=True, num_loader_threads=2
    )
    assert options == replace(expected, monitor_frequency=0.5)
    assert found.settings["pytorch.env"] == "export A=1"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "is not JSON"),
        pytest.param("[" * 100_000, "is not JSON", id="nested"),
        ("[]", "contains a list"),
        ({"exp.modle": "a"}, "unknown parameter 'exp.modle': did you mean exp.model"),
        ({"exp.phase": "evaluation"}, "unknown phase 'evaluation': .*training"),
        ({"exp.docker": "perhaps"}, "'perhaps' is not a boolean"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(tmp_path: Path, content: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_config(config(tmp_path, content))


def test_the_container_command_has_a_volume_for_what_is_set() -> None:
    assert SETTINGS["pytorch.docker_image"] == IMAGE == "hpe/pytorch:cuda9-cudnn7"
    plain = container_command(Options("alexnet"), SETTINGS, Path("/code"))
    assert plain[:7] == [
        "docker",
        "run",
        "-i",
        "--security-opt",
        "seccomp=unconfined",
        "--pid=host",
        "--ipc=host",
    ]
    assert [word for word in plain if word.startswith("--volume")] == [
        "--volume=/code:/workspace/neuralpower"
    ]
    settings = {
        **SETTINGS,
        "runtime.cuda_cache": "/cache",
        "monitor.pid_folder": "/pids",
        "pytorch.env": "export A=1; export B='2 3'",
        "exp.docker_args": "--rm",
        "exp.docker_image": "own:1",
    }
    options = Options("alexnet", 4, device="gpu", data_dir="/images", monitor_frequency=1.0)
    full = container_command(options, settings, Path("/code"))
    volumes = [word for word in full if word.startswith("--volume")][1:]
    assert volumes == [
        f"--volume={a}:/workspace/{b}"
        for a, b in (("/cache", "cuda_cache"), ("/images", "data"), ("/pids", "tmp"))
    ]
    assert {"--gpus=all", "--env=A=1", "--env=B=2 3", "--rm"} < set(full)
    assert full[full.index("own:1") + 1 :][:4] == ["python", "-m", "neuralpower", "bench"]
    assert "--data_dir=/workspace/data" in full


# ---- several processes ----


def test_a_process_finds_its_place_in_the_environment() -> None:
    options = Options("alexnet", num_gpus=2)
    assert world_of(options, {}) is None
    assert world_of(replace(options, num_gpus=1), {}) == World()
    place = {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"}
    assert world_of(options, place) == World(4, 3, 1, "gloo")
    assert world_of(replace(options, device="gpu", local_rank=1), {"WORLD_SIZE": "4", "RANK": "3"}) == World(
        4, 3, 1, "nccl"
    )
    chosen = world_of(replace(options, device="gpu", dist_backend="gloo"), place)
    assert chosen is not None and chosen.backend == "gloo"


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"WORLD_SIZE": "two"}, "must be whole numbers"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK 2 of WORLD_SIZE 2: it must be below"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "inference by 2 processes"),
    ],
)
def test_a_wrong_place_is_refused(environment: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        world_of(Options("alexnet", forward_only=True), environment)


def test_more_gpus_than_there_are_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(DeviceError, match="torch finds no CUDA device here; choose --device cpu"):
        device_of(Options("alexnet", device="gpu"), World())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(DeviceError, match="4 GPUs requested, 2 are there; choose --num-gpus 2 or fewer"):
        device_of(Options("alexnet", device="gpu", num_gpus=4), World())
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    assert device_of(Options("alexnet", device="gpu", num_gpus=2), World(2, 1, 1, "nccl")) == torch.device(
        "cuda:1"
    )
    assert device_of(Options("alexnet", device="cuda:1"), World()) == torch.device("cuda:1")


def test_torchrun_starts_the_same_command() -> None:
    command = torchrun(Options("alexnet", 4, num_gpus=2), ["--model=alexnet"])
    assert command == [
        *tethered("torch.distributed.run"),
        *"--standalone --nproc-per-node=2 --no-python".split(),
        *[*python("neuralpower"), "bench", "--model=alexnet"],
    ]
    assert "--master-port=29501" in torchrun(Options("alexnet", master_port=29501), [])


@pytest.mark.parametrize(
    ("said", "kind", "text"),
    [
        ("error: dtype x\nW1 torch\n  exitcode  : 2 (pid: 9)", InputError, "dtype x"),
        ("[rank1]:error: device gone\n exitcode : 4 (pid: 9)", DeviceError, "device gone"),
        ("error: Net: out of memory; x\n exitcode : 4 (pid: 9)", OutOfMemory, "Net: out of memory; x"),
        (
            "W1 torch\n exitcode : -9 (pid: 9)",
            OutOfMemory,
            "a process was killed, probably for lack of memory",
        ),
        ("terminate called\n exitcode : -6 (pid: 9)", DeviceError, "a process ended by SIGABRT"),
        ("", DeviceError, "torchrun printed nothing"),
        (
            "error: Net: running it raises RuntimeError: [gloo] Connection closed by peer [::1]:9; check\n"
            "error: images: none can be read\n exitcode : 2 (pid: 9)",
            InputError,
            "images: none can be read",
        ),
    ],
)
def test_the_failure_of_a_process_is_handed_on(said: str, kind: type[Exception], text: str) -> None:
    error = failure_of(said, 1)
    assert type(error) is kind and str(error).startswith(text)


def test_a_finished_benchmark_holds_no_network() -> None:
    """What is held until the interpreter ends keeps a process group's threads, which then abort it."""
    bench = Bench(
        Options("sensor_net", num_batches=2, num_warmup_batches=1), World(), lambda name, value: None
    )
    bench.run()
    assert bench.timer is not None and len(bench.timer.times.step_s) == 2
    assert isinstance(bench.timer.work.model, nn.Identity)
    assert bench.timer.work.optimizer is None


# ---- the monitor ----


class Meter:
    """A meter that counts 5 J a second, or says 70 W, or is lost."""

    def __init__(self, *readings: Reading | None) -> None:
        self.readings, self.closed = list(readings), False

    def open(self) -> None: ...

    def read(self) -> list[Reading]:
        reading = self.readings.pop(0)
        if reading is None:
            raise MeterUnavailable("meter_lost", "gone")
        return [reading, Reading("dram-0", 1e6, 1e6, reading.t_ns)]

    def describe(self) -> Description:
        return Description("test", "board")

    def close(self) -> None:
        self.closed = True


def test_watts_come_from_a_counter_or_a_reading() -> None:
    counting = PowerReader(
        Meter(Reading("package-0", 10.0, None, 0), Reading("package-0", 15.0, None, 2 * 10**9), None)
    )
    assert [counting.read() for _ in range(3)] == [None, 2.5, None]
    saying = PowerReader(Meter(Reading("board", 10.0, 70.0, 0), Reading("board", None, None, 1, 60.0)))
    assert [saying.read() for _ in range(2)] == [70.0, 60.0]


def process_files(proc: Path, ticks: int) -> None:
    folder = proc / "42"
    folder.mkdir(exist_ok=True)
    (proc / "meminfo").write_text("MemTotal: 4000 kB\n")
    (folder / "statm").write_text("300 100 20 1 0 50 0\n")
    # after the name: state, 10 more, then user and system ticks
    (folder / "stat").write_text(f"42 (a (b) c) R {' '.join(['0'] * 10)} {ticks} 5 0 0\n")


def test_a_process_is_read_from_the_kernels_files(tmp_path: Path) -> None:
    process_files(tmp_path, 95)
    seconds = iter([0.0, 2.0, 3.0])
    reader = ProcessReader(42, tmp_path, lambda: next(seconds))
    tick, page = 1 / os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    assert reader.read() == (
        42,
        100 * tick,
        300 * page,
        100 * page,
        20 * page,
        None,
        100 * 100 * page / 4_096_000,
    )
    process_files(tmp_path, 195)
    assert reader.read()[5] == pytest.approx(100 * 100 * tick / 2)
    (tmp_path / "42" / "stat").unlink()
    assert reader.read()[1] is None


def test_the_monitor_writes_what_it_saw(tmp_path: Path) -> None:
    process_files(tmp_path, 95)
    meters = [Meter(*[Reading("p", None, 30.0, 0)] * 3), Meter(*[Reading("board", None, 70.5, 0)] * 3)]
    monitor = Monitor(0.001, ["cuda:0"], ProcessReader(42, tmp_path), meters)
    monitor.start()
    while not monitor.samples:
        pass
    monitor.stop()
    assert all(meter.closed for meter in meters)
    monitor.write(tmp_path / "sub" / "use.txt")
    lines = (tmp_path / "sub" / "use.txt").read_text().splitlines()
    assert lines[0] == "process_pid time virt res shrd cpu mem power gpu0_power"
    assert (
        lines[1].split()[0] == "42" and lines[1].split()[5] == "-" and lines[1].split()[7:] == ["30", "70.5"]
    )
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written .*choose another --monitor-file"):
        monitor.write(tmp_path / "file" / "use.txt")


def test_a_monitor_without_a_frequency_does_nothing() -> None:
    monitor = Monitor(0)
    monitor.start()
    monitor.stop()
    assert monitor.samples == []


def test_values_of_a_skipped_point_say_what_it_would_have_been(tmp_path: Path) -> None:
    records = run_grid(grid_of("batch_size=64,128"), tmp_path, lambda text: None, run=Program())
    values = list(values_of(records))
    assert values[1]["exp.replica_batch"] == 128 and values[1]["results.status"] == "skipped"
