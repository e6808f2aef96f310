"""A gate: growth over a baseline, named layers, other versions, and files of strangers."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from torch import nn

import neuralpower
from neuralpower.ask.keywords import METRICS, ceilings_in, limits_in
from neuralpower.errors import DatasetError, InputError
from neuralpower.prediction.explore.gate import Gate
from neuralpower.report.results.gates import gate_table, junit_text, workflow_lines
from tests.program import done, run

T4 = {"device": "t4", "input_shape": (32, 32, 32)}


class Net(nn.Module):
    def __init__(self, *, more: bool = False, half: bool = False, norm: bool = False) -> None:
        super().__init__()
        self.first = nn.Conv2d(32, 64, 3, padding=1)
        self.norm = nn.BatchNorm2d(64) if norm else nn.Identity()
        self.more = nn.Conv2d(64, 64, 3, padding=1) if more else nn.Identity()
        self.last = nn.Conv2d(64, 64 // (2 if half else 1), 3, padding=1)

    def forward(self, x: Any) -> Any:
        return self.last(self.more(self.norm(self.first(x))))


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    file = tmp_path / "gate.json"
    found = neuralpower.gate({"net": Net()}, baseline=file, update=True, **T4)
    assert found.written == ("net",) and found.passes
    return file


def at_the_gate(file: Path, net: nn.Module, **options: Any) -> Gate:
    return neuralpower.gate({"net": net}, baseline=file, **{**T4, **options})


def altered(file: Path, change: Any) -> Path:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    return file


def test_an_unchanged_network_passes_the_tightest_limits_each_time(baseline: Path) -> None:
    limits = {f"max_{name}": "+0%" for name in METRICS}
    reports = [at_the_gate(baseline, Net(), **limits).to_json() for _ in range(2)]
    assert reports[0]["passes"] and not reports[0]["models"][0]["changes"]

    def summed_by_another_python(content: Any) -> None:
        answers = content["models"][0]["answers"]
        answers["energy"] = math.nextafter(answers["energy"], 0)

    reports.append(at_the_gate(altered(baseline, summed_by_another_python), Net(), **limits).to_json())
    assert reports[0] == reports[1]
    [energy] = [one for one in reports[2]["models"][0]["measures"] if one["metric"] == "energy"]
    assert energy["now"] == energy["before"] and energy["growth"] == 0


@pytest.mark.parametrize("what", ["more", "norm"])
def test_an_added_layer_is_named_with_its_part(baseline: Path, what: str) -> None:
    net = Net(more=what == "more", norm=what == "norm").eval()
    (found,) = at_the_gate(baseline, net, max_latency="+1%").models
    (change,) = found.changes
    assert not found.passes
    assert (change.change, change.module) == ("added", what)
    ratio = neuralpower.compare(net, Net(), inputs=(1, 32, 32, 32), device="t4").ratio.value
    latency = next(measure for measure in found.measures if measure.metric == "latency")
    assert latency.growth == pytest.approx(ratio - 1, rel=0.01)
    assert change.growth_s > 0


def test_a_removed_layer_and_a_changed_one_are_named(baseline: Path) -> None:
    neuralpower.gate({"net": Net(more=True)}, baseline=baseline, update=True, **T4)
    (found,) = at_the_gate(baseline, Net(half=True)).models
    assert {(change.change, change.module) for change in found.changes} == {
        ("removed", "more"),
        ("changed", "last"),
    }
    changed = next(change for change in found.changes if change.change == "changed")
    assert (changed.before, changed.now) == ("out_channels=64", "out_channels=32")
    assert found.passes
    assert all(measure.growth is not None and measure.growth <= 0 for measure in found.measures)


def test_a_newer_version_prices_both_sides_anew(baseline: Path) -> None:
    def older(content: Any) -> None:
        content["versions"]["neuralpower"] = "0.0.1"
        (model,) = content["models"]
        model["answers"]["latency"] /= 3
        model["priced_s"] /= 3

    altered(baseline, older)
    (same,) = at_the_gate(baseline, Net(), max_latency="+0%").models
    assert same.passes and same.repriced and same.excused == "the layers are those of the baseline"
    (more,) = at_the_gate(baseline, Net(more=True), max_latency="+5%").models
    latency = next(measure for measure in more.measures if measure.metric == "latency")
    assert not more.passes and more.repriced
    assert latency.growth is not None and 0.05 < latency.growth < 2  # not three times as much


def test_a_newer_library_excuses_layers_unless_versions_are_strict(baseline: Path) -> None:
    altered(baseline, lambda content: content["versions"].update(torch="2.0.0"))
    (found,) = at_the_gate(baseline, Net(more=True)).models
    assert found.passes and found.excused.startswith("torch 2.0.0 -> ") and found.changes
    (strict,) = at_the_gate(baseline, Net(more=True), strict_versions=True).models
    assert not strict.passes


def test_another_question_is_refused(baseline: Path) -> None:
    for options in ({"device": "l40s"}, {"batch_size": 4}, {"dtype": "float16"}):
        with pytest.raises(InputError, match=f"asked with {next(iter(options))} .*--update"):
            at_the_gate(baseline, Net(), **options)
    with pytest.raises(InputError, match="other: is not in the baseline"):
        neuralpower.gate({"other": Net()}, baseline=baseline, **T4)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "it is empty"),
        ("{", "is not a baseline"),
        ("[]", "is not a baseline"),
        ('{"schema": 7}', "schema 7 is of a newer neuralpower"),
        ('{"schema": 1, "versions": {}, "models": []}', "holds no model"),
        ('{"schema": 0, "versions": {}, "models": []}', "schema 0 instead of 1"),
        ('{"schema": 1, "versions": {}, "models": [{"model": "a"}]}', "missing required field"),
    ],
)
def test_files_that_are_no_baseline_are_refused(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "gate.json"
    file.write_text(content)
    with pytest.raises(DatasetError, match=said) as caught:
        neuralpower.gate(baseline=file)
    assert "--update" in str(caught.value)


def test_a_layer_of_an_unknown_kind_is_refused(baseline: Path) -> None:
    altered(baseline, lambda content: content["models"][0]["layers"][0].update(kind="conv9d"))
    with pytest.raises(DatasetError, match="kind 'conv9d' is not known"):
        at_the_gate(baseline, Net())


@pytest.mark.parametrize("text", ["5%", "+5", "30", "-1ms", "+30ms", "nan ms", "ms", "0ms", "30 cats", ""])
def test_limits_that_say_nothing_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="write a growth over the baseline, such as"):
        limits_in({"max_latency": text})


def test_limits_are_read() -> None:
    growth, value = limits_in({"max_latency": "+5%", "max_memory": "2 GiB"})
    assert growth.growth == pytest.approx(0.05) and value.value == 2 * 2**30
    assert [limit.text for limit in limits_in({})] == ["+5%", "+5%"]
    with pytest.raises(InputError, match="nothing to grow from"):
        ceilings_in({"max_energy": "+5%"})


def test_reports_for_servers(baseline: Path) -> None:
    found = at_the_gate(baseline, Net(more=True))
    suites = ElementTree.fromstring(junit_text(found))
    (failure,) = suites.iter("failure")
    assert [case.get("name") for case in suites.iter("testcase")] == ["latency", "memory"]
    assert failure.get("message", "").startswith("latency ")
    (line,) = workflow_lines(found)
    assert line.startswith("::error title=neuralpower gate%3A net::latency ") and "%25" in line
    assert "FAIL: net" in gate_table(found) and "too much" in gate_table(found)


def test_the_command_ends_with_1_and_writes_files(tmp_path: Path) -> None:
    file, report = tmp_path / "gate.json", tmp_path / "gate.xml"
    done("gate", "zoo:deep_mnist", "--device", "t4", "--baseline", file, "--update")
    assert "pass: zoo:deep_mnist" in done("gate", "--baseline", file)

    def faster(content: Any) -> None:
        content["models"][0]["answers"]["latency"] /= 2

    altered(file, faster)
    ended = run("gate", "--baseline", file, "--junit", report, "--github", "--json")
    assert (ended.code, json.loads(ended.out)["passes"]) == (1, False)
    assert "failure" in report.read_text()


def test_a_prediction_above_its_limit_ends_with_1() -> None:
    asked = ("predict", "zoo:deep_mnist", "--device", "t4")
    for _ in range(2):  # the second answer is kept
        ended = run(*asked, "--max-latency", "1us")
        assert ended.code == 1 and "is above 1us" in ended.err and "latency" in ended.out
    done(*asked, "--max-latency", "1s", "--max-flops", "1TFLOP")


def test_an_earlier_answer_is_a_side_of_a_comparison(tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    asked = ("zoo:deep_mnist", "--device", "t4")
    file.write_text(done("predict", *asked, "--json"))
    told = json.loads(done("compare", file, *asked, "--json"))
    assert told["a"]["name"] == "zoo:deep_mnist (old.json)"
    assert told["ratio"]["value"] == pytest.approx(1)
    file.write_text(json.dumps({**json.loads(file.read_text()), "layers": [{}]}))
    ended = run("compare", file, *asked)
    assert ended.code == 2 and "is not a whole answer" in ended.err


MARKED = """
import pytest
from torch import nn

@pytest.mark.latency("1s", device="t4")
def test_fast(predicted):
    assert predicted(nn.Linear(8, 8), (4, 8)).batch_size == 4

@pytest.mark.latency("1us", memory="1KiB", device="t4")
def test_slow(predicted):
    predicted(nn.Linear(8, 8), (4, 8))

@pytest.mark.latency("soon", device="t4")
def test_wrong(predicted):
    predicted(nn.Linear(8, 8), (4, 8))
"""


def test_the_marker_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_limits.py").write_text(MARKED)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    plugins = ["-p", "neuralpower.integrations.pytest_plugin", "-p", "no:neuralpower", "--strict-markers"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "2 failed, 1 passed" in ended.stdout
    for said in ("is above 1us; memory", "is above 1KiB", "--max-latency 'soon': write a growth"):
        assert said in ended.stdout
