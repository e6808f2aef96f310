"""Timing on a CUDA device, on one that is simulated: what is queued when, and what a number means."""

import dataclasses
import json
import types
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from neuralpower.errors import DeviceError, LostDeviceError, Unmodelled
from neuralpower.layers import KINDS, Call, Layer
from neuralpower.layers.activation import Activation
from neuralpower.layers.base import typed
from neuralpower.layers.linear import Linear
from neuralpower.layers.movement import Movement
from neuralpower.layers.optimizer import Optimizer
from neuralpower.layers.reduction import Reduction
from neuralpower.layers.softmax import Softmax
from neuralpower.layers.training import backward_of
from neuralpower.learn.rows import hardware_from
from neuralpower.measure.calls import (
    Backward,
    TensorFloat32,
    call_bytes,
    call_of,
    copy_call,
    settings_of,
    step_of,
)
from neuralpower.measure.collect.plan import draw
from neuralpower.measure.collect.request import PRESETS
from neuralpower.measure.collect.schedule import software_key
from neuralpower.measure.cuda import rig as rig_cuda
from neuralpower.measure.cuda.rig import SENTINEL_CALLS, Queue, open_cuda_rig
from neuralpower.measure.cuda.runtime import POWER_CAP, Condition, NvmlCondition, to_columns
from neuralpower.measure.cuda.timer import MOST_CALLS, Block, converged, enough, median_interval
from neuralpower.measure.power.energy import Known
from neuralpower.measure.power.selftest import SelfTest
from tests.simulated_cuda import META, SimulatedCuda, SimulatedMark, kernel, rig_of

CPU = torch.device("cpu")
HOT, CAPPED, FINE = Condition(reasons=0x40), Condition(reasons=POWER_CAP), Condition(reasons=0)


# ---- times ----


def test_device_time_and_host_time_are_told_apart() -> None:
    # 2 us kernels, issued every 5 us: a graph takes 2 us a call, one by one they take 5 us
    cuda = SimulatedCuda()
    (row,) = rig_of(cuda).time([kernel(cuda, 2e-6, 5e-6)])
    assert row["status"] == "ok"
    assert row["timing"] == "graph"
    assert row["runtime_s"] == pytest.approx(2e-6, rel=1e-6)
    assert row["dispatch_s"] == pytest.approx(5e-6, rel=1e-3)
    assert row["runtime_eager_s"] == pytest.approx(5e-6, rel=0.01)
    assert row["host_bound"]
    assert json.loads(json.dumps(row, allow_nan=False)) == row  # it goes through a pipe and into a journal
    # a replay lasts 1 ms: 500 calls of 2 us
    assert 0.8e-3 <= row["block_k"] * 2e-6 <= 1.2e-3


def test_a_long_kernel_hides_the_host() -> None:
    cuda = SimulatedCuda()
    (row,) = rig_of(cuda).time([kernel(cuda, 800e-6, 5e-6)])
    assert row["runtime_s"] == pytest.approx(800e-6, rel=1e-6)
    assert row["runtime_eager_s"] == pytest.approx(800e-6, rel=0.01)
    assert row["dispatch_s"] == pytest.approx(5e-6, rel=1e-3)
    assert not row["host_bound"]
    assert row["block_k"] == 2


def test_a_replay_holds_no_more_calls_than_a_graph_should() -> None:
    cuda = SimulatedCuda()
    (row,) = rig_of(cuda).time([kernel(cuda, 1e-7)])
    assert row["block_k"] == MOST_CALLS


@pytest.mark.parametrize(
    ("size", "free", "copies"),
    [
        (10**6, 10**9, 3),  # 3 caches of 1 MB
        (10**5, 10**9, 30),
        (10**7, 10**9, 1),
        (10**5, 2 * 10**6, 6),  # 30 % of 2 MB
        (10, 10**9, 96),  # no more than calls in 5 ms; three eager ones take 155 us
        (0, 10**9, 1),
    ],
)
def test_copies_outlast_the_cache_where_memory_allows(size: int, free: int, copies: int) -> None:
    cuda = SimulatedCuda(free=free)
    (row,) = rig_of(cuda).time([kernel(cuda, 50e-6, size=size)])
    assert row["copies"] == copies


