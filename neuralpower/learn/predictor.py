"""A Predictor: a regressor per kind, dtype, phase and group; layers in, seconds with 90 % bounds out.

Layers come one by one (`estimate`), as a table's columns (`estimate_columns`), as networks (`predict_many`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from neuralpower.devices.host import Cpu, unlike
from neuralpower.devices.names import folded
from neuralpower.devices.spec import DeviceSpec
from neuralpower.dtypes import DTYPES, FLOATING, MEASURABLE, floats_of, instead_of, peaks_of
from neuralpower.errors import PredictorError
from neuralpower.layers import KINDS, Hardware, Layer, columns_of
from neuralpower.layers.base import BACKWARD, FORWARD, LARGEST, measured_phase
from neuralpower.layers.columns import as_columns, in_tiles, of_one_type, replaced, stacked, take
from neuralpower.layers.sweep import Draw
from neuralpower.layers.tiles import TiledProduct
from neuralpower.learn import keys, laws
from neuralpower.learn.device_levels import level
from neuralpower.learn.estimates import (
    BARE,
    BASES,
    BORROWED,
    BY_BYTES,
    BY_ITS_BYTES,
    BY_LAW,
    BY_NETWORKS,
    BY_PHYSICS,
    BY_ROOFLINE,
    BY_WEIGHTS,
    CARRIED,
    CARRIED_BY,
    EXTRAPOLATED,
    HELD,
    IN_RANGE,
    LIKE,
    MEASURED,
    ROOFLINE_FACTOR,
    TRAINED_HERE,
    WIDE,
    Estimates,
    Powers,
    Roofline,
    Totals,
    by_origin,
    in_words,
)
from neuralpower.learn.features import describe, describe_power
from neuralpower.learn.keys import INTEGER, Key, groups_of, once, rows_by, unquantised, whole_kind
from neuralpower.learn.launch_overhead import Dispatch
from neuralpower.learn.law_estimates import by_law, faded, seconds_by_law
from neuralpower.learn.pace import NetworkSpeed, Pace
from neuralpower.learn.prior import Law
from neuralpower.learn.problem import Array, Problem
from neuralpower.learn.regressor import BASE_FEATURE, NINETY, Regressor, Spread
from neuralpower.learn.twins import Twin
from neuralpower.learn.watts import Setting, as_set, law_power
from neuralpower.learn.weight_only import is_weight_only, said, weights_law
from neuralpower.platforms import (
    Platform,
    View,
    hardware_of,
    platform_name,
    platform_named,
    platform_of,
)

LAW = "law"  # the learner of a predictor that is a law moved by its device's networks
EXTRAPOLATION_OCTAVES = 1.0  # farther outside the sampled box is called extrapolated
# The share of the last-level cache that a network's weights may fill to stay there from pass to pass.
# Networks held out by family: an eighth to all of it predicted nearly as well, a quarter best, on a Zen 4 and
# on a Zen 5.
KEPT = 0.25
HELD_OCTAVES = 3.0  # farther still, no call exceeds the most of its law
HIDDEN_AT_MOST = 0.9  # of a call's time can be the host's
# The share of the shortest call's time that a queue hides. The device itself takes the remaining share to
# start a kernel, to end it and to wait for the one before. 35 networks on five GPUs are predicted best with
# 0.6 to 0.7.
HIDDEN_SHARE = 2 / 3
SHORTEST_S = 1e-9  # of a call whose watts are asked
LONGEST_S, MOST_W = 1e30, 1e9  # no device reaches a prediction beyond these
WIDEST = 100.0  # of log(measured / predicted): bounds a factor of e^100 away are meaningless
ONLY = ("only there", "only here")  # ends of words on vector extensions (`devices.host.unlike`)
NOISY = 0.25  # median distance of a layer's quartiles, over its lower one, from which on a device was noisy
NOT, NEAR, EXACT = range(3)  # how well a predictor knows a layer; near: from other code of its kind
CHUNK = 8192  # rows described at a time, so that they stay in the cache


@dataclass(frozen=True)
class Predictor:
    """Regressors and bounds, trained on one device, or on several relative to their peaks."""

    device: str
    hardware: Hardware | None  # None: trained on several devices, `on` chooses the one to predict
    regressors: Mapping[Key, Regressor]
    rooflines: Mapping[str, Roofline]  # by dtype
    dataset: Mapping[str, Any]  # name, software, rows: the source of the measurements
    learner: str = "hybrid"
    name: str = ""
    sentinel_s: float | None = None  # the sentinel's time that all runtimes refer to
    power: Mapping[Key, Regressor] | None = None
    trained_on: int = 1  # devices; of several, its terms are relative to their peaks
    system: float = 0.0  # standard deviation of what a network's layers share in log(measured / predicted)
    dispatch: Dispatch | None = None  # the host's part, where layers were timed without it
    speed: NetworkSpeed | None = None  # None: networks follow the machine's speed as their layers do
    resident: float = 0.0  # share by which a network of hardly any weights takes longer than its layers say
    others: tuple[Predictor, ...] = ()  # for the same device, used in order for layers unknown to this one
    answers: tuple[str, ...] = ()  # dtypes of the device that are predicted even without trained data
    carried: bool = False  # whether it has no rows of its device
    law: Law | None = None  # what answers for calls that neither it nor the others know; None: a roofline
    engines: bool = True  # whether engines' kernels run, which predictors of related devices were trained on
    twin: Twin | None = None  # the device that it was trained on, whose chip its device has
    sheet: DeviceSpec | None = None  # a user's own, of the device that it was trained on
    setting: Setting | None = None  # its power limit and clock; None: as it was measured

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """Floating types that it predicts: its training data's; for a named device, those the device has."""
        return self.answers or self.trained_dtypes

    @cached_property
    def trained_dtypes(self) -> tuple[str, ...]:
        """Floating types that it was trained on, by its products if it has any: casts alone do not count."""
        trained = [key for key in self.regressors if key[1] not in (INTEGER, keys.ANY)]
        products = [key for key in trained if KINDS[key[0]].multiplies]
        return tuple(dict.fromkeys(key[1] for key in products or trained))

    @cached_property
    def platform(self) -> Platform:
        """The family of its device, or of its devices: how a network is held and run there."""
        return self.trained_platform if self.sheet is None else platform_of(self.sheet.hardware())

    def is_of(self, spec: DeviceSpec) -> bool:
        """Whether it was trained on the one device that a sheet is of, by their names."""
        names = map(folded, (spec.name, spec.slug, *spec.aliases))
        return self.hardware is not None and folded(self.device) in names

    @cached_property
    def trained_platform(self) -> Platform:
        """The family by which layers were described when it was trained."""
        if self.hardware is not None:
            return platform_of(self.hardware)
        return platform_named(platform_name(self.dataset))

    @property
    def clock(self) -> float:
        """The clock of its cores, relative to the highest."""
        return 1.0 if self.setting is None else self.setting.clock

    @property
    def view(self) -> View:
        """How layers are described to its regressors."""
        return self.trained_platform.view(self.trained_on)

    @cached_property
    def phases(self) -> tuple[str, ...]:
        """Phases that it or one of the others was trained on; forward where there is no training data."""
        trained = [key[2] for one in (self, *self.others) for key in one.regressors]
        return tuple(dict.fromkeys(trained if trained or not self.answers else [FORWARD]))

    @cached_property
    def _in_phases(self) -> frozenset[tuple[str, str]]:
        return frozenset((key[0], key[2]) for key in self.regressors)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Layer kinds that it was trained on."""
        return tuple(dict.fromkeys(key[0] for key in self.regressors))

    def in_cache(self, found: Estimates, counts: Any) -> Any:
        """Factor on the time of networks, `counts` [networks, layers] or [layers], by their cached weights.

        Layers are timed with cold weights; a small network's stay in the last-level cache between passes.
        """
        if not self.resident or self.hardware is None:
            return np.ones(counts.shape[:-1])
        return 1 + self.resident * resident_share(counts @ found.held_bytes, self.hardware)

    def estimate_network(self, layers: Sequence[Layer], counts: Array) -> Estimates:
        """Each layer's time in a network; `counts` [layers]: how often it calls each."""
        found = self.estimate(layers)
        return found.times(float(self.in_cache(found, counts)))

    def slowdown(self, found: Estimates, pace: Pace | None, counts: Array | float = 1.0) -> float:
        """Factor on the usual time of the calls (`counts` of each) at a pace; 1 where that is not known."""
        if pace is None:
            return 1.0
        if self.speed is not None:
            return self.speed.slowdown(pace)
        return found.slowdown(pace.sentinel_s / self.sentinel_s, counts) if self.sentinel_s else 1.0

    def over(self, pace: Pace) -> float | None:
        """The sentinel's time over its usual time next to networks; None where not known."""
        return self.speed.over(pace) if self.speed is not None else None

    def too_slow(self, pace: Pace) -> float | None:
        """The same, where it is more than for 95 % of the networks that it was trained on."""
        times, most = self.over(pace), self.speed and self.speed.slowest
        return times if times and most and times > most else None

    def unlike(self, cpu: Cpu) -> list[str]:
        """How the device that it was trained on differs from this CPU, as text."""
        return unlike({**(self.dataset.get("hardware") or {}), "name": self.device}, cpu.to_json())

    def knows(self, kind: str, phase: str) -> bool:
        """Whether it has a regressor of the kind in that phase."""
        return any((kind, phase) in one._in_phases for one in (self, *self.others))

    def origins(self, found: Estimates) -> Array:
        """[layers], how the device's time of each is known: one of ORIGINS, or by a named board."""
        starts = np.cumsum([0, *(len(one.regressors) for one in (self, *self.others))])
        owner = np.searchsorted(starts, found.regressor, side="right") - 1
        said = np.array([one._origin for one in (self, *self.others)])[np.clip(owner, 0, len(self.others))]
        by_bytes, borrowed = np.isin(found.regressor, (BY_BYTES, BY_WEIGHTS)), BASES.index(BORROWED)
        return np.select(
            [
                found.regressor == BY_ROOFLINE,
                by_bytes,
                found.regressor == BY_LAW,
                found.basis_code == borrowed,
            ],
            [BARE, BY_ITS_BYTES, BY_NETWORKS if self.law and self.law.taught else BY_PHYSICS, LIKE],
            said,
        )

    @property
    def _origin(self) -> str:
        """How the times of its own regressors are known."""
        if self.twin is not None:
            return self.twin.origin
        return CARRIED_BY if self.carried else TRAINED_HERE

    def origin(self, found: Estimates, seconds: Array) -> str:
        """How the device's times are known, as text: by shares of `seconds` [layers], of a named device."""
        if not self.answers:
            return ""
        label, total = self.origins(found), max(float(np.sum(seconds)), 1e-30)
        return in_words({name: taken / total for name, taken in by_origin(label, seconds).items()})

    def check(self, dtype: str, phase: str) -> None:
        """Raise PredictorError unless it knows the dtype, the phase and its device."""
        if self.answers and dtype not in self.dtypes:
            raise PredictorError(f"{self.device} has no {dtype}: {instead_of(dtype, self.answers)}")
        passes = [phase for phase in self.phases if phase in (FORWARD, BACKWARD)]
        for what, asked, has in (("dtype", dtype, self.dtypes), ("phase", phase, passes)):
            if asked not in has:
                measurable = asked in (*MEASURABLE, FORWARD, BACKWARD)
                more = f", or collect-data --{what} {asked}" if measurable else ""
                way = f"{', '.join(has)}; choose one of them" if has else "none; choose another predictor"
                raise PredictorError(
                    f"predictor {self.name or self.device!r} was not trained on {what} {asked!r}: "
                    f"it has {way}{more}"
                )
        hardware = self._known_hardware()
        if self.view.pooled and peaks_of(hardware.peak_flops_per_s, dtype) is None:
            raise PredictorError(
                f"{self.device}: its spec sheet has no peak for {dtype}, which a predictor of several "
                f"devices needs; add it, or choose one of {', '.join(hardware.peak_flops_per_s)}"
            )

    def on(self, hardware: Hardware, device: str) -> Predictor:
        """The same for another device, from its peaks.

        Raises:
            PredictorError: it was trained on one device, or on devices of another class; or its
                peaks are missing.
        """
        if not self.view.pooled:
            raise PredictorError(
                f"predictor {self.name or self.device!r} was trained on one device and works only for it; "
                "train one from datasets of several devices, or calibrate this one on the new device"
            )
        other, mine = platform_of(hardware), platform_named(platform_name(self.dataset, hardware.platform))
        if other.family != mine.family:
            raise PredictorError(
                f"{device}: is {other.called}, predictor {self.name or self.device!r} was trained on "
                f"{mine.plural}; choose a device of that class"
            )
        known = {dtype for _, dtype, _, _ in self.regressors if dtype not in (INTEGER, keys.ANY)}
        anyhow = any(key[1] == keys.ANY for key in self.regressors)
        if hardware.memory_bytes_per_s <= 1 or not (anyhow or known & set(hardware.peak_flops_per_s)):
            raise PredictorError(
                f"{device}: its spec sheet has no peak for {', '.join(sorted(known))}, or no memory "
                "bandwidth; a predictor of several devices needs them"
            )
        memory, peaks = hardware.memory_bytes_per_s, hardware.peak_flops_per_s
        roofs = {dtype: Roofline(peak, memory, peak) for dtype, peak in peaks.items()}
        trained_on = {name: hardware_of(said) for name, said in (self.dataset.get("devices") or {}).items()}
        regressors = {}
        for key, one in self.regressors.items():
            factor = one.factor * level(key, one, trained_on, device, hardware)
            # which of them a layer was measured on is not known
            regressors[key] = replace(one, measured=None, factor=factor)
        return replace(
            self,
            hardware=hardware,
            device=device,
            rooflines=roofs,
            regressors=regressors,
            carried=device not in trained_on,
            dispatch=self.dispatch and self.dispatch.of_another_host(),
            answers=floats_of(peaks) if anyhow else (),
        )

    def of_torch(self) -> Predictor:
        """The same where torch's own kernels run: the law knows them better than tables of engines do."""
        return replace(self, engines=False)

    def _known_hardware(self) -> Hardware:
        if self.hardware is None:
            device = next(iter(self.dataset.get("devices") or {}), "nvidia-l4")
            raise PredictorError(
                f"predictor {self.name!r} serves several devices ({self.device}); say which: "
                f"{self.name or 'NAME'}@{device} (devices --specs lists more names)"
            )
        return self.hardware

    def estimate(self, layers: Sequence[Layer]) -> Estimates:
        """Each layer's time; equal layers are computed once."""
        return self.estimate_each([layers])[0]

    def estimate_each(self, networks: Sequence[Sequence[Layer]]) -> list[Estimates]:
        """Times of each network's layers; layers that several networks have are computed once."""
        at: dict[Layer, int] = {}
        orders = [np.array([at.setdefault(layer, len(at)) for layer in one], dtype=int) for one in networks]
        kinds: dict[str, list[int]] = {}
        for i, layer in enumerate(at):
            kinds.setdefault(layer.kind, []).append(i)
        different = list(at)
        tables = (columns_of(KINDS[kind], [different[i] for i in index]) for kind, index in kinds.items())
        indices = map(np.array, kinds.values())
        found = _joined(len(at), zip(indices, map(self.estimate_columns, tables), strict=True))
        return [found.at(order) for order in orders]

    def predict_many(self, networks: Sequence[Sequence[Layer]]) -> Totals:
        """Totals of networks given as their layers in order; each distinct layer is predicted once."""
        from scipy.sparse import coo_array

        at: dict[Layer, int] = {}
        columns = [at.setdefault(layer, len(at)) for network in networks for layer in network]
        rows = np.repeat(np.arange(len(networks)), [len(network) for network in networks])
        counts = coo_array((np.ones(len(columns)), (rows, columns)), shape=(len(networks), len(at))).tocsr()
        estimates = self.estimate(list(at))
        totals = estimates.totals(counts, self.system).times(self.in_cache(estimates, counts))
        if self.dispatch is None:
            return totals
        dispatch_s = self.dispatch.seconds(list(at))
        ends, stop = np.empty((len(networks), 3)), 0
        for i, network in enumerate(networks):
            calls = columns[stop : (stop := stop + len(network))]
            low, high = (float(bound[i] / max(totals.value[i], 1e-30)) for bound in (totals.low, totals.high))
            ends[i] = self.dispatch.ends_s(dispatch_s[calls], estimates.runtime_s[calls], low, high)
        value, lows, highs = ends.T
        deviation = np.log(np.maximum(highs, 1e-30) / np.maximum(lows, 1e-30)) / 2 / NINETY
        return Totals(value, lows, highs, deviation)

    def estimate_columns(self, columns: Layer) -> Estimates:
        """Each row's time, of a table's columns (layers.as_columns), by the first to know such calls.

        Where none does, the first that knows similar calls estimates them, else a roofline.
        """
        found = self._by_fastest(columns)
        found = found if self.law is None else self._by_bits(columns, found)
        if self.setting is None:
            return found
        return as_set(found, columns, self._known_hardware(), self.device, self.setting)

    def _by_bits(self, columns: Layer, found: Estimates) -> Estimates:
        """The estimates, by which products take no longer in fewer bits: the better known type counts.

        Where both have rows alike, it is the wider one.
        """
        free, mine = (found.basis_code == BASES.index(MEASURED)) | (found.runtime_s <= 0), None
        if not columns.multiplies:  # trained passes over memory know that already
            free |= found.regressor != BY_LAW
        if free.all():
            return found
        for index, other, wider in laws.other_types(columns, self._known_hardware()):
            mine = self._standing(columns) if mine is None else mine
            theirs, here = self._standing(other), mine[index]
            better = (theirs > here) | wider & (theirs == here) & (here > 0)
            asked = np.flatnonzero(better & ~free[index])
            if len(asked):
                instead = self._by_fastest(take(other, asked))
                rows = index[asked]
                held = (found.runtime_s[rows] > instead.runtime_s) == wider
                by_type = replace(instead, basis_code=np.full(len(rows), BASES.index(HELD)))
                found = found.with_rows(rows[held], by_type.at(held))
        return found

    def _standing(self, columns: Layer) -> Array:
        """How well each row's calls are known, [rows]: 2 by its chip's own rows, 1 by others', 0 not."""
        first, known = self._first(columns)
        carried = np.array([one.carried and one.twin is None for one in (self, *self.others)])
        return np.where(known == EXACT, np.where(carried[first], 1, 2), 0)

    def _by_fastest(self, columns: Layer) -> Estimates:
        """Each row's time by the code that runs: where other code may, the faster of the trained ones."""
        found, instead = self._by_first(columns), columns.instead()
        if instead is None:
            return found
        other = self._by_first(instead)
        mine, others = (self._first(one)[1] == EXACT for one in (columns, instead))
        faster = (others & ~mine) | ((others == mine) & (other.runtime_s < found.runtime_s))
        return found.where(~faster, other)

    def _by_first(self, columns: Layer) -> Estimates:
        """Each row's time by the first that knows its calls."""
        if not self.others:
            return self._estimate(columns)
        first, _ = self._first(columns)
        start, parts = 0, []
        for i, one in enumerate((self, *self.others)):
            index = np.flatnonzero(first == i)
            if len(index):
                found = one._estimate(take(columns, index), passes=self)
                numbers = np.where(found.regressor < 0, found.regressor, found.regressor + start)
                parts.append((index, replace(found, regressor=numbers)))
            start += len(one.regressors)
        return _joined(len(columns.dtype), parts)

    def _first(self, columns: Layer) -> tuple[Array, Array]:
        """(Which of it and the others knows each row best, and how well), each [rows]."""
        asked = (self, *self.others)
        known = np.stack([one._knows(columns, lawful=self.law is not None) for one in asked])
        known[[one._yields(columns, self) for one in asked]] = NOT
        return np.argmax(known, axis=0), np.max(known, axis=0)

    def _yields(self, columns: Layer, asked: Predictor) -> bool:
        """Whether the asked law knows such calls better: torch's, where this was trained on engines'.

        Tables repeat a product alone: on a B200 at twice the rate that long runs of networks sustain.
        """
        law, tables = asked.law, self.sentinel_s is None or self.twin is not None
        if law is None or asked.engines or not law.knows(columns) or np.any(columns.quantised()):
            return False
        if law.timed and tables and isinstance(columns, TiledProduct):
            return True
        return self.carried and (self.twin is None or law.taught)

    def _knows(self, columns: Layer, *, lawful: bool) -> Array:
        """How well it knows each row: EXACT, NEAR or NOT; a law knows better than other code of the kind."""
        known = np.zeros(len(columns.dtype), dtype=int)
        for key, index in self._by_key(columns):
            near, exact = self.regressor_of(key)
            near = near if not lawful or unquantised(key[3]) != key[3] else None
            known[index] = EXACT if exact else NOT if near is None else NEAR
        return known

    def _by_key(self, columns: Layer) -> Iterator[tuple[Key, Array]]:
        """The rows of each key."""
        labels = (columns.dtype, measured_phase(columns.phase), self.view.group(columns))
        full = [np.broadcast_to(np.asarray(label), (len(columns.dtype),)) for label in labels]
        for (dtype, phase, group), index in rows_by(*full):
            yield (columns.kind, dtype, phase, group), index

    def _estimate(self, columns: Layer, passes: Predictor | None = None) -> Estimates:
        """Each row's time by its own regressors; `passes` says what one over memory takes."""
        return _joined(
            len(columns.dtype),
            (
                (some, self._group(take(columns, some), key, passes or self))
                for key, index in self._by_key(columns)
                for some in np.split(index, range(CHUNK, len(index), CHUNK))
            ),
        )

    def _group(self, columns: Layer, key: Key, passes: Predictor) -> Estimates:
        found, exact = self.regressor_of(key)
        exact = exact and not self._yields(columns, passes)
        if not exact and is_weight_only(columns):
            return weights_law(columns, passes.estimate_columns, self.roofline(key[1]))
        rows, law = len(columns.dtype), passes.law
        # in training, gradients and what the backward pass needs leave no weights in the cache
        held = np.full(rows, columns.bytes().weights if key[2] == FORWARD else LARGEST, dtype=float)
        if (
            law is not None
            and not exact
            and unquantised(key[3]) == key[3]
            and columns.bound_s(law.hardware) is None
        ):
            t = seconds_by_law(columns, law)
            return by_law(columns, law, held, self._power(columns, key, np.maximum(t, SHORTEST_S)), t)
        if found is None:
            works = np.asarray(columns.flops() + sum(columns.bytes()) > 0)  # views do not, and take nothing
            t, hidden, by_bytes = self._untrained(columns, key[1], passes)
            power = self._power(columns, key, np.maximum(t * works, SHORTEST_S))
            return Estimates.untrained(t * works, hidden * works, held, np.full(rows, by_bytes), power)
        measured_as: Any = np.full(rows, key[2])
        columns = replace(columns, phase=measured_as)
        here, regressor = self._known_hardware(), self.regressors[found]
        hardware = here if self.twin is None else self.twin.hardware
        alike = exact or unquantised(found[3]) != found[3]  # or quantised in another format
        near = columns if alike or not np.any(columns.quantised()) else of_one_type(columns)
        # a pass over memory takes no longer over fewer bytes
        wider = [] if law is None or found[1] != keys.ANY else laws.in_more_bits(near, here)
        t, outside, known = (
            some.reshape(1 + len(wider), rows)
            for some in self._trained(found, stacked(near, *wider), hardware)
        )
        if near is not columns:  # the roofline says what operands of other types change
            t = t * self._roofline(columns, key[1]) / self._roofline(near, key[1])
        unsure = np.zeros(rows)
        if self.twin is not None:
            carried = [
                self.twin.carried(in_tiles(one)[0], seconds, here)
                for one, seconds in zip((columns, *wider), t, strict=True)
            ]
            t, unsure = np.stack([seconds for seconds, _ in carried]), carried[0][1]
        same_chip = self.twin is None or self.twin.differs_in_links(
            here
        )  # what was measured was measured here
        measured, outside = exact & known[0] & same_chip, outside[0]
        t = np.where(known[0] & same_chip, t[0], np.min(t, axis=0))
        of_sums = regressor.of_sums and not self.view.pooled  # no call's own time: terms of networks' totals
        least, most = 0.0 if of_sums else self.view.least_s(columns, here), np.full(rows, np.inf)
        if self.twin is None and law is not None and self.carried and np.any(outside > 0):
            t = faded(t, law.seconds(columns), outside)
        if law is not None:
            free = measured | self._warm(columns, regressor) & (outside <= 0)
            free &= same_chip
            least = np.where(free, least, np.maximum(least, laws.least_s(columns, here)))
            most = laws.most_s(columns, here)
            if exact and (self.twin is not None or not self.carried):
                most = most * _let(t / most, outside)
        free_s, t = t, np.clip(t, least, np.maximum(least, most))
        spread = regressor.spread if exact else regressor.spread.widened(WIDE)
        low, high = _bounds(spread, t, outside, unsure)
        far = outside > EXTRAPOLATION_OCTAVES
        inside = CARRIED if self.carried else IN_RANGE
        code = np.select(
            [np.full(rows, not exact), measured, t != free_s, far],
            [BASES.index(basis) for basis in (BORROWED, MEASURED, HELD, EXTRAPOLATED)],
            BASES.index(inside),
        )
        return Estimates(
            t,
            np.maximum(t * np.exp(low), least),
            t * np.exp(high),
            np.minimum(np.hypot(spread.shared(t, outside), unsure), WIDEST),
            np.minimum(HIDDEN_SHARE * regressor.launch_s, HIDDEN_AT_MOST * t),
            held,
            np.full(rows, list(self.regressors).index(found)),
            np.full(rows, regressor.exponent),
            code,
            *self._power(columns, found, t),
        )

    def _warm(self, columns: Layer, regressor: Regressor) -> bool:
        """Whether its rows may have found weights in a cache: of a table that lists none of them.

        A cache of keys is read once in each step, so no table lets attention beat its memory.
        """
        return regressor.unlisted and not self.view.pooled and "key_length" not in columns.field_names()

    def _trained(self, key: Key, columns: Layer, hardware: Hardware) -> tuple[Array, Array, Array]:
        """(Seconds, octaves outside the box, whether it was fitted on the very call), each [rows].

        Kernels of a tile share a residual. Where tables have a size at powers of 2 alone, times between run
        straight.
        """
        regressor = self.regressors[key]
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
        between = columns.between(~measured)
        if between is not None:
            rows, share, *ends = between
            low, high = (self._trained(key, end, hardware)[0] for end in ends)
            low = np.minimum(low, high)
            t[rows] = low + share * (high - low)
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
                f"predictor {self.name or self.device!r} gives {said} for a layer of {' '.join(key)}, "
                "which is impossible; train it again with train-predictor"
            )
        return value, outside

    def check_formulas(self) -> None:
        """Raise PredictorError where a regressor has terms, axes or features that its kind does not have."""
        hardware = self.hardware or Hardware(platform=self.trained_platform.name)
        example = functools.cache(functools.partial(self._example, hardware))
        for some, of_power in ((self.regressors, False), (self.power or {}, True)):
            for key, regressor in some.items():
                problem = example(KINDS[key[0]], of_power)
                self._check(key, regressor, problem)
                missing = sorted(problem.axes.keys() - regressor.box.keys())
                if missing:  # without it, a layer far away along it would not count as outside
                    raise PredictorError(
                        f"predictor {self.name or self.device!r}: the box of {' '.join(key)} lacks "
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
                f"predictor {self.name or self.device!r} was trained by a version that described {key[0]} "
                f"otherwise ({', '.join(dict.fromkeys(gone)) or 'other features'}); train it again with "
                "train-predictor"
            )

    def _power(self, columns: Layer, key: Key, runtime_s: Array) -> Powers:
        """Watts with 90 % bounds, from idle to the limit; by the kind's regressor where the key has none.

        Where neither exists, the law of the kind of work says them (`watts.py`).
        """
        known, hardware = self.power or {}, self.hardware or Hardware()
        name = key if key in known else whole_kind(key[0])
        regressor = known.get(name)
        if regressor is None:
            return *law_power(columns, hardware, runtime_s, self.device), np.zeros(len(runtime_s))
        problem = describe_power(columns, hardware, runtime_s)
        power, outside = self._predict(name, regressor, problem, MOST_W)
        low, high = _bounds(regressor.spread, power, outside)
        floor, ceiling = hardware.idle_w or 0.0, hardware.board_w or np.inf
        watts = power, power * np.exp(low), power * np.exp(high)
        value, low, high = (np.clip(bound, floor, ceiling) for bound in watts)
        return value, low, high, np.ones(len(runtime_s))

    def regressor_of(self, key: Key) -> tuple[Key | None, bool]:
        """The regressor of a key and whether it was trained on such layers, else the nearest.

        Dtypes other than floats count as floats where the group has no data of them; repeated calls as single
        ones; a group as one that pools it, or as its largest sibling, unless it stands alone. A quantised
        group is near to the plain one.
        """
        kind, dtype, phase, group = key
        dtypes = [dtype]
        if dtype not in FLOATING:
            floats = self.trained_dtypes
            dtypes = [INTEGER, "float32" if "float32" in floats else next(iter(floats), INTEGER)]
        dtypes += [*self._same_width(dtype), keys.ANY]
        for dtype in dtypes:
            for name in (group,) if unquantised(once(group)) != once(group) else (group, keys.ALL):
                if (kind, dtype, phase, name) in self.regressors:
                    return (kind, dtype, phase, name), True
            alike = (k for k in self.regressors if k[:3] == (kind, dtype, phase))
            pooled = next((k for k in alike if group in groups_of(k)), None)
            if pooled:
                return pooled, True
        if keys.stands_alone(key):
            return None, False
        if once(group) != group:
            return self.regressor_of((kind, key[1], phase, once(group)))
        if unquantised(group) != group:
            plain = unquantised(group)
            formats = [k for k in self.regressors if k[:3] == key[:3] and k[3] != unquantised(k[3]) == plain]
            if formats:
                return max(formats, key=lambda k: self.regressors[k].scores.rows), False
            return self.regressor_of((kind, key[1], phase, plain))[0], False
        by_dtype = ([k for k in self.regressors if k[:3] == (kind, d, phase)] for d in dtypes)
        siblings = next(filter(None, by_dtype), None)
        siblings = siblings or [k for k in self.regressors if (k[0], k[2], k[3]) == (kind, phase, group)]
        return max(siblings, key=lambda k: self.regressors[k].scores.rows, default=None), False

    def _same_width(self, dtype: str) -> list[str]:
        """Other floats of the same width: their kernels take as long, at the same peak or relative to it."""
        if not self.view.kernels or dtype not in FLOATING or self.hardware is None:
            return []
        entry, peaks = DTYPES[dtype], self.hardware.peak_flops_per_s
        same = (d for d in FLOATING if d != dtype and DTYPES[d].bits == entry.bits and DTYPES[d].torch == d)
        alike = [d for d in same if self.view.pooled or peaks.get(d) == peaks.get(dtype)]
        return alike if entry.torch == dtype else []

    def assumed(self, layers: Sequence[Layer]) -> tuple[str, ...]:
        """Notes on what was borrowed for calls without data, and on what is not known of the device."""
        different = list(dict.fromkeys(layers))
        texts = []
        for key, near in dict.fromkeys(self._near(different)):
            borrowed = f"borrowed from {keys.named(near)}, within a factor of {ROOFLINE_FACTOR:g}"
            texts.append(said(key) or f"no data for {keys.named(key)}: {borrowed}")
        hardware = self._known_hardware()
        texts += self._bounded(different, hardware)
        if any(layer.multiplies for layer in different):
            unknown = list(self.view.unknown(hardware))
            if unknown:
                texts.append(
                    f"no {' and no '.join(unknown)} is known for {self.device}: its products are assumed to "
                    "reach their peak, which a power limit may prevent"
                )
        wider = next((one.dataset["wider_for"] for one in self.others if "wider_for" in one.dataset), None)
        if wider := self.dataset.get("wider_for", wider):
            texts.append(f"carried times are not from devices by {wider}; their bounds are wider")
        told = ("name ", "cores ")  # by the warning
        unlike = [text for text in self.dataset.get("unlike") or () if not text.startswith(told)]
        if apart := [text for text in unlike if not text.endswith(ONLY)]:
            texts.append(f"the predictor's machine differs from this one: {'; '.join(apart)}")
        return tuple(texts)

    def _bounded(self, layers: Sequence[Layer], hardware: Hardware) -> Iterator[str]:
        """As text, the formulas for calls without data that neither memory nor FLOP bounds."""
        said: dict[str, list[str]] = {}
        for layer in layers:
            by = layer.bound_by(hardware)
            if not by:
                continue
            columns = [columns_of(type(layer), [one]) for one in (layer, layer.instead()) if one is not None]
            if all(self._first(one)[1].max() < EXACT for one in columns):
                said.setdefault(by, []).append(f"{layer.kind} {layer.group()}")
        for by, names in said.items():
            missing = ", ".join(dict.fromkeys(names))
            yield f"no data for {missing}: assumed from {by}, within a factor of {ROOFLINE_FACTOR:g}"

    def foreign(self) -> tuple[str, ...]:
        """Warnings: why the device may differ from all training devices; bounds do not include that."""
        texts = []
        if unlike := self.dataset.get("unlike"):
            cores = self.hardware.cores if self.hardware is not None else 0
            said = f"no predictor for this machine ({self.dataset.get('here') or 'another CPU'})"
            if not any(text.startswith(("name ", "cores ")) for text in unlike):
                flags = all(text.endswith(ONLY) for text in unlike)
                said = f"this machine has other {'vector extensions' if flags else 'caches'}"
            way = f"Fix: neuralpower calibrate --from {self.name}"
            texts.append(f"{said}; values are for {self.device}, {cores:g} cores. {way}")
        texts += [f"skipped: {reason}" for reason in self.dataset.get("left_out") or ()]
        vendor = self.dataset.get("unknown_vendor")
        if vendor:
            texts.append(f"no device by {vendor} was measured; bounds may be too narrow")
        spread = self.dataset.get("spread") or 0.0
        if spread > NOISY:
            texts.append(f"the measuring machine was noisy: half of a layer's runs lie {spread:.0%} apart")
        return tuple(texts)

    def _near(self, layers: Sequence[Layer]) -> Iterator[tuple[Key, Key]]:
        """(A key without trained data, the key that stands in for it), for the layers with such a key."""
        asked = (self, *self.others)
        for kind in dict.fromkeys(layer.kind for layer in layers):
            columns = columns_of(KINDS[kind], [layer for layer in layers if layer.kind == kind])
            first, known = self._first(columns)
            for i, one in enumerate(asked):
                index = np.flatnonzero((first == i) & (known == NEAR))
                for key, _ in one._by_key(take(columns, index)) if len(index) else ():
                    near = one.regressor_of(key)[0]
                    if near is not None:
                        yield key, near

    def _untrained(self, columns: Layer, dtype: str, passes: Predictor) -> tuple[Array, Array, bool]:
        """(Time, the part that a queue hides, each [rows]; whether its bytes set it) of an untrained kind.

        Where the platform says so, copies, sums and look-ups take at least as long as a pass over their
        bytes.
        """
        t = self._roofline(columns, dtype)
        like = self.trained_platform.like
        if columns.multiplies:
            t = np.maximum(t, self.trained_platform.step_s * (np.asarray(columns.launches()) - 1))
        if columns.multiplies or like is None or columns.bound_s(self.hardware or Hardware()) is not None:
            return t, np.zeros(len(t)), False
        size = np.broadcast_to(np.asarray(sum(columns.bytes())), t.shape)
        elements = size / (2 * DTYPES["float32"].itemsize)
        kind, given = KINDS[like[0]], {"function": "add", "operands": 1, "broadcast": False}
        fields: dict[str, Any] = {name: [value] * len(t) for name, value in (kind.defaults() | given).items()}
        fields["elements"] = np.maximum(elements, 1)
        passed = as_columns(kind, fields)
        if passes._first(passed)[1].min() < EXACT:
            return t, np.zeros(len(t)), False
        found = passes.estimate_columns(passed)
        return np.maximum(t, found.runtime_s), found.hidden_s, True

    def _roofline(self, columns: Layer, dtype: str) -> Array:
        t = columns.bound_s(self.hardware or Hardware())
        if t is None:
            t = self.roofline(dtype).seconds(columns.flops(), sum(columns.bytes()))
            t += self.trained_platform.launch_s
        return np.broadcast_to(np.asarray(t, dtype=np.float64), (len(columns.dtype),))

    def roofline(self, dtype: str) -> Roofline:
        """The roofline of the dtype, else of the first one."""
        return self.rooflines.get(dtype) or next(iter(self.rooflines.values()))

    def formula(self, key: Key) -> str:
        """The base of one regressor in plain text; dimensions are the kind's fields."""
        r = self.regressors[key]
        parts = [
            f"{weight * r.factor:.4g}" + ("" if str(term) == "1" else f" {term}")
            for term, weight in zip(r.terms, r.weights, strict=True)
        ]
        kind, dtype, phase, group = key
        text = f"{kind}[{group}, {dtype}, {phase}] seconds = " + " + ".join(parts)
        if r.alignment:
            saved = " + ".join(f"{slope:.4g} {name}" for name, slope in r.alignment.slopes.items())
            text += f", times exp(-(1 - ({r.alignment.floor * r.factor:.4g} / seconds)^4) ({saved}))"
        if r.least > sum(weight for term, weight in zip(r.terms, r.weights, strict=True) if str(term) == "1"):
            text += f", at least {r.least * r.factor:.4g}"
        if r.short:
            text += f", {'plus' if r.short > 0 else 'less'} {abs(r.short) / r.factor:.4g} of their first "
            text += f"{r.factor * r.short_s * 1e6:.4g} us"
        return text


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


def resident_share(held_bytes: Any, hardware: Hardware) -> Any:
    """Free share of the cache's part for weights: 1 without weights, 0 where they fill it."""
    return np.maximum(1 - held_bytes / max(KEPT * hardware.llc_bytes, 1), 0.0)


def _joined(rows: int, parts: Iterable[tuple[Array, Estimates]]) -> Estimates:
    """Estimates of `rows` layers from parts, each with the rows that it is of."""
    whole = {"regressor", "basis_code"}
    found = {name: np.empty(rows, int if name in whole else float) for name in Estimates.__dataclass_fields__}
    for index, part in parts:
        for name, values in found.items():
            values[index] = getattr(part, name)
    return Estimates(**found)
