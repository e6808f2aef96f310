"""AIConfigurator's measured tables of ten GPUs as datasets that the learner reads.

PATH/aiconfigurator2 holds a Parquet file per kind of kernel (ai-dynamo/aiconfigurator at 095f58a5,
Apache-2.0, joined over systems). Each other module here reads one family of kinds: it has a function

    parts(tables: Path, system: str) -> Iterator[Part]

which gives all rows of a system that can be believed. `draw` chooses the training rows.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from neuralpower.data.dataset import Dataset

SOURCE = "ai-dynamo/aiconfigurator at 095f58a5 (Apache-2.0)"
FOLDER = "aiconfigurator2"
SEED = 0  # of the draw
Where = Callable[[Any], Any]


@dataclass(frozen=True)
class System:
    """A measured system: the name of its spec sheet here, and the systems that hardly differ from it."""

    slug: str
    siblings: tuple[str, ...] = ()


SYSTEMS = {
    "a100_sxm": System("nvidia-a100-sxm4-80gb"),
    "l40s": System("nvidia-l40s"),
    "h100_sxm": System("nvidia-h100-sxm5-80gb", ("h200_sxm",)),
    "h200_sxm": System("nvidia-h200-sxm-141gb", ("h100_sxm",)),
    "b200_sxm": System("nvidia-b200", ("gb200",)),
    "gb200": System("nvidia-gb200", ("b200_sxm",)),
    "b300_sxm": System("nvidia-b300", ("gb300",)),
    "gb300": System("nvidia-gb300", ("b300_sxm",)),
    "rtx_pro_6000_server": System("nvidia-rtx-pro-6000-server"),
    "b60": System("intel-arc-pro-b60"),
}


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rows of one kind, dtype and engine: part of a dataset's table."""

    kind: str
    name: str  # in printed tables, such as "bfloat16"
    engine: str  # and version, such as "vLLM 0.24.0"
    table: pd.DataFrame  # in the dataset's columns: the kind's fields, runtime_s and, where known, power_w
    shape: tuple[str, ...]  # columns of a shape, whose rows are near-duplicates: held out together
    draw: int  # rows to train on
    # by name, which rows [rows], bool, of a layer's columns are known, and which are predicted from them
    beyond: Mapping[str, tuple[Where, Where]] = field(default_factory=dict)

    def thinned(self, most: int) -> Part:
        """The same with at most this number of training rows."""
        return dataclasses.replace(self, draw=min(self.draw, most))

    def shapes(self) -> np.ndarray:
        """A number for the shape of each row, [rows]."""
        return self.table.groupby(list(self.shape), sort=True).ngroup().to_numpy()

    def drawn(self) -> np.ndarray:
        """Which rows are used for training, [rows], bool: the same number per shape, at random."""
        order = np.random.default_rng(SEED).random(len(self.table))
        rank = pd.Series(order).groupby(self.shapes()).rank(method="first").to_numpy()
        among = np.empty(len(order), dtype=int)  # first the first of each shape, then the second, ...
        among[np.lexsort((order, rank))] = np.arange(len(order))
        return among < self.draw


def families() -> list[str]:
    """Names of the other modules of this package."""
    return sorted(found.name for found in pkgutil.iter_modules(__path__))


def parts(root: Path, system: str, only: Collection[str] = ()) -> Iterator[Part]:
    """All parts of a system, or those of the families `only`; `root` is the folder of all projects."""
    for name in families():
        if not only or name in only:
            module: Any = importlib.import_module(f"{__name__}.{name}")
            yield from module.parts(root / FOLDER, system)


def dataset(some: Collection[Part], system: str) -> Dataset:
    """The training rows, a table per kind."""
    tables: dict[str, list[pd.DataFrame]] = {}
    for part in some:
        tables.setdefault(part.kind, []).append(part.table[part.drawn()])
    slug = SYSTEMS[system].slug
    engines: dict[str, list[str]] = {}
    for part in some:
        engines.setdefault(part.engine, []).append(f"{part.kind} {part.name}")
    source = "; ".join(f"{engine}: {', '.join(names)}" for engine, names in engines.items())
    meta = {"schema": 1, "device": slug, "source": f"{SOURCE}, kernels in a CUDA graph. {source}"}
    return Dataset(Path(slug), meta, {kind: pd.concat(all_of_it) for kind, all_of_it in tables.items()})


def rows_of(file: Path, system: str, engine: str, version: str) -> pd.DataFrame:
    """A system's rows of one engine and version out of one of the Parquet files."""
    where = [("system", "==", system), ("engine", "==", engine), ("version", "==", version)]
    return pd.read_parquet(file, filters=where).reset_index(drop=True)
