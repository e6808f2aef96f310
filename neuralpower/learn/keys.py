"""Keys of regressors: kind, dtype, phase and group of a layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from neuralpower.devices.hardware import Hardware
from neuralpower.dtypes import DTYPES, FLOATING
from neuralpower.layers import KINDS, Layer
from neuralpower.layers.base import FORMAT, RECURRING, measured_phase, plain_group
from neuralpower.layers.terms import distinct
from neuralpower.learn.fitting.problem import Array
from neuralpower.learn.regressor import Regressor
from neuralpower.platforms import View

INTEGER = "integer"  # dtypes that are no floats are pooled: their bytes are what they cost
ALL = "all"  # group of a kind that has no groups
TOGETHER = "+"  # between groups that were pooled, since each had too few rows
ANY = "any"  # dtype, phase and group of a regressor that pools all rows of a kind
Key = tuple[str, str, str, str]  # kind, dtype, phase, group


def whole_kind(kind: str) -> Key:
    """The key of a regressor for all of a kind's dtypes, phases and groups."""
    return kind, ANY, ANY, ANY


def named(key: Key) -> str:
    """As text: "linear vector (float32, forward)"; pooled parts are omitted."""
    kind, dtype, phase, group = key
    how = ", ".join(part for part in (dtype, phase) if part != ANY)
    words = " ".join(part for part in (kind, "" if group in (ALL, ANY) else group) if part)
    return f"{words} ({how})" if how else words


def groups_of(key: Key) -> frozenset[str]:
    """The groups that its regressor was trained on, one or several together."""
    return frozenset(key[3].split(TOGETHER))


def recurs(key: Key) -> bool:
    """Whether its regressor was trained on repeated calls, those that a loop makes again and again."""
    return key[3].endswith(RECURRING)


def stands_alone(key: Key) -> bool:
    """Whether no other group of the kind stands in for the key's, nor the key's group for others."""
    return plain_group(key[3]) in KINDS[key[0]].alone


def key_name(key: Key) -> str:
    """As text: "movement sort (float32, forward)"."""
    kind, dtype, phase, group = key
    name = kind if group in (ALL, ANY, "") else f"{kind} {group}"
    return f"{name} ({dtype}, {phase})" if dtype != ANY else name


def once(group: str) -> str:
    """The group of the same calls where no loop makes them."""
    return group.removesuffix(f" {RECURRING}")


def unquantised(group: str) -> str:
    """The group of the same calls where all operands are of the layer's dtype."""
    return FORMAT.sub("", group)


def rows_by(*labels: np.ndarray) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    """Each combination of labels [rows] that occurs, and its rows."""
    names, places = zip(*map(distinct, labels), strict=True)
    sizes = [len(some) for some in names]
    code = np.ravel_multi_index(places, sizes)
    for value in np.unique(code):
        at = np.unravel_index(value, sizes)
        yield tuple(str(some[i]) for some, i in zip(names, at, strict=True)), np.flatnonzero(code == value)


# ---- Regressors by their keys: which one knows a layer, and which stands in where none does ----

NOT, NEAR, EXACT = range(3)  # how well a layer is known; near: from other code of its kind


@dataclass(frozen=True)
class Lookup:
    regressors: Mapping[Key, Regressor]
    dtypes: tuple[str, ...]  # floating types that they were trained on
    view: View  # how layers are described to them
    hardware: Hardware | None  # the device to predict; None: one of several

    def of(self, key: Key) -> tuple[Key | None, bool]:
        """The regressor of a key and whether it was trained on such layers, else the nearest.

        Dtypes other than floats count as floats where the group has no data of them; repeated calls as single
        ones; a group as one that pools it, or as its largest sibling, unless it stands alone. A quantised
        group is near to the plain one.
        """
        kind, dtype, phase, group = key
        dtypes = [dtype]
        if dtype not in FLOATING:
            floats = self.dtypes
            dtypes = [INTEGER, "float32" if "float32" in floats else next(iter(floats), INTEGER)]
        dtypes += [*self._same_width(dtype), ANY]
        for dtype in dtypes:
            for name in (group,) if unquantised(once(group)) != once(group) else (group, ALL):
                if (kind, dtype, phase, name) in self.regressors:
                    return (kind, dtype, phase, name), True
            alike = (k for k in self.regressors if k[:3] == (kind, dtype, phase))
            pooled = next((k for k in alike if group in groups_of(k)), None)
            if pooled:
                return pooled, True
        if stands_alone(key):
            return None, False
        if once(group) != group:
            return self.of((kind, key[1], phase, once(group)))
        if unquantised(group) != group:
            plain = unquantised(group)
            formats = [k for k in self.regressors if k[:3] == key[:3] and k[3] != unquantised(k[3]) == plain]
            if formats:
                return max(formats, key=lambda k: self.regressors[k].scores.rows), False
            return self.of((kind, key[1], phase, plain))[0], False
        by_dtype = ([k for k in self.regressors if k[:3] == (kind, d, phase)] for d in dtypes)
        siblings = next(filter(None, by_dtype), None)
        siblings = siblings or [k for k in self.regressors if (k[0], k[2], k[3]) == (kind, phase, group)]
        return max(siblings, key=lambda k: self.regressors[k].scores.rows, default=None), False

    def _same_width(self, dtype: str) -> list[str]:
        """Other floats of the same width: their kernels take as long, at the same peak or relative to it."""
        if not self.view.kernels or dtype not in FLOATING or self.hardware is None:
            return []
        entry, peaks = DTYPES[dtype], self.hardware.peak_flops_per_s
        same = (d for d in FLOATING if d != dtype and DTYPES[d].bits == entry.bits and DTYPES[d].torch == d)
        alike = [d for d in same if self.view.pooled or peaks.get(d) == peaks.get(dtype)]
        return alike if entry.torch == dtype else []

    def by_key(self, columns: Layer) -> Iterator[tuple[Key, Array]]:
        labels = (columns.dtype, measured_phase(columns.phase), self.view.group(columns))
        full = [np.broadcast_to(np.asarray(label), (len(columns.dtype),)) for label in labels]
        for (dtype, phase, group), index in rows_by(*full):
            yield (columns.kind, dtype, phase, group), index

    def knows(self, columns: Layer, *, lawful: bool) -> Array:
        """How well it knows each row: EXACT, NEAR or NOT; a law knows better than other code of the kind."""
        known = np.zeros(len(columns.dtype), dtype=int)
        for key, index in self.by_key(columns):
            near, exact = self.of(key)
            near = near if not lawful or unquantised(key[3]) != key[3] else None
            known[index] = EXACT if exact else NOT if near is None else NEAR
        return known
