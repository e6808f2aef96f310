"""NeuSight's kernels in float32 on five GPUs of 2016 to 2020 (PATH/neusight, MIT)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.peers import TRAINED, kernels
from neuralpower.devices.spec import find_spec
from neuralpower.layers import KINDS
from neuralpower.layers.rows import from_row
from neuralpower.learn.prior_fit import CALL_NOISE, Observation

EACH = 60  # rows of each kind and device, drawn: the residual of these devices has all of them
WEIGHT = 0.3


def observations(root: Path) -> list[Observation]:
    """A sample of each kind's rows on each device; `root` holds neusight/."""
    found = []
    for device in TRAINED:
        spec = find_spec(device)
        hardware = spec.hardware()
        for kind, table in kernels(root / "neusight" / "kernels_train.parquet", device).items():
            for row in table.sample(min(EACH, len(table)), random_state=0).to_dict("records"):
                layer = from_row(KINDS[kind], {str(name): value for name, value in row.items()})
                found.append(
                    Observation(
                        spec.slug,
                        hardware,
                        (layer,),
                        np.ones(1),
                        row["runtime_s"],
                        WEIGHT,
                        CALL_NOISE,
                        spec.chip,
                    )
                )
    return found
