"""The learner: a Lasso of non-negative weights on relative error, then a gated residual of boosted trees.

    base      t0(x) = sum_j w_j phi_j(x), w_j >= 0     minimise  mean_i (t0(x_i)/t_i - 1)^2 + alpha |w|_1
    residual  r(x)  = boosted trees on log(t / t0)
    predict   t(x)  = t0(x) exp(r(x) / (1 + d(x)^2))   d: octaves outside the sampled box, summed over its axes

It knows arrays and names only. The polynomial with a Lasso and ten-fold cross-validation is NeuralPower's (Cai et al.,
arXiv:1710.05420, section 3.2); dividing each row by its time makes the error relative, non-negative weights keep every
prediction positive and growing.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray

FOLDS = 10
DEGREES = (1, 2, 3)
ALPHAS = tuple(10.0 ** (-exponent / 2) for exponent in range(3, 13))
FEWEST_ROWS = 10  # for a base
FEWEST_FOR_RESIDUAL = 60
LARGEST_SHARE = 0.15  # of the rows, held out together to see how the learner goes beyond them
FEWEST_FOR_BOUND = 20
IMPORTANCE, MOST_IMPORTANT = 0.25, 5.0  # a row's weight grows with this power of its time, up to this factor
PRIOR = (0.4, 0.2)  # of the exponent with which layers follow the machine's speed: mean, standard deviation
OUTLIER = 4.0  # residuals of more than so many times the usual spread lose weight
TREES = {"n_estimators": 120, "max_depth": 4, "learning_rate": 0.08, "subsample": 0.7, "min_samples_leaf": 4}


@dataclass(frozen=True)
class Term:
    """One function of a layer: a product of dimensions' powers, or a special term by name."""

    powers: tuple[tuple[str, int], ...] = ()
    special: str = ""

    def __str__(self) -> str:
        """As it stands in a formula."""
        if self.special:
            return self.special
        return " ".join(name if power == 1 else f"{name}^{power}" for name, power in self.powers) or "1"


def polynomial(dimensions: Sequence[str], degree: int) -> list[Term]:
    """All products of the dimensions' powers up to `degree`, the constant first."""
    terms = [Term()]
    for total in range(1, degree + 1):
        for combination in itertools.combinations_with_replacement(dimensions, total):
            terms.append(Term(tuple((name, combination.count(name)) for name in dict.fromkeys(combination))))
    return terms


def evaluate_terms(
    terms: Sequence[Term], dimensions: Mapping[str, Array], special: Mapping[str, Array], rows: int
) -> Array:
    """[rows, len(terms)]."""
    matrix = np.empty((rows, len(terms)))
    for j, term in enumerate(terms):
        if term.special:
            matrix[:, j] = special[term.special]
        else:
            column = np.ones(rows)
            for name, power in term.powers:
                column = column * dimensions[name] ** power
            matrix[:, j] = column
    return matrix


@dataclass(frozen=True)
class Trees:
    """Boosted regression trees as flat arrays, nodes in preorder: the left child of node i is i + 1."""

    features: tuple[str, ...]
    initial: float
    roots: Array  # [trees]
    feature: Array  # [nodes], -1 for a leaf
    right: Array  # [nodes], the right child
    number: Array  # [nodes], threshold, or a leaf's value

    def predict(self, x: Array) -> Array:
        """[rows] from x [rows, features]; compares in single precision, as scikit-learn does."""
        x = x.astype(np.float32)
        rows = np.arange(len(x))[:, None]
        node = np.broadcast_to(self.roots, (len(x), len(self.roots)))
        while True:
            feature = self.feature[node]
            inner = feature >= 0
            if not inner.any():
                break
            left = x[rows, feature] <= self.number[node]
            node = np.where(inner, np.where(left, node + 1, self.right[node]), node)
        total = np.empty((len(x), len(self.roots) + 1))
        total[:, 0] = self.initial
        total[:, 1:] = self.number[node]
        return np.cumsum(total, axis=1)[:, -1]  # in the trees' order, so that the rounding is scikit-learn's, too


