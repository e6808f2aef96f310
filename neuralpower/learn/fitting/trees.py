"""Boosted regression trees as plain arrays: fitted by scikit-learn, kept and evaluated here.

They are evaluated by bit vectors (QuickScorer: Lucchese et al., SIGIR 2015): every value of a feature rules
out a set of leaves in each tree; a walk down the tree ends in the first leaf that no feature rules out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

Array = np.ndarray

# (rows and more, trees, leaves, learning rate)
SIZES = ((0, 120, 16, 0.08), (3000, 200, 48, 0.08), (12000, 400, 64, 0.08))
FEWEST_IN_LEAF = 5
MOST_BINS = 255  # of a feature's values, the limit of scikit-learn
MOST_LEAVES = 64  # of a tree, which stand as bits of one number
CHUNK = 4096  # rows evaluated at a time, so that they stay in the cache


@dataclass(frozen=True)
class Trees:
    """Nodes of all trees one after the other, each tree in preorder: the left child of node i is i + 1."""

    features: tuple[str, ...]
    roots: Array  # [trees]
    feature: Array  # [nodes], -1 for a leaf
    right: Array  # [nodes], the right child
    number: Array  # [nodes], threshold (left where x <= threshold), or a leaf's value

    def predict(self, x: Array) -> Array:
        """Sum of the trees' values, [rows], from x [rows, features]; added and rounded as by scikit-learn."""
        total = np.empty(len(x))
        for start in range(0, len(x), CHUNK):
            total[start : start + CHUNK] = self._some(x[start : start + CHUNK])
        return total

    def _some(self, x: Array) -> Array:
        thresholds, alive, values = self._tables
        left = np.broadcast_to(alive[0][0], (len(x), len(self.roots)))
        for j, (cuts, masks) in enumerate(zip(thresholds, alive, strict=True)):
            if len(cuts):
                left = left & masks[np.searchsorted(cuts, x[:, j], side="left")]
        lowest = np.bitwise_count((left & (~left + 1)) - 1)  # position of the first leaf still alive
        found = values[np.arange(len(self.roots))[:, None], np.ascontiguousarray(lowest.T)]
        return np.asarray(found.sum(axis=0))  # of rows in memory: added one after the other

    @cached_property
    def _tables(self) -> tuple[list[Array], list[Array], Array]:
        """By feature thresholds [cuts] and leaves left alive [cuts + 1, trees]; values [trees, leaves]."""
        inner = self.feature >= 0
        tree = np.searchsorted(self.roots, np.arange(len(inner)), side="right") - 1
        leaf: Array = np.cumsum(~inner) - ~inner  # in preorder, leaves stand from left to right
        leaves = np.bincount(tree, weights=~inner, minlength=len(self.roots)).astype(np.uint64)
        leaf -= leaf[self.roots][tree]  # how many of the same tree stand before a node
        most = int(leaves.max())
        word = next(t for t in (np.uint8, np.uint16, np.uint32, np.uint64) if np.iinfo(t).bits >= most)
        values = np.zeros((len(self.roots), most))
        values[tree[~inner], leaf[~inner]] = self.number[~inner]
        everything = (~np.uint64(0) >> (np.uint64(64) - leaves)).astype(word)
        thresholds, alive = [], []
        for feature in range(len(self.features)):
            nodes = np.flatnonzero(self.feature == feature)
            unique, place = np.unique(self.number[nodes], return_inverse=True)
            kept = ~(_lowest(leaf[self.right[nodes]]) ^ _lowest(leaf[nodes]))  # not those on the left
            masks = np.tile(everything, (len(unique) + 1, 1))
            np.bitwise_and.at(masks, (place + 1, tree[nodes]), kept.astype(word))
            thresholds.append(unique)
            alive.append(np.bitwise_and.accumulate(masks, axis=0))
        return thresholds, alive, values


def _lowest(bits: Array) -> Array:
    """Words of 64 bits whose lowest `bits`, fewer than 64, are set."""
    return (np.uint64(1) << bits.astype(np.uint64)) - np.uint64(1)


