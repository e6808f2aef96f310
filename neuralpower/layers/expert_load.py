"""Tokens of each expert of a mixture, by the router's distribution; a rank may hold some of the experts.

A load is all that the time of the experts' products depends on: the pairs of a token and an expert that are
computed here, the experts that get a token, whose weights are read, and the tokens of the fullest.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neuralpower.errors import InputError

Counts = NDArray[np.int64]  # tokens of each expert

# Bounds of the loads that are drawn from a power law, before they are scaled to the tokens: many tokens, few.
MANY, FEW = (1.0, 0.8), (0.01, 2.0)
DRAWS = 8  # whose mean is taken; the benchmark takes 5 to 10


class Load(NamedTuple):
    """The work of a rank's experts."""

    pairs: int  # of a token and an expert that is here
    hit: int  # experts here that get a token
    fullest: int  # tokens of the one that gets most


def load_of(counts: Counts) -> Load:
    """The load of a rank; `counts`: the tokens of each of its experts."""
    return Load(int(counts.sum()), int((counts > 0).sum()), int(counts.max(initial=0)))


def equal_counts(tokens: int, top_k: int, experts: int) -> Counts:
    """Tokens of each of all experts where the load is equal by construction, [experts].

    Token i takes the experts i, i + s, i + 2 s, ..., s being experts / top_k rounded up; fewer tokens than s
    spread over the first s. Source: the benchmark of AIConfigurator (`balanced_logits`).
    """
    stride = -(-experts // top_k)
    token = np.arange(tokens)
    first = token if tokens >= stride else token * stride // tokens
    chosen = (first[:, None] + stride * np.arange(top_k)) % experts
    return np.bincount(chosen.ravel(), minlength=experts).astype(np.int64)


@functools.lru_cache(2**16)
def equal_load(tokens: int, top_k: int, experts: int, ranks: int = 1) -> Load:
    """The load of the first of several ranks where that of all experts is equal by construction."""
    return load_of(equal_counts(tokens, top_k, experts)[: experts // ranks])


@functools.lru_cache(2**16)
def power_law_load(tokens: int, top_k: int, experts: int, exponent: float, ranks: int = 1) -> Load:
    """The load of the fullest of several ranks where loads follow a power law: the mean of some draws.

    Raises InputError for an exponent of 1, where the integral is a logarithm.
    """
    draws = [
        load_of(fullest_rank(power_law_counts(tokens, top_k, experts, exponent, seed), ranks))
        for seed in range(DRAWS)
    ]
    pairs, hit, fullest = (round(float(np.mean(numbers))) for numbers in zip(*draws, strict=True))
    return fitting(pairs, hit, fullest)


def power_law_counts(tokens: int, top_k: int, experts: int, exponent: float, seed: int) -> Counts:
    """Tokens of each of all experts, in a random order, where loads follow a power law, [experts].

    A load is drawn from x^-exponent between bounds, scaled so that all pairs are shared out; no expert gets a
    token twice. Source: the benchmark of AIConfigurator (`power_law_logits_v3`).

    Raises InputError for an exponent of 1, where the integral is a logarithm.
    """
    if exponent == 1:
        raise InputError("exponent 1 of a power law of loads: give another, such as 1.01")
    pairs = tokens * top_k
    low, high = (MANY[0], MANY[1] * tokens) if pairs > experts else FEW
    high = max(high, low)
    power = 1 - exponent
    drawn = np.random.default_rng(seed).random(experts)
    loads = (low**power + drawn * (high**power - low**power)) ** (1 / power)
    return shared_out(loads, pairs, tokens)


def fitting(pairs: int, hit: int, fullest: int) -> Load:
    """A load whose numbers agree, as near to these as can be: means of several loads need not."""
    hit = min(max(hit, 1), max(pairs, 1))
    pairs = max(pairs, 1)
    return Load(pairs, hit, min(max(fullest, -(-pairs // hit)), pairs - hit + 1))


def shared_out(loads: NDArray[np.float64], pairs: int, most: int) -> Counts:
    """Whole numbers in proportion to `loads` that sum to `pairs`, none above `most`."""
    wanted = loads / loads.sum() * pairs
    counts = np.minimum(np.floor(wanted), most).astype(np.int64)
    while (missing := pairs - int(counts.sum())) > 0:
        room = np.flatnonzero(counts < most)
        order = room[np.argsort(-(wanted[room] - counts[room]), kind="stable")]
        counts[order[:missing]] += 1
    return counts


def fullest_rank(counts: Counts, ranks: int) -> Counts:
    """The counts of the rank that gets most, where each rank holds as many experts, in their order."""
    by_rank = counts.reshape(ranks, -1)
    return np.asarray(by_rank[by_rank.sum(axis=1).argmax()])