def flatten(model: Any, features: Sequence[str]) -> Trees:
    """The arrays of a fitted GradientBoostingRegressor with squared error."""
    roots, feature, right, number = [], [], [], []
    offset = 0
    for (tree,) in model.estimators_:
        nodes = tree.tree_
        leaf = nodes.children_left < 0
        if not np.array_equal(nodes.children_left[~leaf], np.flatnonzero(~leaf) + 1):
            raise ValueError("the trees' nodes are not in preorder")
        roots.append(offset)
        feature.append(np.where(leaf, -1, nodes.feature))
        right.append(np.where(leaf, -1, nodes.children_right + offset))
        number.append(np.where(leaf, model.learning_rate * nodes.value[:, 0, 0], nodes.threshold))
        offset += nodes.node_count
    return Trees(
        tuple(features),
        float(model.init_.constant_[0, 0]),
        np.array(roots),
        np.concatenate(feature),
        np.concatenate(right),
        np.concatenate(number),
    )


@dataclass(frozen=True)
class Scores:
    """Errors on rows that the fit had not seen (ten folds): shares, not percent."""

    rows: int
    mape: float
    rmspe: float
    median_base: float
    median: float
    bias: float  # of the rows' sum: positive where predictions are too high
    largest_base: float  # mean error where the largest LARGEST_SHARE of the rows are held out together
    largest: float
    low: float  # 5 % and 95 % quantiles of measured / predicted
    high: float


@dataclass(frozen=True)
class Regressor:
    """What was learnt of one group of layers."""

    terms: tuple[Term, ...]
    weights: Array
    degree: int
    alpha: float
    box: Mapping[str, tuple[float, float]]  # octaves of each axis that were sampled
    trees: Trees | None
    scores: Scores
    exponent: float = 0.0  # when the machine is s times slower than usual, these layers take s^exponent times as long

    def base(self, dimensions: Mapping[str, Array], special: Mapping[str, Array], rows: int) -> Array:
        """t0 [rows] (s)."""
        return np.asarray(evaluate_terms(self.terms, dimensions, special, rows) @ self.weights)

    def outside(self, axes: Mapping[str, Array]) -> Array:
        """Octaves outside the sampled box, summed over the axes, [rows]."""
        parts = [np.maximum(low - axes[n], 0) + np.maximum(axes[n] - high, 0) for n, (low, high) in self.box.items()]
        return np.asarray(np.sum(parts, axis=0))

    def predict(
        self, dimensions: Mapping[str, Array], special: Mapping[str, Array], features: Array, axes: Mapping[str, Array]
    ) -> tuple[Array, Array]:
        """(t, d), each [rows]: seconds, and octaves outside the box; features [rows, features] without log t0."""
        t0, d = self.base(dimensions, special, len(features)), self.outside(axes)
        if self.trees is None:
            return t0, d
        r = self.trees.predict(np.column_stack([features, np.log2(t0)]))
        return t0 * np.exp(r / (1 + d**2)), d


@dataclass(frozen=True)
class Problem:
    """Rows to learn from."""

    dimensions: Mapping[str, Array]
    special: Mapping[str, Array]
    features: Array  # [rows, features]
    feature_names: tuple[str, ...]
    axes: Mapping[str, Array]  # octaves of the box
    runtime_s: Array
    slowdown: Array  # of the machine while each row was taken
    config: Array  # rows of one configuration share a fold
    size: Array  # what "largest" means

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.runtime_s)

    def at(self, index: Array) -> Problem:
        """Some of the rows."""
        return replace(
            self,
            dimensions={n: v[index] for n, v in self.dimensions.items()},
            special={n: v[index] for n, v in self.special.items()},
            features=self.features[index],
            axes={n: v[index] for n, v in self.axes.items()},
            runtime_s=self.runtime_s[index],
            slowdown=self.slowdown[index],
            config=self.config[index],
            size=self.size[index],
        )


