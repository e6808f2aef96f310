"""Cards: what a reader of a dataset or predictor must know before trusting it, written beside it as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralpower.data.dataset import Dataset, read_folder, replace_file, shard_folders
from neuralpower.files import markdown as md
from neuralpower.files.markdown import inline
from neuralpower.layers import KINDS
from neuralpower.learn.codec import save
from neuralpower.learn.predictor import Predictor
from neuralpower.report.tables import score_cells

if TYPE_CHECKING:
    import pandas as pd

ERRORS = (
    "Ten folds over configurations; *beyond*: mean absolute error of the largest rows, and of those farthest along an "
    "axis, each held out together; *inside*: share within the 90 % interval; *base*: the kind's special terms, too, a polynomial "
    "alone, or a constant, as rows held out chose. Errors of single layers are mostly noise of "
    "the measurement and cancel in a network.\n\n"
)

SHARDS = ("shard", "collected", "protocol", "phases", "rows", "by kind")

PROTOCOLS = {
    "cpu": "interleaved rounds of ~60 calls, inputs written just before, weights cold, denormals flushed; `runtime_s` is "
    "the 10th percentile of the rounds; of backward passes without autograd's start",
    "cuda": "one configuration at a time, inputs rotated past the last-level cache; `runtime_s` is the median device time "
    "of a call, `runtime_eager_s` what a user sees",
}


def dataset_card(dataset: Dataset) -> str:
    """Device, software, protocol, meter, shards, rows per kind and status, noise floor, gaps."""
    kinds = sorted(dataset.tables.items())
    header = ["kind", "rows", "of the sweep", "of networks", "dtypes", "runtime, us", "median spread", "with power"]
    shards = [read_folder(shard, samples=False, empty=True) for shard in shard_folders(dataset.path)]
    command = "merge" if shards else "collect-data"
    return (
        f"# Dataset {inline(f'`{dataset.name}`')}\n\nWritten by `neuralpower {command}`.\n\n"
        + markdown(["", ""], _about(dataset, shards or [dataset]))
        + (f"\n\n## Shards\n\n{markdown(SHARDS, [_shard(shard) for shard in shards])}" if shards else "")
        + "\n\n## Rows\n\n"
        + markdown([*header, "not ok"], [_row(kind, table) for kind, table in kinds])
        + "\n\nThe spread is the distance between the quartiles of a row's samples. Rows that are not `ok` enter no fit.\n\n"
        "## Noise floor\n\n"
        + _noise(dataset, shards)
        + "\n\n## Known gaps\n\n"
        + "".join(f"- {inline(gap)}\n" for gap in _gaps(dataset))
    )


def _shard(shard: Dataset) -> list[str]:
    """When a shard was collected, how, and how many rows of each kind it holds."""
    meta, tables = shard.meta, sorted(shard.tables.items())
    phases = sorted({str(phase) for _, table in tables if "phase" in table for phase in table["phase"].dropna()})
    return [
        f"`{shard.name}`",
        "; ".join(_spans(meta.get("sessions") or [])),
        f"{meta.get('protocol_version', '?')}",
        ", ".join(phases) or "forward",
        str(len(shard)),
        ", ".join(f"{kind} {len(table)}" for kind, table in tables),
    ]


def _noise(dataset: Dataset, shards: Sequence[Dataset]) -> str:
    """How far second measurements lie from first ones, of each shard by itself."""
    parts = [(f"`{shard.name}`, ", shard) for shard in shards] or [("", dataset)]
    floor = [
        [f"{name}{row[0]}", *row[1:]]
        for name, part in parts
        for kind, table in sorted(part.tables.items())
        for row in _noise_floor(kind, table)
    ]
    if not floor:
        return "Not known: no configuration was measured twice."
    return (
        "Configurations that were measured again in another process: how far the second value lies from the first.\n\n"
        + markdown(["kind", "what", "pairs", "median", "90 % below"], floor)
    )


def _about(dataset: Dataset, parts: Sequence[Dataset]) -> list[list[str]]:
    hardware: Mapping[str, Any] = dataset.meta.get("hardware") or {}
    given: Sequence[Mapping[str, Any]] = dataset.meta.get("sessions") or []
    sessions = sorted(given, key=lambda session: str(session.get("utc")))
    first, last = (sessions[0], sessions[-1]) if sessions else ({}, {})
    size = f"{hardware.get('cores', '?')} cores" + (", virtual" if hardware.get("virtual") else "")
    software = [f"{name} {first[name]}" for name in ("torch", "transformers", "python", "kernel") if name in first]
    software += [f"{name} {hardware[name]}" for name in ("cuda", "driver") if hardware.get(name)]
    protocol = PROTOCOLS.get(str(hardware.get("type")), PROTOCOLS["cuda"])
    versions = ", ".join(sorted({str(part.meta.get("protocol_version", "?")) for part in parts}))
    tested = last.get("self_test") or {}
    return [
        ["device", f"{dataset.device}, {size}"],
        ["caches", f"L2 {_mib(hardware.get('l2_bytes'))}, last level {_mib(hardware.get('llc_bytes'))}"],
        ["software", ", ".join(software)],
        ["collected", "; ".join(_spans(sessions))],
        ["protocol", f"version {versions}: {protocol}"],
        [
            "speed of the machine",
            f"`sentinel_s`: one fixed layer timed throughout, {_us(dataset.sentinel_s)} at its usual "
            "speed; it is stored with every row, from version 4 on with its second call in a row, `sentinel_again_s`",
        ],
        ["power", _power(dataset, parts)],
        ["meter's self-test", ", ".join(f"{name} {value}" for name, value in sorted(tested.items())) or "none"],
    ]


def _spans(sessions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """When, by preset and dtypes; sessions that follow each other with the same are told as the first and the last of them."""
    for what, some in groupby(sessions, lambda s: f"{s.get('preset')}, {', '.join(s.get('dtypes', []))}"):
        first, *more = [str(s.get("utc")) for s in some]
        yield f"{first} to {more[-1]} ({what}, {1 + len(more)} sessions)" if more else f"{first} ({what})"


def _row(kind: str, table: pd.DataFrame) -> list[str]:
    status = table["status"].fillna("ok") if "status" in table else table["runtime_s"].map(lambda _: "ok")
    ok = table[status == "ok"]
    spread = (ok["runtime_q75_s"] / ok["runtime_q25_s"] - 1).median() if "runtime_q75_s" in ok else float("nan")
    swept = int((ok["source"] == "sweep").sum()) if "source" in ok else 0
    failed = status[status != "ok"].value_counts()
    shown = f"{ok['runtime_s'].min() * 1e6:.3g} to {ok['runtime_s'].max() * 1e6:.3g}" if len(ok) else "-"
    return [
        f"`{kind}`",
        str(len(ok)),
        str(swept),
        str(len(ok) - swept),
        ", ".join(sorted(set(ok["dtype"]))) if "dtype" in ok else "float32",
        shown,
        f"{spread:.1%}" if np.isfinite(spread) else "-",
        str(int(ok["power_w"].notna().sum())) if "power_w" in ok else "0",
        ", ".join(f"{count} {name}" for name, count in failed.items()) or "-",
    ]


def _noise_floor(kind: str, table: pd.DataFrame) -> Iterator[list[str]]:
    """Relative distances of second measurements from first ones, for runtime and power."""
    if "replicate" not in table or "config_id" not in table:
        return
    ok = table[table["status"].eq("ok")] if "status" in table else table
    for column, name in (("runtime_s", "runtime"), ("power_w", "power")):
        if column not in ok:
            continue
        pairs = ok.assign(value=ok[column].astype(float), replicate=ok["replicate"].fillna(0).astype(int))
        wide = pairs.pivot_table(index="config_id", columns="replicate", values="value", aggfunc="last")
        if not {0, 1} <= set(wide.columns):
            continue
        apart = (wide[1] / wide[0] - 1).abs().dropna()
        if len(apart):
            yield [f"`{kind}`", name, str(len(apart)), f"{apart.median():.1%}", f"{apart.quantile(0.9):.1%}"]


def _power(dataset: Dataset, parts: Sequence[Dataset]) -> str:
    sources: set[str] = set()
    for table in dataset.tables.values():
        if "power_source" in table:
            sources |= set(table["power_source"].dropna()) - {"none"}
    reasons = dict.fromkeys(str(part.meta.get("power_reason", "see the columns")) for part in parts)
    return ", ".join(sorted(sources)) or f"none: {', '.join(reasons)}"


def _gaps(dataset: Dataset) -> Iterator[str]:
    """What a predictor cannot learn from it."""
    tables = dataset.tables
    phases = sorted({str(phase) for table in tables.values() if "phase" in table for phase in table["phase"].dropna()})
    yield f"Phases: {', '.join(phases) or 'forward'} alone; layers larger than the preset's bounds are missing."
    if (dataset.meta.get("hardware") or {}).get("virtual"):
        yield "A virtual machine, whose speed other tenants change."
    if missing := sorted(set(KINDS) - set(tables)):
        yield f"Kinds without a row: {', '.join(missing)}."
    reasons: Counter[str] = Counter()
    for table in tables.values():
        if {"power_w", "power_reason"} <= set(table):
            reasons.update(table.loc[table["power_w"].isna(), "power_reason"].dropna())
    if reasons:
        yield f"Rows without power: {', '.join(f'{count} ({reason})' for reason, count in reasons.most_common())}."


def write_predictor(predictor: Predictor, path: Path) -> None:
    """The predictor, under the file's name, with its card beside it; raises DatasetError where they cannot be written."""
    named = replace(predictor, name=path.stem)
    save(named, path)
    replace_file(path.with_suffix(".md"), predictor_card(named))


