"""Collecting: the real worker on tiny plans; a fake one that dies, hangs and is killed as a test wants it."""

import json
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from neuralpower.cli.collect import outlook, pace
from neuralpower.data.dataset import read_dataset
from neuralpower.data.journal import Journal, read_journal
from neuralpower.data.schema import config_id
from neuralpower.devices.host import read_cpu
from neuralpower.devices.machine import read_machine
from neuralpower.errors import DatasetError, DeviceError, InputError
from neuralpower.layers import KINDS, Layer
from neuralpower.layers.movement import ALIAS
from neuralpower.layers.rows import from_row, identity, to_row
from neuralpower.learn.networks.network_rows import read_totals
from neuralpower.measure.collect import collection
from neuralpower.measure.collect.collection import ATTEMPTS, collect
from neuralpower.measure.collect.networks import NETWORKS
from neuralpower.measure.collect.plan import affordable, check_dtypes, draw, kinds_named, make_plan
from neuralpower.measure.collect.process import Local, Worker
from neuralpower.measure.collect.process import command as worker_command
from neuralpower.measure.collect.request import KERNELS, PRESETS, Progress, Request, preset_named
from neuralpower.measure.collect.resume import checkout
from neuralpower.measure.collect.schedule import Estimate, make_schedule, plan_hash
from neuralpower.measure.collect.worker import measure_items
from neuralpower.measure.cpu.rig import CpuRig
from neuralpower.measure.meters import NullMeter
from tests.fake_worker import Fake, names, run, statuses
from tests.program import Ran
from tests.program import run as command

QUICK = PRESETS["quick"]

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _a_machine_of_known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the first batch as long as all others."""
    monkeypatch.setattr("neuralpower.measure.collect.schedule.FIRST_TASKS", 60)


def refused(ran: Ran, *words: str) -> None:
    """It ended with code 2 and one line that says why, below what the command has said before."""
    errors = [line for line in ran.err.splitlines() if "error: " in line]
    assert ran.code == 2, ran.err
    assert len(errors) == 1
    assert "Traceback" not in ran.err
    assert all(word in errors[0] for word in words), errors[0]
    assert ran.out == ""


# ---- plans ----


@pytest.fixture(scope="module")
def plan() -> list[dict[str, Any]]:
    """The quick preset's plan, which takes some seconds to make."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # plans are made in the worker, which shows what libraries warn of and goes on
        return make_plan(QUICK, kinds_named(None), None, ["float32"], 0)


def test_the_quick_plan_holds_distinct_layers_of_every_kind(plan: list[dict[str, Any]]) -> None:
    assert len(plan) >= 1200
    assert len({item["config_id"] for item in plan}) == len(plan)
    assert len({json.dumps([item["kind"], item["row"]]) for item in plan}) == len(plan)
    assert {item["kind"] for item in plan} == {kind.kind for kind in kinds_named(None)}


def test_the_items_of_a_plan_are_layers_inside_the_presets_bounds(plan: list[dict[str, Any]]) -> None:
    for item in plan:
        layer = from_row(KINDS[item["kind"]], item["row"])
        assert to_row(layer) == item["row"]
        assert config_id(identity(layer)) == item["config_id"]
        assert affordable(layer, QUICK)
        assert (item["row"].get("function") != ALIAS) <= item["bytes"] <= QUICK.most_bytes
    json.dumps(plan, allow_nan=False)