def fit(problem: Problem, learner: str = "hybrid", seed: int = 0) -> Regressor:
    """Degree and alpha by ten folds, then weights, box and residual; `learner` lasso leaves the residual out.

    Times are learnt as they are at the machine's usual speed: how far these layers follow its slow-downs is itself learnt.
    """
    folds = _folds(problem.config, seed)
    terms, alpha, degree = _select(problem, folds)
    with_trees = learner == "hybrid" and len(problem) >= FEWEST_FOR_RESIDUAL
    exponent = 0.0
    if np.ptp(problem.slowdown) > 0:
        exponent = _speed_exponent(problem, _held_out(problem, terms, alpha, folds, False, seed)[0])
        problem = replace(problem, runtime_s=problem.runtime_s / problem.slowdown**exponent)
    weights = _lasso(
        evaluate_terms(terms, problem.dimensions, problem.special, len(problem)), problem.runtime_s, [alpha]
    )[0]
    box = {name: (float(values.min()), float(values.max())) for name, values in problem.axes.items()}
    kept = weights > 0
    empty = Scores(len(problem), *[float("nan")] * 9)
    base = Regressor(
        tuple(term for term, keep in zip(terms, kept, strict=True) if keep),
        weights[kept],
        degree,
        alpha,
        box,
        None,
        empty,
        exponent,
    )
    held_out = _held_out(problem, terms, alpha, folds, with_trees, seed)
    largest = problem.size >= np.quantile(problem.size, 1 - LARGEST_SHARE)
    beyond = _held_out(problem, terms, alpha, np.where(largest, 0, -1), with_trees, seed)
    scores = _scores(problem, held_out, beyond, with_trees)
    # the residual must pay inside the box, and must not cost more beyond it than it pays
    if with_trees and scores.median + 0.5 * scores.largest < scores.median_base + 0.5 * scores.largest_base:
        return replace(base, trees=_residual(problem, base, seed), scores=scores)
    return replace(base, scores=_scores(problem, held_out, beyond, False))


def _speed_exponent(problem: Problem, predicted: Array) -> float:
    """Slope of log(measured / predicted) on log(slow-down), in [0, 1]; near PRIOR where the rows do not tell."""
    x = np.log(problem.slowdown) - np.median(np.log(problem.slowdown))
    r = np.log(problem.runtime_s / predicted)
    r -= np.median(r)
    usual = np.abs(r) <= OUTLIER * 1.4826 * np.median(np.abs(r))
    x, r = x[usual], r[usual]
    information = float(np.sum(x**2)) / max(float(np.var(r)), 1e-6)
    own = float(np.sum(x * r)) / max(float(np.sum(x**2)), 1e-12)
    mean, deviation = PRIOR
    return float(np.clip((own * information + mean / deviation**2) / (information + 1 / deviation**2), 0.0, 1.0))


def _folds(config: Array, seed: int) -> Array:
    """A fold per row, the same for equal configurations."""
    names, inverse = np.unique(config, return_inverse=True)
    fold = np.random.default_rng(seed).permutation(np.arange(len(names)) % min(FOLDS, max(len(names), 2)))
    return np.asarray(fold[inverse])


def _lasso(matrix: Array, runtime_s: Array, alphas: Sequence[float]) -> Array:
    """Weights [alphas, terms] of the non-negative Lasso on relative error; rows far off lose weight in a second pass."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import lasso_path

    relative = matrix / runtime_s[:, None]
    scale = np.sqrt(np.mean(relative**2, axis=0))
    used = scale > 0
    scaled = np.asfortranarray(relative[:, used] / scale[used])
    weights = np.zeros((len(alphas), matrix.shape[1]))
    plausible = emphasis = _plausible(scaled) * _importance(runtime_s)
    for _ in range(2):
        root = np.sqrt(emphasis)[:, None]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the polynomial's columns are nearly collinear
            _, path, _ = lasso_path(
                scaled * root, root[:, 0], alphas=sorted(alphas, reverse=True), positive=True, tol=1e-5, max_iter=3000
            )
        residual = scaled @ path[:, -1] - 1
        spread = max(1.4826 * float(np.median(np.abs(residual))), 0.02)
        emphasis = plausible * np.minimum(1.0, (OUTLIER * spread / np.maximum(np.abs(residual), 1e-12)) ** 2)
    order = np.argsort(np.argsort(-np.asarray(alphas)))
    weights[:, used] = (path / scale[used][:, None]).T[order]
    return weights


def _importance(runtime_s: Array) -> Array:
    """Weight per row: a network's time is made of its long layers, so they count for more, within bounds."""
    return np.asarray(np.clip((runtime_s / np.median(runtime_s)) ** IMPORTANCE, 1 / MOST_IMPORTANT, MOST_IMPORTANT))


def _plausible(relative: Array) -> Array:
    """Weight per row: below 1 where a term per second exceeds what nearly all other rows reach.

    With weights that are not negative, phi_j(x) / t is at most 1 / w_j: a row far above that for any j is too fast to be
    true, and would pull the whole fit to itself.
    """
    emphasis = np.ones(len(relative))
    for column in relative.T:
        rows = np.flatnonzero(column)
        if len(rows) >= FEWEST_FOR_BOUND:
            beyond = len(rows) // 100 + 2
            bound = 2 * np.partition(column[rows], -beyond)[-beyond]
            emphasis[rows] = np.minimum(emphasis[rows], (bound / column[rows]) ** 2)
    return emphasis


