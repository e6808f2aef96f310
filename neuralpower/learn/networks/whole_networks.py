"""Corrections from whole networks' times: a factor per regressor, or one for a whole predictor.

    measured_i = sum_k f_k T_ik + sum_c h_c S_ic    T: what regressor k predicts of network i; S: below
    minimise     sum_i (that (1 + q r_i) / measured_i - 1)^2
                 + sum_k ((f_k - g) / tau)^2 s^2 + sum_c h_c^2 s^2 + q^2 s^2

`tau` comes from cross-validation; s is the noise; g is 1, or what all have in common where the layers are
another machine's. S is what calls take in their first 150 us (convolutions; 500 of those over signals) or 30
us (all else). h is added to the factors of calls up to that, and fades into a constant beyond: in turn with
sixty others a call's code is colder than in a network, and between a network's calls the interpreter runs. r
is 1 for a network without weights, 0 where they no longer stay in the cache from pass to pass, and 0 for a
step of training. A base that is linear in its weights allows the same with the terms of the layers instead of
the regressors' sums, where only totals are known.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from neuralpower.data.screening import Rejected
from neuralpower.layers import KINDS
from neuralpower.layers.base import BACKWARD
from neuralpower.layers.optimizer import Optimizer
from neuralpower.learn.estimates import Estimates
from neuralpower.learn.fitting.held_out import far_off
from neuralpower.learn.fitting.problem import Array
from neuralpower.learn.fitting.slopes import speed_exponent
from neuralpower.learn.keys import recurs
from neuralpower.learn.networks.network_rows import Total
from neuralpower.learn.networks.pace import NetworkSpeed
from neuralpower.learn.predictor import Predictor, resident_share
from neuralpower.learn.regressor import NINETY

TAUS = (0.02, 0.05, 0.1, 0.2, 0.4)  # how far factors may lie from the common one
# Times that of forward passes. Backward passes follow each other in a network as nowhere else, and held-out
# steps of training were predicted better (9.9, then 9.0 %). Left free, an optimizer's factor stood for them:
# it takes up to 1.7 times as long in some runs.
LOOSENESS = {BACKWARD: 2.0, Optimizer.kind: 0.5}  # by phase; an optimizer has its own
TAUS_OF_LAYERS = TAUS[:-1]  # of one machine: by 0.4 a small kind stood for others in the same networks
SHORT_FACTORS = (0.25, 2.0)  # of a regressor's factor, what is left of it for short calls
# (Exponent, its deviation) expected of networks before any is seen: hundreds on each of two CPUs followed the
# sentinel by 1.06 and 0.49.
EXPONENT = (0.8, 0.4)
# Deviation of log(time) between days: 68 networks took 6 % longer on another day's virtual machine, slow-down
# taken out, and each of eight scattered by 4 % within ten minutes.
DAYS = 0.06
# No slow-down is taken out beyond what this share of networks met. The slopes are those of all: fitted to
# what is taken out alone, they predicted held-out networks worse (6.3 for 6.1 %).
MET = 0.95
SLOWEST = 1.15  # at least: hundreds on each of two CPUs met 1.18 and 1.19, a dozen in a calm minute 1.004
FACTORS = (0.25, 4.0)  # no correction goes farther
MOST_RESIDENT = 0.5
FEWEST_NETWORKS = 10
FEWEST_FOR_COMMON = 2  # networks that show what all layers have in common, so that each can be held out
# Deviations of log(measured / predicted) before networks tell: of the common factor, and of networks about
# it.
COMMON, USUAL = 0.4, 0.1
MOST_UNTRAINED = 0.5  # of a network's time, that no trained kind covers
FOLDS = 10
Networks = Sequence[tuple[Total, Estimates]]  # each with what is known of its layers


def consistent(totals: Sequence[Total], predicted: Array) -> tuple[list[Total], list[Rejected]]:
    """(Consistent networks, rejected ones): rejected ones lie far from the others, relative to `predicted`.

    A network with a predicted time of 0 is kept; a few networks cannot show which one is wrong.
    """
    known = np.flatnonzero(predicted > 0)
    measured = np.array([total.runtime_s for total in totals])
    enough = len(known) >= FEWEST_NETWORKS
    far = known[far_off(np.log(measured[known] / predicted[known]))].tolist() if enough else []
    return parted(totals, far)


@dataclass(frozen=True)
class Correction:
    """The effect of whole networks: mean absolute errors of held-out totals, shares."""

    predictor: Predictor
    rows: int
    before: float
    after: float


def composed(predictor: Predictor, totals: Sequence[Total]) -> Array:
    """Seconds of each network at its pace, [networks]: its layers' sum, or the host's part where larger."""
    networks = [*zip(totals, predictor.estimate_each([one.layers for one in totals]), strict=True)]
    speed = _speed(predictor, networks, _taken(networks))
    if speed:  # no moment is too slow to be true
        predictor = replace(predictor, speed=msgspec.structs.replace(speed, slowest=None))
    seconds = np.zeros(len(totals))
    for i, (total, found) in enumerate(networks):
        slow = predictor.slowdown(found, total.pace, total.calls)
        device_s = float(found.totals(total.calls[None]).value[0]) * slow
        device_s *= float(predictor.in_cache(found, total.calls))
        host_s = float(total.calls @ predictor.dispatch.seconds(total.layers)) if predictor.dispatch else 0.0
        seconds[i] = max(device_s, host_s)
    return seconds


def correct(predictor: Predictor, totals: Sequence[Total]) -> Correction | None:
    """Factors for the regressors, how networks follow the machine's speed, and what errors are left.

    Factors explain the part of a network's time that trained kinds cover; None where that is half or more in
    too few networks. A few networks give one factor for all regressors.
    """
    from neuralpower.networks.names.families import family_of

    known = [*zip(totals, predictor.estimate_each([one.layers for one in totals]), strict=True)]
    networks = [
        (t, found)
        for t, found in known
        if (found.regressor >= 0).any() and _trained_s(t, found) >= (1 - MOST_UNTRAINED) * t.runtime_s
    ]
    few = len(totals) < FEWEST_NETWORKS  # few of many explained by layers are not typical
    if len(networks) < (FEWEST_FOR_COMMON if few else FEWEST_NETWORKS):
        return None
    if few:
        return _correct_in_common(predictor, networks)
    keys = list(predictor.regressors)
    # Networks of one family are held out together: next to similar ones, bad factors look good.
    family = np.unique([family_of(total.model) for total, _ in networks], return_inverse=True)[1]
    short_s = np.array([0.0 if recurs(key) else KINDS[key[0]].short_s for key in keys])
    taus = np.outer(TAUS_OF_LAYERS, [LOOSENESS.get(key[2], 1.0) for key in keys])
    resident = _resident(predictor, networks)
    taken = _taken(networks)
    for _ in range(2):  # the speed again by corrected layers: networks of a slow day may all be alike
        predictor = replace(predictor, speed=_speed(predictor, networks, taken))
        shares, short, slow = _shares(predictor, networks, short_s)
        factors, held_out = fit_factors(shares, family, False, taus, short, short_s, resident)
        taken = slow / np.maximum(held_out, np.finfo(float).tiny)
    fitted = zip(keys, *factors[:-1].reshape(2, -1).tolist(), short_s.tolist(), strict=True)
    regressors = {
        key: replace(predictor.regressors[key], factor=factor, short=more, short_s=limit)
        for key, factor, more, limit in fitted
    }
    system = system_of(networks, held_out)
    corrected = replace(predictor, regressors=regressors, system=system, resident=float(factors[-1]))
    return Correction(corrected, len(networks), _error(shares.sum(axis=1)), _error(held_out))


def _resident(predictor: Predictor, networks: Networks) -> Array:
    """Share of the cache that each network's weights leave free; all 0 where few fill it, or few do not."""
    resident = np.zeros(len(networks))
    if predictor.hardware is not None and predictor.platform.keeps_weights:
        held = np.array([total.calls @ found.held_bytes for total, found in networks])
        resident = resident_share(held, predictor.hardware)
    rarest = min(np.count_nonzero(resident > 0.5), np.count_nonzero(resident < 0.5))
    return resident if rarest >= FEWEST_NETWORKS else np.zeros(len(networks))


