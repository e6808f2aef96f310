"""The order of measurements, their time, and what gives way, on a simulated device with its own clock."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from neuralpower.data.dataset import merge, read_dataset
from neuralpower.data.schema import config_id
from neuralpower.layers import KINDS
from neuralpower.measure.collect.collection import collect
from neuralpower.measure.collect.request import ACCELERATOR_PRESETS, PRESETS, Preset, Progress, Request
from neuralpower.measure.collect.schedule import (
    BATCH_S,
    LEAST_PATIENCE_S,
    NETWORK,
    POWER,
    RUNTIME,
    BatchSizes,
    Costs,
    Task,
    batched,
    estimate,
    make_schedule,
    margin_s,
    stratified,
)
from neuralpower.measure.cuda.timer import COOL_S, COOLINGS
from tests.simulated_rig import Simulated, power_w, runtime_s

KIND_NAMES = ("linear", "conv2d", "matmul", "softmax", "norm", "activation", "elementwise")
NETWORKS = 40


def steady(block: int) -> BatchSizes:
    """Of a machine on which every batch is quick."""
    return BatchSizes(block, dict.fromkeys((RUNTIME, NETWORK, POWER), block))


def item(kind: str, number: int, flops: float, size: float) -> dict[str, Any]:
    name = config_id({"kind": kind, "number": number})
    row = {"rows": number + 1, "width": 8, "dtype": "float32", "phase": "forward"}
    about = {"kind": kind, "config_id": name, "source": "sweep"}
    return {**about, "flops": int(flops), "bytes": int(size), "row": row}


def planned(count: int = 2000) -> list[dict[str, Any]]:
    """Layers of seven kinds and NETWORKS whole networks, over five decades of work."""
    generator = random.Random(3)
    plan = []
    for number in range(count - NETWORKS):
        size = 10 ** generator.uniform(4, 8.5)
        plan.append(item(KIND_NAMES[number % 7], number, size * 10 ** generator.uniform(-0.5, 2.5), size))
    return plan + [item("network", number, 1e11, 1e8) for number in range(NETWORKS)]


PLAN = planned()


# ---- order ----


def test_every_beginning_of_the_stratified_part_covers_kinds_and_sizes() -> None:
    chosen = stratified(PLAN, 500)
    assert len({one["config_id"] for one in chosen}) == 500
    # 8 kinds in turn; of networks there are but 40, and 460 = 7 x 65 + 5: five of seven kinds have one more
    counts = Counter(one["kind"] for one in chosen)
    assert counts.pop("network") == NETWORKS
    assert sorted(counts.values()) == [65, 65, 66, 66, 66, 66, 66]
    assert set(counts) == set(KIND_NAMES)
    for count in (80, 200):  # 10 and 25 rounds of 8 kinds
        some = [one for one in chosen[:count] if one["kind"] == "linear"]
        assert len(some) == count // 8
        decades = {len(str(one["bytes"])) for one in some}
        assert decades >= {5, 6, 7, 8}


def test_power_is_shared_out_among_dtypes_and_phases() -> None:
    # ten times as many rows run forward in float32 as backward in bfloat16
    plan = [
        {**one, "row": {**one["row"], "dtype": dtype, "phase": phase}}
        for one, (dtype, phase) in zip(
            PLAN[: 11 * 140], 140 * [*[("float32", "forward")] * 10, ("bfloat16", "backward")], strict=True
        )
    ]
    chosen = stratified(plan, 140)  # 20 of each of 7 kinds, 10 of each variant
    counts = Counter((one["kind"], one["row"]["dtype"]) for one in chosen)
    assert counts == {(kind, dtype): 10 for kind in KIND_NAMES for dtype in ("float32", "bfloat16")}


def test_power_comes_for_sixty_of_each_kind_also_where_the_preset_asks_for_fewer() -> None:
    schedule = make_schedule(PLAN, power=100)
    assert {kind: n for kind, n in Counter(t.item["kind"] for t in schedule.power).items() if n < 60} == {
        "network": NETWORKS
    }
    assert make_schedule(PLAN, power=0).power == []
    # 7 x 20 and 20 networks
    assert len(make_schedule(PLAN, power=100, per_kind=20).power) == 160


@pytest.mark.parametrize("preset", [*PRESETS.values(), *ACCELERATOR_PRESETS.values()])
def test_a_presets_powers_are_as_many_as_it_says_and_spread_over_all_kinds(preset: Preset) -> None:
    kinds = [*(name for name, kind in KINDS.items() if kind.by_default), "network"]
    plan = [item(kind, number, 10**9, 10**6) for number in range(400) for kind in kinds]
    counts = Counter(
        t.item["kind"] for t in make_schedule(plan, preset.power, per_kind=preset.powers_per_kind).power
    )
    # the least of each kind is part of the preset's own number: all kinds have as many, or one less
    assert sum(counts.values()) == preset.power
    assert set(counts) == set(kinds)
    assert min(counts.values()) >= preset.powers_per_kind
    assert max(counts.values()) - min(counts.values()) <= 1
    assert (preset.powers_per_kind >= 60) == (
        preset.power >= 60 * len(kinds)
    )  # `full` alone has what a fit wants


def test_networks_stand_in_the_second_third() -> None:
    order = [task.item["kind"] for task in make_schedule(PLAN).runtime]
    places = [index / len(order) for index, kind in enumerate(order) if kind == "network"]
    assert len(places) == NETWORKS
    assert 0.32 < min(places) < max(places) < 0.67


def test_some_are_measured_twice_in_another_shard() -> None:
    schedules = [make_schedule(PLAN, power=500, shard=(number, 3)) for number in (1, 2, 3)]
    first = [{task.key[0] for task in schedule.runtime} for schedule in schedules]
    again = [{task.key[0] for task in schedule.runtime_again} for schedule in schedules]
    assert sum(map(len, first)) == len(PLAN) == len(first[0] | first[1] | first[2])
    # thirds of 2,000: 667 with a standard deviation of sqrt(2000 * 2/9) = 21
    assert all(600 < len(names) < 740 for names in first)
    # 7 % of 2,000: 140 with one of 11
    assert 100 < sum(map(len, again)) < 180
    for number in range(3):
        assert again[number] <= first[number - 1]
    power = [task.key for schedule in schedules for task in (*schedule.power, *schedule.power_again)]
    assert len(power) == len(set(power))
    assert sum(replicate == 0 for _, replicate in power) == 500


def test_batches_keep_to_their_block_their_memory_and_their_kind() -> None:
    tasks = [Task(item("softmax", n, 10, 2**30), RUNTIME) for n in range(4)]
    assert [len(batch) for batch in batched(tasks, steady(60), set())] == [3, 1]  # of 3 GiB
    tasks = [Task(one, RUNTIME) for one in PLAN[:5] + PLAN[-2:] + PLAN[5:8]]
    assert [len(batch) for batch in batched(tasks, steady(3), set())] == [3, 2, 2, 3]
    assert [len(batch) for batch in batched(tasks, steady(3), {tasks[1].key})] == [1, 1, 3, 2, 3]
    powered = [Task(one, POWER) for one in PLAN[:3]]
    assert [len(batch) for batch in batched(powered, steady(60), set())] == [1, 1, 1]


def test_batches_grow_to_their_block_on_a_quick_machine_and_stay_short_on_a_slow_one() -> None:
    tasks = [Task(one, RUNTIME) for one in PLAN[:200]]

    def lengths(task_s: list[float]) -> list[int]:
        sizes, pace, found = BatchSizes(60), iter(task_s), []
        for batch in batched(tasks, sizes, set()):
            found.append(len(batch))
            sizes.add(batch, len(batch) * next(pace, task_s[-1]))
        return found

    # four times as many each time, as 10 s hold 200 tasks of 0.05 s
    assert lengths([0.05]) == [2, 8, 32, 60, 60, 38]
    # 10 s hold 5 tasks of 2 s, and none of 30 s
    assert lengths([2.0])[:4] == [2, 5, 5, 5]
    assert lengths([30.0])[:3] == [2, 1, 1]
    # a machine that others use for a while: 2 tasks of 30 s, then one at a time until it is quick again
    assert lengths([30.0, 30.0, 0.05])[:5] == [2, 1, 1, 4, 16]
    sizes = BatchSizes(60, {RUNTIME: 60})
    sizes.add(tasks[:3], 0.1)  # short for want of memory: the next one is not
    assert sizes.of(tasks[0]) == 60
    network = Task(PLAN[-1], RUNTIME)
    sizes.add([network], 2 * BATCH_S)
    assert (sizes.of(network), sizes.of(tasks[0]), BatchSizes(1).of(network)) == (1, 60, 1)


# ---- costs ----


def test_costs_start_from_planning_values_and_end_at_what_was_taken() -> None:
    costs = Costs.planned_for("cuda")
    small = [Task(item("softmax", n, 1, 1), RUNTIME) for n in range(1000)]
    assert costs.of(small[:10]) == pytest.approx(10 * 0.18)
    costs.add(small[:20], 20 * 0.36)
    # as many tasks as the planning value counts for: all (1 + 2) / 2 times as slow, this tier (1.5 + 2) / 2
    assert costs.of(small[:1]) == pytest.approx(1.75 * 0.18, rel=1e-3)
    costs.add(small, 1000 * 0.36)
    assert costs.of(small[:1]) == pytest.approx(0.36, rel=0.02)
    powered = [Task(one.item, POWER) for one in small[:5]]
    assert costs.of(powered) == pytest.approx(
        5 * 2 * 0.8, rel=0.02
    )  # none has been seen: as slow as all else
    assert costs.patience(small[:1]) == LEAST_PATIENCE_S + 20.0  # twice 10 s to cool down
    assert costs.patience(powered) == pytest.approx(20 * 5 * 2 * 0.8, rel=0.02)
    assert sum(costs.parts(small[:7], 3.5)) == pytest.approx(3.5)


def test_a_device_that_cools_down_is_not_taken_to_hang() -> None:
    tasks = [Task(item("softmax", n, 1, 1), RUNTIME) for n in range(3)]
    assert Costs.planned_for("gpu").patience(tasks) >= 3 * COOLINGS * COOL_S + LEAST_PATIENCE_S
    # a processor is not cooled, and power is taken but once: 20 * 3 * 0.8 s
    assert Costs.planned_for("cpu").patience(tasks) == LEAST_PATIENCE_S
    assert Costs.planned_for("gpu").patience([Task(one.item, POWER) for one in tasks]) == pytest.approx(48)


def test_an_estimate_counts_every_runs_start() -> None:
    costs = Costs.planned_for("cuda")
    tasks = [Task(item("softmax", n, 1, 1), RUNTIME) for n in range(5000)]
    # 5,000 * 0.18 s = 900 s of work in runs of 540 - 20 - 45 = 475 s: two of them, 990 s with their starts
    found = estimate(tasks, costs, budget_s=540)
    assert found.runs == 2
    assert found.seconds == pytest.approx(990, rel=1e-3)
    assert (found.runtime, found.power) == (5000, 0)
    assert margin_s(540) == 20
    assert margin_s(100) == 5


# ---- a whole collection on the simulated device ----


def collected(out: Path, device: Simulated, budget_s: float, **changes: Any) -> list[Progress]:
    """One run of the command; what was displayed at its beginning and at its end."""
    import dataclasses

    seen: list[Progress] = []
    settings: dict[str, Any] = {
        "preset": "standard",
        "kinds": None,
        "models": None,
        "dtypes": ("float32",),
        "seed": 0,
    }
    request = Request(**{**settings, **changes}, budget_s=budget_s, out=out)
    collect(request, lambda p: seen.append(dataclasses.replace(p)), device, device.clock)
    return seen


@pytest.mark.parametrize("slower", [1.0, 1.5])
def test_two_thousand_configurations_are_planned_into_shards_of_nine_minutes(
    tmp_path: Path, slower: float
) -> None:
    out, device = tmp_path / "data", Simulated(PLAN, slower=slower)
    estimates, ends = [], [0.0]
    for run in range(1, 8):
        begun = device.now_s
        seen = collected(out, device, 540)
        estimates.append(seen[0].estimate.seconds)
        ends.append(device.now_s)
        assert device.now_s - begun <= 540
        if run == 1:
            assert seen[0].estimate.power == pytest.approx(500 * 1.07, abs=25)
        if collected_all(out):
            break
    taken = device.now_s
    if slower == 1.0:
        assert taken < 25 * 60
        # from planning values alone, before anything was measured
        assert estimates[0] == pytest.approx(taken, rel=0.2)
        assert run <= 3
    for index in range(1, len(estimates)):  # from what the earlier runs took, whatever the device
        left = taken - ends[index]
        assert estimates[index] == pytest.approx(left, rel=0.2, abs=30)
    powered = 0
    for kind, table in read_dataset(out).tables.items():
        if kind != "network":
            assert kind in KINDS
        first = table[table["replicate"] == 0]
        assert not first["config_id"].duplicated().any()
        powered += int(first["power_w"].notna().sum())
        assert first["power_w"].notna().sum() >= (NETWORKS if kind == "network" else 60)
        known = {one["config_id"]: one for one in PLAN}
        for row in table[table["power_w"].notna()].head(20).to_dict("records"):
            one = known[row["config_id"]]
            assert row["runtime_s"] == pytest.approx(runtime_s(one["flops"], one["bytes"]), rel=1e-6)
            assert row["power_w"] == pytest.approx(power_w(one["flops"], one["bytes"]), rel=1e-6)
    assert powered == 500
    assert len(read_dataset(out)) == len(PLAN) + sum(collected_twice(out).values())


def test_a_quick_collection_on_an_accelerator_measures_the_power_of_a_hundred(tmp_path: Path) -> None:
    first, *_ = collected(tmp_path / "data", Simulated(PLAN), 60, preset="quick")
    # 100 and some 7 of them again; 60 of each of 8 kinds would be 480
    assert 100 <= first.estimate.power <= 120


def test_gaps_leave_time_to_power_and_measure_nothing_twice(tmp_path: Path) -> None:
    # 41 s start, 15 s margin, 35 s of power: 209 s for runtimes that take 0.16 s, of networks 1.6 s
    seen = collected(tmp_path / "data", Simulated(PLAN), 300, preset="gaps")
    assert seen[0].planned == len(PLAN)
    assert 800 < seen[-1].done < 1700
    assert 10 <= seen[-1].powered <= 60
    assert seen[-1].spent_s <= 300
    assert not sum(collected_twice(tmp_path / "data").values())


def collected_twice(out: Path) -> Counter[str]:
    """Replicates by kind."""
    return Counter({k: int((t["replicate"] == 1).sum()) for k, t in read_dataset(out).tables.items()})


def collected_all(out: Path) -> bool:
    """Whether nothing of the plan is left."""
    schedule = make_schedule(PLAN, power=500)
    tables = read_dataset(out).tables.values()
    rows = sum(len(table) for table in tables)
    powers = sum(int(table["power_w"].notna().sum()) for table in tables)
    wanted = len(schedule.power) + len(schedule.power_again)
    return rows == len(schedule.runtime) + len(schedule.runtime_again) and powers == wanted


def test_where_time_is_short_it_is_power_that_gives_way_and_stays_spread(tmp_path: Path) -> None:
    # 41 s start, 2,000 * 0.16 s + 40 * 1.6 s runtimes, 140 * 0.16 s replicates: 450 s; 60 s left for power
    seen = collected(tmp_path / "data", Simulated(PLAN), 600)
    data = read_dataset(tmp_path / "data")
    assert (seen[-1].done, seen[-1].planned) == (len(data), len(data))
    assert 20 < seen[-1].powered < 200
    powered = {kind: int(table["power_w"].notna().sum()) for kind, table in data.tables.items()}
    assert min(powered.values()) >= max(powered.values()) // 2 > 2
    again = [table[(table["replicate"] == 1) & table["power_w"].notna()] for table in data.tables.values()]
    firsts = [table[(table["replicate"] == 0) & table["power_w"].notna()] for table in data.tables.values()]
    twice = {name for table in again for name in table["config_id"]}
    assert twice <= {name for table in firsts for name in table["config_id"]}
    assert seen[-1].spent_s <= 600


def test_shards_are_folders_that_read_as_one_dataset(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        collected(tmp_path / "data", Simulated(PLAN), 3600, shard=(number, 3))
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [
        f"shard-{n}-of-3" for n in (1, 2, 3)
    ]
    data = read_dataset(tmp_path / "data")
    assert (data.name, data.device) == ("data", "Simulated GPU")
    whole = make_schedule(PLAN)
    assert len(data) == len(whole.runtime) + len(whole.runtime_again)
    for table in data.tables.values():
        assert not table.duplicated(["config_id", "replicate"]).any()
    assert len(data.meta["sessions"]) == 3
    parts = [read_dataset(tmp_path / "data" / f"shard-{n}-of-3") for n in (1, 2, 3)]
    (merged,) = merge(parts)
    assert len(merged) == len(data)
    (twice,) = merge([*parts, *parts])
    assert len(twice) == len(data)
