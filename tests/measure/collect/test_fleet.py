"""A fleet: two nodes of a real Ray cluster on this machine measure one collection, and one is lost."""

import contextlib
import os
import signal
import socket
import subprocess
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from neuralpower.data.dataset import read_dataset
from neuralpower.errors import InputError
from neuralpower.measure.collect.collection import collect
from neuralpower.measure.collect.fleet import RESOURCE, Fleet
from neuralpower.measure.collect.process import DeviceLock
from neuralpower.measure.collect.request import Progress
from tests.fake_worker import TESTED, Fake, asked, names, statuses
from tests.program import run
from tests.strangers import strangers

ray = pytest.importorskip(
    "ray", reason="Ray is not installed: nothing of the fleet is tested; pip install ray"
)


def test_an_address_without_a_cluster_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        ran = run("collect-data", "--executor", "ray", "--address", address, "--out", tmp_path / "data")
    assert ran.code == 2
    errors = [line for line in ran.err.splitlines() if "error: " in line]
    assert len(errors) == 1
    assert f"address '{address}': no Ray cluster answers (" in errors[0]
    assert "start one with ray start --head" in errors[0]
    assert not (tmp_path / "data" / "dataset.json").exists()
    ran = run("collect-data", "--executor", "ray", "--out", tmp_path / "data")
    assert (ran.code, "no cluster is given; add --address" in ran.err) == (2, True)


class Nodes:
    """A cluster: a head without devices, and nodes with a device each; they share the host, not the locks."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self.folder = folder
        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
        )

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, name: str, devices: int = 1) -> Any:
        """A node whose TMPDIR, where locks are kept, is its own."""
        place = self.folder / name
        place.mkdir(exist_ok=True)
        environment = {"TMPDIR": str(place), "PYTHONPATH": str(Path(__file__).parents[3])}
        return self.cluster.add_node(
            num_cpus=1, resources={RESOURCE: devices}, env_vars=environment, include_dashboard=False
        )

    def lose(self, node: Any) -> None:
        """A node's power is cut: all of its processes end at once, which they would not by themselves."""
        listed = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
        ).stdout
        parents = {int(pid): int(parent) for pid, parent in map(str.split, listed.splitlines())}
        root = node.all_processes["raylet"][0].process.pid
        ended = [pid for pid in parents if _descends(pid, root, parents)]
        for pid in sorted(ended, key=lambda pid: pid != root):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.cluster.remove_node(node, allow_graceful=False)


def _descends(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != root:
        pid = parents[pid]
    return pid == root


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")  # of a library that is not ours
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        nodes = Nodes(tmp_path_factory.mktemp("nodes"))
        yield nodes
        ray.shutdown()
        nodes.cluster.shutdown()


def fleet(nodes: Nodes, worker: Fake) -> Fleet:
    return Fleet(nodes.address, partial(list, worker.command))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_what_a_lost_node_was_measuring_is_measured_elsewhere(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    note = strangers(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    worker, out = Fake(tmp_path, {"count": 120, "block": 2, "item_s": 0.02}), tmp_path / "data"
    with pytest.raises(InputError, match="0 devices are offered and 0 are free; start a node with ray start"):
        collect(asked(out), lambda progress: None, fleet(nodes, worker))
    nodes.add("one")
    lost = nodes.add("two")
    capfd.readouterr()
    told: list[str] = []
    driver = fleet(nodes, worker)
    driver.say = told.append
    seen: list[int] = []
    lanes: list[int] = []

    def show(progress: Progress) -> None:
        seen.append(progress.measured)
        lanes.append(driver.lanes)
        if progress.measured == 40:
            nodes.lose(lost)

    collect(asked(out), show, driver)
    assert statuses(out) == dict.fromkeys(names(120), "ok")
    assert seen == [0, *range(2, 121, 2)]
    assert (lanes[0], lanes[-1]) == (2, 1)
    table_names = worker.log()
    assert set(table_names) == set(names(120))
    # a process per device; the lost one's may end a moment before its lane does, which then starts another
    assert len(worker.log("start ")) in (2, 3)
    assert len(worker.log("tested")) == 2  # its meter, too
    # a lane's device, process and meter, for each
    (session,) = read_dataset(out).meta["sessions"]
    assert [lane["self_test"] for lane in session["lanes"]] == [session["self_test"]] * 2 == [TESTED] * 2
    assert [lane["hardware"]["name"] for lane in session["lanes"]] == ["Fake CPU"] * 2
    assert [lane["power_reason"] for lane in session["lanes"]] == ["no meter was read"] * 2
    # only what the lost node had in hand was measured twice
    again = [name for name in names(120) if table_names.count(name) > 1]
    assert len(again) <= 2
    (line,) = told
    assert "1 of 2 devices are left" in line and line.count("\n") == 0
    assert capfd.readouterr() == ("", "")  # Ray itself says nothing
    assert not ray.is_initialized()
    assert not note.exists(), note.read_text()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_a_host_on_which_another_collection_measures_is_refused(nodes: Nodes, tmp_path: Path) -> None:
    node = nodes.add("three")
    other = DeviceLock("cpu", folder=nodes.folder / "three")
    other.acquire()
    worker = Fake(tmp_path, {"count": 4})
    try:
        with pytest.raises(
            InputError, match="device cpu: another collection is measuring on it; wait for it"
        ) as error:
            collect(asked(tmp_path / "data"), lambda progress: None, fleet(nodes, worker))
        assert (error.value.exit_code, "\n" in str(error.value)) == (2, False)
        assert worker.log() == []
        other.release()
        collect(asked(tmp_path / "data"), lambda progress: None, fleet(nodes, worker))
        assert statuses(tmp_path / "data") == dict.fromkeys(names(4), "ok")
        other.acquire()  # the lane has given the device back
    finally:
        other.release()
        nodes.cluster.remove_node(node)
