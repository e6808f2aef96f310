"""Prices of layers by one predictor's own regressors, by a law, or by a roofline."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from neuralpower.dtypes import DTYPES, FLOATING
from neuralpower.errors import PredictorError
from neuralpower.layers import KINDS, Draw, Hardware, Layer, columns_of
from neuralpower.layers.base import FORWARD, GRADIENT
from neuralpower.layers.columns import as_columns, in_tiles, of_one_type, replaced, stacked, take
from neuralpower.layers.rows import LARGEST, defaults, field_names
from neuralpower.layers.tiles import TiledProduct
from neuralpower.learn import keys
from neuralpower.learn.estimates import (
    BASES,
    BORROWED,
    CARRIED,
    EXTRAPOLATED,
    HELD,
    IN_RANGE,
    MEASURED,
    WIDE,
    Estimates,
    Powers,
    Roofline,
)
from neuralpower.learn.fitting.problem import Array, Problem, describe, describe_power
from neuralpower.learn.keys import EXACT, Key, Lookup, unquantised, whole_kind
from neuralpower.learn.regressor import BASE_FEATURE, NINETY, Regressor, Spread
from neuralpower.learn.unmeasured import laws
from neuralpower.learn.unmeasured.law_estimates import by_law, faded, seconds_by_law
from neuralpower.learn.unmeasured.prior import Law
from neuralpower.learn.unmeasured.twins import Twin
from neuralpower.learn.unmeasured.weight_only import is_weight_only, weights_law
from neuralpower.learn.watts import law_power
from neuralpower.platforms import Platform, View

EXTRAPOLATION_OCTAVES = 1.0  # farther outside the sampled box is called extrapolated
HELD_OCTAVES = 3.0  # farther still, no call exceeds the most of its law
HIDDEN_AT_MOST = 0.9  # of a call's time can be the host's
# The share of the shortest call's time that a queue hides. The device itself takes the remaining share to
# start a kernel, to end it and to wait for the one before. 35 networks on five GPUs are predicted best with
# 0.6 to 0.7.
HIDDEN_SHARE = 2 / 3
SHORTEST_S = 1e-9  # of a call whose watts are asked
LONGEST_S, MOST_W = 1e30, 1e9  # no device reaches a prediction beyond these
# Standard deviation of log(measured / predicted) that all gradients of a kind share which forward calls stand
# for on a CPU: of backward passes of large calls of ten kinds on two EPYCs.
GRADIENT_DOUBT = 0.2
WIDEST = 100.0  # of log(measured / predicted): bounds a factor of e^100 away are meaningless
BATCH = "batch"  # a size in whose steps no work at the peaks jumps
CHUNK = 8192  # rows described at a time, so that they stay in the cache


@dataclass(frozen=True)
class Asked:
    """What answers besides a predictor's own regressors: the law, and all predictors together."""

    law: Law | None
    engines: bool  # whether engines' kernels run
    price: Callable[[Layer], Estimates]  # of a table's columns, by all
    known: Callable[[Layer], Array]  # how well the best of all knows each row


class Match(NamedTuple):
    """The regressor for some rows of a table."""

    asked: Key  # of the rows
    found: Key  # of the regressor
    exact: bool  # whether it was trained on such rows


@dataclass(frozen=True)
class Times:
    """Seconds of calls by a regressor, each [rows]."""

    runtime_s: Array
    freely_s: Array  # without the law
    least_s: Array
    most_s: Array  # infinite for calls whose like were measured on the chip
    outside: Array  # octaves from the sampled rows
    known: Array  # whether the regressor was fitted on the very call
    measured: Array  # and on the device
    unsure: Array  # standard deviation of what a board with the same chip adds

    def line(self, rows: Array, share: Array, low: Times, high: Times) -> Times:
        """The same with other seconds for some rows: of shares of the way from `low` to `high`."""

        def straight(name: str) -> Array:
            start, end = getattr(low, name), getattr(high, name)
            start, seconds = np.minimum(start, end), np.array(getattr(self, name))
            seconds[rows] = start + share * (end - start)
            return seconds

        return replace(self, runtime_s=straight("runtime_s"), freely_s=straight("freely_s"))


