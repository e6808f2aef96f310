"""Layers as columns of a table, and tables as layers whose fields are arrays."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from neuralpower.errors import Unmodelled
from neuralpower.layers.base import L, Layer
from neuralpower.layers.operands import OF_KEYS, OWN
from neuralpower.layers.rows import defaults, field_names, later_fields, plain_dimensions
from neuralpower.layers.terms import distinct

WHOLE, HALF = 16, 8  # numbers, of which vectors and tensor cores' fragments are made
TILE = 64  # numbers that a core computes at a time, at least; sizes up to it stand for themselves
# The same of products in types of FLOAT_BYTES and more, along sides up to NARROW: units that are no tensor
# cores fill narrower tiles. Batched products held out are off by 11.2 % for 12.6 on a V100, by 7.6 for 8.7 on
# a P4.
NARROW_TILE, FLOAT_BYTES, NARROW = 32, 4, 512
TILES_IN_AN_OCTAVE = 16  # of large sizes: of eighths, 2,688 would stand with 2,816, which other networks have


def is_number(value: object) -> bool:
    """Whether a field's value is a whole number, such as a size; a flag is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def words_of(fields: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values of a layer's fields that are no whole numbers."""
    return tuple(value for value in fields.values() if not is_number(value))


def columns_of(kind: type[L], layers: Sequence[L]) -> L:
    """A layer of `kind` whose fields are arrays, one element per layer; its formulas serve a whole table."""
    return as_columns(kind, {name: [getattr(layer, name) for layer in layers] for name in field_names(kind)})


def as_columns(kind: type[L], table: Mapping[str, Sequence[Any]]) -> L:
    """As `columns_of`, from a table's columns; numbers and booleans become float64.

    Columns that the table lacks hold the default of their field.
    """
    columns, usual = object.__new__(kind), defaults(kind)
    for name in field_names(kind):
        lacks = name not in table and name in usual
        array = np.full(len(next(iter(table.values()))), usual[name]) if lacks else np.asarray(table[name])
        object.__setattr__(columns, name, array.astype(np.float64) if array.dtype.kind in "biuf" else array)
    return columns


def of_one_type(columns: L) -> L:
    """The same rows with all operands of their `dtype`."""
    names = [name for name in field_names(type(columns)) if name not in (*OWN, *OF_KEYS)]
    return as_columns(type(columns), {name: getattr(columns, name) for name in names})


def take(columns: L, index: np.ndarray) -> L:
    part = object.__new__(type(columns))
    for name in field_names(type(columns)):
        object.__setattr__(part, name, getattr(columns, name)[index])
    return part


def in_tiles(columns: L, kept: Container[str] = ()) -> tuple[L, np.ndarray]:
    """(The rows with sizes but `kept` as those that stand for their tiles, which rows differ [rows], bool).

    A tile is a sixteenth of an octave, of `least_tile` numbers at least. In it, sizes of one alignment stand
    together: multiples of WHOLE with the last, those of HALF and all others with their first. Keys of a cache
    lie in pages of WHOLE, whatever their number or type, and stand with the last; up to TILE, with the last
    of their page.
    So do numbers of items from TILE on, as of a batch: how many there are changes no item's alignment.
    """
    differs, sizes = np.zeros(len(np.atleast_1d(columns.dtype)), dtype=bool), {}
    for name in plain_dimensions(type(columns)):
        size = getattr(columns, name)
        paged = name in columns.paged
        large = size > (WHOLE if paged else TILE)
        if name in kept or name in columns.untiled or not np.any(large):
            continue
        octave = 2.0 ** (np.ceil(np.log2(np.maximum(size, 1))) - 1)  # that it begins
        tile = np.maximum(
            octave / TILES_IN_AN_OCTAVE,
            np.where(size > TILE, TILE if paged else least_tile(columns, size), WHOLE),
        )
        last = np.ceil(size / tile) * tile
        first = last - tile + np.where(size % HALF == 0, HALF, 1)
        stands = np.where((size % WHOLE == 0) | (paged or name in columns.counted), last, first)
        if name.endswith("channels"):  # groups have equal shares; more of them stand with the channels
            groups = np.maximum(np.asarray(getattr(columns, "groups", 1)), 1)
            groups = np.where(groups > TILE, 1, groups)
            stands = np.ceil(stands / groups) * groups
        stands = np.where(large, stands, size)
        if np.any(stands != size):
            sizes[name], differs = stands, differs | (stands != size)
    if not sizes:
        return columns, differs
    found = replaced(columns, sizes)
    possible = _possible(found)
    if not possible.all():  # a rule ties some sizes together: the others still stand for their tiles
        found = replaced(
            columns,
            {name: np.where(possible, stands, getattr(columns, name)) for name, stands in sizes.items()},
        )
        for name, stands in sizes.items():
            larger = replaced(found, {name: stands})
            found = replaced(found, {name: np.where(_possible(larger), stands, getattr(found, name))})
        differs = np.any([getattr(found, name) != getattr(columns, name) for name in sizes], axis=0)
    return found, differs


def _possible(columns: Layer) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.broadcast_to(np.asarray(columns.possible(), dtype=bool), (len(columns.dtype),))


def least_tile(layer: Layer, size: Any) -> Any:
    """Numbers along a side of `size` that a core computes at a time, at least; of a layer or of columns."""
    narrow = layer.multiplies & (np.asarray(layer.itemsize) >= FLOAT_BYTES) & (size <= NARROW)
    return np.where(narrow, NARROW_TILE, TILE)


def tile_ends(columns: L) -> Iterator[tuple[np.ndarray, L]]:
    """(Rows, these at the last size of their tile and alignment), along each choice of sides up to NARROW.

    Rows whose narrower tile, of other types, ends there too are omitted.
    """
    ends, moved = {}, {}
    for name in sorted(set(columns.dimensions) & set(plain_dimensions(type(columns)))):
        size = getattr(columns, name)
        left = np.where((size > TILE) & (size <= NARROW), -size % least_tile(columns, size), 0)
        ends[name], moved[name] = size + left // WHOLE * WHOLE, left >= NARROW_TILE
    for count in range(1, len(ends) + 1):
        for names in itertools.combinations(ends, count):
            rows = np.flatnonzero(np.all([moved[name] for name in names], axis=0))
            larger = replaced(take(columns, rows), {name: ends[name][rows] for name in names})
            possible = np.flatnonzero(_possible(larger))
            if len(possible):
                yield rows[possible], take(larger, possible)


def between_powers(columns: L, name: str, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray, L, L] | None:
    """`KindLaw.between` for a size that tables have at powers of 2 alone."""
    low = 2.0 ** np.floor(np.log2(np.maximum(getattr(columns, name), 1)))
    return _between(columns, name, asked, low, 2 * low)


def between_tiles(columns: L, name: str, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray, L, L] | None:
    """`KindLaw.between` for a size whose kernels come in waves: from one multiple of TILE to the next."""
    size = getattr(columns, name)
    low = np.floor(size / TILE) * TILE
    return _between(columns, name, asked & (size > TILE), low, low + TILE)


def _between(
    columns: L, name: str, asked: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray, L, L] | None:
    size = getattr(columns, name)
    rows = np.flatnonzero(asked & (low < size))
    if not len(rows):
        return None
    some, share = take(columns, rows), ((size - low) / (high - low))[rows]
    return rows, share, *(replaced(some, {name: end[rows]}) for end in (low, high))


def replaced(columns: L, fields: Mapping[str, Any]) -> L:
    """A table's columns with other values of some fields."""
    found = object.__new__(type(columns))
    for name in field_names(type(columns)):
        object.__setattr__(found, name, fields.get(name, getattr(columns, name)))
    return found