def _error(relative: Array) -> float:
    """Mean absolute error of predictions relative to what was measured."""
    return float(np.mean(np.abs(relative - 1)))


def _correct_in_common(predictor: Predictor, networks: Networks) -> Correction | None:
    """One factor for all regressors, from a few networks; None where held-out networks gain nothing by it."""
    shares, _, _ = _shares(predictor, networks, np.zeros(len(predictor.regressors)))
    sums = shares.sum(axis=1)  # relative to what was measured
    ratio = -np.log(sums)
    held_out = sums * [common_factor(np.delete(ratio, i)) for i in range(len(ratio))]
    before, after = _error(sums), _error(held_out)
    if after >= before:
        return None
    factor = common_factor(ratio)
    regressors = {key: replace(found, factor=factor) for key, found in predictor.regressors.items()}
    system = max(system_of(networks, held_out), predictor.system)
    return Correction(replace(predictor, regressors=regressors, system=system), len(networks), before, after)


def common_factor(ratio: Array) -> float:
    """The factor for all layers' times, from log(measured / predicted) of a few networks, [networks].

    Their mean, drawn towards 1: the less networks agree, the more. Their variance is the usual one, known as
    well as from two networks, until they show another.
    """
    mean, n = float(np.mean(ratio)), len(ratio)
    variance = (2 * USUAL**2 + float(np.sum((ratio - mean) ** 2))) / (n + 1)
    return float(np.clip(np.exp(mean / (1 + variance / n / COMMON**2)), *FACTORS))


