"""`neuralpower bench`, `bench-log` and `models` as they are typed: what they print, and how they end."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from neuralpower.profiling.stopwatch import HostClock
from neuralpower.suites.bench.command import with_booleans
from neuralpower.suites.bench.data import Datum
from neuralpower.suites.bench.options import Options
from neuralpower.suites.bench.results import PATTERN, parse
from neuralpower.suites.bench.run import benchmark
from tests import caffe
from tests.networks.test_zoo import GOLDEN
from tests.program import Ran, done, run
from tests.suites.test_bench_data import folder_of, raw

NETWORKS = """
import weakref

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, do):
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.linear = nn.Linear(4, 3)
        self.do, self.calls = do, 0

    def forward(self, x):
        if not x.is_meta:
            self.calls += 1
            self.do(self, x)
        return self.linear(self.convolution(x).mean((2, 3)))


def nothing(net, x):
    pass


seen = []


def at_most_five(net, x):
    if any(batch() is not None and len(batch()) > 5 for batch in seen):
        raise RuntimeError("a batch that did not fit is still held")
    seen.append(weakref.ref(x))
    if len(x) > 5:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def breaks(net, x):
    if net.calls == 4:
        raise RuntimeError("the moon is full\\nand so on")


def stops(net, x):
    if net.calls == 4:
        raise KeyboardInterrupt


def net():
    return Net(nothing)


def small():
    return Net(at_most_five)


def broken():
    return Net(breaks)


def stopped():
    return Net(stops)


def example_inputs(batch_size):
    return (torch.empty(batch_size, 3, 8, 8),)
