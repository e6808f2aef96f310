"""The lab: images, curves, operators, what it says of batch sizes, and what an interruption leaves."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import profile as profiler

from neuralpower.data.journal import sole_writer
from neuralpower.errors import DeviceError, InputError
from neuralpower.networks.zoo.plain import MnistCnn
from neuralpower.suites.lab import (
    board,
    operators,
    run,
)
from neuralpower.suites.lab.operators import Operator, OperatorTable, operators_of, profile_inference
from neuralpower.suites.lab.report import Folder, report, write_report
from neuralpower.suites.lab.training import (
    Digits,
    Point,
    Settings,
    Split,
    Training,
    bundled_digits,
    normalised,
    read_idx,
    read_mnist,
)
from tests import program

PRINTED = Path(__file__).with_name("profiler_tables.txt")
CPU = torch.device("cpu")
BRIEF = Settings(batch_size=8, test_batch_size=5, epochs=2, log_interval=2)


def few(train: int = 20, test: int = 6) -> Digits:
    """Some of the bundled digits."""
    found = bundled_digits()
    return Digits(
        found.name,
        Split(found.train.images[:train], found.train.labels[:train]),
        Split(found.test.images[:test], found.test.labels[:test]),
    )


@pytest.fixture(scope="module", autouse=True)
def on_one_thread() -> Iterator[None]:
    """Threads that wait for each other take long on a machine that does something else, too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def digits() -> Digits:
    return few()


# ---- images ----


