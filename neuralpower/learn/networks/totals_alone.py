"""Regressors trained on whole networks alone, by summing the terms of their layers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from neuralpower.data.screening import Rejected, summarised
from neuralpower.dtypes import FLOATING
from neuralpower.errors import DatasetError
from neuralpower.layers import KINDS, Hardware, Layer, columns_of
from neuralpower.learn.fitting.held_out import contradicting_few
from neuralpower.learn.fitting.intervals import scores_of
from neuralpower.learn.fitting.lasso import FEWEST_FOR_TERM, non_negative_lasso
from neuralpower.learn.fitting.problem import Array, Term, describe
from neuralpower.learn.keys import ALL, INTEGER, Key
from neuralpower.learn.networks.network_rows import Total
from neuralpower.learn.networks.whole_networks import FEWEST_NETWORKS, FOLDS, consistent, parted, system_of
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.regressor import Regressor, Spread

PARTS = ("", "flops", "bytes")  # of a kind's time, distinguished by totals: a constant per call, and terms
ALPHAS = tuple(10.0**-exponent for exponent in range(2, 7))


def _key(layer: Layer) -> Key:
    """The key of a layer's regressor: totals do not distinguish a kind's groups."""
    return layer.kind, layer.dtype if layer.dtype in FLOATING else INTEGER, layer.phase, ALL


def train_totals(
    totals: Sequence[Total], hardware: Hardware, rejected: Sequence[Rejected]
) -> tuple[dict[Key, Regressor], Sequence[Total], Array, list[Rejected]]:
    """Regressors from totals alone: a constant per call, FLOPs and bytes of each kind, by one Lasso over all.

    Also returns the networks that they were trained on, held-out predictions relative to their times
    [networks], and the networks that contradict the others.

    Raises:
        DatasetError: fewer than FEWEST_NETWORKS networks, the `rejected` ones not counted.
    """
    totals, left_out = _without_contradicting_few(totals, hardware)
    while True:
        if len(totals) < FEWEST_NETWORKS:
            why = "".join(f"; {line}" for line in summarised([*rejected, *left_out]))
            networks = f"{len(totals)} measured networks and no layers"
            raise DatasetError(f"{networks}; {FEWEST_NETWORKS} needed{why}")
        sums, boxes, matrix, target = _sums(totals, hardware)
        fold = np.arange(len(target)) % FOLDS
        tried = np.empty((len(target), len(ALPHAS)))
        for f in np.unique(fold):
            known, held = fold != f, fold == f
            tried[held] = matrix[held] @ non_negative_lasso(matrix[known], target[known], ALPHAS).T
        best = int(np.argmin(np.mean(np.minimum(np.abs(tried / target[:, None] - 1), 2.0), axis=0)))
        held_out = tried[:, best]
        totals, more = consistent(totals, held_out)
        if not more:
            break
        left_out += more
    weights = dict(zip(sums, non_negative_lasso(matrix, target, [ALPHAS[best]])[0].tolist(), strict=True))
    some = held_out > 0  # a network whose kinds no other has is not predicted
    error = np.log(target[some] / held_out[some])
    low, high = np.quantile(error, (0.05, 0.95))
    low, high, common = min(float(low), 0.0), max(float(high), 0.0), float(np.std(error))
    spread = Spread([], [low], [high], (high - low) / 4, common, common / 2)
    regressors = {}
    for key in boxes:
        parts = [(name, weights[key, name]) for name in PARTS if weights[key, name] > 0]
        regressors[key] = Regressor(
            terms=tuple(Term(special=name) if name else Term() for name, _ in parts),
            weights=np.array([weight for _, weight in parts]),
            degree=0,
            alpha=ALPHAS[best],
            box=boxes[key],
            trees=None,
            reach=0.0,
            spread=spread,
            scores=scores_of(target[some], held_out[some]),
        )
    return regressors, totals, held_out / target, left_out


def _without_contradicting_few(
    totals: Sequence[Total], hardware: Hardware
) -> tuple[list[Total], list[Rejected]]:
    """(Networks that agree with the others, networks that contradict them), for few networks."""
    if not FEWEST_NETWORKS <= len(totals) < 3 * FEWEST_NETWORKS:
        return list(totals), []
    _, _, matrix, target = _sums(totals, hardware)

    def error(known: Array, asked: Array) -> Array:
        weights = non_negative_lasso(matrix[known], target[known], [ALPHAS[0]])[0]
        return np.asarray(np.log(target[asked] / np.maximum(matrix[asked] @ weights, np.finfo(float).tiny)))

    def compared(others: Array, row: int) -> tuple[float, Array, float]:
        fold = np.arange(len(others)) % 5
        errors = np.concatenate([error(others[fold != f], others[fold == f]) for f in range(5)])
        common = np.count_nonzero(matrix[others], axis=0) >= min(FEWEST_FOR_TERM, len(others) // 2)
        own = error(others, np.array([row]))[0] if common[matrix[row] > 0].all() else np.median(errors)
        return float(own), errors, 0.0  # kinds that few others have cannot be estimated

    far = contradicting_few(len(totals), compared)
    return parted(totals, np.flatnonzero(far).tolist())


def with_system(predictor: Predictor, totals: Sequence[Total], relative: Array) -> Predictor:
    """The predictor with its networks' errors beyond their layers'; `relative` is from `train_totals`.

    A network's error is that of all its regressors at once, whose errors add up as if independent.
    """
    known = [totals[i] for i in np.flatnonzero(relative > 0).tolist()]
    networks = [*zip(known, predictor.estimate_each([one.layers for one in known]), strict=True)]
    return replace(predictor, system=system_of(networks, relative[relative > 0]))


def _sums(
    totals: Sequence[Total], hardware: Hardware
) -> tuple[list[tuple[Key, str]], dict[Key, dict[str, tuple[float, float]]], Array, Array]:
    """(keys and parts of sums, boxes of axes, the sums [networks, sums], times [networks])."""
    sums: dict[tuple[Key, str], Array] = {}
    boxes: dict[Key, dict[str, tuple[float, float]]] = {}
    for i, total in enumerate(totals):
        keys = [_key(layer) for layer in total.layers]
        for key in dict.fromkeys(keys):
            index = [j for j, other in enumerate(keys) if other == key]
            columns = columns_of(KINDS[key[0]], [total.layers[j] for j in index])
            counts = total.calls[index]
            problem = describe(columns, hardware)
            values = (np.ones(len(index)), problem.special["flops"], problem.special["bytes"])
            for name, value in zip(PARTS, values, strict=True):
                sums.setdefault((key, name), np.zeros(len(totals)))[i] += float(counts @ value)
            box = boxes.setdefault(key, {})
            for name, axis in problem.axes.items():
                low, high = box.get(name, (np.inf, -np.inf))
                box[name] = (min(low, float(axis.min())), max(high, float(axis.max())))
    matrix = np.column_stack([*sums.values()])
    return list(sums), boxes, matrix, np.array([total.runtime_s for total in totals])


def work_of_totals(totals: Sequence[Total]) -> dict[str, Array]:
    """[3, networks] of FLOPs, bytes and seconds, by the dtype of most FLOP, or bytes where FLOP tie."""
    parts: dict[str, list[tuple[float, float, float]]] = {}
    for total in totals:
        flops, size = defaultdict[str, float](float), defaultdict[str, float](float)
        for layer, n in zip(total.layers, total.counts, strict=True):
            flops[layer.dtype] += n * layer.flops()
            size[layer.dtype] += n * sum(layer.bytes())
        most = max(flops, key=lambda dtype: (flops[dtype], size[dtype]))
        parts.setdefault(most, []).append((sum(flops.values()), sum(size.values()), total.runtime_s))
    return {dtype: np.array(some).T for dtype, some in parts.items()}
