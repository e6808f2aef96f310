"""One collection per device of a host, in whatever folders."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from neuralpower.cli.collect import _executor
from neuralpower.data.journal import read_journal
from neuralpower.devices.host import card_uuid
from neuralpower.errors import InputError
from neuralpower.measure.collect.collection import collect
from neuralpower.measure.collect.process import DeviceLock, Local, Worker, lock_name
from tests.fake_worker import Fake, asked, names, statuses, waited
from tests.program import run

ROOT = Path(__file__).parents[3]
FIRST = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


class Driver:
    """The CUDA driver of a machine with `cards`, whose UUIDs are 0, 1, 2, ... and 1, 2, 3, ... and so on."""

    def __init__(self, cards: int, ready: int = 0) -> None:
        self.cards, self.ready = cards, ready

    def cuInit(self, flags: int) -> int:  # noqa: N802  # the driver's name
        return self.ready

    def cuDeviceGet(self, handle: Any, index: int) -> int:  # noqa: N802  # as above
        handle._obj.value = index
        return 0 if index < self.cards else 101  # CUDA_ERROR_INVALID_DEVICE

    def cuDeviceGetUuid(self, answer: Any, handle: ctypes.c_int) -> int:  # noqa: N802  # as above
        answer._obj[:] = [handle.value + byte for byte in range(16)]
        return 0


def test_a_card_is_known_by_the_drivers_uuid() -> None:
    assert card_uuid("cuda:0", Driver(2)) == card_uuid("cuda", Driver(2)) == FIRST
    assert card_uuid("cuda:1", Driver(2)) == "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"


@pytest.mark.parametrize("driver", [Driver(0), Driver(1, ready=100), SimpleNamespace()])
def test_a_card_that_no_driver_knows_has_no_uuid(driver: Any) -> None:
    assert card_uuid("cuda:0", driver) is None


def test_a_lock_is_named_by_the_card_and_not_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lock_name("cpu", lambda _: pytest.fail("asked for a card")) == "cpu"
    assert lock_name("cuda:1", lambda device: f"GPU-{device}") == "GPU-cuda:1"
    # without a driver that answers: two jobs that see one card each, and one that sees both
    for visible, device, expected in (
        ("0", "cuda", "cuda-0"),
        ("1", "cuda:0", "cuda-1"),
        ("0,1", "cuda:1", "cuda-1"),
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert lock_name(device, lambda _: None) == expected
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert lock_name("cuda:3", lambda _: None) == "cuda-3"


def test_a_device_is_taken_once_and_others_stay_free(tmp_path: Path) -> None:
    first, second = (DeviceLock("cpu", folder=tmp_path) for _ in range(2))
    first.acquire()
    with pytest.raises(
        InputError, match=r"^host .*, device cpu: another collection is measuring on it; wait for it, or"
    ):
        second.acquire()
    DeviceLock("cuda:0", folder=tmp_path, uuid_of=lambda _: FIRST).acquire()
    with pytest.raises(
        InputError, match="device cuda:1: another collection"
    ):  # the same card under another number
        DeviceLock("cuda:1", folder=tmp_path, uuid_of=lambda _: FIRST).acquire()
    first.release()
    second.acquire()
    second.release()
    second.release()  # what was not taken is nothing to give back
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "neuralpower-GPU-" + FIRST[4:] + ".lock",
        "neuralpower-cpu.lock",
    ]


def test_a_lock_that_another_user_made_is_a_lock(tmp_path: Path) -> None:
    file = tmp_path / "neuralpower-cpu.lock"
    old = os.umask(0o077)
    try:
        first = DeviceLock("cpu", folder=tmp_path)
        first.acquire()
    finally:
        os.umask(old)
    assert file.stat().st_mode & 0o777 == 0o644  # others may read it, and need no more
    file.chmod(0o444)
    with pytest.raises(InputError, match="another collection"):
        DeviceLock("cpu", folder=tmp_path).acquire()
    first.release()


def test_a_folder_that_keeps_no_locks_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"neuralpower-cpu.lock: no lock can be kept there \(No such file.*set TMPDIR"
    ):
        DeviceLock("cpu", folder=tmp_path / "missing").acquire()
    (tmp_path / "neuralpower-cpu.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="no lock can be kept there"):
        DeviceLock("cpu", folder=tmp_path).acquire()
    assert not (tmp_path / "elsewhere").exists()


def test_who_waits_gets_the_device_when_it_is_free(tmp_path: Path) -> None:
    first = DeviceLock("cpu", folder=tmp_path)
    said: list[str] = []
    second = DeviceLock("cpu", wait=True, folder=tmp_path, say=said.append)
    first.acquire()
    waiting = threading.Thread(target=second.acquire)
    waiting.start()
    waited(lambda: bool(said))
    assert waiting.is_alive()
    assert said[0].endswith("device cpu: waiting for another collection to end")
    first.release()
    waiting.join(20)
    with pytest.raises(InputError, match="another collection"):
        first.acquire()
    second.release()


def test_a_lock_vanishes_with_its_process(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom neuralpower.measure.collect.process import DeviceLock\n"
        "DeviceLock('cpu', folder=Path(sys.argv[1])).acquire()\n"
        "print('taken', flush=True)\nsys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"taken\n"
        with pytest.raises(InputError, match="another collection"):
            DeviceLock("cpu", folder=tmp_path).acquire()
        process.kill()
        assert process.wait() == -signal.SIGKILL
    lock = DeviceLock("cpu", folder=tmp_path)
    lock.acquire()
    lock.release()


def test_two_collections_on_one_device_refuse_each_other_in_any_folders(tmp_path: Path) -> None:
    worker = Fake(tmp_path, {"count": 12, "block": 4})
    refused: list[bool] = []

    def executor() -> Local:
        return Local(Worker(1, worker.command), DeviceLock("cpu"))

    def show(progress: object) -> None:
        if not refused:
            refused.append(True)
            with pytest.raises(InputError, match="another collection is measuring on it") as error:
                collect(asked(tmp_path / "second", shard=(2, 2)), show, executor())
            assert error.value.exit_code == 2

    collect(asked(tmp_path / "first"), show, executor())
    assert refused
    assert statuses(tmp_path / "first") == dict.fromkeys(names(12), "ok")
    assert worker.log() == names(12)  # the other has measured nothing
    assert not read_journal(tmp_path / "second")
    collect(
        asked(tmp_path / "second"), lambda progress: None, executor()
    )  # the first has given the device back
    assert statuses(tmp_path / "second") == dict.fromkeys(names(12), "ok")


def test_time_spent_waiting_is_not_the_collections(tmp_path: Path) -> None:
    now = [1000.0]

    class Waits(Local):
        def hold(self) -> None:
            now[0] += 3600

    worker = Fake(tmp_path, {"count": 90, "block": 30})
    spent: list[float] = []
    collect(
        asked(tmp_path / "data", budget_s=60),
        lambda progress: spent.append(progress.spent_s),
        Waits(Worker(1, worker.command)),
        lambda: now[0],
    )
    assert len(spent) > 3 and not any(spent)  # an hour of another's
    assert statuses(tmp_path / "data") == dict.fromkeys(names(90), "ok")


def test_the_command_refuses_a_device_that_is_taken_in_one_line_with_code_2(tmp_path: Path) -> None:
    lock = DeviceLock("cpu")
    lock.acquire()
    try:
        options = ("--kinds", "softmax", "--models", "none", "--out", tmp_path / "data")
        ran = run("collect-data", *options)
        shard = run("collect-data", *options, "--shard", "1/2")
    finally:
        lock.release()
    for one in (ran, shard):
        errors = [line for line in one.err.splitlines() if "error: " in line]
        assert (one.code, one.out, len(errors)) == (2, "", 1), one.err
        assert (
            "device cpu: another collection is measuring on it; wait for it, or add --wait-for-device"
            in errors[0]
        )
    assert not list((tmp_path / "data").rglob("*.json*"))


def test_the_command_waits_where_it_is_asked_to() -> None:
    for wait in (False, True):
        executor = _executor("local", None, "cpu", "none", 1, wait)
        assert isinstance(executor, Local)
        assert executor.lock is not None
        assert (executor.lock.device, executor.lock.wait) == ("cpu", wait)
