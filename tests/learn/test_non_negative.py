"""Non-negative weights are those of the least sum, by the conditions that only the least fulfils."""

import numpy as np
import pytest

from neuralpower.learn.fitting.lasso import ALPHAS, non_negative


def question(rows: int, terms: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(G, b) of relative errors: columns of very different values, each of mean square 1."""
    x = np.random.default_rng(seed).lognormal(0, 2, (rows, terms))
    x /= np.sqrt(np.mean(x**2, axis=0))
    return x.T @ x / rows, x.mean(axis=0)


def assert_least(gram: np.ndarray, products: np.ndarray, found: np.ndarray) -> None:
    """Free weights have no gradient; one that is held at 0 would make the sum larger."""
    for alpha, weights in zip(ALPHAS, found, strict=True):
        gradient = gram @ weights - products + alpha
        assert (weights >= 0).all()
        assert np.abs(gradient[weights > 0]).max() < 1e-6
        assert gradient.min() > -1e-6


@pytest.mark.parametrize(("rows", "terms"), [(8, 1), (150, 6), (150, 60), (20, 60)])
def test_weights_are_those_of_the_least_sum(rows: int, terms: int) -> None:
    for seed in range(5):
        gram, products = question(rows, terms, seed)
        assert_least(gram, products, non_negative(gram, products, ALPHAS))


def test_of_equal_columns_one_has_all_the_weight() -> None:
    gram, products = question(40, 6, 0)
    twice = np.arange(6).repeat(2)
    found = non_negative(gram[twice[:, None], twice], products[twice], ALPHAS)
    assert_least(gram, products, found[:, ::2] + found[:, 1::2])
    assert not np.minimum(found[:, ::2], found[:, 1::2]).any()


def test_the_order_of_alphas_and_the_start_change_nothing() -> None:
    gram, products = question(60, 20, 1)
    found = non_negative(gram, products, ALPHAS)
    np.testing.assert_allclose(non_negative(gram, products, ALPHAS[::-1])[::-1], found, atol=1e-9)
    np.testing.assert_allclose(non_negative(gram, products, ALPHAS, np.flip(found, axis=0)), found, atol=1e-4)


def test_a_penalty_above_all_leaves_no_weight() -> None:
    gram, products = question(30, 4, 2)
    assert not non_negative(gram, products, [2 * products.max()]).any()
    assert non_negative(np.zeros((0, 0)), np.zeros(0), ALPHAS).shape == (len(ALPHAS), 0)
