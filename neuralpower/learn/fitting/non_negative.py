"""Non-negative least squares with a penalty on the sum of the weights, solved exactly.

    minimise  w' G w / 2 - (b - alpha) w,  w >= 0

A weight is free, or held at 0. The free ones are solved for. Where that takes some below 0, all move as far
as the first reaches 0, which is held from then on. Else the weight that the gradient would raise most becomes
free, until it would raise none (Lawson and Hanson, "Solving Least Squares Problems", 1974, chapter 23). That
takes about one step per weight, where coordinate descent on nearly collinear columns takes thousands.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RIDGE = 1e-9  # times the mean diagonal of G, added to it: nearly collinear columns have one answer
STEPS = 5  # at most, times the number of weights
# Times the largest of b: no smaller gradient raises a weight. The ridge's own is less: of equal columns, one
# has all the weight.
ROUNDING = 1e-7


def non_negative(
    gram: np.ndarray, products: np.ndarray, alphas: Sequence[float], near: np.ndarray | None = None
) -> np.ndarray:
    """Weights [alphas, terms] for G [terms, terms] and b [terms].

    The search starts from `near`, answers to a similar question, else for each alpha from the answer for the
    next one up: the start changes how long it takes, not what is found.
    """
    terms = len(products)
    gram = gram + RIDGE * max(float(np.trace(gram)), 1e-300) / max(terms, 1) * np.eye(terms)
    nearly = ROUNDING * float(np.abs(products).max(initial=0.0))
    weights, found = np.zeros(terms), np.zeros((len(alphas), terms))
    for number in np.argsort(alphas)[::-1]:
        start = weights if near is None else near[number]
        weights = found[number] = _solved(gram, products - alphas[number], start, nearly)
    return found


def _solved(gram: np.ndarray, target: np.ndarray, start: np.ndarray, nearly: float) -> np.ndarray:
    """The weights [terms] that minimise w' G w / 2 - target w, from some that are not negative."""
    weights, free = start.copy(), start > 0
    for _ in range(STEPS * len(target)):
        places = np.flatnonzero(free)
        now, best = weights[places], np.linalg.solve(gram[places[:, None], places], target[places])
        falls = best <= 0
        if falls.any():
            share = now[falls] / np.maximum(now[falls] - best[falls], 1e-300)
            weights[places] = np.maximum(now + share.min() * (best - now), 0.0)
            held = places[falls][share <= share.min()]
            weights[held], free[held] = 0.0, False
            continue
        weights[places] = best
        gradient = target - gram[:, places] @ best
        gradient[places] = 0.0
        raised = int(np.argmax(gradient))
        if gradient[raised] <= nearly:
            break
        free[raised] = True
    return weights
