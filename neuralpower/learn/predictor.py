"""A Predictor: a regressor per kind, dtype, phase and group; layers in, seconds with 90 % bounds out.

Layers come one by one (`estimate`), as a table's columns (`estimate_columns`), as networks (`predict_many`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from neuralpower.devices.host import Cpu, unlike
from neuralpower.devices.names import folded
from neuralpower.devices.spec import DeviceSpec
from neuralpower.dtypes import MEASURABLE, floats_of, instead_of, peaks_of
from neuralpower.errors import PredictorError
from neuralpower.layers import KINDS, Hardware, Layer, columns_of
from neuralpower.layers.base import BACKWARD, FORWARD
from neuralpower.learn import keys
from neuralpower.learn.estimates import (
    Estimates,
    Roofline,
)
from neuralpower.learn.fitting.problem import Array
from neuralpower.learn.keys import INTEGER, Key, Lookup
from neuralpower.learn.launch_overhead import Dispatch
from neuralpower.learn.networks.pace import NetworkSpeed, Pace
from neuralpower.learn.pricing import Pricer, joined
from neuralpower.learn.regressor import Regressor
from neuralpower.learn.unmeasured.choosing import Choice
from neuralpower.learn.unmeasured.device_levels import level
from neuralpower.learn.unmeasured.prior import Law
from neuralpower.learn.unmeasured.twins import Twin
from neuralpower.learn.watts import Setting, as_set
from neuralpower.platforms import (
    Platform,
    View,
    hardware_of,
    platform_name,
    platform_named,
    platform_of,
)

LAW = "law"  # the learner of a predictor that is a law moved by its device's networks
# The share of the last-level cache that a network's weights may fill to stay there from pass to pass.
# Networks held out by family: an eighth to all of it predicted nearly as well, a quarter best, on a Zen 4 and
# on a Zen 5.
KEPT = 0.25


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
    engines: bool = True  # whether engines' kernels run, which predictors of similar devices were trained on
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
    def view(self) -> View:
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
                if asked == BACKWARD and FORWARD in has:
                    way += ", or --phase training, whose backward pass is estimated from forward products"
                raise PredictorError(
                    f"predictor {self.name or self.device!r} was not trained on {what} {asked!r}: "
                    f"it has {way}{more}"
                )
        hardware = self.known_hardware()
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

    def known_hardware(self) -> Hardware:
        """The device to predict; raises PredictorError where it is one of several."""
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
        found = joined(len(at), zip(indices, map(self.estimate_columns, tables), strict=True))
        return [found.at(order) for order in orders]

    def estimate_columns(self, columns: Layer) -> Estimates:
        """Each row's time, of a table's columns (layers.as_columns)."""
        found = self.choice.price(columns)
        if self.setting is None:
            return found
        return as_set(found, columns, self.known_hardware(), self.device, self.setting)

    @cached_property
    def own(self) -> Pricer:
        return Pricer(
            title=self.name or self.device,
            device=self.device,
            lookup=Lookup(self.regressors, self.trained_dtypes, self.view, self.hardware),
            rooflines=self.rooflines,
            power=self.power or {},
            platform=self.trained_platform,
            twin=self.twin,
            carried=self.carried,
            tables=self.sentinel_s is None or self.twin is not None,
            here=self.known_hardware,
        )

    @cached_property
    def choice(self) -> Choice:
        """It and the others, which price together."""
        return Choice((self.own, *(one.own for one in self.others)), self.law, self.engines)


def resident_share(held_bytes: Any, hardware: Hardware) -> Any:
    """Free share of the cache's part for weights: 1 without weights, 0 where they fill it."""
    return np.maximum(1 - held_bytes / max(KEPT * hardware.llc_bytes, 1), 0.0)
