"""Networks measured on a simulated GPU, compared with predictions."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from neuralpower.errors import DeviceError, ModelError
from neuralpower.layers import Call
from neuralpower.measure import rig as rigs
from neuralpower.measure.cuda.rig import CudaRig
from neuralpower.measure.meters import Description, Reading
from neuralpower.prediction.evaluation.on_gpu import evaluate_on, predictor_of
from neuralpower.prediction.request import Request
from tests.program import run
from tests.simulated_cuda import META, SimulatedCuda, rig_of

DEEP = "zoo:deep_mnist"
KERNELS_S, LAUNCHES_S = 1e-3, 3e-3  # of every network here: the device's time, and the host's to issue it
METERED_W = 300.0
EAGER_S = LAUNCHES_S + KERNELS_S  # its one kernel begins when it is issued


@dataclass
class Steady:
    """A meter of METERED_W, whose counter moves every 10 ms of the simulated clock."""

    cuda: SimulatedCuda

    def read(self) -> list[Reading]:
        self.cuda.sleep(5e-4)
        now = self.cuda.clock_ns()
        return [Reading("gpu-0", METERED_W * (now // 10**7) / 100, METERED_W, now)]

    def describe(self) -> Description:
        return Description("made_up", "board", 350.0)


class Rig:
    """A simulated GPU that takes KERNELS_S for any network, issued in LAUNCHES_S."""

    device = META
    block = 1
    power_reason = None

    def __init__(self, name: str = "NVIDIA L40S", fails: str | None = None) -> None:
        self.name, self.fails = name, fails
        self.cuda = SimulatedCuda()
        self.real: CudaRig = rig_of(self.cuda, meter=Steady(self.cuda))
        self.asked: list[Call] = []

    def time(self, calls: Sequence[Call], rounds: int = 0) -> list[dict[str, Any]]:
        """The rows of a real rig whose calls are known."""
        self.asked += calls
        if self.fails is not None:
            return [{"status": self.fails, "error_class": "E", "error_msg": "no such kernel"} for _ in calls]
        return self.real.time([Call(lambda: self.cuda.launch(KERNELS_S, LAUNCHES_S), ()) for _ in calls])

    def power(self, call: Call) -> dict[str, Any]:
        """The watts of a real rig whose calls are known."""
        return self.real.power(Call(lambda: self.cuda.launch(KERNELS_S, LAUNCHES_S), ()))

    def hardware(self) -> dict[str, Any]:
        return {"name": self.name, "type": "gpu"}

    def is_lost(self) -> bool:
        return False


def test_an_eager_network_is_compared_with_the_time_of_eager_calls() -> None:
    rig = Rig()
    (found,) = evaluate_on(rig, [Request(DEEP, 2)], predictor_of(rig))
    assert found.measured_s == pytest.approx(EAGER_S, rel=0.01)
    assert found.error() == pytest.approx(found.prediction.runtime_s.value / EAGER_S - 1, rel=0.02)
    assert (found.slowdown, found.noise, found.too_slow) == (1.0, None, None)
    assert isinstance(rig.asked[0].function, torch.nn.Module)  # the network itself, on the rig's device
    assert {p.device for p in rig.asked[0].function.parameters()} == {META}


def test_watts_of_a_gpus_meter_stand_next_to_the_predicted() -> None:
    rig = Rig()
    (found,) = evaluate_on(rig, [Request(DEEP, 2, run="graph")], predictor_of(rig), energy=True)
    assert found.drawn is not None and found.drawn.reason is None
    assert found.drawn.power_w == pytest.approx(METERED_W, rel=0.02)
    assert found.drawn.energy_j == pytest.approx(METERED_W * KERNELS_S, rel=0.05)


def test_the_command_measures_energy_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(rigs, "open_rig", lambda device, power, threads: (asked.append(power), Rig())[1])
    ran = run("evaluate", DEEP, "--device", "cuda:0", "--energy", "--json")
    assert (ran.code, asked) == (0, ["auto"]), ran.err
    (told,) = json.loads(ran.out)["networks"]
    assert told["measured_w"] == pytest.approx(METERED_W, rel=0.02)


def test_a_graph_is_compared_with_the_devices_time() -> None:
    rig = Rig()
    (found,) = evaluate_on(rig, [Request(DEEP, 2, run="graph")], predictor_of(rig))
    assert found.measured_s == pytest.approx(KERNELS_S, rel=0.01)
    assert found.noise == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [("oom", ModelError, "needs more memory"), ("error", ModelError, "no such kernel"),
     ("poisoned", DeviceError, "no longer works")],
)  # fmt: skip
def test_what_cannot_run_there_is_said(status: str, error: type[Exception], said: str) -> None:
    rig = Rig(fails=status)
    with pytest.raises(error, match=said):
        evaluate_on(rig, [Request(DEEP, 2)], predictor_of(rig))


def test_a_network_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    heard = []
    cases = [Request("zoo:absent"), Request(DEEP, 2)]
    found = evaluate_on(rig, cases, predictor_of(rig), refused=lambda case, error: heard.append(case.model))
    assert (heard, [one.request.model for one in found]) == (["zoo:absent"], [DEEP])


def test_the_command_measures_on_the_gpu_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    opened = []

    def open_rig(device: str, power: str, threads: int) -> Rig:
        opened.append((device, power))
        return rig

    monkeypatch.setattr(rigs, "open_rig", open_rig)
    ran = run("evaluate", DEEP, "--batch-size", 2, "--device", "cuda:0", "--json")
    assert ran.code == 0, ran.err
    assert opened == [("cuda:0", "none")]
    (one,) = json.loads(ran.out)["networks"]
    assert one["measured_s"] == one["corrected_s"] == pytest.approx(EAGER_S, rel=0.01)
    assert one["minflt_per_call"] is None
    table = run("evaluate", DEEP, "--batch-size", 2, "--device", "cuda:0")
    assert (table.code, "4 ms" in table.out) == (0, True)


def test_a_gpu_without_a_spec_sheet_asks_for_a_predictor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rigs, "open_rig", lambda *_: Rig("GeForce 9999"))
    ran = run("evaluate", DEEP, "--device", "cuda:0")
    assert (
        ran.code,
        "GeForce 9999: has no spec sheet; choose a predictor with --predictor" in ran.err,
    ) == (2, True)
    assert run("evaluate", DEEP, "--device", "cuda:0", "--predictor", "nvidia@l40s").code == 0


def test_a_machine_without_a_gpu_says_so_in_one_line() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    ran = run("evaluate", DEEP, "--device", "cuda:0")
    assert (ran.code, ran.out, ran.err.count("\n")) == (4, "", 1)
