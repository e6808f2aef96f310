"""Whole numbers as functions of a configuration's fields: monomials and sums of two, found from examples.

    c * prod_i f_i^e_i, e in -1, 0, 1, 2          such as batch * heads * length^2
    c1 * monomial + c2 * monomial (or constant)   such as hidden + 2 * key_heads * hidden / heads
    c * monomial up to a bound, beyond it zero    such as a head's size where a longer run is as good as none

The simplest form that reproduces every example is used.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

Array = np.ndarray

EXPONENTS = (1, 2, -1)
SIMPLE = 2  # complexity of monomials that sums are made of
LARGEST = 6  # complexity of a single monomial
MOST_FIELDS = 5  # in one monomial
TOLERANCE = 1e-9  # of a number, relative
FEWEST = 3  # examples that are not zero, from which a bound is believed


@dataclass(frozen=True)
class Form:
    """sum_k coefficients[k] * prod_i fields[i] ** exponents[k][i]."""

    coefficients: tuple[float, ...]
    exponents: tuple[tuple[int, ...], ...]
    most: float = np.inf  # from more than this the examples say nothing until
    zero_from: float = np.inf  # this, from which it is zero

    def __call__(self, fields: Array) -> Array:
        """[rows] for fields [rows, number of fields]; nan between `most` and `zero_from`."""
        total = np.zeros(len(fields))
        for coefficient, exponent in zip(self.coefficients, self.exponents, strict=True):
            total += coefficient * _power(fields, exponent)
        beyond = np.where(total < self.zero_from * (1 - TOLERANCE), np.nan, 0.0)
        return np.where(total > self.most * (1 + TOLERANCE), beyond, total)

    def scaled(self, factor: float) -> Form:
        coefficients = tuple(factor * c for c in self.coefficients)
        return replace(
            self, coefficients=coefficients, most=factor * self.most, zero_from=factor * self.zero_from
        )


def constant(value: float, fields: int) -> Form:
    """A form with the same value for every configuration."""
    return Form((value,), ((0,) * fields,))


class Solver:
    """Finds forms of columns of examples `fields` [rows, number of fields]; equal columns are solved once."""

    def __init__(self, fields: Array) -> None:
        self.fields = np.asarray(fields, dtype=float)
        varied = [i for i in range(self.fields.shape[1]) if np.ptp(self.fields[:, i]) > 0]
        self._exponents = _library(self.fields.shape[1], varied)
        self._values = np.array([_power(self.fields, e) for e in self._exponents])  # [monomials, rows]
        simple = [i for i, e in enumerate(self._exponents) if _complexity(e) <= SIMPLE]
        self._pairs = np.array(list(itertools.combinations(simple, 2)), dtype=int).reshape(-1, 2)
        self._found: dict[tuple[float, ...], Form | None] = {}

    def solve(self, values: Sequence[float]) -> Form | None:
        """The simplest form that gives all `values` [rows]; None where there is none."""
        key = tuple(float(v) for v in values)
        if key not in self._found:
            self._found[key] = self._solved(np.array(key))
        return self._found[key]

    def _solved(self, values: Array) -> Form | None:
        if np.ptp(values) == 0:
            return constant(float(values[0]), self.fields.shape[1])
        if (values == 0).any():
            return self._up_to_a_bound(values)
        ratio = values / self._values
        fits = np.flatnonzero(np.ptp(ratio, axis=1) <= TOLERANCE * np.abs(ratio[:, 0]))
        if len(fits):
            return Form((_neat(float(ratio[fits[0], 0])),), (self._exponents[fits[0]],))
        return self._sum_of_two(values)

    def _up_to_a_bound(self, values: Array) -> Form | None:
        """A monomial where it is small, zero where it is large: there zero stands for "all of it"."""
        there = values > 0
        if there.sum() < FEWEST or (values < 0).any():
            return None
        ratio = values[there] / self._values[:, there]
        factors = ratio[:, 0]
        beyond = (factors[:, None] * self._values[:, ~there]).min(axis=1)
        fits = np.ptp(ratio, axis=1) <= TOLERANCE * factors
        fits &= beyond > values.max() * (1 + TOLERANCE)
        if not fits.any():
            return None
        i = int(np.argmax(fits))
        most, zero_from = float(values.max()), float(beyond[i])
        return Form((_neat(float(factors[i])),), (self._exponents[i],), most, zero_from)

    def _sum_of_two(self, values: Array) -> Form | None:
        """Least squares over all pairs of simple monomials at once; None without a pair that fits."""
        if not len(self._pairs) or len(values) < 4:
            return None
        scale = 1 / values
        a, b = (self._values[self._pairs[:, i]] * scale for i in (0, 1))
        aa, bb, ab = (a * a).sum(1), (b * b).sum(1), (a * b).sum(1)
        ay, by = a.sum(1), b.sum(1)
        determinant = aa * bb - ab**2
        with np.errstate(divide="ignore", invalid="ignore"):
            x, y = (bb * ay - ab * by) / determinant, (aa * by - ab * ay) / determinant
            error = np.abs(a * x[:, None] + b * y[:, None] - 1).max(axis=1)
        fits = np.flatnonzero((determinant > 1e-9 * aa * bb) & (error < 1e-7))
        for i in fits:
            form = Form(
                (_neat(float(x[i])), _neat(float(y[i]))), tuple(self._exponents[j] for j in self._pairs[i])
            )
            if np.allclose(form(self.fields), values, rtol=TOLERANCE, atol=0):
                return form
        return None


def _power(fields: Array, exponent: Sequence[int]) -> Array:
    product = np.ones(len(fields))
    for i, power in enumerate(exponent):
        if power:
            product = product * fields[:, i] ** float(power)
    return product


def _complexity(exponent: Sequence[int]) -> int:
    return sum(2 if power == -1 else abs(power) for power in exponent)


def _library(fields: int, varied: Sequence[int]) -> list[tuple[int, ...]]:
    """Exponents of all monomials in the fields that vary, the simplest first."""
    exponents = []
    for count in range(min(len(varied), MOST_FIELDS) + 1):
        for chosen in itertools.combinations(varied, count):
            for powers in itertools.product(EXPONENTS, repeat=count):
                exponent = [0] * fields
                for i, power in zip(chosen, powers, strict=True):
                    exponent[i] = power
                if _complexity(exponent) <= LARGEST:
                    exponents.append(tuple(exponent))
    return sorted(exponents, key=_complexity)


def _neat(value: float) -> float:
    """A coefficient freed from rounding: the nearest fraction with a small denominator, where it is near."""
    for denominator in (1, 2, 3, 4, 8, 16, 64):
        nearest = round(value * denominator) / denominator
        if nearest and abs(value / nearest - 1) < 1e-7:
            return nearest
    return value
