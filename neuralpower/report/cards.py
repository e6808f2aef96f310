"""Cards of datasets and predictors: Markdown files next to them that describe their content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralpower.data.dataset import Dataset, read_folder, shard_folders
from neuralpower.files.atomic import replace_file
from neuralpower.layers import KINDS
from neuralpower.learn.files.predictor_json import save
from neuralpower.learn.keys import Key
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.regressor import Regressor
from neuralpower.report.page import render
from neuralpower.report.tables import score_cells

if TYPE_CHECKING:
    import pandas as pd

PROTOCOLS = {
    "cpu": "interleaved rounds of ~60 calls, inputs written just before, weights cold, denormals flushed; "
    "`runtime_s` is the 10th percentile of the rounds; backward passes exclude autograd's start",
    "cuda": "one configuration at a time, inputs rotated past the last-level cache; `runtime_s` is the "
    "median device time of a call, `runtime_eager_s` the time that a user sees",
}
SOFTWARE = ("torch", "transformers", "python", "kernel")


def dataset_card(dataset: Dataset) -> str:
    """The device, software, protocol, meter, shards, rows per kind and status, noise floor and gaps."""
    hardware: Mapping[str, Any] = dataset.meta.get("hardware") or {}
    given: Sequence[Mapping[str, Any]] = dataset.meta.get("sessions") or []
    sessions = sorted(given, key=lambda session: str(session.get("utc")))
    first, last = (sessions[0], sessions[-1]) if sessions else ({}, {})
    software = [f"{name} {first[name]}" for name in SOFTWARE if name in first]
    software += [f"{name} {hardware[name]}" for name in ("cuda", "driver") if hardware.get(name)]
    shards = [read_folder(shard, samples=False, empty=True) for shard in shard_folders(dataset.path)]
    parts, kinds = shards or [dataset], sorted(dataset.tables.items())
    powerless: Counter[str] = Counter()
    for table in dataset.tables.values():
        if {"power_w", "power_reason"} <= set(table):
            powerless.update(table.loc[table["power_w"].isna(), "power_reason"].dropna())
    return render(
        "dataset_card.md.j2",
        dataset=dataset,
        hardware=hardware,
        software=software,
        spans=_spans(sessions),
        versions=sorted({str(part.meta.get("protocol_version", "?")) for part in parts}),
        reasons=dict.fromkeys(str(part.meta.get("power_reason", "see the columns")) for part in parts),
        protocol=PROTOCOLS.get(str(hardware.get("type")), PROTOCOLS["cuda"]),
        self_test=_self_test(last),
        sources=sorted(_values(dataset, "power_source") - {"none"}),
        shards=[_shard(shard) for shard in shards],
        rows=[_row(kind, table) for kind, table in kinds],
        floor=list(_noise(shards, dataset)),
        phases=sorted(_values(dataset, "phase")),
        missing=sorted(set(KINDS) - set(dataset.tables)),
        powerless=[f"{count} ({reason})" for reason, count in powerless.most_common()],
        mib=lambda size: f"{int(size) / 2**20:g} MiB" if size else "unknown",
        us=lambda seconds: f"{seconds * 1e6:.0f} us" if seconds else "unknown",
    )


def _shard(shard: Dataset) -> list[str]:
    """When a shard was collected, how, and how many rows of each kind it holds."""
    return [
        f"`{shard.name}`",
        "; ".join(_spans(shard.meta.get("sessions") or [])),
        f"{shard.meta.get('protocol_version', '?')}",
        ", ".join(sorted(_values(shard, "phase"))) or "forward",
        str(len(shard)),
        ", ".join(f"{kind} {len(table)}" for kind, table in sorted(shard.tables.items())),
    ]


def _noise(shards: Sequence[Dataset], dataset: Dataset) -> Iterator[list[str]]:
    """Relative distances of second measurements from first ones: a line per shard, kind and quantity."""
    for name, part in [(f"`{shard.name}`, ", shard) for shard in shards] or [("", dataset)]:
        for kind, table in sorted(part.tables.items()):
            for what, apart in _distances(table):
                figures = [str(len(apart)), f"{apart.median():.1%}", f"{apart.quantile(0.9):.1%}"]
                yield [f"{name}`{kind}`", what, *figures]


def _values(dataset: Dataset, column: str) -> set[str]:
    """The values of a column in all tables."""
    tables = [table for table in dataset.tables.values() if column in table]
    return {str(value) for table in tables for value in table[column].dropna().unique()}


def _self_test(session: Mapping[str, Any]) -> str:
    """The result of the meter's self-test; "" if there is none."""
    return ", ".join(f"{name} {value}" for name, value in sorted((session.get("self_test") or {}).items()))