@dataclass(frozen=True)
class Pricer:
    """A predictor's own regressors on the device to predict."""

    title: str  # of the predictor, in messages
    device: str
    lookup: Lookup
    rooflines: Mapping[str, Roofline]
    power: Mapping[Key, Regressor]
    platform: Platform
    twin: Twin | None
    carried: bool
    tables: bool  # whether tables of operators trained it, or a board with the same chip
    here: Callable[[], Hardware]  # the device; raises PredictorError where none is chosen

    @property
    def view(self) -> View:
        return self.lookup.view

    @functools.cached_property
    def hardware(self) -> Hardware:
        """The device, as far as it is known."""
        return self.lookup.hardware or Hardware()

    @functools.cached_property
    def numbers(self) -> Mapping[Key, int]:
        return {key: number for number, key in enumerate(self.lookup.regressors)}

    @functools.cached_property
    def launched(self) -> bool:
        """Whether its times hold a host's launches."""
        return any(regressor.launch_s for regressor in self.lookup.regressors.values())

    def yields(self, columns: Layer, asked: Asked) -> bool:
        """Whether the law knows them better: torch's, where this was trained on engines'."""
        law = asked.law
        if law is None or not self.carried or not _of_torch(columns, law, asked):
            return False
        return self.twin is None or law.taught

    def _bursts(self, columns: Layer, law: Law) -> Array:
        """Whether tables repeat products alone, [rows]: on a B200 at twice the rate that networks sustain.

        Tensor cores then draw too little for the power limit; units of float32 run as fast for long.
        """
        wide = np.isin(columns.dtype, [name for name in FLOATING if DTYPES[name].bits > laws.HALF])
        return ~wide & (law.timed and self.tables and isinstance(columns, TiledProduct))

    def price(self, columns: Layer, asked: Asked) -> Estimates:
        return joined(
            len(columns.dtype),
            (
                (some, self._of_key(take(columns, some), key, asked))
                for key, index in self.lookup.by_key(columns)
                for some in np.split(index, range(CHUNK, len(index), CHUNK))
            ),
        )

    def _of_key(self, columns: Layer, key: Key, asked: Asked) -> Estimates:
        """Rows of one key, by the first that serves: a regressor, quantised weights' law, the law, bytes."""
        found, exact = self.lookup.of(key)
        exact = exact and not self.yields(columns, asked)
        if not exact and is_weight_only(columns):
            return weights_law(columns, asked.price, self.roofline(key[1]))
        rows, law = len(columns.dtype), asked.law
        # in training, gradients and what the backward pass needs leave no weights in the cache
        held = np.full(rows, columns.bytes().weights if key[2] == FORWARD else LARGEST, dtype=float)
        lawful = law is not None and not exact and unquantised(key[3]) == key[3]
        if law is not None and lawful and columns.law.bound_s(columns, law.hardware) is None:
            t = seconds_by_law(columns, law)
            return by_law(columns, law, held, self._power(columns, key, np.maximum(t, SHORTEST_S)), t)
        if found is None:
            works = np.asarray(columns.flops() + sum(columns.bytes()) > 0)  # views do not, and take nothing
            t, hidden, by_bytes = self._untrained(columns, key[1], asked)
            power = self._power(columns, key, np.maximum(t * works, SHORTEST_S))
            return Estimates.untrained(t * works, hidden * works, held, np.full(rows, by_bytes), power)
        measured_as: Any = np.full(rows, key[2])
        alone = self._trained(replace(columns, phase=measured_as), Match(key, found, exact), held, law)
        if not self.view.kernels and np.any(gradients := np.asarray(columns.phase) == GRADIENT):
            derived = alone.times(columns.law.gradient_on_cpu(columns)).widened(GRADIENT_DOUBT)
            alone = derived.where(np.broadcast_to(gradients, (rows,)), alone)
        if (
            not exact
            or law is None
            or not (np.all(self._bursts(columns, law)) and _of_torch(columns, law, asked))
        ):
            return alone
        # a board's power sets the pace of units; reading and launching take what they take in a table
        t = np.minimum(law.parts_s(columns)[0], seconds_by_law(columns, law))
        lasting = by_law(columns, law, held, self._power(columns, key, np.maximum(t, SHORTEST_S)), t)
        return lasting.where(t > alone.runtime_s, alone)

    def _trained(self, columns: Layer, match: Match, held: Array, law: Law | None) -> Estimates:
        """Rows by a regressor, within what the law allows."""
        regressor = self.lookup.regressors[match.found]
        times = self._allowed(columns, match, law)
        t, outside, unsure = times.runtime_s, times.outside, times.unsure
        spread = regressor.spread if match.exact else regressor.spread.widened(WIDE)
        low, high = _bounds(spread, t, outside, unsure)
        shared = np.minimum(np.hypot(spread.shared(t, outside), unsure), WIDEST)
        if self.here().copied_bytes_per_s is not None:  # what no law allows, no bound has
            some = np.maximum(t, SHORTEST_S)
            most = times.most_s * _let(some * np.exp(high) / times.most_s, outside)
            low = np.maximum(low, np.log(np.maximum(times.least_s, SHORTEST_S) / some))
            high = np.minimum(high, np.log(np.maximum(most, some) / some))
            shared = np.minimum(shared, np.maximum(high - low, 0) / (2 * NINETY))
        return Estimates(
            t,
            np.maximum(t * np.exp(low), times.least_s),
            t * np.exp(high),
            shared,
            np.minimum(HIDDEN_SHARE * regressor.launch_s, HIDDEN_AT_MOST * t),
            held,
            np.full(len(t), self.numbers[match.found]),
            np.full(len(t), regressor.exponent),
            self._basis(match.exact, times),
            *self._power(columns, match.found, t),
            np.zeros(len(t)),
        )

    def _allowed(self, columns: Layer, match: Match, law: Law | None) -> Times:
        """Seconds of rows by a regressor, no less and no more than the law allows.

        Where tables have a size at powers of 2 or in whole waves alone, times between run straight.
        """
        times = self._clamped(columns, match, law)
        between = columns.law.between(columns, ~times.known) if self.view.kernels else None
        if between is None:
            return times
        rows, share, *ends = between
        low, high = (self._clamped(end, match, law) for end in ends)
        straight = times.line(rows, share, low, high)
        return replace(straight, runtime_s=np.clip(straight.runtime_s, times.least_s, times.most_s))

    def _clamped(self, columns: Layer, match: Match, law: Law | None) -> Times:
        """The same, each size by itself."""
        regressor, exact, here = self.lookup.regressors[match.found], match.exact, self.here()
        t, outside, known, unsure = self._times(columns, match, law)
        # what was measured on a board that differs in its links alone was measured here
        same_chip = self.twin is None or self.twin.differs_in_links(here)
        measured = exact & known & same_chip
        if self.twin is None and law is not None and self.carried and np.any(outside > 0):
            t = faded(t, law.seconds(columns), outside)
        of_sums = regressor.of_sums and not self.view.pooled  # no call's own time: terms of networks' totals
        rows, never = len(t), np.full(len(t), np.inf)
        least = np.broadcast_to(0.0 if of_sums else self.view.least_s(columns, here), (rows,))
        most = let = never
        on_cpu = here.copied_bytes_per_s is not None
        if law is not None or on_cpu:
            free = measured | self._warm(columns, regressor) & (outside <= 0)
            free |= on_cpu & (outside <= EXTRAPOLATION_OCTAVES)
            free &= same_chip
            least = np.where(free, least, np.maximum(least, laws.least_s(columns, here)))
            most = let = np.maximum(least, laws.most_s(columns, here))
            if exact and (self.twin is not None or not self.carried):
                let = np.maximum(least, let * _let(t / let, outside))
                most = most if on_cpu else never
        return Times(np.clip(t, least, let), t, least, most, outside, known, measured, unsure)

    def _basis(self, exact: bool, times: Times) -> Array:
        """How each row's time is known, as a position in BASES."""
        far = times.outside > EXTRAPOLATION_OCTAVES
        return np.select(
            [np.full(len(far), not exact), times.measured, times.runtime_s != times.freely_s, far],
            [BASES.index(basis) for basis in (BORROWED, MEASURED, HELD, EXTRAPOLATED)],
            BASES.index(CARRIED if self.carried else IN_RANGE),
        )

    def _times(self, columns: Layer, match: Match, law: Law | None) -> tuple[Array, Array, Array, Array]:
        """As `_fitted`, of operands of one type where the regressor knows no others, and of no more bytes.

        Carried from a board with the same chip; the last is the standard deviation of that error.
        """
        rows, here = len(columns.dtype), self.here()
        hardware = here if self.twin is None else self.twin.hardware
        # or quantised in another format
        alike = match.exact or unquantised(match.found[3]) != match.found[3]
        near = columns if alike or not np.any(columns.operand_types.quantised) else of_one_type(columns)
        # a pass over memory takes no longer over fewer bytes
        wider = [] if law is None or match.found[1] != keys.ANY else laws.in_more_bits(near, here)
        t, outside, known = (
            some.reshape(1 + len(wider), rows)
            for some in self._fitted(match.found, stacked(near, *wider), hardware)
        )
        if near is not columns:  # the roofline says what operands of other types change
            dtype = match.asked[1]
            t = t * self._roofline_s(columns, dtype) / self._roofline_s(near, dtype)
        unsure, mine = np.zeros(rows), known[0]
        if self.twin is not None:
            mine = mine & self.twin.differs_in_links(here)
            carried = [
                self.twin.carried(in_tiles(one, kept=(BATCH,))[0], seconds, here)
                for one, seconds in zip((columns, *wider), t, strict=True)
            ]
            t, unsure = np.stack([seconds for seconds, _ in carried]), carried[0][1]
        return np.where(mine, t[0], np.min(t, axis=0)), outside[0], known[0], unsure

    def _warm(self, columns: Layer, regressor: Regressor) -> bool:
        """Whether its rows may have found weights in a cache: of a table that lists none of them.

        A cache of keys is read once in each step, so no table lets attention beat its memory.
        """
        cached = "key_length" in field_names(type(columns))
        return regressor.unlisted and not self.view.pooled and not cached

    def _fitted(self, key: Key, columns: Layer, hardware: Hardware) -> tuple[Array, Array, Array]:
        """(Seconds, octaves outside the box, whether it was fitted on the very call), each [rows].

        Kernels of a tile share a residual.
        """
        regressor = self.lookup.regressors[key]
        described = functools.partial(
            describe,
            hardware=hardware,
            view=self.view,
            featured=regressor.trees is not None,
            also=regressor.dimensions(),
        )
        problem = described(columns)
        t, outside = self._predict(key, regressor, problem, LONGEST_S)
        measured = regressor.has_measured(problem.config)
        if not self.view.kernels:
            return t, outside, measured
        tiles, differs = in_tiles(columns)
        moved = np.flatnonzero(differs & ~measured)
        if len(moved):
            alike, own = described(take(tiles, moved)), problem.at(moved)
            if columns.spreads:
                spread = {name: getattr(tiles, name)[moved] for name in columns.spreads}
                own = described(replaced(take(columns, moved), spread))
            t[moved], outside[moved] = self._predict(key, regressor, own, LONGEST_S, alike)
        return t, outside, measured

    def _predict(
        self,
        key: Key,
        regressor: Regressor,
        problem: Problem,
        most: float,
        alike: Problem | None = None,
    ) -> tuple[Array, Array]:
        """(target, octaves outside the box), each [rows]; raises PredictorError for one above `most`."""
        self._check(key, regressor, problem)
        with np.errstate(all="ignore"):  # a base of 0 has no logarithm, and what overflows is refused below
            value, outside = regressor.predict(problem, alike)
        wrong = ~((value >= 0) & (value <= most))
        if wrong.any():
            said = f"{value[wrong][0]:.4g} {'W' if problem.bounded else 's'}"
            raise PredictorError(
                f"predictor {self.title!r} gives {said} for a layer of {' '.join(key)}, "
                "which is impossible; train it again with train-predictor"
            )
        return value, outside

    def check_formulas(self) -> None:
        """Raise PredictorError where a regressor has terms, axes or features that its kind does not have."""
        hardware = self.lookup.hardware or Hardware(platform=self.platform.name)
        example = functools.cache(functools.partial(self._example, hardware))
        for some, of_power in ((self.lookup.regressors, False), (self.power, True)):
            for key, regressor in some.items():
                problem = example(KINDS[key[0]], of_power)
                self._check(key, regressor, problem)
                missing = sorted(problem.axes.keys() - regressor.box.keys())
                if missing:  # without it, a layer far away along it would not count as outside
                    raise PredictorError(
                        f"predictor {self.title!r}: the box of {' '.join(key)} lacks "
                        f"{', '.join(missing)}; train it again with train-predictor"
                    )

    def _example(self, hardware: Hardware, kind: type[Layer], of_power: bool) -> Problem:
        """Any one layer of a kind, as its regressors see it."""
        columns = columns_of(kind, [kind.sample(Draw(0))])
        with np.errstate(all="ignore"):
            if of_power:
                return describe_power(columns, hardware, np.ones(1))
            return describe(columns, hardware, self.view)

    def _check(self, key: Key, regressor: Regressor, problem: Problem) -> None:
        """Raise PredictorError where the layers' formulas differ from the regressor's."""
        special = [term.special for term in regressor.terms if term.special]
        special += regressor.alignment.slopes if regressor.alignment else ()
        powers = [name for term in regressor.terms for name, _ in term.powers]
        gone = [name for name in special if name not in problem.special]
        gone += [name for name in powers if name not in problem.dimensions]
        gone += sorted(regressor.box.keys() - problem.axes.keys())
        features = (*problem.feature_names, BASE_FEATURE)
        featured = regressor.trees is None or regressor.trees.features == features
        if gone or not featured:
            raise PredictorError(
                f"predictor {self.title!r} was trained by a version that described {key[0]} "
                f"otherwise ({', '.join(dict.fromkeys(gone)) or 'other features'}); train it again with "
                "train-predictor"
            )

    def _power(self, columns: Layer, key: Key, runtime_s: Array) -> Powers:
        """Watts with 90 % bounds, from idle to the limit; by the kind's regressor where the key has none.

        Where neither exists, the law of the kind of work says them (`watts.py`).
        """
        name = key if key in self.power else whole_kind(key[0])
        regressor = self.power.get(name)
        if regressor is None:
            return *law_power(columns, self.hardware, runtime_s, self.device), np.zeros(len(runtime_s))
        problem = describe_power(columns, self.hardware, runtime_s)
        power, outside = self._predict(name, regressor, problem, MOST_W)
        low, high = _bounds(regressor.spread, power, outside)
        floor, ceiling = self.hardware.idle_w or 0.0, self.hardware.board_w or np.inf
        watts = power, power * np.exp(low), power * np.exp(high)
        value, low, high = (np.clip(bound, floor, ceiling) for bound in watts)
        return value, low, high, np.ones(len(runtime_s))

    def _untrained(self, columns: Layer, dtype: str, asked: Asked) -> tuple[Array, Array, bool]:
        """(Time, the part that a queue hides, each [rows]; whether its bytes set it) of an untrained kind.

        Where the platform says so, copies, sums and look-ups take at least as long as a pass over their
        bytes.
        """
        t, like = self._roofline_s(columns, dtype), self.platform.like
        if columns.multiplies:
            steps_s = self.platform.step_s * (np.asarray(columns.law.launches(columns)) - 1)
            again_s = columns.law.again_bytes(columns) / self.platform.again_bytes_per_s
            t = np.maximum(t, steps_s) if self.view.kernels else t + steps_s + again_s
        if columns.multiplies or like is None or columns.law.bound_s(columns, self.hardware) is not None:
            return t, np.zeros(len(t)), False
        size = np.broadcast_to(np.asarray(sum(columns.bytes())), t.shape)
        kind, given = KINDS[like[0]], {"function": "add", "operands": 1, "broadcast": False}
        fields: dict[str, Any] = {name: [value] * len(t) for name, value in (defaults(kind) | given).items()}
        fields["elements"] = np.maximum(size / (2 * DTYPES["float32"].itemsize), 1)
        passed = as_columns(kind, fields)
        if asked.known(passed).min() < EXACT:
            return t, np.zeros(len(t)), False
        found = asked.price(passed)
        return np.maximum(t, found.runtime_s), found.hidden_s, True

    def _roofline_s(self, columns: Layer, dtype: str) -> Array:
        t = columns.law.bound_s(columns, self.hardware)
        if t is None:
            t = self.roofline(dtype).seconds(columns.flops(), sum(columns.bytes()))
            t += self.platform.launch_s
        return np.broadcast_to(np.asarray(t, dtype=np.float64), (len(columns.dtype),))

    def roofline(self, dtype: str) -> Roofline:
        """The roofline of the dtype, else of the first one."""
        return self.rooflines.get(dtype) or next(iter(self.rooflines.values()))


