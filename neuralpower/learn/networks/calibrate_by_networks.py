"""A device's predictor moved by 5 to 100 whole networks that were timed on it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from neuralpower.data.networks import read_own_networks, reasons
from neuralpower.data.schema import named
from neuralpower.data.screening import Rejected
from neuralpower.devices.spec import DeviceSpec
from neuralpower.errors import InputError
from neuralpower.learn.networks.network_rows import Total, read_totals
from neuralpower.learn.networks.own_level import FEWEST, Taught, check_unit, in_words, taught_by, teach
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.unmeasured.any_device import before_networks
from neuralpower.platforms import hardware_to_json

SHOWN = 3  # reasons that a refusal names


@dataclass(frozen=True)
class ByNetworks:
    """The moved predictor, what moved it, and the rows that could not."""

    predictor: Predictor  # the law alone; `any_device.with_the_rest` adds what else is known of the device
    taught: Taught
    rejected: tuple[Rejected, ...]

    @property
    def moved(self) -> list[str]:
        """A line for each factor that moved far, with the networks that moved it."""
        return in_words(self.taught.moved)


def calibrate_by_networks(
    spec: DeviceSpec, file: Path, columns: Mapping[str, str] | None = None, *, trust_code: bool = False
) -> ByNetworks:
    """Move the factors of a device's law by the networks of a CSV file.

    Args:
        spec: the device that they were timed on.
        file: model, batch, runtime_s, and where known dtype, input or image, layout, run and device; or what
            timm's benchmark.py writes.
        columns: ours by expression of the file's, such as {"runtime_s": "latency_ms/1000"}.
        trust_code: whether to trace models that run their own code.

    Raises:
        InputError: a device that runs no kernels, a file that cannot be read, or too few usable networks.
        DatasetError: times in another unit, or networks whose layers were measured on the device.
    """
    import pandas as pd

    start = before_networks(spec)
    if start.law is None:
        raise InputError(
            f"--networks moves predictors of accelerators, and {spec.name} is a CPU; leave it out to measure "
            "layers here, or run collect-data"
        )
    rows, rejected = read_own_networks(file, columns or {}, spec.slug)
    totals: list[Total] = []
    if rows:
        totals, refused = read_totals(pd.DataFrame(rows), start.law.hardware, trust_code=trust_code)
        totals = [replace(total, line=rows[total.line - 2]["line"]) for total in totals]
        rejected += [replace(row, line=rows[row.line - 2]["line"]) for row in refused]
    with named(file):
        totals, waiting = _on_the_device(start, totals)
        rejected += waiting
        _check_enough(totals, rejected, file)
        taught = teach(start, totals)
    found = taught_by(start, taught)
    about = {
        **found.dataset,
        "name": file.stem,
        "rows": 0,
        "trained": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "rejected": len(rejected),
        "accelerator": True,
        "platform": start.platform.name,
        "hardware": {"name": spec.name, **hardware_to_json(taught.law.hardware)},
        "calibrated_from": spec.slug,
        "calibrated_with": taught.networks,
    }
    return ByNetworks(replace(found, dataset=about), taught, tuple(rejected))


def _check_enough(totals: Sequence[Total], rejected: Sequence[Rejected], file: Path) -> None:
    """Raise InputError, with the reasons of rejected rows, for fewer than FEWEST networks."""
    count = len({total.model for total in totals})
    if count < FEWEST:
        every = [*reasons(rejected)]
        why = "".join(f"; {line}" for line in every[:SHOWN])
        why += f"; {len(every) - SHOWN} more reasons" if len(every) > SHOWN else ""
        text = f"{count} usable network{'' if count == 1 else 's'}, {FEWEST} of different names needed"
        raise InputError(f"{file}: {text}; time others{why}")


def _on_the_device(start: Predictor, totals: Sequence[Total]) -> tuple[list[Total], list[Rejected]]:
    """(Networks that the device sets the pace of, those that wait for the host).

    Raises DatasetError: times of another unit, which would put the host in the wrong.
    """
    if start.dispatch is None or not totals:
        return list(totals), []
    found = start.of_torch().estimate_each([total.layers for total in totals])
    device_s = np.array([float(t.calls @ one.runtime_s) for t, one in zip(totals, found, strict=True)])
    host_s = np.array([float(t.calls @ start.dispatch.seconds(t.layers)) for t in totals])
    check_unit(np.maximum(device_s, host_s) / np.array([total.runtime_s for total in totals]))
    kept = [total for total, waits in zip(totals, host_s > device_s, strict=True) if not waits]
    why = "the host sets its pace, and says nothing of the device; take a larger batch"
    waiting = [t for t, waits in zip(totals, host_s > device_s, strict=True) if waits]
    return kept, [Rejected("network", total.line, why) for total in waiting]