def test_a_plan_that_is_cut_off_is_a_smaller_one_of_the_same_make_up(plan: list[dict[str, Any]]) -> None:
    def share(items: list[dict[str, Any]]) -> float:
        return sum(item["source"] == "sweep" for item in items) / len(items)

    half = plan[: len(plan) // 2]
    assert 0.2 < share(plan) < 0.95
    # some sixteen blocks of the sweep, eight in either half: a standard deviation of 2 / 16 of their share
    assert share(half) == pytest.approx(share(plan), abs=0.25)
    assert len({item["source"] for item in half}) > 10
    assert {item["kind"] for item in half} == {item["kind"] for item in plan}


def test_a_seed_decides_the_sweep_and_its_order() -> None:
    kinds = kinds_named(["softmax", "norm", "pool2d"])
    first, second, other = (make_plan(QUICK, kinds, ["none"], ["float32"], seed) for seed in (0, 0, 1))
    assert first == second
    ids = [{item["config_id"] for item in items} for items in (first, other)]
    assert len(ids[0] & ids[1]) < len(ids[0]) / 2


def test_every_dtype_gets_the_same_layers() -> None:
    kinds = kinds_named(["linear"])
    one, both = (
        make_plan(QUICK, kinds, ["none"], dtypes, 0) for dtypes in (["float32"], ["float32", "bfloat16"])
    )
    assert len(both) == 2 * len(one)
    without = [{k: v for k, v in item["row"].items() if k != "dtype"} for item in both]
    assert len({json.dumps(row) for row in without}) == len(one)


def test_a_model_that_the_user_names_is_traced_for_its_layers() -> None:
    model = (
        "transformers:BertModel?num_hidden_layers=1&hidden_size=32&num_attention_heads=2&intermediate_size=64"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above
        items = make_plan(QUICK, kinds_named(["linear"]), [model], ["float32"], 0)
    named = [item["row"] for item in items if item["source"] == model]
    assert {(row["in_features"], row["out_features"]) for row in named} == {(32, 32), (32, 64), (64, 32)}


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown layer kind 'linaer': did you mean linear"):
        kinds_named(["softmax", "linaer"])
    with pytest.raises(InputError, match="unknown preset 'quik': did you mean quick"):
        preset_named("quik")
    with pytest.raises(InputError, match="unknown dtype 'float33': did you mean float32"):
        check_dtypes(["float32", "float33"], CPU)
    with pytest.raises(InputError, match="dtype tensorfloat32: a CPU has no such arithmetic; choose float32"):
        check_dtypes(["tensorfloat32"], CPU)
    with pytest.raises(
        InputError, match="dtype float8_e4m3fn: torch cannot use it on cpu .*; choose float32"
    ):
        check_dtypes(["float8_e4m3fn"], CPU)
    with pytest.raises(InputError, match="unknown zoo network 'alexnt': did you mean alexnet"):
        make_plan(QUICK, kinds_named(["linear"]), ["zoo:alexnt"], ["float32"], 0)


def test_a_sweep_has_no_layer_twice_and_none_that_costs_too_much() -> None:
    tiny = replace(QUICK, most_flops=1e5, most_bytes=1e4)
    layers = list(draw(KINDS["linear"], 30, 0, tiny))
    assert len(layers) == len(set(layers)) == 30
    assert all(layer.flops() <= 1e5 and sum(layer.bytes()) <= 1e4 for layer in layers)


# ---- the real worker ----


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    """A collection of the softmax sweep, as a user makes it."""
    out = tmp_path_factory.mktemp("real") / "datasets" / "here"
    options = ("--preset", "quick", "--kinds", "softmax", "--models", "none", "--time-budget", "10m")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collection, "ATTEMPTS", 1)  # a test run is noisy: once is enough
        return out, command("collect-data", *options, "--out", out)


def test_a_collection_ends_sealed_and_says_where(real: tuple[Path, Ran]) -> None:
    out, ran = real
    assert ran.code == 0, ran.err
    assert ran.out == f"{out}\n"
    assert "rows in" in ran.err
    assert (out / "softmax.parquet").exists()
    assert (out / "journal.jsonl.gz").exists()
    assert not (out / "journal.jsonl").exists()
    assert "| `softmax` |" in (out / "README.md").read_text()


def test_a_collections_rows_are_those_of_its_plan_with_their_times(real: tuple[Path, Ran]) -> None:
    out, _ = real
    kept = json.loads((out / "plan.json").read_text())
    planned = {item["config_id"]: item["row"] for item in kept["plan"]}
    table = read_dataset(out).tables["softmax"]
    assert len(planned) >= 10
    assert sorted(table["config_id"][table["replicate"] == 0]) == sorted(planned)
    for record in table.to_dict("records"):
        row = {str(name): value for name, value in record.items()}
        layer = from_row(KINDS["softmax"], row)
        assert to_row(layer) == planned[row["config_id"]]
        assert row["status"] in ("ok", "noisy")
        assert (row["flops"], row["bytes"]) == (layer.flops(), sum(layer.bytes()))
        assert len(row["samples_s"]) == row["n"] <= 9
        assert min(row["samples_s"]) * 0.999 <= row["runtime_s"] <= row["runtime_median_s"] * 1.001 < 1
        assert row["sentinel_s"] > 0
    # the same seed gives the same plan in another process
    assert kept["plan"] == make_plan(QUICK, kinds_named(["softmax"]), ["none"], ["float32"], 0)


def test_a_collection_records_its_session_and_the_machine(real: tuple[Path, Ran]) -> None:
    out, _ = real
    meta, cpu = read_dataset(out).meta, read_cpu()
    assert (meta["device"], meta["hardware"]["cores"]) == (cpu.name, cpu.cores)
    assert meta["rows"] == {"softmax": len(read_dataset(out))}
    (session,) = meta["sessions"]
    assert session["torch"] == torch.__version__
    assert (session["preset"], session["kinds"], session["seed"]) == ("quick", ["softmax"], 0)
    assert session["threads"] == cpu.cores
    # every field of a session record that a CPU can have; what is not known is null, and there all the same
    assert {
        "utc",
        "protocol_version",
        "neuralpower",
        "python",
        "shard",
        "start_s",
        "power_reason",
    } <= session.keys()
    assert session["argv"][:3] == ["neuralpower", "collect-data", "--preset"]
    assert session["plan_hash"] == plan_hash(json.loads((out / "plan.json").read_text())["plan"])
    assert {name: session[name] for name in ("git_sha", "git_dirty")} == checkout()
    assert (session["self_test"], session["lanes"]) == ({}, None)
    machine, settings = session["machine"], session["settings"]
    assert machine == json.loads(json.dumps(read_machine()))
    assert settings["torch_git"] == torch.version.git_version
    assert (settings["threads"], settings["interop_threads"]) == (cpu.cores, 1)
    assert (settings["flush_denormals"], settings["deterministic"], settings["compiled"]) == (
        True,
        False,
        False,
    )
    assert settings["environment"]["OMP_NUM_THREADS"] == str(cpu.cores)
    assert "openmp" in {pool["user_api"] for pool in settings["threadpools"]}
    assert set(read_dataset(out).tables["softmax"]["session_id"]) == {session["session_id"]}


def test_resuming_measures_only_what_is_missing(
    real: tuple[Path, Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = real
    monkeypatch.setattr(collection, "ATTEMPTS", 1)  # as before: noise is not tried again
    before = pd.read_parquet(out / "softmax.parquet").sort_values("replicate", kind="stable")
    before.iloc[4:].to_parquet(out / "softmax.parquet", index=False)
    seen: list[Progress] = []
    request = Request("quick", ("softmax",), ("none",), ("float32",), 0, 600, out)
    executor = Local(Worker(read_cpu().cores, worker_command()))
    counts = collect(request, lambda progress: seen.append(replace(progress)), executor)
    assert counts == {"softmax": len(before)}
    assert (seen[0].planned, seen[0].done) == (len(before), len(before) - 4)
    assert seen[-1].measured == 4
    key = ["config_id", "replicate"]
    after = read_dataset(out).tables["softmax"].set_index(key)
    new, old = before.iloc[:4].set_index(key), before.iloc[4:].set_index(key)
    assert sorted(after.index) == sorted([*new.index, *old.index])
    assert after.loc[old.index, "runtime_s"].tolist() == old["runtime_s"].tolist()
    first, second = (session["session_id"] for session in read_dataset(out).meta["sessions"])
    assert set(after.loc[new.index, "session_id"]) == {second}
    assert set(after.loc[old.index, "session_id"]) == {first}


def test_what_the_worker_refuses_reaches_the_user_as_one_line(tmp_path: Path) -> None:
    ran = command(
        "collect-data", "--kinds", "softmax,linaer", "--models", "none", "--out", tmp_path / "new" / "data"
    )
    refused(ran, "unknown layer kind 'linaer'", "did you mean linear")
    assert list(tmp_path.iterdir()) == []


def test_phases_are_planned_where_a_layer_has_them() -> None:
    phases = ("forward", "backward", "optimizer")
    assert {phase for item in plan_of(kinds_named(None)) for phase in [item["row"]["phase"]]} == {"forward"}
    rows = [
        (item["kind"], item["row"]["phase"], item["row"]["dtype"])
        for item in plan_of(kinds_named(None, phases), phases)
    ]
    assert {phase for kind, phase, _ in rows if kind == "linear"} == {"forward", "backward"}
    assert {phase for kind, phase, _ in rows if kind == "optimizer"} == {"optimizer"}
    assert not {dtype for _, phase, dtype in rows if phase == "backward"} & {"int64", "bool"}


def plan_of(kinds: list[type[Layer]], phases: tuple[str, ...] = ("forward",)) -> list[dict[str, Any]]:
    return make_plan(PRESETS["quick"], kinds, ["none"], ["float32"], 0, phases=phases)


def test_a_decoders_step_is_timed_as_a_whole_with_its_cache_put_back() -> None:
    (model,) = (one.model for one in NETWORKS if one.model.startswith("transformers:Qwen2Model?"))
    preset = replace(PRESETS["standard"], jitters=0)
    plan = make_plan(preset, [], [model], ["float32"], 0, whole=True)
    steps = [item for item in plan if "context" in item["row"]["input"]]
    assert len(plan) == 2  # a pass and a step
    (step,) = steps
    heads = [layer for kind, layer, _ in json.loads(step["row"]["layers"]) if kind == "attention"]
    context = json.loads(step["row"]["input"])["context"]
    assert {(layer["query_length"], layer["key_length"]) for layer in heads} == {(1, context + 1)}
    schedule = make_schedule(plan, power=10)
    assert [task.item["config_id"] for task in schedule.power] == [
        one["config_id"] for one in plan if one != step
    ]
    (result,) = measure_items(steps, CpuRig(1, NullMeter("no_rapl")), rounds=2)
    assert result["status"] in ("ok", "noisy")
    # an accelerator captures its calls in graphs, and what puts the cache back is no part of one
    graphs = replace(PRESETS["standard"], jitters=0, **KERNELS)
    assert len(make_plan(graphs, [], [model], ["float32"], 0, whole=True)) == 1


def test_a_step_of_training_is_timed_as_a_whole() -> None:
    phases = ("forward", "backward", "optimizer")
    preset = replace(PRESETS["standard"], jitters=0)
    plan = make_plan(
        preset, [], ["zoo:sensor_net", "zoo:deep_mnist"], ["float32"], 0, whole=True, phases=phases
    )
    steps = [item for item in plan if item["row"]["phase"] == "training"]
    assert json.loads(json.dumps(steps)) == steps  # it goes to another process
    assert len(steps) == 1  # of two networks
    rows = [(kind, layer["phase"]) for kind, layer, _ in json.loads(steps[0]["row"]["layers"])]
    assert {"forward", "backward", "optimizer"} == {phase for _, phase in rows}
    assert not steps[0]["power"]
    (result,) = measure_items(steps, CpuRig(1, NullMeter("no_rapl")), rounds=2)
    assert result["status"] in ("ok", "noisy")
    table = pd.DataFrame([{**step["row"], **result} for step in steps])
    (total,), rejected = read_totals(table.assign(status="ok"))
    assert not rejected
    assert {layer.phase for layer in total.layers} == set(phases)
    forward = make_plan(preset, [], ["zoo:sensor_net", "zoo:deep_mnist"], ["float32"], 0, whole=True)
    assert {item["row"]["phase"] for item in forward} == {"forward"}


def test_what_a_configuration_does_to_torch_is_its_result() -> None:
    rows = {
        "good": {"rows": 4, "width": 8},
        "huge": {"rows": 10**14, "width": 8},  # 3.2 PB
        "also good": {"rows": 5, "width": 8},
    }
    items: list[dict[str, Any]] = [
        {"kind": "softmax", "config_id": name, "row": row} for name, row in rows.items()
    ]
    (pool,) = draw(KINDS["pool2d"], 1, 0)
    wide = {**to_row(pool), "function": "max", "in_width": 4, "kernel_width": 9, "padding_width": 0}
    items.append({"kind": "pool2d", "config_id": "wide", "row": wide})
    results = {r["config_id"]: r for r in measure_items(items, CpuRig(1, NullMeter("no_rapl")), rounds=2)}
    assert results["huge"]["status"] == "oom"
    assert results["wide"]["status"] == "error"
    assert results["wide"]["error_class"] == "RuntimeError"
    assert results["wide"]["error_msg"]
    for name in ("good", "also good"):
        assert results[name]["status"] in ("ok", "noisy")
        assert len(results[name]["samples_s"]) == 2
    assert results["good"]["flops"] == 5 * 4 * 8


# ---- a worker that follows a script ----


def test_every_planned_configuration_is_measured_once(fake: Callable[..., Fake], tmp_path: Path) -> None:
    worker = fake(count=150)
    seen = run(worker, tmp_path / "data")
    assert statuses(tmp_path / "data") == dict.fromkeys(names(150), "ok")
    assert worker.log() == names(150)
    assert worker.log("batch") == ["batch 60", "batch 60", "batch 30"]
    assert [progress.done for progress in seen] == [0, 60, 120, 150]
    assert (seen[-1].planned, seen[-1].measured, seen[-1].failed) == (150, 150, 0)
    assert not (tmp_path / "data" / "journal.jsonl").exists()


def test_a_batch_is_as_small_as_its_memory_demands(fake: Callable[..., Fake], tmp_path: Path) -> None:
    worker = fake(count=8, bytes=2**30)
    run(worker, tmp_path / "data")
    assert worker.log("batch") == ["batch 3", "batch 3", "batch 2"]  # of 3 GiB each


def test_some_are_measured_again_in_another_process(fake: Callable[..., Fake], tmp_path: Path) -> None:
    worker = fake(count=40, block=8, meter=True)
    seen = run(worker, tmp_path / "data", replicates=0.25)
    table = read_dataset(tmp_path / "data").tables["softmax"]
    again = table[table["replicate"] == 1]
    assert 3 <= len(again) <= 20
    assert len(table) == 40 + len(again) == seen[-1].done == seen[-1].planned
    assert (table["power_w"] == 100.0).all()
    first, second = (log.index(word) for log in [worker.log("")] for word in worker.log("start "))
    times = [i for i, word in enumerate(worker.log("")) if word in set(again["config_id"])]
    assert len(times) == 2 * len(again)
    assert all(first < i < second for i in times[: len(again)])
    assert all(second < i for i in times[len(again) :])
    assert run(worker, tmp_path / "data", replicates=0.25)[-1].measured == 0


def test_a_noisy_configuration_is_taken_again_a_few_times(fake: Callable[..., Fake], tmp_path: Path) -> None:
    worker = fake(count=6, noisy={"c0001": 1, "c0002": 2, "c0003": 99})
    seen = run(worker, tmp_path / "data")
    assert (seen[-1].measured, seen[-1].failed, seen[-1].noisy) == (6, 0, 1)
    assert statuses(tmp_path / "data") == {**dict.fromkeys(names(6), "ok"), "c0003": "noisy"}
    table = read_dataset(tmp_path / "data").tables["softmax"].set_index("config_id")
    assert table.loc[names(6), "attempt"].tolist() == [1, 2, 3, ATTEMPTS, 1, 1]
    assert [worker.log().count(name) for name in names(6)] == [1, 2, 3, ATTEMPTS, 1, 1]


def test_noise_without_time_for_another_try_is_kept_and_tried_again_by_later_runs(
    fake: Callable[..., Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # time for one batch
    monkeypatch.setattr(
        "neuralpower.measure.collect.collection.Collection._left_s",
        lambda collection: -1.0 if collection.begun else 60.0,
    )
    out, worker = tmp_path / "data", fake(count=3, noisy=dict.fromkeys(names(3), 99))
    for attempt in range(1, ATTEMPTS + 2):
        seen = run(worker, out)
        tries = min(attempt, ATTEMPTS)
        assert statuses(out) == dict.fromkeys(names(3), "noisy")
        assert read_dataset(out).tables["softmax"]["attempt"].tolist() == [tries] * 3
        assert seen[-1].done == (3 if attempt >= ATTEMPTS else 0)
    assert [worker.log().count(name) for name in names(3)] == [ATTEMPTS] * 3
    # one that settles down
    out, worker = tmp_path / "calm", fake(count=3, noisy={"c0001": 99})
    run(worker, out)
    run(fake(count=3), out)
    table = read_dataset(out).tables["softmax"].set_index("config_id")
    assert table.loc[names(3), ["status", "attempt"]].to_numpy().tolist() == [["ok", 1], ["ok", 2], ["ok", 1]]


def test_a_shard_without_configurations_is_an_empty_part_of_the_whole(
    fake: Callable[..., Fake], tmp_path: Path
) -> None:
    worker = fake(count=1)
    counts = [run(worker, tmp_path / "data", shard=shard)[-1].measured for shard in ((1, 2), (2, 2))]
    assert sorted(counts) == [0, 1]
    assert len(read_dataset(tmp_path / "data")) == 1


def test_a_spent_budget_seals_what_there_is_and_can_be_continued(
    fake: Callable[..., Fake], tmp_path: Path
) -> None:
    out, worker = tmp_path / "data", fake(count=100, item_s=0.01, block=5)
    seen = run(worker, out, budget_s=0.6)
    first = statuses(out)
    assert 0 < len(first) < 100
    assert seen[-1].spent_s < 2
    assert (out / "softmax.parquet").exists()
    assert not (out / "journal.jsonl").exists()
    again = run(worker, out)
    assert again[0].done == len(first)
    assert statuses(out) == dict.fromkeys(names(100), "ok")
    assert sorted(worker.log()) == names(100)
    assert worker.log("plan") == ["plan"]
    assert len(read_dataset(out).meta["sessions"]) == 2


def test_a_budget_that_planning_used_up_still_measures_something(
    fake: Callable[..., Fake], tmp_path: Path
) -> None:
    for done in (1, 2):
        seen = run(fake(count=100), tmp_path / "data", budget_s=1e-6)
        assert len(statuses(tmp_path / "data")) == done
        # 100 and 99 tasks of 0.03 s by planning values, each after a start
        assert seen[0].estimate.runs == 101 - done
        assert seen[0].estimate.seconds < 1000


def test_a_budget_that_is_shorter_than_a_batch_measures_a_part_of_it(
    fake: Callable[..., Fake], tmp_path: Path
) -> None:
    # planning values: 0.03 s a task; of a batch of 60 (1.8 s) half does not fit into 0.57 s, a quarter does
    run(fake(count=100), tmp_path / "data", budget_s=0.6)
    assert 1 <= len(statuses(tmp_path / "data")) <= 15


def test_a_plan_is_made_once_for_the_same_request(fake: Callable[..., Fake], tmp_path: Path) -> None:
    out, worker = tmp_path / "data", fake(count=3)
    run(worker, out)
    run(worker, out)
    assert worker.log("plan") == ["plan"]
    run(worker, out, seed=1)
    assert worker.log("plan") == ["plan"] * 2
    file = out / "plan.json"
    file.write_text(file.read_text()[:100])  # cut off
    run(worker, out, seed=1)
    file.write_text("[]")
    run(worker, out, seed=1)
    assert worker.log("plan") == ["plan"] * 4
    assert sorted(worker.log()) == names(3)


def test_a_worker_that_dies_while_planning_is_said(fake: Callable[..., Fake], tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="died at 'plan'; run `neuralpower devices`"):
        run(fake(count=3, dies_planning=True), tmp_path / "data")


def test_an_error_of_the_planning_is_the_users(fake: Callable[..., Fake], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown layer kind"):
        run(fake(answer={"error": "unknown layer kind", "exit_code": 2}), tmp_path / "data")


def test_another_devices_dataset_is_left_alone(fake: Callable[..., Fake], tmp_path: Path) -> None:
    out = tmp_path / "data"
    run(fake(count=3, hardware={"l1d_bytes": 32768, "flags": ["avx2"]}), out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for other in ({"name": "Other CPU"}, {"cores": 4}, {"cores": None}, {"l1d_bytes": 49152}):
        with pytest.raises(
            DatasetError, match="holds measurements of another device, 'Fake CPU'.*; choose another --out"
        ):
            run(fake(count=5, hardware=other), out)
    assert {name: (out / name).read_bytes() for name in before} == before
    assert read_journal(out) == []


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 9, "device": "Fake CPU"}'])
def test_a_description_that_cannot_be_used_is_not_written_over(
    fake: Callable[..., Fake], tmp_path: Path, text: str
) -> None:
    out = tmp_path / "data"
    out.mkdir()
    (out / "dataset.json").write_text(text)
    with pytest.raises(DatasetError, match="dataset.json"):
        run(fake(count=5), out)
    assert (out / "dataset.json").read_text() == text


def test_a_table_that_cannot_be_read_is_said_before_anything_is_measured(
    fake: Callable[..., Fake], tmp_path: Path
) -> None:
    out, worker = tmp_path / "data", fake(count=5)
    run(worker, out)
    (out / "softmax.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(DatasetError, match="softmax.parquet"):
        run(worker, out, seed=1)
    assert len(worker.log()) == 5


def test_ones_own_rows_in_a_collection_are_kept(fake: Callable[..., Fake], tmp_path: Path) -> None:
    out = tmp_path / "data"
    run(fake(count=3), out)
    pd.DataFrame({"rows": [77, 78], "width": 4, "runtime_s": 1e-5}).to_csv(out / "softmax.csv", index=False)
    run(fake(count=5), out, seed=1)
    table = read_dataset(out).tables["softmax"]
    assert sorted(table["rows"]) == [1, 2, 3, 4, 5, 77, 78]


# ---- the command with a fake worker ----


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fake], None]:
    """Let the command measure with a fake worker."""
    return lambda fake: monkeypatch.setattr("neuralpower.cli.collect._executor", lambda *_: fake.executor())


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        *(
            (text, ["write a positive number"])
            for text in ("0", "-5s", "nan", "inf", "1e400h", "9" * 400 + "h")
        ),
        # 8 s to start and 0.03 s for a layer, by planning values, of which 5 % are kept: 8.03 / 0.95 = 8.45
        *((text, ["on cpu", "give 9s or more"]) for text in ("0.001s", "8.9", "0.1m")),
    ],
)
def test_a_budget_in_which_nothing_can_be_measured_is_refused_before_anything_starts(
    fake: Callable[..., Fake], faked: Callable[[Fake], None], tmp_path: Path, budget: str, words: list[str]
) -> None:
    worker = fake(count=5)
    faked(worker)
    refused(
        command("collect-data", "--out", tmp_path / "data", "--time-budget", budget), "time budget", *words
    )
    assert not (tmp_path / "data").exists() and worker.log("") == []


def test_a_huge_budget_is_as_good_as_none(
    fake: Callable[..., Fake], faked: Callable[[Fake], None], tmp_path: Path
) -> None:
    faked(fake(count=5))
    ran = command("collect-data", "--out", tmp_path / "data", "--time-budget", "9" * 30 + "h")
    assert ran.code == 0, ran.err
    assert "5 runtimes and 0 powers to measure: about " in ran.err and "this run ends" not in ran.err
    assert statuses(tmp_path / "data") == dict.fromkeys(names(5), "ok")


def test_the_command_ends_well_when_the_budget_is_spent(
    fake: Callable[..., Fake], faked: Callable[[Fake], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "data"
    faked(fake(count=200, item_s=0.005, block=5))
    monkeypatch.setattr("neuralpower.measure.collect.shortest_budget_s", lambda device_type: 0.1)
    ran = command("collect-data", "--out", out, "--time-budget", "0.5s")
    assert ran.code == 0, ran.err
    assert ran.out == f"{out}\n"
    first = statuses(out)
    assert 0 < len(first) < 200
    assert re.search(rf"\b{len(first)} rows? in", ran.err)
    ran = command("collect-data", "--out", out)
    assert ran.code == 0, ran.err
    assert statuses(out) == dict.fromkeys(names(200), "ok")


def test_a_second_collector_is_refused(
    fake: Callable[..., Fake], faked: Callable[[Fake], None], tmp_path: Path
) -> None:
    worker = fake(count=5)
    faked(worker)
    with Journal(tmp_path / "data"):
        refused(command("collect-data", "--out", tmp_path / "data"), "another run is writing to it", "--out")
    assert worker.log("") == []


def test_another_devices_dataset_is_refused(
    fake: Callable[..., Fake], faked: Callable[[Fake], None], tmp_path: Path
) -> None:
    worker = fake(count=5)
    faked(worker)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dataset.json").write_text(
        '{"schema": 1, "device": "Other CPU", "hardware": {"cores": 2}}'
    )
    refused(command("collect-data", "--out", tmp_path / "data"), "'Other CPU'", "choose another --out")
    assert worker.log() == []


def test_noise_is_no_failure_in_the_progress_bar() -> None:
    progress = Progress(
        100, 10, Estimate(90, 0, 9, 1), measured=10, failed=2, noisy=3, spent_s=1, budget_s=60
    )
    assert pace(progress) == "10/s, whole plan: 9 s left, budget: 59 s left, 2 failed, 3 noisy"
    assert pace(replace(progress, noisy=0)) == "10/s, whole plan: 9 s left, budget: 59 s left, 2 failed"


@pytest.mark.parametrize(
    ("budget_s", "seconds", "said"),
    [
        (20, 50, "about 50 s; this run ends after 20 s"),
        (1200, 2574, "about 42.9 minutes; this run ends after 20 minutes"),
    ],
)
def test_what_is_left_is_said_in_seconds_or_minutes(budget_s: float, seconds: float, said: str) -> None:
    progress = Progress(100, 10, Estimate(90, 0, seconds, 3), budget_s=budget_s)
    resume = "; run the same command again to resume"
    assert outlook(progress) == f"90 runtimes and 0 powers to measure: {said}{resume}"