def predictor_card(predictor: Predictor) -> str:
    """What it knows, what it was learnt from, how well it does on held-out folds."""
    rows = []
    named = [(key, r, "") for key, r in predictor.regressors.items()]
    named += [(key, r, ", power") for key, r in (predictor.power or {}).items()]
    for (kind, dtype, phase, group), r, target in named:
        about = [f"`{kind}`{target}", group, dtype, phase, str(r.scores.rows), r.basis(), str(len(r.terms))]
        rows.append([*about, *score_cells(r)])
    data = predictor.dataset
    source = [["measurements", str(data["source"])]] if data.get("source") else []
    calibrated = data.get("calibrated_from")
    if calibrated:
        source.append(["calibrated", f"from `{calibrated}` with {data['calibrated_with']} layers measured here"])
    header = ["kind", "group", "dtype", "phase", "rows", "base", "terms", "MAPE", "RMSPE", "median, base"]
    header += ["median, base + residual", "bias of the sum", "beyond", "inside"]
    return (
        f"# Predictor {inline(f'`{predictor.name}`')}\n\n"
        f"Written by `neuralpower train-predictor`; learner {inline(f'`{predictor.learner}`')}.\n\n"
        + markdown(
            ["", ""],
            [
                ["device", predictor.device],
                [
                    "learnt from",
                    f"dataset `{data.get('name')}`, {data.get('rows')} rows, {data.get('networks', 0)} whole networks, "
                    f"{data.get('rejected')} left out",
                ],
                *source,
                *_provenance(data),
                ["kinds", ", ".join(predictor.kinds)],
                [
                    "knows",
                    f"{', '.join(predictor.dtypes)}; {', '.join(predictor.phases)}; runtime"
                    + " and power" * bool(predictor.power),
                ],
                ["trained", str(data.get("trained"))],
            ],
        )
        + "\n\n## Errors on held-out rows\n\n"
        + ERRORS
        + markdown(header, rows)
        + "\n"
        + _saved(predictor)
    )