def idx(values: np.ndarray) -> bytes:
    """Unsigned bytes as an idx file has them."""
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def mnist(folder: Path, *, packed: bool = False, **changed: bytes) -> Path:
    """A folder with MNIST's four files: 3 images to train on, 2 to test on."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 3), ("t10k", 2)):
        pixels = np.arange(count * 784, dtype=np.uint32).astype(np.uint8).reshape(count, 28, 28)
        labels = np.arange(count, dtype=np.uint8)
        for stem, data in (
            (f"{part}-images-idx3-ubyte", idx(pixels)),
            (f"{part}-labels-idx1-ubyte", idx(labels)),
        ):
            data = changed.get(stem.split("-idx")[0].replace("-", "_"), data)
            name, data = (f"{stem}.gz", gzip.compress(data)) if packed else (stem, data)
            (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("below", ["", "MNIST/raw"])
def test_mnists_files_are_read_packed_or_not(tmp_path: Path, packed: bool, below: str) -> None:
    mnist(tmp_path / below, packed=packed)
    found = read_mnist(tmp_path)
    assert (len(found.train), len(found.test)) == (3, 2)
    # pixel 5 of row 0 of image 2 is number 2 * 784 + 5 = 1573, modulo 256: 37
    assert found.train.images[2, 0, 5] == 37
    assert found.train.labels.tolist() == [0, 1, 2]


def test_pixels_are_normalised_as_mnist_is() -> None:
    # (255 / 255 - 0.1307) / 0.3081 = 2.82148; (0 - 0.1307) / 0.3081 = -0.42421
    found = normalised(torch.tensor([[[255, 0]]], dtype=torch.uint8))
    assert found.shape == (1, 1, 1, 2)
    assert found.flatten().tolist() == pytest.approx([2.82148, -0.42421], abs=1e-5)


def test_without_a_folder_there_are_scikit_learns_digits_and_the_name_says_so() -> None:
    found = bundled_digits()
    assert "scikit-learn" in found.name and "not MNIST" in found.name
    # 1,797 images, 360 of them to test on
    assert found.train.images.shape == (1437, 28, 28) and found.test.images.shape == (360, 28, 28)
    assert found.train.images.dtype == torch.uint8 and int(found.train.images.max()) == 255
    assert torch.equal(found.test.labels, bundled_digits().test.labels)
    assert set(found.test.labels.tolist()) == set(range(10))


HEAD = bytes([0, 0, 8, 3])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"train_images": HEAD + struct.pack(">III", 3, 28, 28) + bytes(700)},
            "700 bytes of values, its header states 2352",
        ),
        ({"train_images": HEAD + struct.pack(">I", 3)}, "begins with '00000803'"),
        ({"train_images": b"\x89PNG....................."}, "begins with '89504e47'"),
        (
            {"train_images": idx(np.zeros((4, 28, 28), np.uint8))},
            "4 images, but 3 labels in train-labels-idx1-ubyte",
        ),
        ({"train_images": idx(np.zeros((3, 8, 8), np.uint8))}, r"\(3, 8, 8\); MNIST has \[count, 28, 28\]"),
        ({"t10k_labels": idx(np.array([1, 10], np.uint8))}, "label 10; digits have labels from 0 to 9"),
        (
            {"t10k_images": idx(np.zeros((0, 28, 28), np.uint8)), "t10k_labels": idx(np.zeros(0, np.uint8))},
            "with one image or more",
        ),
    ],
)
def test_a_damaged_folder_is_one_line_and_two(
    tmp_path: Path, changed: dict[str, bytes], message: str
) -> None:
    mnist(tmp_path / "data", **changed)
    with pytest.raises(InputError, match=message):
        read_mnist(tmp_path / "data")
    ran = program.run("lab", "--data-dir", tmp_path / "data", "--out", tmp_path / "out")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert not (tmp_path / "out").exists()


def test_a_truncated_packed_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(gzip.compress(idx(np.zeros((3, 28, 28), np.uint8)))[:-9])
    with pytest.raises(InputError, match=r"idx3-ubyte.gz: cannot be read \(Compressed file ended"):
        read_idx(file, axes=3)


@pytest.mark.parametrize(
    ("make", "message"), [(False, "no such folder"), (True, "has no train-images-idx3-ubyte")]
)
def test_a_folder_without_the_files_is_refused(tmp_path: Path, make: bool, message: str) -> None:
    if make:
        (tmp_path / "data").mkdir()
    with pytest.raises(InputError, match=message):
        read_mnist(tmp_path / "data")


def test_a_folder_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refused)  # the superuser may read everything
    with pytest.raises(InputError, match=r"cannot be read \(Permission denied\)"):
        read_mnist(tmp_path)


# ---- training ----


def test_a_point_is_a_mean_over_the_images_since_the_last_one(digits: Digits) -> None:
    # T9: 20 images in batches of 8: 8, 8 and 4; a point after every second batch, and the rest of the epoch
    training = Training(digits, dataclasses.replace(BRIEF, lr=1e-9), CPU)
    points = list(training.run())
    assert [(p.part, p.epoch, p.step, p.images) for p in points] == [
        ("train", 1, 1, 16),
        ("train", 1, 2, 4),
        ("test", 1, 2, 6),
        ("train", 2, 4, 16),
        ("train", 2, 5, 4),
        ("test", 2, 5, 6),
    ]
    # ten classes, hardly trained: about ln 10 = 2.3 per image, whatever the batch size
    assert [p.loss for p in points] == pytest.approx([2.3] * 6, abs=0.3)
    assert all((p.accuracy * p.images) == pytest.approx(round(p.accuracy * p.images)) for p in points)
    assert training.optimizer.param_groups[0]["lr"] == pytest.approx(0.7**2 * 1e-9)


def test_the_test_loss_does_not_depend_on_the_batches(digits: Digits) -> None:
    # 6 images in batches of 5 and 1, or at once
    alone, together = (
        Training(digits, dataclasses.replace(BRIEF, test_batch_size=size), CPU).tested(1) for size in (5, 6)
    )
    assert alone.loss == pytest.approx(together.loss, rel=1e-5)
    assert alone.accuracy == together.accuracy


def test_the_network_learns() -> None:
    settings = Settings(batch_size=16, epochs=2, log_interval=100)
    points = [p for p in Training(few(200, 60), settings, CPU).run() if p.part == "test"]
    assert points[-1].loss < points[0].loss
    assert points[-1].accuracy > 0.5


def test_a_training_that_is_continued_learns_what_one_without_a_break_does(
    digits: Digits, tmp_path: Path
) -> None:
    whole = Training(digits, BRIEF, CPU)
    points = list(whole.run())
    file = tmp_path / "checkpoint.pt"
    first = Training(digits, dataclasses.replace(BRIEF, epochs=1), CPU, file)
    list(first.run())
    second = Training(digits, BRIEF, CPU, file)
    assert second.done == 1
    assert list(second.run()) == points[3:]
    for ours, theirs in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"PK\x03\x04 truncated"])
def test_a_damaged_checkpoint_is_refused(digits: Digits, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "checkpoint.pt"
    file.write_bytes(content)
    with pytest.raises(InputError, match="checkpoint.pt: not a checkpoint"):
        Training(digits, BRIEF, CPU, file)


def test_a_checkpoint_of_another_network_is_refused(digits: Digits, tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.pt"
    torch.save({"epochs": 1, "model": {"weight": torch.ones(1)}, "optimizer": {}, "scheduler": {}}, file)
    with pytest.raises(InputError, match="not a checkpoint of this network"):
        Training(digits, BRIEF, CPU, file)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_size": 0}, "batch-size 0: must be 1 or more"),
        ({"epochs": -1}, "epochs -1"),
        ({"log_interval": 0}, "log-interval 0"),
        ({"lr": 0.0}, "lr 0.0: must be a positive number"),
        ({"gamma": float("nan")}, "gamma nan"),
        ({"seed": -1}, "seed -1"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Settings(**wrong)


def test_a_loss_that_is_no_number_ends_the_training_with_its_curve_kept(
    digits: Digits, tmp_path: Path
) -> None:
    broken = Digits("broken", digits.train, digits.test)
    settings = dataclasses.replace(BRIEF, lr=1e30)
    with pytest.raises(DeviceError, match="the loss is no longer a number; choose a smaller --lr"):
        run.train(run.Request(tmp_path, settings=settings, use_cuda=False, tensorboard=False), broken)
    assert all(p.loss == p.loss for p in Folder(tmp_path).points())


# ---- operators ----


@dataclasses.dataclass
class Fake:
    """An event of the profiler."""

    name: str
    cpu_time_total: float
    self_cpu_time_total: float
    cpu_parent: Any = None
    cpu_memory_usage: int = 0
    self_cpu_memory_usage: int = 0
    activity_type: str = "cpu_op"


def test_nested_events_are_counted_once_and_the_profilers_own_not_at_all() -> None:
    # T6: a convolution of 10 us, all of it in the innermost of four events; an operator that calls itself
    outer = Fake("conv2d", 10, 1)
    middle = Fake("convolution", 9, 1, outer)
    inner = Fake("_convolution", 8, 1, middle)
    kernel = Fake("kernel", 7, 7, inner, 64, 64)
    add = Fake("add", 5, 2)
    add_again = Fake("add", 3, 3, add)
    overhead = [
        Fake("Activity Buffer Request", 1000, 1000),
        Fake("Strange New Thing", 1000, 1000, activity_type="overhead"),
    ]
    found = {
        o.name: o
        for o in operators_of(
            [outer, middle, inner, kernel, add, add_again, Fake("[memory]", 0, 0), *overhead]
        )
    }
    assert list(found) == ["conv2d", "convolution", "_convolution", "kernel", "add"]
    # self times: 1 + 1 + 1 + 7 of the convolution, 2 + 3 of the addition
    # totals would give 10 + 9 + 8 + 7 + 5 + 3 = 42
    assert sum(o.self_cpu_s for o in found.values()) == pytest.approx(15e-6)
    assert found["add"].cpu_s == pytest.approx(5e-6)
    assert found["add"].calls == 2


def test_self_times_of_a_real_convolution_are_its_total() -> None:
    convolution, x = torch.nn.Conv2d(1, 8, 3), torch.randn(4, 1, 28, 28)
    with torch.inference_mode(), profiler(profile_memory=True) as profiled:
        convolution(x)
    found = {o.name: o for o in operators_of(profiled.events())}
    whole = found["aten::conv2d"].cpu_s
    assert sum(o.self_cpu_s for o in found.values()) == pytest.approx(whole)
    assert sum(o.cpu_s for o in found.values()) > 3 * whole  # what adding up the totals would say
    assert found["aten::conv2d"].memory_bytes == 4 * 8 * 26 * 26 * 4


def test_operators_are_those_of_the_batch_size_on_the_chosen_device(digits: Digits, tmp_path: Path) -> None:
    # T9: 10 images from 6, in batches of 4: ceil(10 / 4) = 3 passes; 2 convolutions, 3 rectifiers each
    trace_file = tmp_path / "trace.json"
    table = profile_inference(MnistCnn(), digits.test, 4, images=10, device=CPU, trace_file=trace_file)
    calls = {o.name: o.calls for o in table.operators}
    assert (calls["aten::conv2d"], calls["aten::relu"], calls["aten::linear"]) == (6, 9, 6)
    assert "aten::dropout" not in calls or calls["aten::dropout"] == 6  # in eval mode it does nothing
    assert (table.images, table.device, table.batch_size) == (10, "cpu", 4)
    assert 0.9 < sum(table.share(o.self_cpu_s) for o in table.operators) < 1.1
    assert len(table.top()) == 10
    assert [o.cpu_s for o in table.top()] == sorted((o.cpu_s for o in table.operators), reverse=True)[:10]
    assert table.top(3, "self_cpu_s")[0].self_cpu_s == max(o.self_cpu_s for o in table.operators)
    assert any(
        event.get("name") == "aten::conv2d" for event in json.loads(trace_file.read_text())["traceEvents"]
    )
    folder = Folder(tmp_path)
    folder.keep_table(table)
    assert folder.tables() == [table]


def test_operators_of_other_shapes_can_be_told_apart(digits: Digits) -> None:
    table = profile_inference(MnistCnn(), digits.test, 2, images=2, device=CPU, by_shape=True)
    shapes = [o.shapes for o in table.operators if o.name == "aten::conv2d"]
    assert len(shapes) == 2 and shapes[0].startswith("[[2, 1, 28, 28]")
    assert [o.calls for o in [table.named("aten::conv2d")] if o] == [2]


def test_a_long_run_is_profiled_in_parts(digits: Digits, monkeypatch: pytest.MonkeyPatch) -> None:
    # five batches, two under one profiler: 2 + 2 + 1, with two convolutions in each
    monkeypatch.setattr(operators, "AT_ONCE", 2)
    table = profile_inference(MnistCnn(), digits.test, 1, images=5, device=CPU, by_shape=True)
    assert [o.calls for o in table.operators if o.name == "aten::conv2d"] == [5, 5]
    assert table.self_total_s == pytest.approx(sum(o.self_cpu_s for o in table.operators))


@pytest.mark.parametrize(("batch_size", "count"), [(0, 1), (1, 0)])
def test_an_empty_profile_is_refused(digits: Digits, batch_size: int, count: int) -> None:
    with pytest.raises(InputError, match="both must be 1 or more"):
        profile_inference(MnistCnn(), digits.test, batch_size, images=count, device=CPU)


# ---- printed tables ----


def test_the_tables_that_old_torch_printed_are_read() -> None:
    tables = operators.read_tables(PRINTED)
    assert [t.batch_size for t in tables] == [1, 16, 64]
    assert all(len(t.operators) == 10 for t in tables)
    conv = [o for t in tables if (o := t.named("conv2d")) is not None]
    # two layers x ceil(10000 / batch)
    assert [c.calls for c in conv] == [20_000, 1_250, 314]
    assert [c.cpu_s for c in conv] == pytest.approx([3.172, 0.453209, 0.303437])
    # totals divided by calls are the printed averages
    assert [c.average_s * 1e6 for c in conv] == pytest.approx([158.578, 362.567, 966.359], rel=1e-3)
    # 1.699 s are 21.74 % of all self times
    assert tables[0].self_total_s == pytest.approx(1.699 / 0.2174)
    # totals of nested operators say 196.7 %: T6
    assert sum(t := [tables[0].share(o.cpu_s) for o in tables[0].operators]) == pytest.approx(
        1.967, abs=0.001
    ), t
    assert sum(tables[0].share(o.self_cpu_s) for o in tables[0].operators) < 1


def test_the_tables_of_todays_torch_are_read() -> None:
    model, x = torch.nn.Conv2d(1, 8, 3), torch.randn(4, 1, 28, 28)
    with torch.inference_mode(), profiler(profile_memory=True) as profiled:
        model(x)
    text = profiled.key_averages().table(sort_by="cpu_time_total", row_limit=10)
    (table,) = operators.parse_tables(f"batch_size: 4\n{text}")
    ours = {o.name: o for o in operators_of(profiled.events())}
    for operator in table.operators:
        if operator.name in ours:
            assert operator.cpu_s == pytest.approx(ours[operator.name].cpu_s, rel=0.01, abs=1e-8)
            assert operator.calls == ours[operator.name].calls
    memory = [o.memory_bytes for o in table.operators if o.name == "aten::conv2d"]
    assert memory == [pytest.approx(4 * 8 * 26 * 26 * 4, rel=0.01)]
    assert table.self_total_s == pytest.approx(sum(o.self_cpu_s for o in ours.values()), rel=0.01)


HEADER = "Name  Self CPU %  Self CPU  CPU total %  CPU total  CPU time avg  # of Calls"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "text: not a table of torch's profiler"),
        (f"{HEADER}\nadd  1.00%  1us  1.00%  1us  1us  1\n", "a table without its batch size"),
        (f"batch size 1\n{HEADER}\nadd  1.00%  1xs  1.00%  1us  1us  1\n", "text:3: '1xs' is no time"),
        (f"batch size 1\n{HEADER}\nadd  1.00  1us  1.00%  1us  1us  1\n", "text:3: '1.00' is not a share"),
        (f"batch size 1\n{HEADER}\nadd  1.00%  1us  1.00%  1us  1us  0\n", "text:3: '0' calls"),
    ],
)
def test_other_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        operators.parse_tables(text)


def test_a_file_of_tables_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        operators.read_tables(tmp_path / "none.txt")


# ---- comparison ----


def test_the_comparison_of_the_known_tables() -> None:
    found = operators.compare(operators.read_tables(PRINTED))
    assert found.operator == "conv2d"
    # 362.567 / 158.578 = 2.286; 966.359 / 362.567 = 2.665
    assert [row[1:5] for row in found.rows()] == [
        ["20,000", "159 us", "-", "3.17 s"],
        ["1,250", "363 us", "x2.3", "453 ms"],
        ["314", "966 us", "x2.7", "303 ms"],
    ]
    # 3.172 s of 1.699 s / 0.2174
    assert found.entries[0].share == pytest.approx(0.4059, abs=0.0005)


def table_of(batch_size: int, total_s: float, calls: int = 10, device: str = "cpu") -> OperatorTable:
    return OperatorTable(batch_size, (Operator("add", total_s, total_s, calls),), total_s, device=device)


def test_one_table_is_compared_with_none() -> None:
    assert [entry.growth for entry in operators.compare([table_of(8, 1.0)]).entries] == [None]


@pytest.mark.parametrize(
    ("tables", "operator", "message"),
    [
        ([], None, "no table of operators"),
        ([table_of(1, 1.0), table_of(1, 2.0)], None, "batch size 1: two tables"),
        ([table_of(1, 1.0), table_of(2, 1.0, device="cuda")], None, "tables of cpu and cuda"),
        ([table_of(1, 1.0)], "mul", "mul: not in the table of batch size 1"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tables: list[OperatorTable], operator: str | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        operators.compare(tables, operator)


def test_a_gpus_operators_are_compared_by_its_own_time() -> None:
    def gpu(batch_size: int, device_s: float) -> OperatorTable:
        launch = Operator("launch", 9.0, 9.0, 1, device_s=0.0, self_device_s=0.0)
        return OperatorTable(
            batch_size,
            (launch, Operator("conv", 1.0, 1.0, 4, device_s=device_s, self_device_s=device_s)),
            10.0,
            device="cuda",
        )

    found = operators.compare([gpu(1, 4.0), gpu(16, 2.0)])
    assert found.operator == "conv"
    assert [(e.total_s, e.share) for e in found.entries] == [(4.0, 1.0), (2.0, 1.0)]


# ---- folder, report, interruption ----


def points_of(folder: Path) -> list[tuple[str, int]]:
    return [(p.part, p.epoch) for p in Folder(folder).points()]


def small(monkeypatch: pytest.MonkeyPatch, digits: Digits) -> None:
    monkeypatch.setattr(run, "bundled_digits", lambda: digits)


def test_a_folder_that_another_run_writes_to_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits: Digits
) -> None:
    small(monkeypatch, digits)
    with sole_writer(tmp_path / "lab"):
        ran = program.run("lab", "--out", tmp_path / "lab", "--no-cuda", "--epochs", 1)
    assert ran.code == 2
    assert "lab: another run is writing to it; wait for it, or choose another --out" in ran.err
    assert [path.name for path in (tmp_path / "lab").iterdir()] == [".lock"]


def test_one_command_does_it_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits: Digits) -> None:
    small(monkeypatch, digits)
    flags = (
        "--epochs",
        1,
        "--batch-size",
        8,
        "--log-interval",
        1,
        "--profile-batches",
        "1,2",
        "--profile-images",
        4,
    )
    ran = program.run("lab", "--out", tmp_path / "lab", "--no-cuda", "--save-model", *flags)
    assert ran.code == 0, ran.err
    assert ran.out.split() == [str(tmp_path / "lab" / name) for name in ("report.md", "report.html")]
    assert "scikit-learn's digits" in ran.err
    names = {path.name for path in (tmp_path / "lab").iterdir()}
    assert names >= {
        *("curves.csv", "images.png", "mnist_cnn.pt", "environment.json", "settings.json"),
        *(f"{what}_cpu_batch_{n}.json" for what in ("operators", "trace") for n in (1, 2)),
        *("operators_cpu_batch_1.csv", "report.md", "report.html", "figures"),
    }
    assert not [name for name in names if name.endswith(".new")]
    figures = {path.name for path in (tmp_path / "lab" / "figures").iterdir()}
    assert figures >= {"01-loss.png", "01-loss.svg", "02-accuracy.png"}
    text = (tmp_path / "lab" / "report.md").read_text()
    for wanted in (
        "not MNIST",
        "1,199,882 parameters; 23,984,896 FLOP",
        "aten.conv2d | 1x1x28x28, 32x1x3x3, 32 | 1x32x26x26 | 320 | 389,376",
        "| Name | Self CPU total % | Self CPU total (ms) | CPU total % | CPU total (ms) | "
        "CPU time avg (us) | Number of Calls |",
        "Self CPU mem (MB)",
        "aten::relu",
        "to the one before",
        "2 vCPUs" if run.environment()["vcpus"] == 2 else "vCPUs",
    ):
        assert wanted in text
    assert "<h1>" in (tmp_path / "lab" / "report.html").read_text()
    model = MnistCnn()
    model.load_state_dict(torch.load(tmp_path / "lab" / "mnist_cnn.pt", weights_only=True))


def test_event_files_have_graph_images_and_the_curves(tmp_path: Path, digits: Digits) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run.train(run.Request(tmp_path, settings=BRIEF, use_cuda=False), digits)
    found = EventAccumulator(str(tmp_path / "logs" / "mnist_experiment_1"))
    found.Reload()
    tags = found.Tags()
    assert set(tags["scalars"]) == {"Loss/train", "Accuracy/train", "Loss/test", "Accuracy/test"}
    assert tags["images"] == ["images"] and tags["graph"]
    assert "conv1" in str(found.Graph())
    wanted = [p for p in Folder(tmp_path).points() if p.part == "train"]
    assert [e.step for e in found.Scalars("Loss/train")] == [p.step for p in wanted] == [1, 2, 4, 5]
    assert [e.value for e in found.Scalars("Loss/train")] == pytest.approx([p.loss for p in wanted])


def test_the_event_file_is_closed_after_an_error(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with pytest.raises(ZeroDivisionError), contextlib.closing(board.Board(tmp_path)) as opened:
        opened.add(Point("train", 1, 0, 1, 1.0, 0.5))
        raise ZeroDivisionError
    assert opened.writer.file_writer is None


def test_an_interrupted_training_keeps_its_curves_tells_of_them_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits: Digits
) -> None:
    small(monkeypatch, digits)
    request = run.Request(tmp_path, "train", BRIEF, tensorboard=False)
    told = []

    def tell(text: str) -> None:
        told.append(text)
        if text.startswith("epoch 1"):
            interrupting.append(True)

    interrupting: list[bool] = []
    epoch = Training._epoch

    def interrupted(self: Training, number: int) -> Iterator[Point]:
        points = epoch(self, number)
        yield next(points)
        if interrupting:
            raise KeyboardInterrupt
        yield from points

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_epoch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.run(request, tell)
    # all of the first epoch, and what there was of the second
    assert points_of(tmp_path) == [("train", 1), ("train", 1), ("test", 1), ("train", 2)]
    text = (tmp_path / "report.md").read_text()
    assert "1 of 2 epochs" in text and "was interrupted" in text and "Not profiled yet" in text
    assert "run the same command again to resume" in told[-1]
    run.run(request, tell)
    assert points_of(tmp_path) == [
        ("train", 1),
        ("train", 1),
        ("test", 1),
        ("train", 2),
        ("train", 2),
        ("test", 2),
    ]
    assert [p.step for p in Folder(tmp_path).points()] == [1, 2, 2, 4, 5, 5]
    assert "2 of 2 epochs" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize("end", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_control_c_and_a_batch_systems_end_are_130_and_a_report(tmp_path: Path, end: signal.Signals) -> None:
    flags = [
        "--data-dir",
        str(mnist(tmp_path / "data")),
        "--out",
        str(tmp_path / "lab"),
        "--epochs",
        "1000000",
    ]
    process = subprocess.Popen(
        [sys.executable, "cli.py", "lab", *flags, "--no-cuda", "--no-tensorboard"],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("epoch 2"):
            process.send_signal(end)
            break
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert (tmp_path / "lab" / "report.html").exists()


def test_a_profile_without_a_training_says_that_the_weights_are_random(
    tmp_path: Path, digits: Digits
) -> None:
    told: list[str] = []
    run.profile(run.Request(tmp_path, batches=(2,), images=2, use_cuda=False), digits, told.append)
    assert "random weights" in told[0]
    page = report(Folder(tmp_path))
    assert "random weights" in page.lead


def test_another_training_in_the_folder_is_refused_but_more_epochs_are_not(
    tmp_path: Path, digits: Digits
) -> None:
    folder = Folder(tmp_path)
    folder.claim(BRIEF, digits)
    folder.claim(dataclasses.replace(BRIEF, epochs=9), digits)
    with pytest.raises(InputError, match=r"has a training with batch_size 8, lr 1.0; choose another --out"):
        folder.claim(dataclasses.replace(BRIEF, batch_size=4, lr=0.5), digits)


def test_a_line_of_the_curves_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    with folder.recorder(1) as add:
        add(Point("train", 1, 0, 8, 2.0, 0.5))
        add(Point("train", 1, 1, 8, 1.5, 0.75))
    with folder.curves.open("a") as file:
        file.write("train,1,2,8,1.")
    assert folder.points() == [Point("train", 1, 0, 8, 2.0, 0.5), Point("train", 1, 1, 8, 1.5, 0.75)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "curves.csv",
            "part,epoch,step,images,loss,accuracy\ntrain,one,0,8,2,0.5\n",
            "curves.csv:2: not a point",
        ),
        ("settings.json", "{", "settings.json: cannot be read"),
        ("operators_cpu_batch_1.json", "{}", "not a table of operators"),
        ("environment.json", "[]", "contains a list"),
    ],
)
def test_damaged_files_of_a_folder_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        report(Folder(tmp_path))


def test_an_empty_folder_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither curves nor operators"):
        write_report(Folder(tmp_path))


def test_a_gpu_and_a_cpu_stand_beside_each_other(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write_json("environment.json", {**run.environment(), "gpus": ["Some GPU", "Some GPU"]})
    for device, wall_s in (("cpu", 2.0), ("cuda", 0.5)):
        for batch_size in (1, 16):
            on_gpu = 1e-3 if device == "cuda" else None
            conv = Operator("conv", 1e-3, 2e-3, 4, 0, 8, self_device_s=on_gpu, device_s=on_gpu)
            folder.keep_table(OperatorTable(batch_size, (conv,), 1e-3, 100, device, wall_s))
    page = report(folder)
    section = page.sections[-1]
    assert section.title == "CPU against GPU"
    # 100 images in 2 s and in 0.5 s
    tables = dict(page.tables())
    assert [t.rows for t in tables.values() if t.title == "Images per second, without profiler"] == [
        ((1, 50.0, 200.0), (16, 50.0, 200.0))
    ]
    assert ("GPU", "2 x Some GPU") in tables["01-hardware-and-software"].rows


# ---- TensorBoard's port, the command ----


def test_a_port_in_use_is_one_line_and_two_and_nothing_is_trained(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = program.run("lab", "--out", tmp_path / "lab", "--tensorboard-port", port)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert f"tensorboard-port {port}: cannot be used (Address already in use)" in ran.err
    assert not (tmp_path / "lab").exists()
    board.check_port(port)  # free again


@pytest.mark.parametrize("port", [0, 65536])
def test_a_port_that_is_none_is_refused(port: int) -> None:
    with pytest.raises(InputError, match="must be from 1 to 65535"):
        board.check_port(port)


@pytest.mark.slow
def test_tensorboard_serves_the_curves(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    import time
    import urllib.request

    with contextlib.closing(board.Board(tmp_path)) as opened:
        opened.add(Point("train", 1, 0, 1, 1.0, 0.5))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    with board.server(tmp_path, port) as process:
        while True:
            try:
                with urllib.request.urlopen(f"http://localhost:{port}/data/plugin/scalars/tags") as answer:
                    text = answer.read().decode()
                break
            except OSError:
                assert process.poll() is None, "tensorboard ended"
                time.sleep(0.1)
    assert "Loss/train" in text
    assert process.returncode is not None


def test_a_server_that_ends_by_itself_is_an_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(DeviceError, match="ended by itself with code 3"):
        board.serve(process)


def test_printed_tables_are_compared_on_the_command_line() -> None:
    out = program.done("lab", "compare", "--tables", PRINTED)
    assert out.startswith("conv2d on cpu\n")
    assert out.splitlines()[-1].split() == ["64", "314", "966", "us", "x2.7", "303", "ms", "73.9%", "-"]
    out = program.done("lab", "compare", "--tables", PRINTED, "--operator", "relu")
    # 860.435 ms / 30,000; 56.754 ms / 1,875
    assert out.startswith("relu on cpu\n") and "30,000         28.7 us" in out and "860 ms" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("teach",), "unknown step 'teach'"),
        (("compare",), "compare: needs --tables FILE"),
        (("--profile-batches", "1,x"), "profile-batches '1,x': write whole numbers"),
        (("--profile-batches", "4,4"), "one or more different sizes"),
        (("--profile-images", 0), "profile-images 0"),
        (("--epochs", 0), "epochs 0: must be 1 or more"),
        (("--data-dir", "/no/such/folder"), "/no/such/folder: no such folder"),
        (("report", "--out", "/no/such/folder"), "neither curves nor operators"),
        (("--out", "/dev/null/lab"), "/dev/null/lab: cannot be written"),
    ],
)
def test_bad_usage_is_one_line_and_two(arguments: tuple[Any, ...], message: str, tmp_path: Path) -> None:
    out = () if "--out" in arguments else ("--out", tmp_path / "lab")
    ran = program.run("lab", *arguments, *out)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err.splitlines()[-1]
    assert "Traceback" not in ran.err


def test_the_network_is_in_the_zoo_and_has_its_known_size() -> None:
    from neuralpower.networks.zoo import zoo_entry
    from neuralpower.profiling import profile

    entry = zoo_entry("mnist_cnn")
    model = entry.build()
    # 320 + 18,496 + 1,179,776 + 1,290
    assert sum(p.numel() for p in model.parameters()) == 1_199_882
    # 2 * (676 * 32 * 9 + 576 * 64 * 288 + 9216 * 128 + 128 * 10)
    assert (
        profile(model.eval(), entry.inputs(1), runtime=False, convention="matmul").total.flops == 23_984_896
    )
    assert not any(isinstance(m, torch.nn.Dropout2d) for m in model.modules())
