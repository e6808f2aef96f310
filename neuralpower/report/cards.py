"""Cards: what a reader of a dataset or predictor must know before trusting it, written beside it as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from neuralpower.dataset import Dataset
from neuralpower.predictor import Predictor
from neuralpower.report.tables import score_cells

ERRORS = (
    "Ten folds over configurations; *beyond*: mean absolute error of the largest rows, and of those farthest along an "
    "axis, each held out together; *inside*: share within the 90 % interval. Errors of single layers are mostly noise of "
    "the measurement and cancel in a network.\n\n"
)


def dataset_card(dataset: Dataset) -> str:
    """Device, software, protocol, rows per kind, spread, gaps."""
    hardware: Mapping[str, Any] = dataset.meta.get("hardware") or {}
    sessions: Sequence[Mapping[str, Any]] = dataset.meta.get("sessions") or []
    rows = []
    for kind, table in sorted(dataset.tables.items()):
        ok = table[table["status"] == "ok"] if "status" in table else table
        spread = (ok["runtime_q75_s"] / ok["runtime_q25_s"] - 1).median() if "runtime_q75_s" in ok else float("nan")
        swept = int((ok["source"] == "sweep").sum()) if "source" in ok else 0
        dtypes = ", ".join(sorted(set(ok["dtype"]))) if "dtype" in ok else "float32"
        rows.append(
            [
                f"`{kind}`",
                str(len(ok)),
                str(swept),
                str(len(ok) - swept),
                str(len(table) - len(ok)),
                dtypes,
                f"{ok['runtime_s'].min() * 1e6:.3g} to {ok['runtime_s'].max() * 1e6:.3g}",
                f"{spread:.1%}" if np.isfinite(spread) else "-",
            ]
        )
    first = sessions[0] if sessions else {}
    about = [
        [
            "device",
            f"{dataset.device}, {hardware.get('cores', '?')} cores" + (", virtual" if hardware.get("virtual") else ""),
        ],
        ["caches", f"L2 {_mib(hardware.get('l2_bytes'))} a core, last level {_mib(hardware.get('llc_bytes'))}"],
        [
            "software",
            ", ".join(
                f"{name} {first[name]}" for name in ("torch", "transformers", "python", "kernel") if name in first
            ),
        ],
        [
            "collected",
            "; ".join(f"{s.get('utc')} ({s.get('preset')}, {', '.join(s.get('dtypes', []))})" for s in sessions),
        ],
        [
            "protocol",
            "interleaved rounds of ~60 calls, inputs written just before, weights cold, denormals flushed; "
            "`runtime_s` is the 10th percentile of the rounds",
        ],
        [
            "speed of the machine",
            f"`sentinel_s`: one fixed layer timed throughout, {_us(dataset.sentinel_s)} at its usual "
            "speed; it is stored with every row",
        ],
        ["power", str(dataset.meta.get("power_reason", "see the columns"))],
    ]
    return (
        f"# Dataset `{dataset.name}`\n\nWritten by `neuralpower collect-data`.\n\n"
        + markdown(["", ""], about)
        + "\n\n## Rows\n\n"
        + markdown(
            ["kind", "rows", "of the sweep", "of networks", "not ok", "dtypes", "runtime, us", "median spread"], rows
        )
        + "\n\nThe spread is the distance between the quartiles of a row's rounds. Rows that are not `ok` (noisy, oom, error, "
        "crashed, timeout) enter no fit.\n\nKnown gaps: forward passes alone; one machine, whose speed other tenants change; "
        "layers larger than the preset's bounds.\n"
    )


def predictor_card(predictor: Predictor) -> str:
    """What it knows, what it was learnt from, how well it does on held-out folds."""
    rows = []
    named = [(key, r, "") for key, r in predictor.regressors.items()]
    named += [(key, r, ", power") for key, r in (predictor.power or {}).items()]
    for (kind, dtype, phase, group), r, target in named:
        rows.append(
            [
                f"`{kind}`{target}",
                group,
                dtype,
                phase,
                str(r.scores.rows),
                str(len(r.terms)),
                *score_cells(r),
            ]
        )
    data = predictor.dataset
    source = [["measurements", str(data["source"])]] if data.get("source") else []
    calibrated = data.get("calibrated_from")
    if calibrated:
        source.append(["calibrated", f"from `{calibrated}` with {data['calibrated_with']} layers measured here"])
    header = [
        "kind",
        "group",
        "dtype",
        "phase",
        "rows",
        "terms",
        "MAPE",
        "RMSPE",
        "median, base",
        "median, base + residual",
        "bias of the sum",
        "beyond",
        "inside",
    ]
    return (
        f"# Predictor `{predictor.name}`\n\nWritten by `neuralpower train-predictor`; learner `{predictor.learner}`.\n\n"
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
    )


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _mib(size: Any) -> str:
    return f"{int(size) / 2**20:g} MiB" if size else "unknown"


def _us(seconds: float | None) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds else "unknown"