def _saved(predictor: Predictor) -> str:
    """What layers save that fit the device's memory and tiles; nothing where that is not known."""
    rows = [
        [
            f"`{kind}`",
            group,
            dtype,
            phase,
            ", ".join(f"{name} {slope:.1%}" for name, slope in r.alignment.slopes.items()),
        ]
        for (kind, dtype, phase, group), r in predictor.regressors.items()
        if r.alignment
    ]
    if not rows:
        return ""
    header = ["kind", "group", "dtype", "phase", "saved"]
    return (
        "\n## Saved where sizes fit\n\nOf log(seconds), at a share of 1, beside a share of 0.\n\n"
        + markdown(header, rows)
        + "\n"
    )


def _provenance(data: Mapping[str, Any]) -> list[list[str]]:
    """Software, protocol and meter of the last session of what it was learnt from, as far as they are known."""
    sessions: Sequence[Mapping[str, Any]] = data.get("sessions") or [{}]
    last = sessions[-1]
    rows = []
    if "torch" in last:
        rows.append(["software", f"torch {last['torch']}, python {last.get('python', '?')}"])
    if "protocol_version" in last:
        rows.append(["protocol", f"version {last['protocol_version']}"])
    if tested := last.get("self_test"):
        rows.append(["meter's self-test", ", ".join(f"{name} {value}" for name, value in sorted(tested.items()))])
    return rows


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(md.table(header, rows))


def _mib(size: Any) -> str:
    return f"{int(size) / 2**20:g} MiB" if size else "unknown"


def _us(seconds: float | None) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds else "unknown"
