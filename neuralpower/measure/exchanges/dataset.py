"""Exchanges between ranks as a dataset: `dataset.json` and one table of kind `collective`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from neuralpower.data.schema import read_meta, write_meta
from neuralpower.devices.host import read_cpu
from neuralpower.errors import DatasetError, InputError
from neuralpower.files.csv_files import write_csv
from neuralpower.measure.collect.keys import versions
from neuralpower.measure.exchanges.request import USUAL_RANKS, Exchanges
from neuralpower.measure.exchanges.run import measured

FILE = "collective.csv"


def usual_ranks(backend: str) -> tuple[int, ...]:
    """Two processes on a CPU; 2, 4 and 8 of the GPUs that are there; raises InputError for fewer than two."""
    if backend == "gloo":
        return USUAL_RANKS[:1]
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count < 2:
        raise InputError(
            f"backend nccl: needs 2 GPUs or more, and this machine has {count}; choose --backend gloo"
        )
    return tuple(ranks for ranks in USUAL_RANKS if ranks <= count)


def collect_exchanges(
    backend: str,
    ranks: Sequence[int],
    folder: Path,
    budget_s: float,
    seed: int = 0,
    show: Callable[[int, int], None] = lambda done, planned: None,
    largest_bytes: int | None = None,
) -> tuple[int, set[str]]:
    """Measure between each number of ranks, and write the dataset.

    Returns:
        Its rows, and functions that the backend lacks.

    Raises:
        InputError: an unknown backend, or too few ranks or devices.
        DatasetError: the folder holds a dataset already.
        DeviceError: a rank ended or hangs.
    """
    asked = [
        Exchanges(backend, count, budget_s / len(ranks), largest_bytes=largest_bytes, seed=seed)
        for count in ranks
    ]
    most = max(usual_ranks(backend)) if backend == "nccl" else max(ranks)
    if max(ranks) > most:
        raise InputError(f"ranks {max(ranks)}: this machine has GPUs for {most}; choose {most} or fewer")
    if (folder / "dataset.json").exists():
        device = read_meta(folder)["device"]
        raise DatasetError(f"{folder}: holds a dataset of {device!r} already; choose another --out")
    rows: list[dict[str, Any]] = []
    unsupported: set[str] = set()
    for one in asked:
        found = measured(one, show)
        rows += found.rows
        unsupported |= found.unsupported
    hardware = _hardware(backend)
    folder.mkdir(parents=True, exist_ok=True)
    header = [*rows[0]]
    write_csv(folder / FILE, [header, *([row[name] for name in header] for row in rows)])
    write_meta(
        folder,
        {
            "device": hardware["name"],
            "hardware": hardware,
            "source": f"collect-data --backend {backend}, ranks {', '.join(map(str, ranks))}",
            "sessions": [{"argv": ["collect-data"], **versions()}],
            "rows": {"collective": len(rows)},
        },
    )
    return len(rows), unsupported


def _hardware(backend: str) -> dict[str, Any]:
    """What is known of a rank's device."""
    if backend == "gloo":
        cpu = read_cpu()
        return {"type": "cpu", "l2_bytes": cpu.l2_bytes, **cpu.to_json()}
    import torch

    return {"type": "cuda", "name": torch.cuda.get_device_name(0), "platform": "nvidia"}
