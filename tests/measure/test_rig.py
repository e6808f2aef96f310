"""Rigs: names of failures, and a collection of a real measuring process on the simulated device."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from neuralpower.data.dataset import read_dataset
from neuralpower.errors import DeviceError, InputError
from neuralpower.layers.base import Call
from neuralpower.measure.collect.collection import collect
from neuralpower.measure.collect.process import Local, Worker, command
from neuralpower.measure.collect.request import Request
from neuralpower.measure.collect.schedule import PROTOCOL_VERSION
from neuralpower.measure.collect.worker import Answers
from neuralpower.measure.cpu.rig import CpuRig
from neuralpower.measure.meters import NullMeter
from neuralpower.measure.rig import failure, open_rig
from neuralpower.report.cards import dataset_card
from tests.simulated import hundred_watts
from tests.simulated_rig import SimulatedRig, power_w, runtime_s

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MemoryError("no"), "oom"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "oom"),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
            "oom",
        ),
        (RuntimeError("CUDA error: out of memory"), "oom"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "poisoned"),
        (RuntimeError("CUDA error: device-side assert triggered"), "poisoned"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "error"),
        (ValueError("no"), "error"),
    ],
)
def test_what_a_failing_call_is_called(error: Exception, status: str) -> None:
    result = failure(error)
    assert result == {"status": status, "error_class": type(error).__name__, "error_msg": str(error)}


def test_a_rig_without_a_meter_says_so() -> None:
    call = Call(torch.relu, (torch.ones(2),))
    rig = CpuRig(1, NullMeter("no_rapl"))
    columns = rig.power(call)
    assert (columns["power_w"], columns["power_source"], columns["power_reason"]) == (None, "none", "no_rapl")
    assert (rig.power_reason, rig.self_test()) == ("no_rapl", {})


def test_a_cpu_with_a_counter_has_power(tmp_path: Path) -> None:
    rig = CpuRig(1, hundred_watts(tmp_path))
    rig.resume({"idle_w": 20.0, "update_period_p95_s": 0.001, "busy_w": 100.0})
    columns = rig.power(Call(torch.mm, (torch.ones(64, 64), torch.ones(64, 64))))
    assert columns["power_w"] == pytest.approx(100, rel=0.02)
    assert (columns["power_source"], columns["power_reason"], columns["idle_w_used"]) == ("rapl", None, 20.0)
    assert columns["energy_j"] == pytest.approx(columns["power_w"] * columns["window_runtime_s"])


def test_devices_and_meters_that_are_not_there_are_refused() -> None:
    with pytest.raises(InputError, match="unknown device 'gpu7': did you mean cpu"):
        open_rig("gpu7", "auto", 1)
    with pytest.raises(DeviceError, match="nvml does not see the power of cpu; use --power auto or none"):
        open_rig("cpu", "nvml", 1)
    assert open_rig("cpu", "none", 1).power_reason == "not_asked"


def test_a_lost_device_is_asked_for_after_a_failure_only() -> None:
    class Failing(SimulatedRig):
        asked = 0

        def time(self, calls: object, rounds: int = 9) -> list[dict[str, object]]:
            return [failure(RuntimeError("CUDA error: GPU is lost"))]

        def is_lost(self) -> bool:
            self.asked += 1
            return True

    item = {"kind": "softmax", "config_id": "a", "row": {"rows": 4, "width": 8}}
    request = {"do": "runtime", "items": [item], "rounds": 9}
    assert Answers(lambda first: Failing())(request)["lost"] is True
    assert Answers(lambda first: SimulatedRig())(request)["lost"] is False


def test_a_collection_on_the_simulated_device_gives_its_runtime_and_power_back(tmp_path: Path) -> None:
    worker = Worker(1, [*command(), "--rig", "tests.simulated_rig:SimulatedRig"])
    out = tmp_path / "data"
    request = Request(
        "quick", ("softmax",), ("none",), ("float32",), 0, 120, out, power="nvml", replicates=0.3
    )
    counts = collect(request, lambda progress: None, Local(worker))
    data = read_dataset(out)
    table = data.tables["softmax"]
    assert counts == {"softmax": len(table)}
    assert set(table["status"]) == {"ok"}
    assert 1 <= (table["replicate"] == 1).sum() < len(table) / 2
    for row in table.to_dict("records"):
        # softmax: 5 FLOP an element, and 4 bytes in, 4 out
        elements = row["rows"] * row["width"]
        assert row["runtime_s"] == pytest.approx(runtime_s(5 * elements, 8 * elements))
        assert row["power_w"] == pytest.approx(power_w(5 * elements, 8 * elements))
        assert (row["power_source"], row["protocol_version"]) == ("simulated", PROTOCOL_VERSION)
    assert table[["device_key", "software_key"]].nunique().tolist() == [1, 1]
    (session,) = data.meta["sessions"]
    assert session["self_test"] == {"update_period_s": 0.1, "idle_w": 75.0}
    card = dataset_card(data)
    assert "| power | simulated |" in card
    assert "| meter's self-test | idle_w 75.0, update_period_s 0.1 |" in card
    assert "| `softmax` | power | " in card
    assert "0.0% | 0.0% |" in card  # the simulated device is the same in every process
    assert "Kinds without a row: activation," in card


def test_a_measuring_process_ends_with_its_owner() -> None:
    program = (
        "import sys, time\n"
        "from neuralpower.measure.collect.process import Worker, command\n"
        "worker = Worker(1, command())\n"
        "worker.ask({'do': 'open'})\n"
        "print(worker._process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert owner.stdout is not None
    measuring = Path("/proc") / owner.stdout.readline().strip()
    assert measuring.exists()
    owner.kill()
    owner.wait()
    owner.stdout.close()
    end = time.monotonic() + 10
    while measuring.exists() and "State:\tZ" not in (measuring / "status").read_text():
        assert time.monotonic() < end, "it is still there"
        time.sleep(0.02)


def test_a_further_run_of_a_collection_says_what_fresh_memory_costs(tmp_path: Path) -> None:
    request = Request("quick", ("softmax",), ("none",), ("float32",), 0, 120, tmp_path / "data", power="none")
    for rig in ("SimulatedRig", "FreshRig"):
        collect(
            request, lambda _: None, Local(Worker(1, [*command(), "--rig", f"tests.simulated_rig:{rig}"]))
        )
    assert read_dataset(request.folder).meta["hardware"]["fresh_s_per_byte"] == 5e-10
