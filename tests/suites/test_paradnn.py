"""ParaDnn's points: names, computation, training, and the output of a run."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from neuralpower.errors import DeviceError, InputError, OutOfMemory
from neuralpower.networks.sources import resolve
from neuralpower.suites.paradnn import run as running
from neuralpower.suites.paradnn.points import (
    FAMILIES,
    Point,
    counted,
    counted_model,
    described,
    grid,
    phi,
    sampled,
    sharded,
    walk,
)
from neuralpower.suites.paradnn.run import (
    COMPAT,
    TensorFlowRMSprop,
    affordable,
    check_room,
    check_setup,
    drawing,
    learning_rate,
    measure,
    needed_bytes,
    operator_times,
    optimizer_of,
    optimizer_settings,
    scheduled,
)
from neuralpower.suites.paradnn.sweep import STATES, Result, Setup, single_text
from neuralpower.suites.steps import SHARE

FC = {"layers": 4, "nodes": 1024, "input_size": 2000, "output_size": 200, "batch_size": 64}
TINY = {"layers": 2, "nodes": 8, "input_size": 6, "output_size": 3, "batch_size": 4}
TINY_POINTS = (
    Point.of("fc", "pytorch", TINY),
    Point.of(
        "cnn", "residual", {"blocks": 1, "filters": 1, "input_size": 193, "output_size": 2, "batch_size": 2}
    ),
    Point.of("rnn", "gru", {"layers": 1, "embed": 4, "length": 3, "vocabulary": 5, "batch_size": 2}),
)
QUICK = Setup(warmup_steps=1, steps=2)


def fc(**sizes: int) -> Point:
    return Point.of("fc", "paradnn", {**FC, **sizes})


# ---- points ----


def test_a_label_says_every_size() -> None:
    assert fc(nodes=512, output_size=1000).label == "layer_4-node_512-input_2000-output_1000-bs_64"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_point_s_label_is_its_parameters_and_its_own(family: str) -> None:
    points = grid(FAMILIES[family], FAMILIES[family].swept_kinds)
    for point in points[::17]:
        said = dict(part.rpartition("_")[::2] for part in point.label.split("-"))
        assert said == {FAMILIES[family].words[name]: str(size) for name, size in point.named.items()}
    assert (
        len({(p.kind, p.label) for p in points})
        == len(points)
        == {"fc": 9720, "cnn": 2160, "rnn": 2160}[family]
    )
    model = points[-1].model
    assert all(f"{name}={size}" in model for name, size in points[-1].named.items() if name != "batch_size")


def test_the_benchmark_walks_batches_inputs_and_outputs() -> None:
    points = walk(fc())
    # 9 batch sizes * 4 input sizes * 5 output sizes; layers and nodes stay
    assert len(set(points)) == 180
    assert {(p.named["layers"], p.named["nodes"]) for p in points} == {(4, 1024)}
    assert {p.batch_size for p in points} == {64 * 2**i for i in range(9)}


def test_a_sample_is_seeded_and_shards_share_it_out() -> None:
    points = grid(FAMILIES["fc"], ["paradnn"])
    sample = sampled(points, 50, seed=3)
    assert sample == sampled(points, 50, seed=3) != sampled(points, 50, seed=4)
    assert len(set(sample)) == 50
    assert sampled(sample, 99, seed=0) == sample
    shards = [list(sharded(sample, (i, 3))) for i in (1, 2, 3)]
    assert sorted(p.label for shard in shards for p in shard) == sorted(p.label for p in sample)
    assert all(shards)
    with pytest.raises(InputError, match="sample of 0 points: must be 1 or more"):
        sampled(points, 0, seed=0)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({**FC, "width": 512}, "width: the sizes of fully connected networks are layers, nodes"),
        ({"layers": 4, "nodes": 512}, "input_size: the sizes of fully connected networks are layers, nodes"),
        ({**FC, "layers": 0}, "layers 0: must be 1 or more"),
    ],
)
def test_sizes_that_are_none_are_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Point.of("fc", "paradnn", sizes)


# ---- formulas ----


def test_the_paper_s_formulas() -> None:
    # 1024^2 * 3 + 1024 * 2200 = 5,398,528; times 6 (training) or 2 (inference), times 64 samples
    assert phi(4, 1024, 2000, 200) == 5_398_528
    assert described(fc(), "train")["formula_flops"] == 6 * 5_398_528 * 64
    assert described(fc(), "infer")["formula_flops"] == 2 * 5_398_528 * 64
    assert described(TINY_POINTS[1], "train")["formula_flops"] is None


def test_counted_flop_are_those_of_the_network_as_built() -> None:
    work = counted(Point.of("fc", "pytorch", FC))
    # 6,447,104 weights, of which 2000 * 1024 need no gradient of their input: 6,447,104 * 6 - 2,048,000 * 2
    assert (work.parameters, work.weights) == (6_452_424, 6_447_104)
    assert work.flops("infer", 64) == 2 * 6_447_104 * 64
    assert work.flops("train", 64) == (6 * 6_447_104 - 2 * 2_048_000) * 64


@pytest.mark.parametrize(
    "model", ["zoo:paradnn_fc?layers=3&nodes=16", "zoo:paradnn_cnn?block=bottleneck&filters=4"]
)
def test_counted_flop_of_training_agree_with_pytorch_s_counter(model: str) -> None:
    source = resolve(model)
    network = source.build("meta")
    x = torch.rand(2, 1000, device="meta") if "fc" in model else torch.rand(2, 3, 224, 224, device="meta")
    with FlopCounterMode(display=False) as counter:
        network(x).sum().backward()
    assert counted_model(model).flops("train", 2) == counter.get_total_flops()


def test_a_recurrent_network_s_flop_are_counted() -> None:
    # 3 steps of a GRU: 3 gates of two 4x4 matrices, 2 FLOP each; scores 4 * 5: 3 * 2 * (96 + 20) = 696
    assert counted(TINY_POINTS[2]).flops("infer", 1) == 696
    assert counted(TINY_POINTS[2]).flops("train", 2) == 2 * 3 * 696


# ---- learning ----


def test_rmsprop_has_the_paper_s_values() -> None:
    weights = [nn.Parameter(torch.ones(2))]
    made = optimizer_of("rms", weights, torch.float32)
    assert isinstance(made, torch.optim.RMSprop)
    chosen = {name: made.param_groups[0][name] for name in ("lr", "alpha", "momentum", "eps", "weight_decay")}
    assert chosen == {"lr": 0.1, "alpha": 0.9, "momentum": 0.9, "eps": 1.0, "weight_decay": 0.0}


@pytest.mark.parametrize(
    ("compat", "values"),
    [
        ("ifarm", (0.1, 0.99, 0.9, 1.0, 0.9)),
        ("pytorch", (0.01, 0.99, 0.0, 1e-8, 0.0)),
        ("keras", (0.001, 0.9, 0.0, 1e-7, 0.0)),
    ],
)
def test_other_programs_values_of_rmsprop(compat: str, values: tuple[float, ...]) -> None:
    group = optimizer_of("rms", [nn.Parameter(torch.ones(2))], torch.float32, compat).param_groups[0]
    assert tuple(group[name] for name in ("lr", "alpha", "momentum", "eps", "weight_decay")) == values


def test_pytorch_s_own_values_are_pytorch_s_defaults() -> None:
    defaults = torch.optim.RMSprop([nn.Parameter(torch.ones(1))]).defaults
    assert all(defaults[name] == value for name, value in COMPAT["pytorch"].items())


def test_rmsprop_adds_epsilon_to_the_root() -> None:
    weight = nn.Parameter(torch.tensor([1.0]))
    weight.grad = torch.tensor([2.0])
    optimizer_of("rms", [weight], torch.float32).step()
    # mean square .9 * 0 + .1 * 4 = .4; momentum 2 / (sqrt(.4) + 1); weight 1 - .1 * that
    assert weight.item() == pytest.approx(1 - 0.1 * 2 / (math.sqrt(0.4) + 1))


def test_tensorflow_s_rmsprop_adds_epsilon_under_the_root_of_a_mean_square_that_starts_at_one() -> None:
    weight = nn.Parameter(torch.tensor([1.0]))
    optimizer = optimizer_of("rms", [weight], torch.float32, "tensorflow")
    assert isinstance(optimizer, TensorFlowRMSprop)
    weight.grad = torch.tensor([2.0])
    optimizer.step()
    # mean square .9 * 1 + .1 * 4 = 1.3; momentum .1 * 2 / sqrt(1.3 + 1)
    first = 0.1 * 2 / math.sqrt(2.3)
    assert weight.item() == pytest.approx(1 - first)
    optimizer.step()
    # mean square .9 * 1.3 + .4 = 1.57; momentum .9 * first + .2 / sqrt(2.57)
    assert weight.item() == pytest.approx(1 - first - (0.9 * first + 0.2 / math.sqrt(2.57)))


@pytest.mark.parametrize(
    ("dtype", "eps"), [(torch.float16, 1e-4), (torch.bfloat16, 1e-8), (torch.float32, 1e-8)]
)
def test_adam_s_epsilon_is_no_zero_in_half_precision(dtype: torch.dtype, eps: float) -> None:
    assert optimizer_settings("adam", dtype) == {"lr": 1e-3, "eps": eps}
    assert torch.tensor(eps, dtype=dtype) > 0


def test_unknown_optimizers_are_refused() -> None:
    with pytest.raises(InputError, match="unknown optimizer 'lamb'"):
        optimizer_settings("lamb", torch.float32)
    with pytest.raises(InputError, match="unknown RMSprop 'jax'"):
        optimizer_settings("rms", torch.float32, "jax")


def test_learning_rates_fall_as_the_families_say() -> None:
    assert learning_rate("fc", 10**6) == 0.1
    assert learning_rate("cnn", 25_000) == pytest.approx(0.1 * 0.97)
    assert learning_rate("cnn", 12_500) == pytest.approx(0.1 * 0.97**0.5)
    assert learning_rate("rnn", 20_000) == pytest.approx(0.1 * 0.81)


def test_a_scheduled_optimizer_falls_after_each_step() -> None:
    weight = nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    optimizer = scheduled(optimizer_of("sgd", [weight], torch.float32), "rnn")
    rates = []
    for _ in range(3):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
    assert rates == pytest.approx([0.1, 0.1 * 0.9**1e-4, 0.1 * 0.9**2e-4])


# ---- batches ----


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_inputs_are_uniform_in_the_dtype_and_new_in_every_step(dtype: torch.dtype) -> None:
    draw = drawing(fc(batch_size=50), dtype, torch.device("cpu"))
    first, second = draw(), draw()
    x = first.inputs.args[0]
    assert (x.dtype, tuple(x.shape)) == (dtype, (50, 2000))
    assert 0 <= x.min() < 0.01 and 0.98 < x.max() < 1.001
    assert not torch.equal(x, second.inputs.args[0])
    assert first.target is not None and first.target.dtype == torch.int64
    assert set(first.target.tolist()) <= set(range(200))


def test_texts_are_labelled_with_the_next_token_up_to_their_end() -> None:
    torch.manual_seed(0)
    point = Point.of("rnn", "lstm", {"layers": 1, "embed": 4, "length": 6, "vocabulary": 9, "batch_size": 40})
    batch = drawing(point, torch.float32, torch.device("cpu"))()
    tokens, target = batch.inputs.args[0], batch.target
    assert target is not None
    known = target != -100
    assert torch.equal(tokens[:, 1:][known[:, :-1]], target[:, :-1][known[:, :-1]])
    lengths = known.sum(1)
    assert lengths.min() >= 1 and len(set(lengths.tolist())) > 3
    assert all(row[:n].all() and not row[n:].any() for row, n in zip(known, lengths, strict=True))


def test_the_loss_of_texts_is_the_sum_over_known_tokens_by_their_number() -> None:
    scores = torch.randn(2, 3, 5)
    target = torch.tensor([[1, 2, -100], [4, -100, -100]])
    losses = -scores.log_softmax(-1)
    expected = (losses[0, 0, 1] + losses[0, 1, 2] + losses[1, 0, 4]) / 3
    assert running.Loss()(scores, target) == pytest.approx(expected.item())


# ---- runs ----


@pytest.mark.parametrize("point", TINY_POINTS, ids=lambda p: p.family)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_family_trains_in_every_dtype(point: Point, dtype: str) -> None:
    result = measure(point, replace(QUICK, dtype=dtype))
    assert result.state in ("ok", "nan"), (
        result.reason
    )  # one image's batch norm in half precision may overflow
    assert (result.steps, result.warmup_steps) == (2, 1)
    assert result.duration_s is not None and result.duration_s > 0


@pytest.mark.parametrize("point", TINY_POINTS, ids=lambda p: p.family)
def test_inference_takes_no_optimizer(point: Point) -> None:
    work = running.work_of(point, Setup(mode="infer"), check_setup(Setup()), torch.device("cpu"))
    assert work.optimizer is None and not work.model.training
    assert measure(point, replace(QUICK, mode="infer")).state == "ok"


@pytest.mark.parametrize("compat", COMPAT)
def test_every_rmsprop_runs(compat: str) -> None:
    assert measure(TINY_POINTS[0], replace(QUICK, rmsprop=compat)).state == "ok"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_amp_keeps_float32_weights_and_multiplies_in_half(dtype: str) -> None:
    setup = replace(QUICK, dtype=dtype, amp=True, optimizer="adam")
    work = running.work_of(TINY_POINTS[0], setup, check_setup(setup), torch.device("cpu"))
    assert {p.dtype for p in work.model.parameters()} == {torch.float32}
    assert work.optimizer is not None and work.optimizer.param_groups[0]["eps"] == 1e-8
    assert measure(TINY_POINTS[0], setup).state == "ok"


def test_throughput_follows_from_the_formula_and_from_the_count() -> None:
    point = Point.of("fc", "pytorch", FC)
    known = described(point, "train")
    result = Result(point=point, setup=Setup(), machine="m", duration_s=2.0, steps=100, **known)
    # 6 * 5,398,528 * 64 FLOP in each of 100 steps, in 2 s
    assert result.flops_per_s == pytest.approx(6 * 5_398_528 * 64 * 100 / 2)
    assert result.counted_flops_per_s == pytest.approx((6 * 6_447_104 - 2 * 2_048_000) * 64 * 50)
    summary = result.summary()
    assert summary["labels"] == point.label and summary["states"] == "ok" and summary["err_jobs"] == []
    assert (summary["step_per_sec"], summary["example_per_sec"]) == (50, 3200)
    assert summary["fl"] == pytest.approx(6 * 5_398_528 * 64 / 1e9)
    assert summary["flops"] == pytest.approx(6 * 5_398_528 * 64 * 50 / 1e9)
    # of the parameters as built, 4 bytes each
    assert summary["intensity"] == pytest.approx(6 * 5_398_528 * 64 / (6_452_424 * 4))


def test_a_result_survives_its_record() -> None:
    result = measure(TINY_POINTS[0], QUICK)
    assert Result.from_record(asdict(result)) == result


def test_a_run_prints_version_sizes_duration_and_tflops() -> None:
    result = measure(Point.of("fc", "pytorch", TINY), QUICK)
    lines = single_text(result).splitlines()
    assert lines[0] == f"torch: {torch.__version__}"
    assert [line for line in lines if line in ("layers: 2", "nodes: 8", "batch_size: 4", "input_type: f32")]
    # 8^2 * 1 + 8 * 9 = 136; built with one square more: 200, + 47.1 %
    assert "Phi: 136 by the paper's formula; as built +47.1%" in lines
    assert "FLOP of a step by formula: 3,264 (6 Phi bs)" in lines
    # (6 * 200 - 2 * 48) * 4
    assert "FLOP of a step as counted: 4,416" in lines
    assert any(line.startswith("Duration: ") for line in lines)
    assert any(line.startswith("TFLOPS: ") for line in lines)


def test_a_loss_that_is_no_number_is_a_state_beside_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(*_: object) -> torch.Tensor:
        return torch.tensor(math.nan, requires_grad=True)

    monkeypatch.setattr(nn.functional, "cross_entropy", spoilt)
    result = measure(TINY_POINTS[0], QUICK)
    assert (result.state, result.steps) == ("nan", 2)
    assert "the loss of the last step is nan" in result.reason


def test_an_image_too_small_is_a_state() -> None:
    point = TINY_POINTS[1].replaced(input_size=150)
    assert measure(point, QUICK).state == "negative_dimension"


def test_what_raises_is_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> torch.Tensor:
        raise RuntimeError("the moon is full")

    monkeypatch.setattr(nn.functional, "cross_entropy", broken)
    result = measure(TINY_POINTS[0], QUICK)
    assert result.state == "failed" and "the moon is full" in result.reason


def test_an_error_of_cuda_itself_makes_the_device_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> torch.Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(nn.functional, "cross_entropy", lost)
    assert measure(TINY_POINTS[0], QUICK).state == "unhealthy"


def test_memory_that_runs_out_is_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(*_: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(nn.functional, "cross_entropy", greedy)
    result = measure(TINY_POINTS[0], QUICK)
    assert result.state == "oom" and result.duration_s is None
    assert set(STATES) >= {"oom", "socket_closed", "deadline_exceeded", "unhealthy", "not_run", "no_figure"}


def test_a_point_that_does_not_fit_is_not_tried() -> None:
    # 8192^2 * 128 weights of 4 bytes, their gradients, squares and momenta: 136 GB and more
    point = fc(layers=128, nodes=8192)
    assert needed_bytes(point, Setup()) > 136e9
    result = measure(point, Setup(), available=24 * 10**9)
    assert (result.state, result.duration_s) == ("oom", None)
    # 16 layers of 8192: 15 * 67e6 * 16 B = 17 GB; 128 of 2048: 127 * 4.2e6 * 16 B = 8.9 GB; of 4096: 34 GB
    assert "the largest that fits is --layers 16, or --nodes 2048" in result.reason


def test_room_is_asked_from_both_sides() -> None:
    needed = needed_bytes(fc(), Setup())
    check_room(fc(), Setup(), int(needed / SHARE) + 1)
    check_room(fc(), Setup(), None)
    with pytest.raises(OutOfMemory, match="layer_4-node_1024-input_2000-output_200-bs_64: needs about"):
        check_room(fc(), Setup(), needed)


def test_inference_needs_less_and_float64_more() -> None:
    half, single, double = (needed_bytes(fc(), Setup(dtype=d)) for d in ("float16", "float32", "float64"))
    assert half < single < double
    assert needed_bytes(fc(), Setup(mode="infer")) < single / 3
    assert (
        needed_bytes(fc(), Setup(optimizer="sgd")) < needed_bytes(fc(), Setup(optimizer="momentum")) < single
    )


def test_steps_shrink_to_a_point_s_time_and_warm_up_is_counted_apart() -> None:
    setup = Setup(warmup_steps=300, steps=100)
    assert affordable(0.01, setup, 10.0) == {"warmup": 300, "steps": 100}
    # 400 steps of 0.1 s are 40 s; a quarter fits into 10 s
    assert affordable(0.1, setup, 10.0) == {"warmup": 75, "steps": 25}
    assert affordable(5.0, setup, 10.0) == {"warmup": 1, "steps": 1}
    result = measure(TINY_POINTS[0], replace(QUICK, warmup_steps=4, steps=3), limit_s=60.0)
    assert (result.warmup_steps, result.steps) == (4, 3)


def test_a_step_longer_than_the_point_s_time_is_a_state() -> None:
    result = measure(TINY_POINTS[0], QUICK, limit_s=1e-9)
    assert (result.state, result.duration_s) == ("deadline_exceeded", None)


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        (Setup(mode="predict"), "unknown mode 'predict'"),
        (Setup(tf32=True), "tf32 on cpu in float32: needs float32 on CUDA"),
        (Setup(amp=True), "autocast to float32: it needs half precision"),
        (Setup(optimizer="lion"), "unknown optimizer 'lion'"),
    ],
)
def test_a_setup_that_cannot_be_is_refused(setup: Setup, message: str) -> None:
    with pytest.raises(InputError, match=message):
        measure(TINY_POINTS[0], setup)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_gpu_is_refused() -> None:
    with pytest.raises(DeviceError, match="device cuda:0: torch finds no such CUDA device here"):
        check_setup(Setup(device="cuda:0"))


def test_random_numbers_of_the_process_stay_as_they_were() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    measure(TINY_POINTS[0], QUICK)
    assert torch.equal(torch.rand(3), expected)


def test_operator_times_of_a_step_add_up_by_kind() -> None:
    times = operator_times(Point.of("fc", "paradnn", {**TINY, "nodes": 64}), Setup(), repeats=3, warmup=1)
    assert {"linear", "linear (backward)", "optimizer"} <= set(times.seconds)
    assert "overhead" not in times.seconds
    assert sum(times.shares.values()) == pytest.approx(1)