def test_noise_is_averaged_until_the_median_is_known_or_the_samples_end() -> None:
    for noise, most in ((0.001, 60), (0.05, 399)):
        cuda = SimulatedCuda(noise=noise)
        (row,) = rig_of(cuda).time([kernel(cuda, 100e-6)])
        assert row["converged"]
        assert 11 <= row["n"] <= most
        assert row["runtime_low_s"] <= row["runtime_s"] <= row["runtime_high_s"]
        assert row["runtime_high_s"] - row["runtime_low_s"] <= 2 * 0.02 * row["runtime_s"]
        assert row["runtime_s"] == pytest.approx(100e-6, rel=0.02)
        assert len(row["samples_s"]) == min(row["n"], 200)
    (row,) = rig_of(cuda := SimulatedCuda(noise=0.5)).time([kernel(cuda, 100e-6)])
    assert (row["n"], row["converged"]) == (400, False)


def test_a_steady_call_is_sampled_for_a_shorter_time() -> None:
    steady, unsteady = [1.0] * 22, [1.0, 1.02] * 11
    assert enough(steady, 0.021)
    assert not enough(steady, 0.019)
    assert not enough(unsteady, 0.049)  # known within 2 %, not within 0.2 %
    assert enough(unsteady, 0.051)
    assert not enough(steady[:10], 1.0)


def test_sampling_ends_in_seconds_however_long_the_call() -> None:
    cuda = SimulatedCuda()
    (row,) = rig_of(cuda).time([kernel(cuda, 1.0)])
    assert row["n"] == 3
    assert not row["converged"]  # three samples bound no median
    assert row["runtime_low_s"] is None
    assert cuda.host_s < 20


def test_the_median_lies_between_order_statistics() -> None:
    # nine samples: the second and the eighth, with 1 - 2 (1 + 9) / 2^9 = 96.1 %
    assert median_interval(range(1, 10)) == (2, 8)
    assert median_interval(range(5)) is None
    assert median_interval(range(6)) == (0, 5)
    generator = np.random.default_rng(0)
    inside = 0
    for _ in range(500):
        interval = median_interval(generator.lognormal(size=15))
        assert interval is not None
        inside += interval[0] <= 1 <= interval[1]
    assert 0.94 <= inside / 500 <= 1
    assert converged([1.0, 1.01, 1.02, 1.0, 1.0, 1.0])
    assert not converged([1.0, 1.1, 0.9, 1.0, 1.0, 1.0])


def test_a_call_that_waits_for_the_device_is_timed_eagerly_and_says_so() -> None:
    cuda = SimulatedCuda()
    (row,) = rig_of(cuda).time([kernel(cuda, 40e-6, 5e-6, waits=True)])
    assert (row["status"], row["timing"]) == ("ok", "eager")
    assert row["runtime_s"] == pytest.approx(45e-6, rel=0.02)
    assert row["host_bound"]


