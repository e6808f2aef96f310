"""What a session record says of the machine, the process and the commit that measured."""

import json
import subprocess
import warnings
from pathlib import Path

import pytest
import torch

from neuralpower.devices.machine import cgroup_limits, read_machine
from neuralpower.measure.collect.resume import checkout
from neuralpower.measure.collect.schedule import plan_hash
from neuralpower.measure.collect.worker import read_settings
from tests.fake_worker import Fake, run


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return root


CPUINFO = "model name\t: Some CPU\nmicrocode\t: 0xd0003d1\nflags\t\t: fpu avx2"


def test_a_machine_says_what_decides_its_speed(tmp_path: Path) -> None:
    proc = written(
        tmp_path / "proc",
        {"cpuinfo": CPUINFO, "sys/kernel/random/boot_id": "b-1", "meminfo": "MemTotal: 8 kB"},
    )
    system = written(
        tmp_path / "sys",
        {
            "devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
            "devices/system/cpu/intel_pstate/no_turbo": "1",
            "devices/system/cpu/smt/active": "1",
            "devices/system/node/node0/cpulist": "0-3",
            "devices/system/node/node1/cpulist": "4-7",
            "devices/system/node/possible": "0-1",
        },
    )
    found = read_machine(proc, system, tmp_path / "none")
    expected = {
        "governor": "performance",
        "turbo": False,
        "smt": True,
        "numa_nodes": 2,
        "microcode": "0xd0003d1",
    }
    assert {name: found[name] for name in expected} == expected
    assert (found["boot_id"], found["cpu"], found["memory_bytes"]) == ("b-1", "Some CPU", 8 * 1024)
    assert found["virtualisation"] == "none"
    assert len(found["hostname_hash"]) == 12
    assert json.loads(json.dumps(found)) == found
    (system / "devices/system/cpu/intel_pstate/no_turbo").unlink()
    written(system, {"devices/system/cpu/cpufreq/boost": "1"})
    assert read_machine(proc, system)["turbo"] is True


def test_what_a_machine_does_not_say_is_null(tmp_path: Path) -> None:
    found = read_machine(tmp_path, tmp_path, tmp_path)
    unknown = (
        "governor",
        "turbo",
        "smt",
        "numa_nodes",
        "microcode",
        "boot_id",
        "virtualisation",
        "memory_bytes",
    )
    assert {found[name] for name in (*unknown, "cgroup_cpus", "cgroup_memory_bytes")} == {None}


@pytest.mark.parametrize(("vendor", "expected"), [("QEMU", "QEMU"), (None, "unknown")])
def test_a_virtual_machine_names_its_maker_where_it_can(
    tmp_path: Path, vendor: str | None, expected: str
) -> None:
    written(tmp_path, {"cpuinfo": CPUINFO + " hypervisor"})
    written(tmp_path, {"class/dmi/id/sys_vendor": vendor} if vendor else {})
    assert read_machine(tmp_path, tmp_path)["virtualisation"] == expected


def test_limits_are_the_tightest_of_all_groups_above(tmp_path: Path) -> None:
    proc = written(tmp_path / "proc", {"self/cgroup": "0::/slice/job"})
    groups = {
        "slice/job/cpu.max": "max 100000",
        "slice/job/memory.max": "2000000000",
        "slice/cpu.max": "150000 100000",  # one and a half CPUs
        "slice/memory.max": "4000000000",
        "memory.max": "max",
    }
    expected = {"cgroup_cpus": 1.5, "cgroup_memory_bytes": 2_000_000_000}
    assert cgroup_limits(proc, written(tmp_path / "cgroup", groups)) == expected


def test_limits_of_the_first_version_are_read_too(tmp_path: Path) -> None:
    proc = written(tmp_path / "proc", {"self/cgroup": "4:memory:/job\n1:cpu:/job\n0::/"})
    groups = {
        "cpu/job/cpu.cfs_quota_us": "400000",
        "cpu/job/cpu.cfs_period_us": "100000",
        "cpu/cpu.cfs_quota_us": "-1",
        "cpu/cpu.cfs_period_us": "100000",
        "memory/job/memory.limit_in_bytes": "9223372036854771712",  # none
        "memory/memory.limit_in_bytes": "1000000000",
    }
    root = written(tmp_path / "cgroup", groups)
    assert cgroup_limits(proc, root) == {"cgroup_cpus": 4.0, "cgroup_memory_bytes": 1_000_000_000}
    for name in ("cpu/job/cpu.cfs_quota_us", "memory/memory.limit_in_bytes"):
        (root / name).unlink()
    assert cgroup_limits(proc, root) == {"cgroup_cpus": None, "cgroup_memory_bytes": None}


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *identity, "-C", folder, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_checkout_knows_its_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    assert checkout(tmp_path) == {"git_sha": None, "git_dirty": None}
    git(tmp_path, "init", "-q")
    assert checkout(tmp_path) == {"git_sha": None, "git_dirty": None}  # nothing was committed yet
    written(tmp_path, {"file": "one"})
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-qm", "one")
    sha = git(tmp_path, "rev-parse", "HEAD")
    written(tmp_path, {"other": "not tracked"})
    assert checkout(tmp_path) == {"git_sha": sha, "git_dirty": False}
    written(tmp_path, {"file": "two"})
    assert checkout(tmp_path) == {"git_sha": sha, "git_dirty": True}
    # what is installed below somebody's checkout is not that checkout
    written(tmp_path, {"site-packages/neuralpower": ""})
    assert checkout(tmp_path / "site-packages") == {"git_sha": None, "git_dirty": None}


def test_without_git_a_checkout_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checkout(tmp_path) == {"git_sha": None, "git_dirty": None}


def test_settings_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_PROC_BIND", "close")
    monkeypatch.setenv("SECRET_TOKEN", "x")
    before = torch.get_num_threads()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read_settings()
    assert json.loads(json.dumps(found)) == found
    assert found["environment"]["OMP_PROC_BIND"] == "close"
    assert "SECRET_TOKEN" not in found["environment"]
    assert found["threads"] == before
    assert set(found["sdpa"]) == {"flash", "mem_efficient", "math", "cudnn"}  # as torch ships it
    assert found["matmul_precision"] == "highest"
    for flushed in (True, False):
        if torch.set_flush_denormal(flushed):  # else this processor cannot
            assert read_settings()["flush_denormals"] is flushed


def test_a_plan_has_one_hash_for_the_same_configurations_in_the_same_order() -> None:
    one, other = {"config_id": "a", "source": "sweep"}, {"config_id": "b"}
    assert plan_hash([one, other]) == plan_hash([{"config_id": "a"}, other])
    assert len({plan_hash(plan) for plan in ([one, other], [other, one], [one], [])}) == 4


def test_a_process_that_says_nothing_of_itself_is_recorded_with_nulls(tmp_path: Path) -> None:
    from neuralpower.data.dataset import read_dataset

    run(Fake(tmp_path, {"count": 3}), tmp_path / "data", seed=7)
    (session,) = read_dataset(tmp_path / "data").meta["sessions"]
    assert (session["settings"], session["lanes"], session["seed"]) == (None, None, 7)
    assert session["machine"] == json.loads(json.dumps(read_machine()))
    assert session["self_test"] == {"update_period_s": 0.1}
