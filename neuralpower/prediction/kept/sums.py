"""Whole numbers of passes as sums of a few multiples of their sizes, found from passes that were traced."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

Array = np.ndarray
MOST_TERMS = 3  # of a form
TOLERANCE = 1e-9  # of a number, relative


@dataclass(frozen=True)
class Form:
    """A whole number as sum_i coefficients[i] * size_i, over the sizes of a pass."""

    coefficients: tuple[float, ...]

    def __call__(self, sizes: Array) -> Array:
        """[rows] for sizes [rows, sizes]."""
        return np.asarray(np.rint(sizes @ np.array(self.coefficients)))


class Solver:
    """Finds forms of numbers over passes whose `sizes` are [passes, sizes]; equal numbers are solved once."""

    def __init__(self, sizes: Array) -> None:
        self.sizes = sizes
        self._known: dict[tuple[int, ...], Form | None] = {}

    def form(self, values: tuple[int, ...]) -> Form | None:
        """The simplest form that gives all values [passes]; None where there is none."""
        if values not in self._known:
            self._known[values] = self._solved(np.array(values, dtype=float))
        return self._known[values]

    def _solved(self, values: Array) -> Form | None:
        for terms in range(1, min(MOST_TERMS + 1, len(values))):
            for chosen in itertools.combinations(range(self.sizes.shape[1]), terms):
                columns = self.sizes[:, chosen]
                solution, _, rank, _ = np.linalg.lstsq(columns, values, rcond=None)
                if rank == terms and np.allclose(columns @ solution, values, rtol=TOLERANCE, atol=1e-6):
                    coefficients = np.zeros(self.sizes.shape[1])
                    coefficients[list(chosen)] = solution
                    return Form(tuple(coefficients.tolist()))
        return None
