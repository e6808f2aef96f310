"""`neuralpower collect-data --kinds collective`: exchanges between ranks, each a process."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from neuralpower.cli.output import say, tell
from neuralpower.errors import InputError, whole_number

if TYPE_CHECKING:
    from neuralpower.measure.collect import DeviceLock

KIND = "collective"


def wanted(kinds: tuple[str, ...] | None, backend: str | None) -> bool:
    """Whether the kinds are exchanges; raises InputError for exchanges together with other kinds."""
    if kinds is not None and KIND in kinds and len(kinds) > 1:
        rest = ",".join(kind for kind in kinds if kind != KIND)
        raise InputError(
            f"kinds {','.join(kinds)}: collectives are measured apart; run once with --kinds {KIND}, "
            f"and once with --kinds {rest}"
        )
    if backend is not None and kinds is not None and KIND not in kinds:
        raise InputError(
            f"backend {backend!r}: only collectives have one; add --kinds {KIND}, or leave --backend out"
        )
    return backend is not None or kinds == (KIND,)


def ranks_of(text: str) -> tuple[int, ...]:
    """Numbers of ranks with commas; raises InputError."""
    try:
        found = tuple(dict.fromkeys(whole_number(part) for part in text.split(",") if part.strip()))
    except ValueError:
        found = ()
    if not found or min(found) < 2:
        raise InputError(f"ranks {text!r}: write numbers from 2 with commas, as in 2,4")
    return found


def collect(
    backend: str | None, ranks: str | None, lock: DeviceLock, out: Path, budget_s: float, seed: int
) -> None:
    """Measure exchanges and write a dataset; raises InputError, DatasetError, DeviceError."""
    device = lock.device
    from neuralpower.measure.exchanges.run import collect_exchanges, usual_ranks

    usual = "gloo" if device == "cpu" else "nccl"
    backend = backend or usual
    if backend == "gloo" and usual == "nccl":
        raise InputError(f"backend gloo: exchanges on {device} are measured by nccl; choose --backend nccl")
    asked = ranks_of(ranks) if ranks is not None else usual_ranks(backend)
    tell(f"{backend} between {', '.join(map(str, asked))} ranks -> {out}")
    lock.acquire()
    try:
        rows, unsupported = collect_exchanges(backend, asked, out, budget_s, seed)
    finally:
        lock.release()
    for function in sorted(unsupported):
        tell(f"Note: {backend} has no {function}: not measured")
    tell(f"{rows} rows in {out}: {KIND} {rows}")
    tell(f"next: neuralpower train-predictor {shlex.quote(str(out))}")
    say(str(out))