def starts(inner: Array) -> Array | None:
    """Where trees begin, [trees], whose nodes stand in preorder; None where the last tree is cut off.

    `inner`: which nodes split, [nodes]. An inner node opens one subtree more than it closes, a leaf closes
    one. A tree ends where the first of its nodes is closed.
    """
    depth = np.cumsum(np.where(inner, 1, -1))
    lowest = np.minimum.accumulate(np.concatenate([[0], depth]))
    ends = np.flatnonzero(lowest[1:] < lowest[:-1])
    whole = len(ends) and ends[-1] == len(inner) - 1
    return np.concatenate([[0], ends[:-1] + 1]) if whole else None


def right_children(feature: Array) -> Array:
    """The right child of every inner node, -1 for leaves, from the nodes' features in preorder (-1: a leaf).

    A left subtree ends at the first leaf after its parent with as many subtrees open as before the parent.
    """
    right, nodes = np.full(len(feature), -1), np.arange(len(feature))
    inner = feature >= 0
    depth = np.cumsum(np.where(inner, 1, -1))
    depth -= depth.min(initial=0)
    leaves = np.sort((depth * len(feature) + nodes)[~inner])
    last = leaves[np.searchsorted(leaves, ((depth - 1) * len(feature) + nodes)[inner])]
    right[inner] = last % max(len(feature), 1) + 1
    return right


def boost(
    x: Array,
    target: Array,
    weight: Array,
    features: Sequence[str],
    size: tuple[int, int, float] | None = None,
) -> Trees:
    """Trees for the squared error of `target` [rows] given x [rows, features]; equal rows give equal trees.

    `size`: (number of trees, leaves of each, learning rate); chosen by the number of rows where not given.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    trees, leaves, rate = size or next(rest for rows, *rest in reversed(SIZES) if len(target) >= rows)
    model = HistGradientBoostingRegressor(
        max_iter=trees,
        max_leaf_nodes=leaves,
        learning_rate=rate,
        min_samples_leaf=FEWEST_IN_LEAF,
        early_stopping=False,
        random_state=0,
    )
    middle, cuts = float(np.average(target, weights=weight)), [cuts_of(values) for values in x.T]
    # scikit-learn would weigh rows to find its bins, which takes ten times as long as all trees
    bins = np.column_stack([np.searchsorted(some, values) for some, values in zip(cuts, x.T, strict=True)])
    with threadpool_limits(1):  # fits run side by side; threads of each would only wait for one another
        model.fit(bins, target - middle, sample_weight=weight)
    found = flatten(model, middle, features)
    for feature, some in enumerate(cuts):
        here = found.feature == feature
        found.number[here] = some[found.number[here].astype(int)]
    return found


def cuts_of(values: Array) -> Array:
    """Where a feature may be split: between all its values, or at MOST_BINS - 1 quantiles of the rows."""
    different = np.unique(values)
    if len(different) <= MOST_BINS:
        return np.asarray((different[1:] + different[:-1]) / 2)
    return np.unique(np.quantile(values, np.arange(1, MOST_BINS) / MOST_BINS, method="midpoint"))


def flatten(model: object, middle: float, features: Sequence[str]) -> Trees:
    """The arrays of a fitted HistGradientBoostingRegressor; `middle` is added to its predictions.

    scikit-learn has no public view of trees. These attributes are the same since 0.24; tests compare them.
    """
    initial = middle + float(np.ravel(model._baseline_prediction)[0])  # type: ignore[attr-defined]
    roots, feature, right, number = [0], [np.array([-1])], [np.array([-1])], [np.array([initial])]
    offset = 1
    for (tree,) in model._predictors:  # type: ignore[attr-defined]
        nodes = tree.nodes
        leaf = nodes["is_leaf"].astype(bool)
        if not np.array_equal(nodes["left"][~leaf], np.flatnonzero(~leaf) + 1):
            raise ValueError("the trees' nodes are not in preorder")
        roots.append(offset)
        feature.append(np.where(leaf, -1, nodes["feature_idx"]))
        right.append(np.where(leaf, -1, nodes["right"].astype(int) + offset))
        number.append(np.where(leaf, nodes["value"], nodes["num_threshold"]))
        offset += len(nodes)
    nodes = (np.concatenate(part) for part in (feature, right, number))
    return Trees(tuple(features), np.array(roots), *nodes)
