"""Keys of regressors: kind, dtype, phase and group of a layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuralpower.layers import KINDS
from neuralpower.layers.base import FORMAT, RECURRING, plain_group
from neuralpower.layers.terms import distinct

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