"""


@pytest.fixture
def networks(tmp_path: Path) -> Path:
    file = tmp_path / "networks.py"
    file.write_text(NETWORKS)
    return file


def values(ran: Ran | str) -> dict[str, Any]:
    found = parse(ran if isinstance(ran, str) else ran.out)
    assert not found.unreadable
    return found.values


def bench(networks: Path, name: str, *arguments: object) -> Ran:
    return run(
        "bench", "--model", f"{networks}:{name}", "--num_warmup_batches=1", "--num_batches=3", *arguments
    )


def test_booleans_need_no_value_and_hyphens_are_underscores() -> None:
    assert with_booleans(["--forward_only", "--batch-size", "4", "--autocast"]) == [
        "--forward_only=true",
        "--batch-size",
        "4",
        "--autocast=true",
    ]
    assert with_booleans(["--autocast", "on", "--data_shuffle=f", "--model", "a-b"]) == [
        *("--autocast", "on", "--data_shuffle=f", "--model", "a-b"),
    ]


@pytest.mark.parametrize("forward_only", [True, False])
def test_a_benchmark_prints_result_lines_and_nothing_else(networks: Path, forward_only: bool) -> None:
    ran = bench(networks, "net", "--batch-size", 4, *(["--forward_only"] if forward_only else []))
    assert (ran.code, ran.err) == (
        0,
        "Warning: num_warmup_batches 1: too few for steady times; choose 10 or more\n",
    )
    assert all(PATTERN.fullmatch(line) for line in ran.out.splitlines())
    found = values(ran)
    assert found["exp.phase"] == ("inference" if forward_only else "training")
    assert (found["exp.replica_batch"], found["exp.effective_batch"], found["exp.num_gpus"]) == (4, 4, 1)
    assert (found["results.timed_batches"], found["results.warmup_batches"]) == (3, 1)
    times = found["results.time_data"]
    assert found["results.time"] == pytest.approx(sum(times) / 3)
    assert found["results.throughput"] == int(4 / (found["results.time"] / 1e3))
    assert isinstance(found["results.throughput"], int)
    assert found["torch.version"] == torch.__version__
    assert found["results.start_time"] < found["results.end_time"]
    assert isinstance(found["results.proc_pid"], int)
    assert found["results.status"] == "ok"
    assert list(found)[:2] == ["neuralpower.version", "torch.version"] and list(found)[-1] == "results.status"


def test_no_warm_up_still_measures_training(networks: Path) -> None:
    found = values(bench(networks, "net", "--batch_size=2", "--num_warmup_batches", 0))
    assert (found["results.timed_batches"], found["results.warmup_batches"]) == (3, 0)
    assert min(found["results.time_data"]) > 0


@pytest.mark.parametrize("phase", ["--forward_only", "--data_shuffle"])
def test_the_device_is_waited_for_after_each_batch(
    networks: Path, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int] = []

    class Waited(HostClock):
        def wait(self) -> None:
            waits.append(1)

    monkeypatch.setattr("neuralpower.suites.bench.run.clock_of", lambda device: Waited())
    assert values(bench(networks, "net", "--batch_size=2", phase))["results.status"] == "ok"
    assert len(waits) == 1 + 1 + 3  # before the first, then after one warm-up and three timed batches


@pytest.mark.parametrize(
    "arguments",
    [
        ("--dtype=float16",),
        ("--dtype=bfloat16",),
        ("--dtype=bfloat16", "--autocast"),
        ("--data=synthetic/pageable", "--data_shuffle", "on"),
        ("--cudnn_fastest", "--cudnn_benchmark", "off"),
    ],
)
def test_options_of_a_benchmark(networks: Path, arguments: tuple[str, ...]) -> None:
    ran = bench(networks, "net", "--batch_size=2", *arguments)
    assert values(ran)["results.status"] == "ok"
    assert ("cudnn_fastest has no effect" in ran.err) == ("--cudnn_fastest" in arguments)


def test_the_library_returns_what_the_command_prints() -> None:
    found = benchmark(Options("sensor_net", 2, num_batches=2, num_warmup_batches=1, forward_only=True))
    assert (found["exp.model_title"], found["results.timed_batches"]) == ("SensorNet", 2)


def test_tokens_are_trained_on() -> None:
    model = "transformers:GPT2Model?n_layer=1&n_embd=8&n_head=2&vocab_size=20&bos_token_id=0&eos_token_id=0"
    ran = run(
        "bench",
        "--model",
        model,
        "--batch_size=2",
        "--seq_len=4",
        "--num_batches=1",
        "--num_warmup_batches=2",
    )
    assert (values(ran)["results.status"], ran.err) == ("ok", "")


# ---- data ----


def test_images_of_a_folder_train_a_network(networks: Path, tmp_path: Path) -> None:
    root = folder_of(tmp_path / "images")
    (root / "class0" / "1.png").write_bytes(b"no image")
    arguments = (
        "--data_dir",
        root,
        "--data_backend=image_folder",
        "--num_loader_threads=0",
        "--data_shuffle",
    )
    ran = bench(networks, "net", "--batch_size=6", *arguments)
    found = values(ran)
    # 4 batches of 6 images, each of which meets the broken one
    assert (found["results.status"], found["results.skipped_images"]) == ("ok", 4)
    assert "Warning: 4 images could not be read and were skipped" in ran.err
    assert found["results.data_wait_s"] > 0


def test_inference_reads_the_data_it_is_given(networks: Path, tmp_path: Path) -> None:
    encoded = Datum(data=b"\xff\xd8 broken", label=1, encoded=True)
    where = caffe.write(tmp_path / "db", [caffe.message(d) for d in (raw(900), encoded, raw(2), raw(3))])
    found = values(
        bench(
            networks, "net", "--batch_size=4", "--forward_only", "--data_dir", where, "--num_loader_threads=0"
        )
    )
    assert (found["results.status"], found["results.skipped_images"]) == ("ok", 4)


def test_data_ingestion_runs_no_network(networks: Path, tmp_path: Path) -> None:
    root = folder_of(tmp_path / "images")
    arguments = (
        "--data_dir",
        root,
        "--data_backend=image_folder",
        "--data_loader_only",
        "--num_loader_threads=1",
    )
    found = values(bench(networks, "broken", "--batch_size=2", "--num_batches=6", *arguments))
    assert (found["exp.phase"], found["results.status"], found["results.timed_batches"]) == (
        "data_ingestion",
        "ok",
        6,
    )


@pytest.mark.parametrize(
    ("backend", "says"),
    [
        ("caffe_lmdb", "has no data.mdb, so it is not an LMDB"),
        ("image_folder", "no folder of images per class"),
    ],
)
def test_data_that_are_none_are_refused_before_the_network_is_built(
    networks: Path, tmp_path: Path, backend: str, says: str
) -> None:
    (tmp_path / "empty").mkdir()
    ran = bench(
        networks, "net", "--batch_size=2", "--data_dir", tmp_path / "empty", "--data_backend", backend
    )
    assert ran.code == 2
    assert says in ran.err.splitlines()[-1]
    assert values(ran)["results.status"] == "failure"
    assert "exp.estimated_memory_bytes" not in values(ran)


def test_images_are_for_networks_that_see_some(tmp_path: Path) -> None:
    ran = run(
        "bench",
        "--model=sensor_net",
        "--batch_size=2",
        "--data_dir",
        folder_of(tmp_path / "i"),
        "--data_backend=image_folder",
    )
    assert ran.code == 2
    assert "error: sensor_net sees (784,) images: a data_dir is for inputs such as 3x224x224" in ran.err


# ---- failures ----


def test_too_large_a_batch_is_refused_before_it_is_tried() -> None:
    ran = run("bench", "--model=sensor_net", "--batch_size=1000000000", "--forward_only")
    assert ran.code == 4
    last = ran.err.splitlines()[-1]
    assert last.startswith("error: batch size 1000000000 of SensorNet: takes about ")
    found = values(ran)
    assert f"the largest that fits is {found['results.largest_batch']};" in last
    assert 1000 < found["results.largest_batch"] < 10**9
    assert (found["results.status"], found["results.reason"]) == ("failure", "oom")


def test_after_an_out_of_memory_the_largest_batch_is_found_by_trying(networks: Path) -> None:
    ran = bench(networks, "small", "--batch_size=64")
    assert ran.code == 4
    assert "of " in ran.err and "out of memory; the largest that fits is 5; choose --batch-size 5" in ran.err
    assert values(ran)["results.largest_batch"] == 5


def test_what_was_measured_outlives_a_failure(networks: Path) -> None:
    ran = bench(networks, "broken", "--batch_size=2")
    assert ran.code == 2
    assert ran.err.splitlines()[-1].startswith(
        "error: Net: running it raises RuntimeError: the moon is full; check"
    )
    found = values(ran)
    # one warm-up, then two timed batches before the fourth call
    assert (found["results.timed_batches"], found["results.status"]) == (2, "failure")
    assert found["results.time"] > 0


def test_what_was_measured_outlives_an_interruption(networks: Path) -> None:
    ran = bench(networks, "stopped", "--batch_size=2", "--forward_only")
    assert ran.code == 130
    found = values(ran)
    assert (found["results.timed_batches"], found["results.status"]) == (2, "interrupted")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "no model: it is required; add --model"),
        (("--model=sensor_net",), 2, "no batch_size: it is required"),
        (("--model=sensornet", "--batch_size=1"), 2, "'sensornet' is not a folder and names no source"),
        (("--model=sensor_net", "--batch_size=1", "--device=gpu"), 4, "torch finds no CUDA device here"),
        (("--model=sensor_net", "--batch_size=1", "--device=gpu", "--num_gpus=2"), 4, "no CUDA device here"),
        (("--model=sensor_net", "--batch_size=1", "--dtype=int8"), 2, "unknown dtype 'int8'"),
        (("--model=sensor_net", "--batch_size=1", "--autocast"), 2, "autocast to float32"),
        (("--model=sensor_net", "--batch_size=1", "--grid=seed=1,2"), 2, "add --out DIR"),
        (
            ("--model=sensor_net", "--batch_size=1", "--out=x"),
            2,
            "--out x: is the folder of a grid; add --grid",
        ),
        (
            ("--model=sensor_net", "--batch_size=1", "--grid=batch_size=1,2", "--out=x"),
            2,
            "batch_size: given as an option",
        ),
        (
            ("--model=sensor_net", "--batch_size=1", "--config=missing.json"),
            2,
            "missing.json: cannot be read",
        ),
        (("--model=sensor_net", "--batch_size=1", "--speed=3"), 2, "No such option"),
    ],
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...], code: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    ran = run("bench", *arguments)
    assert ran.code == code
    assert says in ran.err.splitlines()[-1]


# ---- what is printed instead of measured ----


def test_the_container_command_is_printed(tmp_path: Path) -> None:
    config = tmp_path / "c.json"
    config.write_text(
        json.dumps({"exp.model": ["alexnet", "vgg16"], "exp.replica_batch": 8, "exp.docker": True})
    )
    lines = done("bench", "--config", config, "--print_docker").splitlines()
    assert [line.split("--model=")[1] for line in lines] == ["alexnet --batch_size=8", "vgg16 --batch_size=8"]
    assert all(line.startswith("docker run -i --security-opt seccomp=unconfined") for line in lines)


def test_the_system_is_described() -> None:
    found = json.loads(done("bench", "--sysinfo"))
    assert found["torch.version"] == torch.__version__
    assert found["sys.cpu"]["cores"] >= 1


def test_the_monitor_writes_beside_the_results(networks: Path, tmp_path: Path) -> None:
    found = values(bench(networks, "net", "--batch_size=2", "--monitor_frequency=1000"))
    assert found["monitor.columns"][:3] == ["process_pid", "time", "virt"]
    assert found["monitor.samples"][0][0] == found["results.proc_pid"]
    file = tmp_path / "use.txt"
    found = values(
        bench(networks, "net", "--batch_size=2", "--monitor_frequency=1000", "--monitor_file", file)
    )
    assert "monitor.samples" not in found
    assert file.read_text().splitlines()[1].split()[0] == str(found["results.proc_pid"])
    ran = bench(
        networks, "net", "--batch_size=2", "--monitor_frequency=1000", "--monitor_file", file / "use.txt"
    )
    assert "cannot be written" in ran.err
    assert (values(ran)["results.status"], "monitor.samples" in values(ran)) == ("ok", True)


# ---- logs ----


def test_a_log_is_read_back(networks: Path, tmp_path: Path) -> None:
    log = tmp_path / "one.log"
    log.write_text(bench(networks, "net", "--batch_size=2").out)
    text = done("bench-log", log, "--summary", "all", "--csv", tmp_path / "all.csv")
    assert [
        line for line in text.splitlines() if line.startswith(("explo", "weak", "strong", "stat", "time"))
    ] == [
        *("exploration", "weak scaling", "strong scaling", "statistics (ms)", "time analysis (s)"),
    ]
    found = json.loads(done("bench-log", log, "--json"))
    assert found["results"][0]["results.timed_batches"] == 3
    assert found["summaries"]["exploration"]["rows"][0]["batch each"] == 2
    assert "results.time" in (tmp_path / "all.csv").read_text()


def test_logs_that_are_none_are_refused(tmp_path: Path) -> None:
    ran = run("bench-log", tmp_path / "missing.log")
    assert (ran.code, "cannot be read" in ran.err) == (2, True)
    ran = run("bench-log", tmp_path, "--summary", "weather")
    assert (ran.code, "unknown summary 'weather'" in ran.err) == (2, True)


# ---- models ----


def test_the_zoo_is_listed_with_what_its_networks_work() -> None:
    assert set(GOLDEN) <= set(done("models", "--names").split())
    found = json.loads(done("models", "sensor_net", "alexnet", "resnet18", "--json"))["models"]
    assert [model["id"] for model in found] == ["alexnet", "resnet18", "sensor_net"]
    for model in found:
        shape, classes, parameters, gflop = GOLDEN[model["id"]]
        assert (tuple(model["input_shape"]), model["classes"], model["parameters"]) == (
            shape,
            classes,
            parameters,
        )
        assert model["flops"] / 1e9 > gflop * (1 - 1e-3), "products, and all other operations"
    predicted = json.loads(done("predict", "zoo:sensor_net", "--predictor", "amd-epyc-2c", "--json"))
    assert found[-1]["flops"] == predicted["flops"], "one count in all commands"
    text = " ".join(done("models", "sensor*").split())
    assert "parameters FLOP (all-ops)" in text
    assert "sensor_net SensorNet 784 16 2,919,440 5.84 MFLOP" in text


def test_an_unknown_network_is_refused() -> None:
    ran = run("models", "resnet51")
    assert (ran.code, "unknown model 'resnet51': did you mean" in ran.err) == (2, True)


# ---- several processes ----


@pytest.mark.slow
def test_two_processes_train_together(networks: Path) -> None:
    ran = bench(networks, "net", "--batch_size=2", "--num_gpus=2")
    assert ran.code == 0, ran.err
    found = values(ran)
    assert (found["exp.num_gpus"], found["exp.effective_batch"], found["exp.dist_backend"]) == (2, 4, "gloo")
    assert (found["results.status"], found["results.timed_batches"]) == ("ok", 3)
    assert found["results.throughput"] == int(4 / (found["results.time"] / 1e3))
    assert ran.out.count("__results.status__") == 1  # one of the two speaks


@pytest.mark.slow
def test_a_failing_process_ends_both_with_its_line(networks: Path) -> None:
    ran = bench(networks, "broken", "--batch_size=2", "--num_gpus=2")
    assert ran.code == 2
    assert ran.err.splitlines()[-1].startswith("error: ")
    assert "the moon is full" in ran.err.splitlines()[-1]
    assert values(ran)["results.timed_batches"] == 2


def test_a_port_in_use_is_one_line(networks: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = bench(networks, "net", "--batch_size=2", "--num_gpus=2", f"--master_port={port}")
    way = "choose another --master-port, or 0 for a free one"
    assert (ran.code, ran.err) == (4, f"error: port {port}: in use by another process; {way}\n")


@pytest.mark.slow
def test_a_grid_runs_each_point_once(networks: Path, tmp_path: Path) -> None:
    command = (
        "bench",
        "--model",
        f"{networks}:net",
        "--num_batches=2",
        "--forward_only",
        "--grid",
        "batch_size=2,4",
    )
    ran = run(*command, "--out", tmp_path / "grid")
    assert ran.code == 0, ran.err
    assert [line.split()[0] for line in ran.err.splitlines()] == ["1/2", "2/2"]
    rows = ran.out.splitlines()[2:]
    assert [(row.split()[-4], row.split()[-1]) for row in rows] == [("2", "ok"), ("4", "ok")]
    again = run(*command, "--out", tmp_path / "grid")
    assert (again.out, again.err) == (ran.out, "")
    assert done("bench-log", tmp_path / "grid").count(" ok") == 2