class Dropping(torch.autograd.Function):
    """Saves what fused attention saves: the share to drop, and the seed, here on the device META."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cuda: SimulatedCuda, dropped: float) -> torch.Tensor:
        ctx.cuda, ctx._saved_dropout_p = cuda, dropped
        ctx._saved_philox_seed = torch.empty((), dtype=torch.int64, device=META)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        ctx.cuda.launch(5e-3, 5e-6)
        return gradient.clone(), None, None


@pytest.mark.parametrize(("dropped", "timing"), [(0.1, "eager"), (0.0, "graph")])
def test_a_backward_pass_whose_seed_lies_elsewhere_is_in_no_graph(dropped: float, timing: str) -> None:
    cuda = SimulatedCuda()
    x = torch.randn(10)
    call = Call(Backward(lambda x: torch.relu(Dropping.apply(x, cuda, dropped))), (x,))
    (row,) = rig_of(cuda).time([call])
    assert (row["status"], row["timing"]) == ("ok", timing)
    assert cuda.replays == 0 or timing == "graph"


# ---- condition ----


def test_heat_discards_what_was_measured_until_it_is_cool() -> None:
    cuda, conditions = SimulatedCuda(), iter([FINE, HOT, FINE, FINE])
    (row,) = rig_of(cuda, lambda: next(conditions)).time([kernel(cuda, 100e-6)])
    assert row["status"] == "ok"
    assert cuda.slept_s == [10.0]
    assert row["throttle_bits"] == 0


def test_a_device_that_stays_hot_gives_a_row_that_no_fit_sees() -> None:
    cuda = SimulatedCuda()
    (row,) = rig_of(cuda, lambda: HOT).time([kernel(cuda, 100e-6)])
    assert row["status"] == "throttled"
    assert cuda.slept_s == [10.0, 10.0]
    assert row["throttle_bits"] == 0x40


def test_the_power_limit_is_how_large_products_run() -> None:
    cuda = SimulatedCuda()
    (row,) = rig_of(cuda, lambda: CAPPED).time([kernel(cuda, 100e-6)])
    assert (row["status"], row["flags"]) == ("ok", ["power_cap"])


def test_the_condition_is_read_while_the_device_works() -> None:
    cuda, busy = SimulatedCuda(), []

    def read() -> Condition:
        busy.append(cuda.device_s > cuda.host_s)
        return FINE

    rig_of(cuda, read).time([kernel(cuda, 100e-6)])
    assert busy == [True, True]


def test_a_sentinel_every_fifty_calls_tells_of_a_device_that_becomes_slower() -> None:
    cuda = SimulatedCuda()
    speeds, times = iter([100e-6, 102e-6, 105e-6]), list[float]()

    def sentinel() -> None:
        cuda.launch(times[-1], 5e-6)

    rig = rig_of(cuda, sentinel=Call(sentinel, ()))
    rows = []
    for _ in range(3):
        times.append(next(speeds))
        rows += rig.time([kernel(cuda, 100e-6)] * SENTINEL_CALLS)
    assert len(rig.sentinels_s) == 3
    assert [rows[i]["sentinel_s"] for i in (0, 49, 50, 149)] == pytest.approx(
        [100e-6, 100e-6, 102e-6, 105e-6]
    )
    # 10th percentiles of (100, 102) and (100, 102, 105): 100.2 and 100.4
    assert [rows[i]["sentinel_slowdown"] for i in (0, 50, 100)] == pytest.approx(
        [1, 102 / 100.2, 105 / 100.4]
    )
    assert [rows[i]["flags"] for i in (0, 50, 100)] == [[], [], ["sentinel_drift"]]


class FakeNvml:
    """The part of nvidia-ml-py that is used; every reading raises the code `failing`."""

    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 2

    class NVMLError(Exception):  # noqa: D106  # a test's own
        def __init__(self, value: int) -> None:
            self.value = value

    def __init__(self) -> None:
        self.failing: int | None = None

    def nvmlInit(self) -> None: ...  # noqa: N802  # NVML's own names

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return uuid

    def _value(self, value: int) -> int:
        if self.failing is not None:
            raise self.NVMLError(self.failing)
        return value

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:  # noqa: N802
        return self._value(61)

    def nvmlDeviceGetClockInfo(self, handle: str, clock: int) -> int:  # noqa: N802
        return self._value({1: 1980, 2: 3201}[clock])

    def nvmlDeviceGetPerformanceState(self, handle: str) -> int:  # noqa: N802
        return self._value(0)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:  # noqa: N802  # an older name
        return self._value(0x4)


def test_a_condition_is_what_nvml_says_and_what_it_does_not_say_is_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = FakeNvml()
    read = NvmlCondition(nvml, "GPU-1")
    read.open()
    now = read()
    assert now == Condition(temperature_c=61, sm_mhz=1980, memory_mhz=3201, pstate=0, reasons=4)
    assert now.power_capped
    assert not now.throttled
    columns = to_columns(now, dataclasses.replace(now, sm_mhz=1000, temperature_c=70, reasons=8))
    assert (columns["sm_mhz_min"], columns["sm_mhz_med"], columns["sm_mhz_max"]) == (1000, 1490, 1980)
    assert (columns["temp_before_c"], columns["temp_after_c"], columns["throttle_bits"]) == (61, 70, 12)
    newer = types.MethodType(lambda self, handle: self._value(0x8), nvml)
    monkeypatch.setattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", newer, raising=False)
    assert read().throttled
    nvml.failing = 3  # NVML_ERROR_NOT_SUPPORTED
    assert read() == Condition()
    assert set(to_columns(Condition(), Condition()).values()) == {None}


class TalkativeNvml(FakeNvml):
    """One that says more of a card; `driver` in bytes, as older modules have it."""

    driver: Any = b"570.86"

    def nvmlSystemGetDriverVersion(self) -> Any:  # noqa: N802
        return self.driver

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:  # noqa: N802
        return self._value(600_000)

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: str) -> int:  # noqa: N802
        return self._value(700_000)

    def nvmlDeviceGetPersistenceMode(self, handle: str) -> int:  # noqa: N802
        return self._value(1)

    def nvmlDeviceGetEccMode(self, handle: str) -> list[int]:  # noqa: N802
        return [1, 1]

    def nvmlDeviceGetMaxClockInfo(self, handle: str, clock: int) -> int:  # noqa: N802
        return self._value({1: 1980, 2: 3201}[clock])


def test_a_dataset_says_what_drives_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    nvml = TalkativeNvml()
    condition = NvmlCondition(nvml, "GPU-1")
    condition.open()
    rig = rig_of(SimulatedCuda(), condition)
    said = rig.hardware()
    assert (said["cuda"], said["driver"], said["limit_w"], said["ecc"]) == ("13.0", "570.86", 600.0, True)
    assert (said["sm_mhz_limit"], said["mem_mhz_limit"]) == (1980, 3201)
    assert (said["limit_default_w"], said["persistence"]) == (700.0, True)
    assert "GPU-1" not in json.dumps(said)
    assert len(said["uuid_hash"]) == 12
    assert "vbios" not in said  # this module has no such function
    assert hardware_from({"device": "any", "hardware": said}).limit_w == 600.0
    before = software_key(said, {"torch": "2.13.0"})
    nvml.driver = "575.57"
    assert software_key(rig.hardware(), {"torch": "2.13.0"}) != before
    nvml.failing = 3
    assert "limit_w" not in rig.hardware()


@pytest.mark.parametrize("code", [15, 16])
def test_a_device_that_is_gone_is_lost(code: int) -> None:
    nvml, cuda = FakeNvml(), SimulatedCuda()
    read = NvmlCondition(nvml, "GPU-1")
    read.open()
    rig = rig_of(cuda, read)
    assert not rig.is_lost()
    nvml.failing = code
    with pytest.raises(LostDeviceError, match="GPU-1: the driver has lost the device"):
        read()
    (row,) = rig.time([kernel(cuda, 1e-5)])
    assert (row["status"], row["error_class"]) == ("poisoned", "LostDeviceError")
    assert rig.is_lost()


# ---- failures ----


def test_a_call_without_memory_is_freed_and_leaves_the_others_alone() -> None:
    cuda = SimulatedCuda()

    def allocate() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 TiB")

    bad, good = rig_of(cuda).time([Call(allocate, ()), kernel(cuda, 1e-5)])
    assert bad["status"] == "oom"
    assert cuda.released == 1
    assert good["status"] == "ok"


def test_a_call_that_torch_refuses_is_an_error_and_one_that_has_no_phase_is_unsupported() -> None:
    cuda = SimulatedCuda()
    wrong = Call(torch.zeros, ("no size",))
    constant = Call(Backward(lambda x: torch.argmax(x)), (torch.ones(3),))
    first, second = rig_of(cuda).time([wrong, constant])
    assert (first["status"], first["error_class"]) == ("error", "TypeError")
    assert (second["status"], second["error_class"]) == ("unsupported", "Unmodelled")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Unmodelled("no layer can allocate this"), "unsupported"),
        (NotImplementedError("out of memory"), "unsupported"),
        (RuntimeError("CUDA error: out of memory"), "error"),
        (MemoryError("no"), "oom"),
    ],
)
def test_the_class_of_an_error_decides_while_the_device_works(error: Exception, status: str) -> None:
    def fail() -> None:
        raise error

    (row,) = rig_of(SimulatedCuda()).time([Call(fail, ())])
    assert row == {"status": status, "error_class": type(error).__name__, "error_msg": str(error)}


def test_an_error_that_takes_the_context_with_it_poisons_all_that_follows() -> None:
    cuda = SimulatedCuda()

    def fault() -> None:
        cuda.poisoned = True
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    rows = rig_of(cuda).time([Call(fault, ()), kernel(cuda, 1e-5)])
    assert [row["status"] for row in rows] == ["poisoned", "poisoned"]


def test_a_capture_that_spoils_the_context_is_told() -> None:
    cuda = SimulatedCuda(breaks_on_capture=True)
    (row,) = rig_of(cuda).time([kernel(cuda, 1e-5, waits=True)])
    assert (row["status"], row["error_class"]) == ("poisoned", "PoisonedError")


def test_a_device_that_is_not_there_is_a_line_for_the_user() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    with pytest.raises(DeviceError, match="this process sees 0 CUDA devices"):
        open_cuda_rig(torch.device("cuda:0"), "none")


# ---- power ----


def test_the_queue_keeps_replays_ahead_and_counts_the_calls_that_are_done() -> None:
    cuda = SimulatedCuda()
    call = kernel(cuda, 100e-6)
    queue = Queue(cuda, Block((call,), 10, cuda.capture([call] * 10)), depth=4)
    finished = 0
    for _ in range(50):
        finished += queue.run_once()
        assert len(queue.ahead) == 4
        cuda.sleep(1.5e-3)  # whatever the host does meanwhile
        assert cuda.device_s > cuda.host_s  # the device does not wait for it
    assert 45 * 10 < finished < 80 * 10
    assert cuda.device_s == pytest.approx((finished + 40) * 100e-6, abs=1e-4)
    assert queue.drain() == 40
    assert not queue.ahead


@dataclasses.dataclass
class Steady:
    """A meter of 300 W, whose counter moves every 10 ms."""

    cuda: SimulatedCuda
    reads: int = 0

    def read(self) -> list[Any]:
        self.reads += 1
        self.cuda.sleep(5e-4)
        return []


def fake_energy(monkeypatch: pytest.MonkeyPatch, taken: list[dict[str, Any]]) -> None:
    """A `neuralpower.measure.power.energy` that loops for 0.1 s and asks the meter now and then."""

    def measure_power(run_once: Any, meter: Any, clock: Any, *, drain: Any, **more: Any) -> Any:
        start, calls = clock.now_ns(), 0
        while clock.now_ns() < start + 1e8:
            ended = run_once()
            calls += ended
            meter.read()
            if not ended:
                clock.sleep(1e-3)
        calls += drain()
        call_s = (clock.now_ns() - start) / 1e9 / calls
        taken.append({"calls": calls, "call_s": call_s, **more})
        row = {
            "power_w": 300.0,
            "energy_j": 300.0 * call_s,
            "power_source": "simulated",
            "power_reason": None,
        }
        return SimpleNamespace(to_row=lambda: row, flags=["alias_risk"])

    monkeypatch.setattr(rig_cuda, "measure_power", measure_power)


def test_power_is_taken_from_the_graph_that_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, taken = SimulatedCuda(), list[dict[str, Any]]()
    fake_energy(monkeypatch, taken)
    rig = rig_of(cuda, lambda: CAPPED, meter=Steady(cuda))
    rig.resume({"idle_w": 90.0, "update_period_p95_s": 0.1, "read_p95_s": 2e-3})
    columns = rig.power(kernel(cuda, 100e-6))
    (window,) = taken
    assert window["calls"] > 900
    assert window["call_s"] == pytest.approx(100e-6, rel=0.01)  # the device never waited
    assert window["known"] == Known(90.0, 0.1)
    assert columns["energy_j"] == pytest.approx(0.03, rel=0.01)
    assert columns["flags"] == ["alias_risk", "power_cap"]
    assert rig.hardware()["idle_w"] == 90.0


def test_deep_idle_is_what_was_seen_before_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def tested(*args: Any, asleep: bool, **more: Any) -> SelfTest:
        asked.append(asleep)
        return SelfTest(idle_w=90.0)

    monkeypatch.setattr(rig_cuda, "run_self_test", tested)
    cuda = SimulatedCuda()
    rig = rig_of(cuda, meter=Steady(cuda))
    found = rig.self_test()
    assert (found["idle_deep_w"], found["idle_w"]) == (None, 90.0)
    rig.idle_deep_w = 75.0
    assert rig.self_test()["idle_deep_w"] == rig.tested.idle_deep_w == 75.0
    assert asked == [False, False]  # by then it has been woken


@pytest.mark.parametrize(
    ("deep_idle", "begun", "expected"), [(True, False, 75.0), (True, True, None), (False, False, None)]
)
def test_a_device_is_watched_asleep_before_its_context_is_made(
    monkeypatch: pytest.MonkeyPatch, deep_idle: bool, begun: bool, expected: float | None
) -> None:
    order: list[str] = []
    cuda = SimulatedCuda()
    cuda.device = CPU  # type: ignore[attr-defined]  # where its sentinel's tensors are made

    def opened(name: str, value: Any) -> Any:
        return lambda *_: (order.append(name), value)[1]

    monkeypatch.setattr(rig_cuda, "open_meter", opened("meter", Steady(cuda)))
    monkeypatch.setattr(rig_cuda, "deep_idle_w", opened("deep idle", 75.0))
    monkeypatch.setattr(rig_cuda, "open_cuda", opened("context", cuda))
    monkeypatch.setattr(rig_cuda, "open_condition", lambda uuid: None)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: begun)
    assert open_cuda_rig(torch.device("cuda:0"), "auto", deep_idle).idle_deep_w == expected
    assert order == ["meter", *["deep idle"] * (expected is not None), "context"]


def test_power_that_cannot_be_measured_has_a_reason_and_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimulatedCuda()
    fake_energy(monkeypatch, [])
    alone = rig_of(cuda).power(kernel(cuda, 1e-4))
    assert alone == {"power_w": None, "energy_j": None, "power_source": "none", "power_reason": "no_meter"}
    assert rig_of(cuda).self_test() == {}
    rig = rig_of(cuda, meter=Steady(cuda))
    assert rig.power(kernel(cuda, 1e-5, 1e-4, waits=True))["power_reason"] == "host_bound"
    assert rig.power(Call(torch.zeros, ("no size",)))["power_reason"] == "error"


# ---- calls ----

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def tiny(kind: type[Layer], count: int = 4) -> list[Layer]:
    quick = dataclasses.replace(PRESETS["quick"], most_flops=1e7, most_bytes=1e6)
    return list(draw(kind, count, 3, quick))


def storages(call: Call) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in (*call.args, *call.warm) if isinstance(t, torch.Tensor)}


@every_kind
def test_a_copy_of_a_call_does_the_same_on_memory_of_its_own(kind: type[Layer]) -> None:
    for layer in tiny(kind):
        call = layer.build(CPU)
        copied = copy_call(call)
        assert call_bytes(copied) == call_bytes(call)
        assert not storages(call) & storages(copied)
        layouts = [
            [(t.shape, t.stride(), t.dtype) for t in each.args if isinstance(t, torch.Tensor)]
            for each in (call, copied)
        ]
        assert layouts[0] == layouts[1]
        with settings_of(call):
            step_of(copied)()


def test_a_tensors_own_method_is_copied_and_has_a_backward_pass() -> None:
    layer = Movement(function="cast", elements=8)
    call = layer.build(CPU)
    copied = copy_call(call)
    assert not storages(call) & storages(copied)
    assert copied().dtype == call().dtype == torch.bfloat16
    assert call_bytes(call) == call_bytes(copied) == 32  # 8 numbers of 4 bytes
    (gradient,) = step_of(call_of(dataclasses.replace(layer, phase="backward"), CPU))()
    assert gradient.shape == (8,)
    assert gradient.dtype == torch.float32


def test_a_copy_of_a_step_moves_parameters_of_its_own() -> None:
    call = Optimizer(function="adam", tensors=2, elements=8).build(CPU)
    copied = copy_call(call)
    owners: list[Any] = [getattr(each.function, "__self__", None) for each in (call, copied)]
    before, moved = ([p.detach().clone() for p in owner.param_groups[0]["params"]] for owner in owners)
    copied()
    for old, new, kept, own in zip(
        before, moved, owners[0].param_groups[0]["params"], owners[1].param_groups[0]["params"], strict=True
    ):
        assert torch.equal(old, new)
        assert torch.equal(old, kept)
        assert not torch.equal(new, own)


@every_kind
def test_every_kind_that_has_a_backward_pass_can_be_timed_in_it(kind: type[Layer]) -> None:
    for layer in tiny(kind):
        trained = layer.training.differentiable(layer) and backward_of(layer)
        if layer.phase != "forward" or not trained or layer.dtype != "float32":
            continue
        call = call_of(dataclasses.replace(layer, phase="backward"), CPU)
        with settings_of(call):
            step = step_of(copy_call(call))
            first, second = step(), step()  # as often as it is called
        for a, b in zip(first, second, strict=True):
            assert (a is None) == (b is None)


def test_the_backward_pass_is_that_of_autograd() -> None:
    x, weight = torch.randn(3, 4), torch.randn(5, 4)
    call = Call(Backward(torch.nn.functional.linear), (x, weight))
    with torch.inference_mode(), settings_of(call):
        torch.manual_seed(0)
        grad_x, grad_weight = step_of(call)()
    torch.manual_seed(0)
    gradient = torch.randn(3, 5)
    assert torch.allclose(grad_x, gradient @ weight)
    assert torch.allclose(grad_weight, gradient.T @ x)


def test_functions_that_write_to_their_input_have_a_backward_pass_too() -> None:
    layer = Activation(function="relu", elements=16, inplace=True, phase="backward")
    call = call_of(layer, CPU)
    with settings_of(call):
        (gradient,) = step_of(call)()
    assert gradient is not None


def test_what_no_gradient_passes_through_is_refused() -> None:
    with pytest.raises(Unmodelled, match="no gradient passes"):
        step_of(call_of(Reduction(function="argmax", elements=8, outputs=2, phase="backward"), CPU))


def test_tf32_is_a_type_of_products_and_leaves_the_process_as_it_was() -> None:
    linear = typed(Linear(rows=2, in_features=3, out_features=4, bias=True), "tensorfloat32")
    assert linear.dtype == "tensorfloat32"
    assert linear.itemsize == 4
    assert typed(Softmax(rows=2, width=3), "tensorfloat32").dtype == "float32"
    call = call_of(linear, CPU)
    assert isinstance(call.function, TensorFloat32)
    assert all(t.dtype == torch.float32 for t in call.args)
    assert call().shape == (2, 4)
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    seen = []
    for asked in (call, Call(torch.relu, (torch.ones(1),))):
        with settings_of(asked):
            seen.append(
                (matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.is_inference_mode_enabled())
            )
    assert seen == [(True, True, True), (False, False, True)]
    assert matmul.allow_tf32 == before


def test_marks_pass_in_order() -> None:
    cuda = SimulatedCuda()
    cuda.queue(1e-3, 0.0)
    mark = cuda.mark()
    assert isinstance(mark, SimulatedMark)
    assert not mark.done()
    cuda.synchronize()
    assert mark.done()


# ---- on a real device ----

real = [
    pytest.mark.hardware,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="needs a CUDA device, and this machine has none"
    ),
    pytest.mark.filterwarnings(
        "ignore::UserWarning"
    ),  # torch calls its check for synchronisations a prototype
]


def on_device(test: Any) -> Any:
    """A test that needs a CUDA device."""
    for mark in real:
        test = mark(test)
    return test


@on_device
def test_a_real_device_gives_sensible_times() -> None:
    rig = open_cuda_rig(torch.device("cuda:0"), "none")
    small = Linear(rows=8, in_features=64, out_features=64, bias=True, dtype="float16")
    large = dataclasses.replace(small, rows=4096, in_features=4096, out_features=4096)
    rows = rig.time([call_of(layer, rig.device) for layer in (small, large)])
    for row in rows:
        assert (row["status"], row["timing"]) == ("ok", "graph"), row
        assert 1e-7 < row["runtime_s"] <= 1.1 * row["runtime_eager_s"]
        assert 1e-6 < row["dispatch_s"] < 1e-3
    assert rows[0]["host_bound"]
    assert not rows[1]["host_bound"]
    # 2 x 4096^3 = 137 GFLOP, at between 1 TFLOP/s and 10 PFLOP/s
    assert large.flops() / 1e16 < rows[1]["runtime_s"] < large.flops() / 1e12


@on_device
def test_a_real_device_outlives_calls_that_fail_or_wait() -> None:
    rig = open_cuda_rig(torch.device("cuda:0"), "none")
    x = torch.randn(1000, device=rig.device)
    waits = Call(torch.nonzero, (x,))
    huge = Call(torch.empty, (2**46,), {"device": rig.device})
    good = Call(torch.relu, (x,))
    rows = rig.time([good, waits, good, huge, good])
    assert [row["status"] for row in rows] == ["ok", "ok", "ok", "oom", "ok"], rows
    assert [rows[i]["timing"] for i in (0, 1, 2, 4)] == ["graph", "eager", "graph", "graph"]
    assert rows[4]["runtime_s"] == pytest.approx(rows[0]["runtime_s"], rel=0.3)
    assert not rig.is_lost()


@on_device
@every_kind
def test_every_kind_runs_on_a_real_device_in_every_phase(kind: type[Layer]) -> None:
    rig = open_cuda_rig(torch.device("cuda:0"), "none")
    (layer,) = tiny(kind, 1)
    phases = ["forward", "backward"] if layer.phase == "forward" and backward_of(layer) else [layer.phase]
    for phase in phases:
        (row,) = rig.time([call_of(dataclasses.replace(layer, phase=phase), rig.device)])
        assert row["status"] == "ok", (phase, row)


@on_device
def test_tf32_is_faster_on_a_real_device() -> None:
    rig = open_cuda_rig(torch.device("cuda:0"), "none")
    if rig.timer.properties.capability < "8":
        pytest.skip("this device knows no TF32")
    layer = Linear(rows=4096, in_features=4096, out_features=4096, bias=False)
    single, tf32 = rig.time([call_of(x, rig.device) for x in (layer, typed(layer, "tensorfloat32"))])
    assert tf32["runtime_s"] < 0.7 * single["runtime_s"]
