"""NeuSight's kernels in float32 on five GPUs of 2016 to 2020 (PATH/neusight, MIT).

Each time includes what the host takes to start a call, 24 to 56 us, which is no kernel's: as much as the
shortest call of its kind on its device. Calls of which it is the larger part say little of a factor.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.peers import TRAINED, kernels
from neuralpower.devices.spec import find_spec
from neuralpower.layers import KINDS
from neuralpower.layers.rows import from_row
from neuralpower.learn.unmeasured.prior_fit import CALL_NOISE, Observation

EACH = 60  # rows of each kind and device, drawn: the residual of these devices has all of them
WEIGHT = 0.3
SHORTEST_S = 2e-6  # of a kernel, a part of the shortest call


def observations(root: Path) -> list[Observation]:
    """A sample of each kind's rows on each device; `root` holds neusight/."""
    found = []
    for device in TRAINED:
        spec = find_spec(device)
        hardware = spec.hardware()
        for kind, table in kernels(root / "neusight" / "kernels_train.parquet", device).items():
            host_s = float(table.runtime_s.min())
            long = table[table.runtime_s > 2 * host_s]
            for row in long.sample(min(EACH, len(long)), random_state=0).to_dict("records"):
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
                        rest_s=host_s - SHORTEST_S,
                    )
                )
    return found