def _shares(predictor: Predictor, networks: Networks, short_s: Array) -> tuple[Array, Array, Array]:
    """Each network's time by regressor, what of it calls' first `short_s` [keys] are, and its slow-down.

    [networks, keys] twice, relative to what the network took at the machine's usual speed, and [networks].
    """
    shares, short = np.zeros((2, len(networks), len(short_s)))
    slow = np.ones(len(networks))
    for i, (total, found) in enumerate(networks):
        trained = found.regressor >= 0
        slow[i] = predictor.slowdown(found, total.pace, total.calls)
        part = total.calls * slow[i] / _trained_s(total, found)
        at_most = np.minimum(found.runtime_s, short_s[found.regressor])
        np.add.at(shares[i], found.regressor[trained], (part * found.runtime_s)[trained])
        np.add.at(short[i], found.regressor[trained], (part * at_most)[trained])
    return shares, short, slow


def _trained_s(total: Total, found: Estimates) -> float:
    """A network's time minus the roofline time of its untrained layers."""
    untrained = found.regressor < 0
    return total.runtime_s - float(total.calls[untrained] @ found.runtime_s[untrained])


def _taken(networks: Networks) -> Array:
    """Each network's time relative to the sum of its layers, [networks]."""
    return np.array([total.runtime_s / float(total.calls @ found.runtime_s) for total, found in networks])


def _speed(predictor: Predictor, networks: Networks, taken: Array) -> NetworkSpeed | None:
    """How networks follow the machine's speed, by those that say what it was; None where too few do.

    `taken` [networks]: measured time relative to what is predicted at the usual speed.
    """
    paces = [total.pace for total, _ in networks if total.pace is not None]
    if len(paces) < FEWEST_NETWORKS:
        return None
    ratio = taken[[total.pace is not None for total, _ in networks]]
    usual = NetworkSpeed(float(np.median([pace.sentinel_s for pace in paces])), 0.0)
    ratios = [pace.again_s / pace.sentinel_s for pace in paces if pace.again_s]
    if len(ratios) >= FEWEST_NETWORKS:  # the usual speed is that of all rows, by what both calls took in some
        usual = msgspec.structs.replace(usual, again_s=usual.sentinel_s * float(np.median(ratios)))
    slow = np.array([usual.over(pace) for pace in paces])
    slowest = max(float(np.quantile(slow, MET)), SLOWEST)
    exponent = speed_exponent(slow, ratio, EXPONENT)
    return msgspec.structs.replace(usual, exponent=exponent, slowest=slowest)


