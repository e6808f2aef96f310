"""The choice between predictors of one device, for each layer: the one that knows it best prices it."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np

from neuralpower.layers import Layer
from neuralpower.layers.columns import replaced, take, tile_ends
from neuralpower.learn.estimates import BASES, BY_LAW, CARRIED, HELD, MEASURED, Estimates
from neuralpower.learn.fitting.problem import Array
from neuralpower.learn.keys import EXACT, NOT
from neuralpower.learn.pricing import SHORTEST_S, Asked, Pricer, joined
from neuralpower.learn.unmeasured import laws
from neuralpower.learn.unmeasured.law_estimates import held
from neuralpower.learn.unmeasured.prior import Law


@dataclass(frozen=True)
class Choice:
    """Predictors of one device, used in order for layers unknown to the first."""

    pricers: tuple[Pricer, ...]
    law: Law | None
    engines: bool
    alone: bool = False  # without those whose times hold the launches of the host that they were measured on

    @functools.cached_property
    def asked(self) -> Asked:
        """All of them together, for one that lacks a regressor."""
        return Asked(self.law, self.engines, self.price, self.known)

    def price(self, columns: Layer) -> Estimates:
        """Each row's time, of a table's columns (layers.as_columns), by the first to know such calls.

        Where none does, the first that knows similar calls estimates them, else a roofline.
        """
        found = self._by_fastest(columns)
        return found if self.law is None else self._by_bits(columns, self._by_types(columns, found, self.law))

    def _by_types(self, columns: Layer, found: Estimates, law: Law) -> Estimates:
        """The estimates, where the law knows a type and a narrower one has rows: theirs, and work besides.

        That is the part of the wider type's work, by the law, that the narrower one does not have. Times of
        rows contain launches and waits of the code that runs, of which the law has the usual ones.
        """
        mine, asked = None, found.regressor == BY_LAW
        for index, other, wider in laws.other_types(columns, law.hardware) if asked.any() else ():
            if wider:
                continue
            mine = self._standing(columns) if mine is None else mine
            theirs = self._standing(other)
            told = np.flatnonzero((theirs > mine[index]) & asked[index])
            rows, narrow = index[told], take(other, told)
            if len(told):
                known = self._by_fastest(narrow)
                work, less = (_floor_s(one, law) for one in (take(columns, rows), narrow))
                busy = np.maximum(found.runtime_s[rows] - law.launches_s(take(columns, rows)), 0)
                more = busy * np.maximum(1 - less / np.maximum(work, SHORTEST_S), 0)
                whole = held(known.runtime_s + more, take(columns, rows), law)
                part = known.times(whole / np.maximum(known.runtime_s, SHORTEST_S))
                part = replace(part, basis_code=np.full(len(rows), BASES.index(CARRIED)))
                found, mine[rows] = found.with_rows(rows, part), theirs[told]
        return found

    def _by_bits(self, columns: Layer, found: Estimates) -> Estimates:
        """The estimates, by which products take no longer in fewer bits: the better known type counts.

        Where both have rows alike, it is the wider one.
        """
        free, mine = (found.basis_code == BASES.index(MEASURED)) | (found.runtime_s <= 0), None
        if not columns.multiplies:  # trained passes over memory know that already
            free |= found.regressor != BY_LAW
        if free.all():
            return found
        here = self.pricers[0].here()
        for index, other, wider in laws.other_types(columns, here):
            mine = self._standing(columns) if mine is None else mine
            theirs, own = self._standing(other), mine[index]
            better = (theirs > own) | wider & (theirs == own) & (own > 0)
            asked = np.flatnonzero(better & ~free[index])
            if len(asked):
                rows, some = index[asked], take(other, asked)
                instead = self._by_fastest(some)
                # a wider type's tiles are narrower; in this one's, no call takes longer than a larger one
                for at, larger in tile_ends(take(columns, rows)) if wider and columns.multiplies else ():
                    there = self._by_fastest(replaced(larger, {"dtype": some.dtype[at]}))
                    quicker = there.runtime_s < instead.runtime_s[at]
                    instead = instead.with_rows(at[quicker], there.at(quicker))
                if wider and any(one.launched for one in self.pricers):  # which another board's host has not
                    apart = replace(self, alone=True)
                    there = apart._by_fastest(some)
                    as_known = apart._standing(some) >= np.maximum(own[asked], 1)
                    instead = there.where(as_known & (there.runtime_s < instead.runtime_s), instead)
                breaks = (found.runtime_s[rows] > instead.runtime_s) == wider
                # rows of the other type may have found its operands in a cache
                least = laws.least_s(take(columns, rows), here)
                by_type = instead.times(np.maximum(least / np.maximum(instead.runtime_s, SHORTEST_S), 1))
                by_type = replace(by_type, basis_code=np.full(len(rows), BASES.index(HELD)))
                found = found.with_rows(rows[breaks], by_type.at(breaks))
        return found

    def _standing(self, columns: Layer) -> Array:
        """How well each row's calls are known, [rows]: 2 by its chip's own rows, 1 by others', 0 not."""
        first, known = self.first(columns)
        carried = np.array([one.carried and one.twin is None for one in self.pricers])
        return np.where(known == EXACT, np.where(carried[first], 1, 2), 0)

    def _by_fastest(self, columns: Layer) -> Estimates:
        """Each row's time by the code that runs: where other code may, the faster of the trained ones."""
        found, instead = self._by_first(columns), columns.law.instead(columns)
        if instead is None:
            return found
        other = self._by_first(instead)
        mine, others = (self.first(one)[1] == EXACT for one in (columns, instead))
        faster = (others & ~mine) | ((others == mine) & (other.runtime_s < found.runtime_s))
        return found.where(~faster, other)

    def _by_first(self, columns: Layer) -> Estimates:
        """Each row's time by the first that knows its calls."""
        if len(self.pricers) == 1:
            return self.pricers[0].price(columns, self.asked)
        first, _ = self.first(columns)
        start, parts = 0, []
        for i, one in enumerate(self.pricers):
            index = np.flatnonzero(first == i)
            if len(index):
                found = one.price(take(columns, index), self.asked)
                numbers = np.where(found.regressor < 0, found.regressor, found.regressor + start)
                parts.append((index, replace(found, regressor=numbers)))
            start += len(one.numbers)
        return joined(len(columns.dtype), parts)

    def known(self, columns: Layer) -> Array:
        """How well the best of them knows each row, [rows]."""
        return self.first(columns)[1]

    def first(self, columns: Layer) -> tuple[Array, Array]:
        """(Which of it and the others knows each row best, and how well), each [rows]."""
        lawful = self.law is not None
        known = np.stack([one.lookup.knows(columns, lawful=lawful) for one in self.pricers])
        for one, rows in zip(self.pricers, known, strict=True):
            omitted = one.yields(columns, self.asked) or (self.alone and one.launched)
            rows[np.broadcast_to(omitted, rows.shape)] = NOT
        return np.argmax(known, axis=0), np.max(known, axis=0)


def _floor_s(columns: Layer, law: Law) -> Array:
    """The longer of FLOP at the peak and bytes at the bandwidth, s, [rows]."""
    return np.asarray(np.maximum(*laws.floors(columns, law.hardware, columns.law.traits(columns))))
