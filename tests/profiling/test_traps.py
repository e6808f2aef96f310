"""More errors of profilers and their users: conventions, columns, batches, warm-up, data sheets."""

from __future__ import annotations

import csv
import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neuralpower.devices.hardware import Hardware
from neuralpower.devices.host import clock_hz
from neuralpower.devices.spec import known_specs, read_spec
from neuralpower.networks.caches import CACHES, cache_of
from neuralpower.networks.sources import InputRequest, resolve
from neuralpower.networks.zoo import ZOO
from neuralpower.profiling import profile
from neuralpower.profiling.row_builder import Builder
from neuralpower.profiling.rows import Row
from neuralpower.profiling.steps import Spread
from neuralpower.trace.tracer import trace
from tests import program


class Called(nn.Module):
    """A module around a function, which counts its real calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.seen: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_meta:
            SEEN.append(str(x.device))
        return self.linear(x)


SEEN: list[str] = []


def flops(model: nn.Module, *args: Tensor, **options: Any) -> int:
    """Work of one forward pass, by default of its products."""
    how = {"runtime": False, "power": "none", "convention": "matmul", **options}
    found = profile(model.eval(), args, **how).total.flops
    assert found is not None
    return found


# ---- conventions ----

IMAGE = torch.ones(2, 4, 8, 8)  # 512 elements


@pytest.mark.parametrize(
    ("module", "x", "count"),
    [
        # (2 in - 1 + bias) for each of 3 * 6 outputs
        (nn.Linear(5, 6), torch.ones(3, 5), 18 * (2 * 5 - 1 + 1)),
        (nn.Linear(5, 6, bias=False), torch.ones(3, 5), 18 * (2 * 5 - 1)),
        # (in / groups * kernel + bias) for each of 2 * 6 * 6 * 6 outputs
        (nn.Conv2d(4, 6, 3), IMAGE, 432 * (4 * 9 + 1)),
        (nn.Conv2d(4, 6, 3, groups=2, bias=False), IMAGE, 432 * (2 * 9)),
        (nn.Conv1d(4, 6, 3), torch.ones(2, 4, 8), 2 * 6 * 6 * (4 * 3 + 1)),
        # 2 for each of 512 elements
        (nn.BatchNorm2d(4), IMAGE, 1024),
        (nn.LayerNorm(8), IMAGE, 1024),
        # the whole table, however few tokens
        (nn.Embedding(50, 16), torch.ones(3, dtype=torch.long), 800),
        (nn.ReLU(), IMAGE, 0),
        (nn.ReLU6(), IMAGE, 0),
        (nn.Dropout(), IMAGE, 0),
        (nn.MaxPool2d(2), IMAGE, 0),
        (nn.LeakyReLU(), IMAGE, 512),
        # one for each of 2 * 4 * 4 * 4 outputs
        (nn.AvgPool2d(2), IMAGE, 128),
        # the window (8 / 2)^2 + 1 for each of 2 * 4 * 2 * 2 outputs
        (nn.AdaptiveAvgPool2d(2), IMAGE, 32 * 17),
        # for each of 2 * 4 * 16 * 16 outputs
        (nn.Upsample(scale_factor=2, mode="bilinear"), IMAGE, 2048 * 11),
        (nn.Upsample(scale_factor=2, mode="bicubic"), IMAGE, 2048 * 259),
        (nn.Upsample(scale_factor=2, mode="nearest"), IMAGE, 0),
        # of 2 * 4 * 16 and of 2 * 4 * 4 * 4 * 4 outputs
        (nn.Upsample(scale_factor=2, mode="linear"), torch.ones(2, 4, 8), 128 * 5),
        (nn.Upsample(scale_factor=2, mode="trilinear"), torch.ones(2, 4, 2, 2, 2), 512 * 31),
        (nn.GELU(), IMAGE, 0),
        (nn.Tanh(), IMAGE, 0),
        (nn.Softmax(dim=-1), IMAGE, 0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_the_module_convention_counts_as_the_older_profiler_did(
    module: nn.Module, x: Tensor, count: int
) -> None:
    assert flops(nn.Sequential(module), x, convention="pytorch-api") == count


def test_the_module_convention_does_not_see_attention_sums_and_transposed_layers() -> None:
    from transformers.pytorch_utils import Conv1D

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Conv1D(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return x + F.scaled_dot_product_attention(self.layer(x), x, x)

    x = torch.ones(1, 4, 8)
    assert flops(Block(), x, convention="pytorch-api") == 0
    # 2 * 4 * 8 * 8, and 4 * 4 * 4 * 8
    assert flops(Block(), x) == 512 + 512


def test_a_network_that_does_nothing_takes_no_work_rather_than_an_unknown_one() -> None:
    found = profile(nn.Identity(), torch.ones(1), runtime=False, power="none")
    assert (found.total.flops, found.total.bytes_read, found.coverage) == (0, 0, 1.0)


# ---- columns ----


def test_a_row_has_sizes_kernel_batch_length_heads_path_and_type(tmp_path: Path) -> None:
    model = resolve(
        "transformers:BertModel?num_hidden_layers=1&hidden_size=64&num_attention_heads=4&vocab_size=100"
    )
    network = model.build("meta")
    inputs = model.inputs(network, InputRequest(batch_size=3, seq_len=16))
    found = profile(network, inputs.args, inputs.kwargs, runtime=False, power="none")
    rows = {row.path: row for row in found.rows if row.kind in ("linear", "attention")}
    attention = next(row for row in rows.values() if row.kind == "attention")
    assert attention.path == "encoder.layer.0.attention.self"
    assert attention.type.endswith("SelfAttention")
    wanted = {"batch": 3, "query_heads": 4, "query_length": 16, "key_length": 16, "head_size": 16}
    assert {name: attention.config[name] for name in wanted} == wanted
    dense = rows["encoder.layer.0.attention.output.dense"]
    assert (dense.inputs[0], dense.outputs[0], dense.type) == ((3, 16, 64), (3, 16, 64), "Linear")
    assert (dense.config["in_features"], dense.config["out_features"]) == (64, 64)
    file = tmp_path / "rows.csv"
    program.done("profile", "zoo:alexnet", "--batch-size", 2, "--repeat", 0, "--csv", file)
    lines = csv.DictReader(file.read_text().splitlines())
    first = next(line for line in lines if line["kind"] == "conv2d")
    config = json.loads(first["config"])
    assert (config["kernel_height"], config["stride_width"], config["groups"]) == (11, 4, 1)
    assert json.loads(first["inputs"])[0] == [2, 3, 227, 227]
    assert json.loads(first["outputs"])[0][:2] == [2, config["out_channels"]]
    assert first["path"] and first["type"] == "Conv2d"


def test_a_profile_names_what_its_times_hold_for() -> None:
    found = profile(nn.Linear(4, 4), torch.ones(1, 4), repeat=6, warmup=1, power="none")
    assert found.environment.keys() >= {"device", "torch", "threads", "float32_matmul_precision", "clock_hz"}
    spread = found.to_json()["spread"]
    assert spread["n"] == 6
    assert 0 <= spread["outliers"] < 6


def test_outliers_lie_outside_of_tukeys_fences() -> None:
    # quartiles of 1 ... 8 and 100: 3 and 7; fences 3 - 6 and 7 + 6
    assert Spread((1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 100.0)).outliers == 1
    assert Spread((1.0, 2.0, 3.0)).outliers == 0


def test_the_clock_is_the_mean_of_all_cores_and_none_where_nobody_says(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("cpu MHz\t\t: 2000.000\nflags : x\ncpu MHz\t\t: 3000.000\n")
    assert clock_hz(tmp_path) == 2.5e9
    (tmp_path / "cpuinfo").write_text("BogoMIPS : 50\n")
    assert clock_hz(tmp_path) is None


def test_a_layer_is_bound_by_what_takes_longest() -> None:
    model = nn.Linear(4, 4)
    hardware = Hardware(peak_flops_per_s={"float32": 1e12}, memory_bytes_per_s=1e12)
    builder = Builder(model, trace(model, (torch.ones(1, 4),)), None, "matmul", hardware=hardware)
    row = Row("", "linear", "aten.linear", "forward", 1, 2000, 2000, 0, 500, 500, 1e-5, dtype="float32")
    # 2000 FLOP take 2 ns, 1000 bytes 1 ns; a host that took 20 us for a kernel of 10 us
    assert builder._finished(row, None).bound == "compute"
    assert builder._finished(dataclasses.replace(row, bytes_read=5000), None).bound == "memory"
    assert builder._finished(dataclasses.replace(row, host_s=2e-5), None).bound == "launch"
    assert builder._finished(dataclasses.replace(row, host_s=5e-6), None).bound == "compute"


# ---- batches, phases, warm-up ----


def test_work_and_bytes_grow_with_the_batch_and_rates_are_divided_by_time_once() -> None:
    # T24: 2 * 64 * 64 FLOP a sample; 4 bytes of 64 inputs and 64 outputs, and weights that stay
    model = nn.Linear(64, 64, bias=False)
    one, eight = (profile(model, torch.ones(n, 64), repeat=3, power="none") for n in (1, 8))
    assert (one.total.flops, eight.total.flops) == (8_192, 65_536)
    rows = [next(row for row in found.rows if row.kind == "linear") for found in (one, eight)]
    weights = 4 * 64 * 64
    assert [row.bytes_read for row in rows] == [weights + 256, weights + 8 * 256]
    assert [row.bytes_written for row in rows] == [256, 8 * 256]
    assert eight.total.runtime_s is not None
    assert eight.total.flops_per_s == pytest.approx(65_536 / eight.total.runtime_s)


def test_training_takes_more_memory_than_inference_and_models_come_in_eval_mode() -> None:
    # T25: eight layers; inference frees an activation when the next one is there, training keeps all
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Sigmoid()) for _ in range(8)))
    x = torch.ones(512, 32)
    forward, training = (
        profile(model, x, phase=phase, warmup=0, repeat=1, power="none").total.peak_memory_bytes
        for phase in ("forward", "training")
    )
    assert forward is not None and training is not None
    # 512 * 32 * 4 bytes of each of eight sigmoids, beside what inference takes
    assert training > forward + 7 * 65_536 / 2
    assert not resolve("zoo:resnet18").build("meta").training


def test_every_network_has_inputs_of_its_own_and_none_stands_there_twice() -> None:
    # T27
    assert {ZOO[name].input_shape for name in ("inception3", "inception4")} == {(3, 299, 299)}
    assert (ZOO["alexnet"].input_shape, ZOO["overfeat"].input_shape) == ((3, 227, 227), (3, 231, 231))
    assert len({entry.title for entry in ZOO.values()}) == len(ZOO)
    assert len({entry.build for entry in ZOO.values()}) == len(ZOO)


def test_warm_up_is_not_timed_and_the_number_of_runs_is_said() -> None:
    # T28: three runs to warm up; four clean ones, after every second a timed one, and one for the memory
    SEEN.clear()
    found = profile(Called(), torch.ones(1, 4), warmup=3, repeat=4, power="none")
    spread, runs = found.total.spread, found.runs
    assert spread is not None and runs is not None
    assert len(spread.samples_s) == 4
    assert len(SEEN) >= 3 + 4 + len(runs.timed.samples_s)
    assert "4 runs" in found.headline()


def test_distributed_models_are_looked_through(tmp_path: Path) -> None:
    # T14
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 8)))
        found = profile(model, torch.ones(4, 8), warmup=0, repeat=1, power="none")
    finally:
        torch.distributed.destroy_process_group()
    assert [(row.path, row.flops) for row in found.rows if row.kind == "linear"] == [("0", 512)]


# ---- sheets ----


@pytest.mark.parametrize(
    ("slug", "flops_per_s", "bytes_per_s"),
    [  # T23: lanes * 2 * boost clock; bus width / 8 * 2 * memory clock
        ("nvidia-t4", 8.14e12, 320.06e9),
        ("nvidia-a100-80gb-pcie", 19.49e12, 1935.36e9),
    ],
)
def test_a_sheet_has_gigabytes_where_its_maker_does(
    slug: str, flops_per_s: float, bytes_per_s: float
) -> None:
    sheet = read_spec(known_specs()[slug])
    assert sheet.get("peak_flops_float32") == pytest.approx(flops_per_s, rel=0.01)
    assert sheet.get("memory_bytes_per_s") == pytest.approx(bytes_per_s, rel=0.01)


# ---- what users ask for ----


def test_a_filled_cache_and_shared_key_heads_are_counted() -> None:
    # 4 query heads share 2 of keys, all of size 16; one new token after eight: 4 * 4 heads * 1 * 9 * 16
    source = resolve(
        "transformers:LlamaModel?num_hidden_layers=1&hidden_size=64&num_attention_heads=4"
        "&num_key_value_heads=2&intermediate_size=128&vocab_size=100&pad_token_id=0"
    )
    model = source.build("meta")
    with torch.inference_mode():
        output = model(torch.zeros(1, 8, dtype=torch.long, device="meta"), use_cache=True)
    name = next(name for name in CACHES if name in inspect.signature(model.forward).parameters)
    token = torch.zeros(1, 1, dtype=torch.long)
    found = profile(model, (), {"input_ids": token, name: cache_of(output)}, runtime=False, power="none")
    attention = next(row for row in found.rows if row.kind == "attention")
    wanted = {"query_heads": 4, "key_heads": 2, "query_length": 1, "key_length": 9, "head_size": 16}
    assert {name: attention.config[name] for name in wanted} == wanted
    assert attention.flops == 2304