def _of_torch(columns: Layer, law: Law, asked: Asked) -> bool:
    """Whether torch runs such calls and the law knows them."""
    return not asked.engines and law.knows(columns) and not np.any(columns.operand_types.quantised)


def _bounds(
    spread: Spread, predicted: Array, outside: Array, unsure: Array | float = 0.0
) -> tuple[Array, Array]:
    """Logarithms of the 90 % bounds relative to the prediction, each [rows], WIDEST away at most.

    `unsure`: standard deviation of a further error.
    """
    low, high = spread.bounds(predicted, outside)
    if np.any(unsure):
        low, high = -np.hypot(low, NINETY * unsure), np.hypot(high, NINETY * unsure)
    return np.maximum(low, -WIDEST), np.minimum(high, WIDEST)


def _let(excess: Array, outside: Array) -> Array:
    """Times that a call may exceed the most of its law, as its neighbours do: all of it among rows, [rows].

    Beyond them it fades over HELD_OCTAVES, slowly enough that a larger call takes no less.
    """
    held = np.clip((outside - EXTRAPOLATION_OCTAVES) / HELD_OCTAVES, 0.0, 1.0)
    return np.asarray(np.maximum(excess, 1.0) ** (1 - held))


def joined(rows: int, parts: Iterable[tuple[Array, Estimates]]) -> Estimates:
    """Estimates of `rows` layers from parts, each with the rows that it is of."""
    whole = {"regressor", "basis_code"}
    found = {name: np.empty(rows, int if name in whole else float) for name in Estimates.__dataclass_fields__}
    for index, part in parts:
        for name, values in found.items():
            values[index] = getattr(part, name)
    return Estimates(**found)
