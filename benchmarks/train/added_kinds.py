"""Train some families of tables alone and add them to predictors that are there; all else stays as it is.

python -m benchmarks.train.added_kinds PATH --only FAMILY ... [--system NAME ...] [--pooled] [--out models]

PATH as for gpu_predictors beside it. Regressors of the families' kinds are replaced. --pooled adds to the
predictor of all NVIDIA GPUs, too; rows of GPUs that it was not trained on count, but give no level.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_tables import SYSTEMS, dataset, families, parts
from benchmarks.gpu_tables.collectives import ACROSS, KIND, others
from benchmarks.train.gpu_predictors import show
from benchmarks.train.relatives import NAME
from neuralpower.data.dataset import Dataset
from neuralpower.devices.hardware import Hardware
from neuralpower.devices.spec import LINKS, known_hardware
from neuralpower.learn.files.predictor_lookup import load
from neuralpower.learn.keys import Key
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.regressor import Regressor
from neuralpower.learn.train import train
from neuralpower.platforms import hardware_of, hardware_to_json
from neuralpower.report.cards import write_predictor


def linked(hardware: Hardware, device: str) -> Hardware:
    """With the links that the device's sheet names."""
    sheet = known_hardware(device)
    return (
        hardware
        if sheet is None
        else dataclasses.replace(hardware, **{name: getattr(sheet, name) for name in LINKS})
    )


def added(old: Predictor, retrained: Predictor) -> Predictor:
    """The old predictor with the regressors of the other's kinds; levels by the old one's devices."""
    kept = {key: one for key, one in old.regressors.items() if key[0] not in retrained.kinds}
    devices = old.dataset.get("devices") or {}
    order = list(retrained.dataset.get("devices") or {})

    def levelled(key: Key, one: Regressor) -> Regressor:
        known = dict(zip(order, one.levels, strict=False))
        return dataclasses.replace(one, levels=tuple(known.get(name) for name in devices))

    new = {key: levelled(key, one) for key, one in retrained.regressors.items()}
    said = {name: hardware_to_json(linked(hardware_of(one), name)) for name, one in devices.items()}
    return dataclasses.replace(
        old,
        regressors=dict(sorted({**kept, **new}.items())),
        hardware=old.hardware and linked(old.hardware, old.device),
        dataset={**old.dataset, "devices": said},
    )


def add(root: Path, system: str, only: Sequence[str], out: Path, jobs: int) -> Dataset | None:
    """One system's; its rows."""
    file = out / f"{SYSTEMS[system].slug}.json"
    some = list(parts(root, system, only))
    if not some or not file.exists():
        print(f"{system}: {'no rows' if not some else f'no {file}'}; left out")
        return None
    rows, old = dataset(some, system), load(file)
    print(f"{system}: {len(rows)} rows", flush=True)
    new = added(old, train(rows, jobs=jobs, show=show).predictor)
    whole = dataset(list(parts(root, system)), system)
    about = {**new.dataset, "rows": len(whole), "source": whole.meta["source"]}
    write_predictor(dataclasses.replace(new, dataset=about), file)
    print(f"  {file}: {file.stat().st_size / 1e6:.2f} MB")
    return rows


def pooled(root: Path, only: Sequence[str]) -> list[Dataset]:
    """Datasets of NVIDIA's GPUs; without exchanges between the sockets of one server, which are its own."""
    found = [dataset(some, name) for name in SYSTEMS if (some := list(parts(root, name, only)))]
    found = [near(one) for one in found if one.device.startswith("nvidia")]
    return [*found, *(others(root) if "collectives" in only else ())]


def near(rows: Dataset) -> Dataset:
    """Without the L40S' exchanges of four and eight, at 3 to 6 and 2 to 3 GB/s."""
    table = rows.tables.get(KIND)
    if table is None or rows.device != SYSTEMS[ACROSS].slug:
        return rows
    return dataclasses.replace(rows, tables={**rows.tables, KIND: table[table.ranks == 2]})


def main() -> None:
    """Read, train, add."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, nargs="?")
    parser.add_argument("--only", nargs="+", choices=families(), default=["collectives"])
    parser.add_argument("--system", nargs="*", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--pooled", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("models"))
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    if given.path is None:
        print("benchmarks.train.added_kinds needs a folder that holds aiconfigurator2/: left out")
        return
    for system in given.system:
        add(given.path, system, given.only, given.out, given.jobs)
    if given.pooled:
        datasets = pooled(given.path, given.only)
        file = given.out / f"{NAME}.json"
        retrained = train(datasets, jobs=given.jobs, show=show).predictor
        write_predictor(added(load(file), retrained), file)
        print(f"{file}: {file.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
