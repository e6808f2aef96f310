"""Timed steps of inference and training: warm-up apart, the device waited for, weights of every precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from neuralpower.errors import InputError, ModelError, OutOfMemory
from neuralpower.networks.inputs.inputs import Inputs
from neuralpower.profiling.stopwatch import HostClock
from neuralpower.suites.bench.network import Scores
from neuralpower.suites.steps import (
    Batch,
    Precision,
    StepTimer,
    Times,
    Work,
    lacking,
    make_optimizer,
    precision,
    with_masters,
)

CPU, SCORES = torch.device("cpu"), Scores(3)


@dataclass
class Device:
    """An asynchronous device: a step takes a second from its launch on, and only `wait` waits for its end."""

    now_s: float = 0.0
    free_s: float = 0.0
    waits: int = 0
    marks: list[float] = field(default_factory=list)

    def launch(self) -> None:
        """Takes the host a tenth of a second."""
        self.now_s += 0.1
        self.free_s = max(self.free_s, self.now_s) + 1.0

    def mark(self) -> float:
        return max(self.now_s, self.free_s)

    def seconds(self, start: float, end: float) -> float:
        assert self.now_s >= end, "a mark was read before the device was waited for"
        return end - start

    def wait(self) -> None:
        self.waits += 1
        self.now_s = max(self.now_s, self.free_s)

    def clock_ns(self) -> int:
        return int(self.now_s * 1e9)


class Line(nn.Module):
    """A linear layer that tells somebody of every call."""

    def __init__(self, told: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.told = told

    def forward(self, x: Tensor) -> Tensor:
        self.told()
        return self.linear(x)


def batch(dtype: torch.dtype = torch.float32) -> Batch:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 4, generator=generator).to(dtype)
    return Batch(Inputs((x,)), torch.randint(0, 3, (6,), generator=generator))


def work(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None, dtype: torch.dtype = torch.float32
) -> Work:
    one = batch(dtype)
    return Work(model, lambda: one, SCORES, optimizer)


def timed(work: Work, *, warmup: int, steps: int) -> Times:
    return StepTimer(work, HostClock()).run(warmup=warmup, steps=steps)


def test_the_device_is_waited_for_after_each_step() -> None:
    device = Device()
    timer = StepTimer(work(Line(device.launch)), device, "each", device.clock_ns)
    times = timer.run(warmup=2, steps=3)
    # launched 0.1 s after the last step's end, then 1 s of work
    assert times.step_s == pytest.approx((1.1, 1.1, 1.1))
    assert times.warmup_s == pytest.approx((1.1, 1.1))
    assert times.total_s == pytest.approx(3.3)
    assert device.waits == 1 + 2 + 3


def test_the_device_is_waited_for_once_at_the_end() -> None:
    device = Device()
    times = StepTimer(work(Line(device.launch)), device, "end", device.clock_ns).run(warmup=1, steps=3)
    # launches hide behind the work, but for the first one
    assert times.step_s == pytest.approx((1.1, 1.0, 1.0))
    assert times.total_s == pytest.approx(3.1)
    assert device.waits == 1 + 1 + 1


def test_waiting_for_data_is_a_part_of_the_step() -> None:
    device = Device()

    def slow() -> Batch:
        device.now_s += 0.5
        return batch()

    timer = StepTimer(Work(Line(device.launch), slow, SCORES), device, "each", device.clock_ns)
    times = timer.run(warmup=1, steps=2)
    assert times.data_s == pytest.approx((0.5, 0.5))
    assert times.step_s == pytest.approx((1.6, 1.6))


def test_an_interrupted_run_keeps_its_steps() -> None:
    device = Device()

    def launch() -> None:
        device.launch()
        if device.now_s > 4:
            raise KeyboardInterrupt

    timer = StepTimer(work(Line(launch)), device, "each", device.clock_ns)
    with pytest.raises(KeyboardInterrupt):
        timer.run(warmup=1, steps=100)
    # steps end at 1.1 (warm-up), 2.2, 3.3; the one launched after that begins at 4.5
    assert timer.times.step_s == pytest.approx((1.1, 1.1, 1.1))
    assert timer.times.mean_s == pytest.approx(1.1)


def test_a_second_run_leaves_the_first_result_as_it_is() -> None:
    device = Device()
    timer = StepTimer(work(Line(device.launch)), device, "each", device.clock_ns)
    first = timer.run(warmup=1, steps=2)
    assert len(timer.run(warmup=0, steps=3).step_s) == 5
    assert len(first.step_s) == len(first.data_s) == 2


@pytest.mark.parametrize(("warmup", "steps"), [(-1, 1), (0, 0)])
def test_too_few_steps_are_refused(warmup: int, steps: int) -> None:
    with pytest.raises(InputError, match=f"^{warmup} warm-up and {steps} timed steps"):
        timed(work(Line()), warmup=warmup, steps=steps)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000 bytes"),
        MemoryError(),
    ],
)
def test_out_of_memory_is_told_apart(error: Exception) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(OutOfMemory, match="^Line: out of memory.*choose a smaller batch$"):
        timed(work(Line(fail)), warmup=0, steps=1)


def test_a_network_that_cannot_run_is_one_line() -> None:
    wrong = Work(Line(), lambda: Batch(Inputs((torch.ones(2, 5),))), SCORES)
    with pytest.raises(ModelError, match="^Line: running it raises RuntimeError: mat1 and mat2"):
        timed(wrong, warmup=0, steps=1)


def test_training_learns_and_inference_does_not() -> None:
    torch.manual_seed(0)
    model = Line()
    before = model.linear.weight.detach().clone()
    timed(work(model), warmup=1, steps=1)
    assert torch.equal(model.linear.weight, before)
    x, y = batch().inputs.args[0], batch().target
    loss = SCORES(model(x), y).item()
    timed(work(model, make_optimizer("sgd", model.parameters(), lr=0.5)), warmup=0, steps=20)
    assert SCORES(model(x), y).item() < loss / 1.5


def test_momentum_is_sgd_with_momentum() -> None:
    weight = torch.ones(1, requires_grad=True)
    optimizer = make_optimizer("momentum", [weight], lr=0.1, weight_decay=1e-4)
    assert isinstance(optimizer, torch.optim.SGD)
    assert (optimizer.defaults["momentum"], optimizer.defaults["weight_decay"]) == (0.9, 1e-4)


def test_unknown_optimizers_and_settings_are_refused() -> None:
    weights = [torch.ones(1, requires_grad=True)]
    with pytest.raises(InputError, match="unknown optimizer 'adan': did you mean adam"):
        make_optimizer("adan", weights)
    with pytest.raises(InputError, match="optimizer sgd with {'alpha': 0.9}: .*alpha"):
        make_optimizer("sgd", weights, alpha=0.9)
    with pytest.raises(InputError, match="optimizer adam with {'lr': -1.0}: Invalid learning rate"):
        make_optimizer("adam", weights, lr=-1.0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("training", [False, True])
def test_every_dtype_runs(dtype: str, training: bool) -> None:
    chosen = precision(dtype, CPU, masters=training)
    model = chosen.cast(Line())
    assert next(model.parameters()).dtype == chosen.stored == getattr(torch, dtype)
    optimizer = chosen.optimizer(model, lambda w: make_optimizer("momentum", w, lr=0.1)) if training else None
    times = timed(work(model, optimizer, chosen.stored), warmup=1, steps=1)
    assert len(times.step_s) == 1
    assert all(p.isfinite().all() for p in model.parameters())


def test_autocast_keeps_float32_weights_and_computes_in_half() -> None:
    seen: list[torch.dtype] = []
    chosen = precision("bfloat16", CPU, autocast=True, masters=True)
    model = chosen.cast(line := Line())
    line.linear.register_forward_hook(lambda m, args, output: seen.append(output.dtype))
    optimizer = chosen.optimizer(model, lambda w: make_optimizer("sgd", w, lr=0.1))
    timed(work(model, optimizer), warmup=0, steps=1)
    assert seen == [torch.bfloat16]
    assert line.linear.weight.dtype == torch.float32
    assert optimizer.param_groups[0]["params"][0] is line.linear.weight  # no masters: the weights are float32
    assert model(batch().inputs.args[0]).dtype == torch.float32


def test_a_master_weight_adds_up_what_half_cannot_show() -> None:
    # 1 + 10 * 1e-4 in float16, whose next number after 1 is 1.000977: each single step would be lost
    weight = torch.ones(1, dtype=torch.float16, requires_grad=True)
    optimizer = with_masters([weight], lambda masters: torch.optim.SGD(masters, lr=1e-4))
    for _ in range(10):
        weight.grad = torch.full((1,), -1.0, dtype=torch.float16)
        optimizer.step()
    assert weight.item() == pytest.approx(1.000977, abs=1e-6)
    assert weight.grad is None
    assert optimizer.param_groups[0]["params"][0].item() == pytest.approx(1.001, abs=1e-6)


def test_a_network_without_weights_cannot_be_trained() -> None:
    with pytest.raises(InputError, match="it cannot be trained; choose inference"):
        Precision().optimizer(nn.ReLU(), lambda w: make_optimizer("sgd", w, lr=0.1))


def test_wrong_precisions_are_refused() -> None:
    with pytest.raises(InputError, match="unknown dtype 'float17': did you mean float16"):
        precision("float17", CPU)
    with pytest.raises(InputError, match="autocast to float32: .*choose dtype float16 or bfloat16"):
        precision("float32", CPU, autocast=True)


def test_a_dtype_that_the_device_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lacking(torch.float16, CPU) is None
    assert "not implemented for" in (lacking(torch.bool, CPU) or "")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    with pytest.raises(
        InputError, match="dtype bfloat16: cuda:0 lacks it .*compute capability 8.0.*; choose float32"
    ):
        precision("bfloat16", torch.device("cuda:0"))