def stacked(columns: L, *others: L) -> L:
    """The rows of some tables' columns, one after the other."""
    every = (columns, *others)
    names = field_names(type(columns)) if others else ()
    return replaced(columns, {name: np.concatenate([getattr(one, name) for one in every]) for name in names})


def fingerprint(columns: Layer) -> np.ndarray:
    """A number per row of a table's columns, the same for equal layers, in any session: [rows] uint64."""
    mixed = np.zeros(len(np.atleast_1d(columns.dtype)), dtype=np.uint64)
    later = later_fields(type(columns))
    for name in field_names(type(columns)):
        values = np.asarray(getattr(columns, name))
        text = values.dtype.kind not in "biuf"
        if name in later and not np.any(values != ("" if text else 0)):
            continue  # as in most tables
        if text:
            words, inverse = distinct(values)
            values = np.array([zlib.crc32(str(word).encode()) for word in words])[inverse]
        more = scramble(mixed + values.astype(np.int64).astype(np.uint64))
        mixed = np.where(values == 0, mixed, more) if name in later else more
    return mixed


def scramble(values: np.ndarray) -> np.ndarray:
    """A permutation of all 64-bit numbers: the finaliser of splitmix64 (Steele et al., OOPSLA 2014)."""
    mixed = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def same_rank(name: str, values: Any, rank: int) -> tuple[int, ...]:
    """An `int[rank]` argument of an operator, which may hold one value for all axes, or none."""
    items = tuple(values) if isinstance(values, (tuple, list)) else (values,)
    if len(items) == 1:
        items *= rank
    if len(items) != rank or not all(isinstance(v, int) for v in items):
        raise Unmodelled(f"{name} {values!r}: must be {rank} integers")
    return items