def _spans(sessions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The times, preset and dtypes of sessions; a line for each run of sessions that share the last two."""
    for what, some in groupby(sessions, lambda s: f"{s.get('preset')}, {', '.join(s.get('dtypes', []))}"):
        first, *more = [str(s.get("utc")) for s in some]
        yield f"{first} to {more[-1]} ({what}, {1 + len(more)} sessions)" if more else f"{first} ({what})"


def _row(kind: str, table: pd.DataFrame) -> list[str]:
    status = table["status"].fillna("ok") if "status" in table else table["runtime_s"].map(lambda _: "ok")
    ok = table[status == "ok"]
    has_spread = "runtime_q75_s" in ok
    spread = (ok["runtime_q75_s"] / ok["runtime_q25_s"] - 1).median() if has_spread else np.nan
    swept = int((ok["source"] == "sweep").sum()) if "source" in ok else 0
    failed = status[status != "ok"].value_counts()
    shown = f"{ok['runtime_s'].min() * 1e6:.3g} to {ok['runtime_s'].max() * 1e6:.3g}" if len(ok) else "-"
    dtypes = ", ".join(sorted(set(ok["dtype"].fillna("float32").map(str)))) if "dtype" in ok else "float32"
    powered = str(ok["power_w"].count()) if "power_w" in ok else "0"
    lost = ", ".join(f"{count} {name}" for name, count in failed.items()) or "-"
    apart = f"{spread:.1%}" if np.isfinite(spread) else "-"
    return [f"`{kind}`", str(len(ok)), str(swept), str(len(ok) - swept), dtypes, shown, apart, powered, lost]


def _distances(table: pd.DataFrame) -> Iterator[tuple[str, pd.Series[float]]]:
    """(runtime or power, |second / first measurement - 1|) of everything that was measured twice."""
    if not {"replicate", "config_id"} <= set(table):
        return
    ok = table[table["status"].eq("ok")] if "status" in table else table
    for column in [c for c in ("runtime_s", "power_w") if c in ok]:
        pairs = ok.assign(value=ok[column].astype(float), replicate=ok["replicate"].fillna(0).astype(int))
        wide = pairs.pivot_table(index="config_id", columns="replicate", values="value", aggfunc="last")
        if {0, 1} <= set(wide) and len(apart := (wide[1] / wide[0] - 1).abs().dropna()):
            yield column.rpartition("_")[0], apart


def write_predictor(predictor: Predictor, path: Path) -> None:
    """Write the predictor to the file, and its card next to it; raises DatasetError if it cannot."""
    named = replace(predictor, name=path.stem)
    save(named, path)
    replace_file(path.with_suffix(".md"), predictor_card(named))


def predictor_card(predictor: Predictor) -> str:
    """Markdown with a predictor's targets, training data, and errors on held-out folds."""
    targets = (("", predictor.regressors), (", power", predictor.power or {}))
    named = [(key, r, target) for target, regressors in targets for key, r in regressors.items()]
    return render(
        "predictor_card.md.j2",
        predictor=predictor,
        provenance=_provenance(predictor.dataset),
        rows=[
            [*_about(key, target), str(r.scores.rows), r.basis(), str(len(r.terms)), *score_cells(r)]
            for key, r, target in named
        ],
        saved=[[*_about(key), saved] for key, r in predictor.regressors.items() if (saved := _saved(r))],
    )


def _about(key: Key, target: str = "") -> list[str]:
    kind, dtype, phase, group = key
    return [f"`{kind}`{target}", group, dtype, phase]


def _saved(regressor: Regressor) -> str:
    """The time saved by layers that fit the device's memory and tiles; "" if unknown."""
    slopes = regressor.alignment.slopes if regressor.alignment else {}
    return ", ".join(f"{name} {slope:.1%}" for name, slope in slopes.items())


def _measured_here(data: Mapping[str, Any]) -> str:
    return "whole networks" if data.get("networks") else "layers measured here"


def _provenance(data: Mapping[str, Any]) -> list[list[str]]:
    """The measurements, the calibration, and the last session's software, protocol and meter, if known."""
    sessions: Sequence[Mapping[str, Any]] = data.get("sessions") or [{}]
    last = sessions[-1]
    known = {
        "measurements": data.get("source"),
        "calibrated": data.get("calibrated_from")
        and f"from `{data['calibrated_from']}` with {data['calibrated_with']} {_measured_here(data)}",
        "factors moved": "; ".join(
            f"{one['factor']} x {one['times']:.2f} by {', '.join(one['networks'])}"
            for one in data.get("moved") or ()
        ),
        "software": "torch" in last and f"torch {last['torch']}, python {last.get('python', '?')}",
        "protocol": "protocol_version" in last and f"version {last['protocol_version']}",
        "meter's self-test": _self_test(last),
    }
    return [[what, str(value)] for what, value in known.items() if value]