def fit_factors(
    shares: Array,
    group: Array | None = None,
    common: bool = False,
    taus: Sequence[float] | Array = TAUS,
    short: Array | None = None,
    short_s: Array | None = None,
    resident: Array | None = None,
) -> tuple[Array, Array]:
    """(factors [keys], held-out predictions relative to the measurement [rows]) from shares [rows, keys].

    Rows of one `group`, counted from 0, are held out together; with fewer than three groups, each row alone.
    `common`: fit what all factors share, rather than use 1. `short` [rows, keys]: what of the shares
    the first `short_s` [keys] of each call take; what factors change by for these, equally for all keys of
    one `short_s` within SHORT_FACTORS, then follows the factors, [2 keys]. `resident` [rows]: share of the
    cache that a network's weights leave free; the last factor is then the share by which a network without
    weights takes longer. `taus`: to choose from, the tightest first, [taus] or [taus, keys].
    """
    rows = len(shares)
    none = np.zeros((rows, 0)) if short is None else short
    alike = np.unique(np.zeros(none.shape[1]) if short_s is None else short_s, return_inverse=True)[1]
    own = group is None or len(np.unique(group)) < 3
    fold = np.asarray(np.arange(rows) if own else group) % min(FOLDS, rows)
    held_out = np.empty((len(taus), rows))
    columns, kept = np.column_stack([shares, none]), np.zeros(rows) if resident is None else resident
    for i, tau in enumerate(taus):
        for f in np.unique(fold):
            known, asked = fold != f, fold == f
            found = _ridge(shares[known], none[known], alike, kept[known], tau, common)
            held_out[i, asked] = (columns[asked] @ found[:-1]) * (1 + found[-1] * kept[asked])
    costs = np.minimum(np.abs(held_out - 1), 0.5)
    best = int(np.argmin(costs.mean(axis=1)))
    doubt = np.std(costs - costs[best], axis=1) / np.sqrt(rows)
    chosen = int(np.argmax(costs.mean(axis=1) <= costs[best].mean() + doubt))  # the tightest that is as good
    factors = _ridge(shares, none, alike, kept, taus[chosen], common)
    return factors if resident is not None else factors[:-1], held_out[chosen]


def _ridge(shares: Array, short: Array, alike: Array, kept: Array, tau: float | Array, shared: bool) -> Array:
    """Factors of robust least squares, drawn to the common one, and what `alike` keys add for short calls."""
    common = float(np.clip(np.exp(np.median(-np.log(shares.sum(axis=1)))), *FACTORS)) if shared else 1.0
    keys = shares.shape[1]
    classes = int(alike.max()) + 1 if len(alike) else 0
    scaled = np.column_stack([shares, short @ np.eye(classes)[alike], kept]) * common
    expected = scaled[:, :keys].sum(axis=1)
    tightness = np.append(1 / np.broadcast_to(tau, keys), np.ones(classes + 1))
    delta = np.zeros(keys + classes + 1)
    for _ in range(3):
        scaled[:, -1] = kept * (expected + scaled[:, :-1] @ delta[:-1])
        residual = 1 - expected - scaled @ delta
        noise = max(1.4826 * float(np.median(np.abs(residual))), 0.01)
        weight = np.minimum(1.0, (3 * noise / np.maximum(np.abs(residual), 1e-12)) ** 2)
        weighted = scaled * weight[:, None]
        gram = weighted.T @ scaled + np.diag((noise * tightness) ** 2)
        delta = np.linalg.solve(gram, weighted.T @ (1 - expected))
    factors = np.clip(common * (1 + delta[:keys]), *FACTORS)
    own = factors[: len(alike)]
    of_short = np.clip(own + common * delta[keys:-1][alike], *np.outer(SHORT_FACTORS, own))
    return np.concatenate([factors, of_short - own, np.clip(delta[-1:], -MOST_RESIDENT, MOST_RESIDENT)])


def system_of(networks: Networks, held_out: Array) -> float:
    """Standard deviation of networks' errors, beyond their layers', at which bounds contain 90 % of them.

    Layers and networks of one dataset were measured on the same days; what another day brings comes on top.
    """
    known = np.array([float(found.totals(total.calls[None]).deviation[0]) for total, found in networks])
    needed = (np.log(held_out) / NINETY) ** 2 - known**2
    share = min(0.9 * (1 + 1 / len(needed)), 1.0)  # so that nine in ten of the networks to come lie within
    return float(np.sqrt(max(np.quantile(needed, share), 0.0) + DAYS**2))


def parted(totals: Sequence[Total], far: Collection[int]) -> tuple[list[Total], list[Rejected]]:
    """The networks without those `far` from the others, and these."""
    reason = "runtime_s contradicts the other networks"
    left_out = [Rejected("network", totals[i].line, reason, totals[i].dataset) for i in sorted(far)]
    return [total for i, total in enumerate(totals) if i not in far], left_out
