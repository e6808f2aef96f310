"""Traits: shares from 0 to 1 that say what changes the share of a peak that kernels reach."""

from __future__ import annotations

import numpy as np
import pytest

from neuralpower.layers import KINDS, Draw, columns_of
from neuralpower.layers.convolution import Conv2d
from neuralpower.layers.traits import PADDED, of_product, sides_of, steps
from tests.layers.made import conv3x3

SIZES = np.array([1, 5, 8, 11, 48, 64, 1000, 5000])


def test_a_size_lies_between_two_steps() -> None:
    shares = steps("columns", SIZES, (3, 5, 7))
    assert np.allclose(sum(shares.values()), 1)
    assert shares["columns 8"].tolist()[:3] == [1, 1, 1] and shares["columns 128"].tolist()[-2:] == [1, 1]
    assert shares["columns 32"][4] == pytest.approx(1 - np.log2(48 / 32) / 2)


@pytest.mark.parametrize(
    ("itemsize", "side", "pairs", "odd"),
    [(2, 64, 0, 0), (2, 66, 1, 0), (2, 65, 0, 1), (4, 65, 1, 0), (4, 64, 0, 0)],
)
def test_a_side_lies_in_vectors_in_pairs_or_in_neither(
    itemsize: int, side: int, pairs: int, odd: int
) -> None:
    shares = sides_of(itemsize, np.array([side]))
    assert (shares["sides in pairs"][0], shares["odd sides"][0]) == (pairs, odd)


def test_columns_that_fill_no_tile_are_padded() -> None:
    padded = of_product(2, 1, 4096, np.array([64, 96, 24]), 512)[PADDED]
    assert padded.tolist() == pytest.approx([0, np.log2(128 / 96), 1])


@pytest.mark.parametrize("kind", KINDS)
def test_traits_of_every_kind_are_shares(kind: str) -> None:
    columns = columns_of(KINDS[kind], [KINDS[kind].sample(Draw(seed)) for seed in range(30)])
    traits = columns.law.traits(columns)
    for share in (*traits.compute.values(), *traits.memory.values()):
        full = np.broadcast_to(np.asarray(share, dtype=float), (30,))
        assert np.all((full >= 0) & (full <= 1))


def test_a_convolution_is_of_one_sort_and_depthwise_ones_run_on_lanes() -> None:
    rows = [(64, 64, 1), (64, 64, 64), (64, 64, 4), (3, 64, 1)]
    layers = [conv3x3(inner, outer, batch=8, groups=groups) for inner, outer, groups in rows]
    traits = Conv2d.law.traits(columns_of(Conv2d, layers))
    names = [f"{sort} channels first" for sort in ("window", "depthwise", "grouped", "few inputs")]
    assert [[traits.compute[name][i] for name in names] for i in range(4)] == np.eye(4).tolist()
    assert np.asarray(traits.lanes).tolist() == [False, True, False, False]
