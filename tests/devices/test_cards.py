"""Cards: what a reader of a dataset must know before trusting it."""

from pathlib import Path
from typing import Any

import pandas as pd

from neuralpower.data.dataset import Dataset
from neuralpower.report.cards import dataset_card

META = {
    "device": "x",
    "protocol_version": 1,
    "hardware": {"type": "cpu", "cores": 2},
    "power_reason": "no meter was read",
    "sessions": [{"utc": "2026-01-01", "preset": "quick", "dtypes": ["float32"], "torch": "2.13.0"}],
}


def row(name: str, runtime_s: float, replicate: int = 0, **columns: Any) -> dict[str, Any]:
    about = {"config_id": name, "status": "ok", "source": "sweep", "dtype": "float32", "phase": "forward"}
    return {**about, "runtime_s": runtime_s, "replicate": replicate, **columns}


def card(rows: list[dict[str, Any]], **meta: Any) -> str:
    return dataset_card(Dataset(Path("here"), {**META, **meta}, {"softmax": pd.DataFrame(rows)}))


def test_the_noise_floor_is_the_distance_of_replicates() -> None:
    rows = [row("a", 1e-5), row("b", 2e-5), row("c", 4e-5), row("d", 1e-5), row("e", 1e-5)]
    # 10, 20 and 5 % apart: median 10 %; 90 % of the way from first to last of three: 10 + 0.8 * 10 = 18 %
    rows += [row("a", 1.1e-5, 1), row("b", 1.6e-5, 1), row("c", 4.2e-5, 1)]
    rows += [row("d", 9e-5, 1, status="noisy"), row("f", 1e-5, 1)]  # which train nothing
    assert "| `softmax` | runtime | 3 | 10.0% | 18.0% |" in card(rows)
    assert "| `softmax` | power |" not in card(rows)


def test_without_replicates_the_noise_floor_is_not_known() -> None:
    assert "Not known: no configuration was measured twice." in card([row("a", 1e-5)])
    older = [
        {name: value for name, value in row("a", 1e-5).items() if name not in ("replicate", "config_id")}
    ]
    assert "Not known: no configuration was measured twice." in card(older)


def test_what_is_not_ok_is_counted_by_its_status() -> None:
    rows = [
        row("a", 1e-5),
        *(row(f"n{i}", 1e-5, status="noisy") for i in range(3)),
        row("o", None, status="oom"),
    ]
    assert "| `softmax` | 1 | 1 | 0 | float32 | 10 to 10 | - | 0 | 3 noisy, 1 oom |" in card(rows)


def test_sessions_alike_are_told_as_a_span() -> None:
    sessions = [{**META["sessions"][0], "utc": f"2026-01-0{day}"} for day in (1, 2, 3)]  # type: ignore[index]
    sessions += [{**sessions[0], "utc": "2026-02-01", "preset": "full"}]
    spans = "2026-01-01 to 2026-01-03 (quick, float32, 3 sessions); 2026-02-01 (full, float32)"
    assert f"| collected | {spans} |" in card([row("a", 1e-5)], sessions=sessions)
    assert "| collected | 2026-01-01 (quick, float32) |" in card([row("a", 1e-5)])


def test_gaps_and_the_meter_are_said() -> None:
    rows = [
        row("a", 1e-5, power_w=50.0, power_source="rapl", power_reason=None),
        row("b", 1e-5, power_w=None, power_source="rapl", power_reason="counter_anomaly"),
        row("c", 1e-5, power_w=None, power_source="none", power_reason="not measured"),
        row("d", 1e-5, power_w=None, power_source="none", power_reason="not measured"),
    ]
    tested = {"update_period_s": 0.001, "idle_w": 12.5}
    sessions = [{**META["sessions"][0], "self_test": tested}]  # type: ignore[index]
    text = card(rows, sessions=sessions)
    assert "| power | rapl |" in text
    assert "| meter's self-test | idle_w 12.5, update_period_s 0.001 |" in text
    assert "- Rows without power: 2 (not measured), 1 (counter_anomaly)." in text
    assert "- Kinds without a row: activation, attention," in text
    assert "| protocol | version 1: interleaved rounds" in text
    assert "| power | none: no meter was read |" in card([row("a", 1e-5)])