def _select(problem: Problem, folds: Array) -> tuple[list[Term], float, int]:
    """The terms, alpha and degree with the least mean absolute relative error on held-out folds."""
    best: tuple[float, list[Term], float, int] | None = None
    special = [Term(special=name) for name in problem.special]
    degrees = DEGREES if len(problem) >= 3 * FEWEST_ROWS else DEGREES[:1]
    for degree in degrees:
        terms = [*polynomial(tuple(problem.dimensions), degree), *special]
        matrix = evaluate_terms(terms, problem.dimensions, problem.special, len(problem))
        errors = np.zeros(len(ALPHAS))
        for fold in np.unique(folds):
            train, test = folds != fold, folds == fold
            weights = _lasso(matrix[train], problem.runtime_s[train], ALPHAS)
            predicted = matrix[test] @ weights.T / problem.runtime_s[test][:, None]
            errors += np.sum(np.minimum(np.abs(predicted - 1), 2.0), axis=0)
        index = int(np.argmin(errors))
        if best is None or errors[index] < 0.99 * best[0]:
            best = (float(errors[index]), terms, ALPHAS[index], degree)
    assert best is not None  # noqa: S101  # there is at least one degree
    return best[1], best[2], best[3]


def _residual(problem: Problem, base: Regressor, seed: int) -> Trees:
    from sklearn.ensemble import GradientBoostingRegressor

    t0 = base.base(problem.dimensions, problem.special, len(problem))
    target = np.log(problem.runtime_s / t0)
    spread = max(1.4826 * float(np.median(np.abs(target - np.median(target)))), 0.02)
    middle = float(np.median(target))
    target = np.clip(
        target, middle - OUTLIER * spread, middle + OUTLIER * spread
    )  # one corrupt row must not make a leaf
    x = np.column_stack([problem.features, np.log2(t0)])
    model = GradientBoostingRegressor(random_state=seed, **TREES)
    model.fit(x.astype(np.float32), target, sample_weight=_importance(problem.runtime_s))
    return flatten(model, (*problem.feature_names, "log2_base"))


def _held_out(
    problem: Problem, terms: Sequence[Term], alpha: float, folds: Array, with_trees: bool, seed: int
) -> tuple[Array, Array]:
    """(base, base + residual) predictions of every row by a fit that has not seen its fold; fold -1 is never held out."""
    matrix = evaluate_terms(terms, problem.dimensions, problem.special, len(problem))
    base, full = np.full(len(problem), np.nan), np.full(len(problem), np.nan)
    for fold in np.unique(folds[folds >= 0]):
        train, test = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        known, asked = problem.at(train), problem.at(test)
        weights = _lasso(matrix[train], known.runtime_s, [alpha])[0]
        box = {name: (float(values.min()), float(values.max())) for name, values in known.axes.items()}
        regressor = Regressor(tuple(terms), weights, 0, alpha, box, None, Scores(0, *[float("nan")] * 9))
        base[test] = regressor.base(asked.dimensions, asked.special, len(asked))
        if with_trees:
            regressor = replace(regressor, trees=_residual(known, regressor, seed))
            full[test] = regressor.predict(asked.dimensions, asked.special, asked.features, asked.axes)[0]
    return base, full


def _scores(problem: Problem, held_out: tuple[Array, Array], beyond: tuple[Array, Array], with_trees: bool) -> Scores:
    t = problem.runtime_s
    chosen, chosen_beyond = (held_out[1], beyond[1]) if with_trees else (held_out[0], beyond[0])
    error = chosen / t - 1
    far = np.isfinite(beyond[0])
    low, high = np.quantile(t / chosen, (0.05, 0.95))
    return Scores(
        rows=len(t),
        mape=float(np.mean(np.abs(error))),
        rmspe=float(np.sqrt(np.mean(error**2))),
        median_base=float(np.median(np.abs(held_out[0] / t - 1))),
        median=float(np.median(np.abs(error))),
        bias=float(np.sum(chosen) / np.sum(t) - 1),
        largest_base=float(np.mean(np.abs(beyond[0][far] / t[far] - 1))),
        largest=float(np.mean(np.abs(chosen_beyond[far] / t[far] - 1))),
        low=float(low),
        high=float(high),
    )
