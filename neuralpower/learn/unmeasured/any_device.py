"""A predictor for every device with a spec sheet, in each dtype that it has, from the best data there is.

Each layer uses the first of these that knows it: the device's own predictors, predictors of other boards of
its chip (`twins.py`), predictors trained on similar devices (scaled by the sheet's bandwidth and peaks), and
a roofline with launch overhead and wide bounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np

from neuralpower.devices.hardware import Hardware
from neuralpower.devices.names import matching
from neuralpower.devices.spec import (
    DeviceSpec,
    chips_of_specs,
    find_spec,
    known_spec,
    known_specs,
    labels_of_specs,
    specs_of,
)
from neuralpower.dtypes import floats_of, full_name
from neuralpower.errors import InputError
from neuralpower.layers.base import FORWARD
from neuralpower.learn.estimates import Roofline
from neuralpower.learn.files.predictor_files import known_predictors, read_predictor, readable
from neuralpower.learn.keys import Key
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.regressor import NINETY
from neuralpower.learn.unmeasured.prior import Law
from neuralpower.learn.unmeasured.prior_files import shipped_prior
from neuralpower.learn.unmeasured.twins import ROUNDED, Twin, completed, octaves_apart, rounded_alike
from neuralpower.platforms import platform_of

POOLED = "nvidia"  # the predictor of similar devices, trained on several of NVIDIA's GPUs
MAKER = "NVIDIA"
# Standard deviation that a device of another maker adds to log(measured / predicted): a factor of 2 at the
# 90 % bounds.
FOREIGN = float(np.log(2.0)) / NINETY
# Shares of a sheet's peak and bandwidth that a roofline takes to be reached: passes over memory reach 73 to
# 92 % on NVIDIA's GPUs of 2016 to 2020; that of the peak is assumed. Bounds are a factor of 3.
REACHED_PEAK, REACHED_BANDWIDTH = 0.65, 0.8


def for_device(spec: DeviceSpec, dtype: str | None = None) -> Predictor:
    """The predictor of a device by its sheet, which answers for every kind of layer in the dtypes it has.

    `dtype`: the one to predict; None: `Predictor.check` refuses it later.

    Raises:
        PredictorError: the device lacks the dtype; the text names the dtype that it would run as.
    """
    found = _composed(spec)
    if dtype is not None:
        found.check(full_name(dtype), FORWARD)
    return found


def _composed(spec: DeviceSpec) -> Predictor:
    """One predictor from the device's own, its chip's, similar devices' and a roofline."""
    own, moved, refused = _own(spec)
    twins = _twins(spec)
    asked = [*own, *twins, *_similar(spec)]
    has = floats_of(spec.peak_flops)
    bare = roofline_of(spec)
    first = asked[0] if asked else bare
    hardware = completed(first.hardware, spec.hardware())
    hosts = [one.dispatch for one in asked if one.dispatch is not None]
    return dataclasses.replace(
        first,
        name=spec.slug,
        device=spec.slug,
        hardware=hardware,
        others=tuple(asked[1:]),
        answers=has,
        dataset={**first.dataset, "left_out": refused},
        rooflines={**bare.rooflines, **first.rooflines},
        sheet=spec if first.is_of(spec) and spec.slug not in known_specs() else None,
        dispatch=None if _launched(first) or not hosts else hosts[0].of_another_host(),
        law=moved or _law(spec, hardware),
    )


def with_the_rest(predictor: Predictor) -> Predictor:
    """A predictor that is a law moved by networks, with all else that is known of its device."""
    spec = known_spec(predictor.device) if predictor.law is not None else None
    if spec is None:
        return predictor
    there = _composed(spec)
    about = {**there.dataset, **predictor.dataset}
    return dataclasses.replace(there, name=predictor.name, law=predictor.law, dataset=about)


def before_networks(spec: DeviceSpec) -> Predictor:
    """The predictor of a device as it is before networks of a user moved its law."""
    there = _composed(spec)
    return dataclasses.replace(there, law=_law(spec, there.hardware or spec.hardware()))


def by_prior(hardware: Hardware, device: str) -> Predictor | None:
    """The same by the hardware that a dataset states; None for CPUs, and without peaks or bandwidth."""
    bare = hardware.memory_bytes_per_s <= 1 or not hardware.peak_flops_per_s
    if bare or platform_of(hardware).family == "cpu":
        return None
    spec = known_spec(device)
    there = roofline_by(hardware, device) if spec is None else before_networks(spec)
    hardware = hardware if spec is None else completed(hardware, spec.hardware())
    law = there.law or shipped_prior().on(hardware, device)
    law = dataclasses.replace(law, hardware=hardware)
    answers = floats_of(hardware.peak_flops_per_s)
    return dataclasses.replace(there, device=device, hardware=hardware, answers=answers, law=law)


def _law(spec: DeviceSpec, hardware: Hardware) -> Law | None:
    """What physics and whole networks say of the device; None for CPUs, whose kernels others are.

    A board that nothing taught has the factors of one that differs in its links alone.
    """
    if platform_of(hardware).family == "cpu":
        return None
    prior = shipped_prior()
    names = (spec.slug, *(sheet.slug for sheet in _but_for_links(spec)))
    return prior.on(hardware, next((name for name in names if name in prior.devices), spec.slug), spec.chip)


def for_board(spec: DeviceSpec, sheet: DeviceSpec) -> Predictor:
    """What was trained on another board of the device's chip alone; raises InputError where nothing was."""
    found = [_as_twin(one, sheet, spec, ()) for one in _own(sheet)[0]]
    if not found:
        raise InputError(f"{sheet.slug} has no predictor of its own; choose another board")
    return dataclasses.replace(found[0], others=tuple(found[1:]))


def roofline_of(spec: DeviceSpec) -> Predictor:
    """A predictor without trained data: the shares of the sheet's peaks that large calls reach."""
    return roofline_by(spec.hardware(), spec.slug)


def roofline_by(hardware: Hardware, device: str) -> Predictor:
    """The same by the hardware of a device of that name."""
    memory = REACHED_BANDWIDTH * hardware.memory_bytes_per_s
    peaks = {dtype: REACHED_PEAK * peak for dtype, peak in hardware.peak_flops_per_s.items()}
    return Predictor(
        device=device,
        hardware=hardware,
        regressors={},
        rooflines={dtype: Roofline(peak, memory, peak) for dtype, peak in peaks.items()},
        dataset={},
        learner="roofline",
        name=device,
    )


def _own(spec: DeviceSpec) -> tuple[list[Predictor], Law | None, list[str]]:
    """(Predictors that were trained on the device, a law moved by networks, why others cannot be read).

    The one with its name first, then others whose names begin with it.
    """
    labels = {**labels_of_specs(), spec.slug: (spec.name, *spec.aliases)}  # a user's sheet is not shipped
    shipped = labels == labels_of_specs()
    named = [
        name
        for name in known_predictors()
        if name.startswith(f"{spec.slug}-")
        or [*(specs_of(name) if shipped else matching(name, labels))] == [spec.slug]
    ]
    found, refused = readable(sorted(named, key=lambda name: (len(name), name)))
    sheets = {name: known_spec(one.device) for name, one in found.items() if one.hardware is not None}
    own = [
        found[name]
        for name, sheet in sheets.items()
        if (sheet is not None and sheet.slug == spec.slug) or found[name].is_of(spec)
    ]
    moved = next((one.law for one in own if one.law is not None), None)
    return [one for one in own if one.law is None], moved, [str(error) for error in refused]


def _twins(spec: DeviceSpec) -> list[Predictor]:
    """Predictors that were trained on other boards of the chip, for the device; the nearest board's first.

    They omit the kinds for which the predictor of similar devices has rows of the device itself. Kinds with
    rows of a board that differs in its links alone are omitted, too, except by that board's own predictor. A
    predictor whose times include launches does not serve: the host is another one.
    """
    known, equals = known_predictors(), {board.slug for board in _but_for_links(spec)}
    rows_of: dict[str, set[Key]] = {}
    if POOLED in known:
        pooled = read_predictor(known[POOLED])
        rows_of = {slug: _levels_known(pooled, slug) for slug in (spec.slug, *equals)}
    found = []
    for sheet in _of_chip(spec):
        nearer = {spec.slug} if sheet.slug in equals else rows_of.keys()
        without = {key for slug in nearer for key in rows_of.get(slug, ())}
        found += [_as_twin(one, sheet, spec, without) for one in _own(sheet)[0] if not _launched(one)]
    return found


def _launched(trained: Predictor) -> bool:
    """Whether its times include the host's launches."""
    return any(regressor.launch_s for regressor in trained.regressors.values())


def _as_twin(trained: Predictor, sheet: DeviceSpec, spec: DeviceSpec, without: Collection[Key]) -> Predictor:
    """A predictor of a board for another one, less some keys; with watts where both have as much power."""
    there = completed(trained.hardware, sheet.hardware())
    here, twin = rounded_alike(spec.hardware(), there), Twin(sheet.name, there)
    kept = {key: one for key, one in trained.regressors.items() if key not in without}
    return dataclasses.replace(
        trained,
        device=spec.slug,
        hardware=here,
        regressors=kept,
        rooflines={dtype: twin.roofline(dtype, one, here) for dtype, one in trained.rooflines.items()},
        power=trained.power if here.limit_w == there.limit_w else None,
        carried=True,
        twin=twin,
    )


def _of_chip(spec: DeviceSpec) -> list[DeviceSpec]:
    """The other sheets of the device's chip, nearest first."""
    slugs = [slug for slug, chip in chips_of_specs().items() if chip is not None and chip == spec.chip]
    sheets = [find_spec(slug) for slug in slugs if slug != spec.slug]
    return sorted(sheets, key=lambda sheet: (octaves_apart(spec.hardware(), sheet.hardware()), sheet.slug))


def _but_for_links(spec: DeviceSpec) -> list[DeviceSpec]:
    """The sheets of them that differ in their links and in the size of their memory alone."""
    own = spec.hardware()
    return [sheet for sheet in _of_chip(spec) if octaves_apart(own, sheet.hardware()) < ROUNDED]


def _levels_known(pooled: Predictor, device: str) -> set[Key]:
    """The keys of a predictor of several devices that have rows of that one."""
    number = {name: i for i, name in enumerate(pooled.dataset.get("devices") or {})}.get(device)
    if number is None:
        return set()
    return {key for key, one in pooled.regressors.items() if number < len(one.levels) and one.levels[number]}


def _on_the_device(pooled: Predictor, spec: DeviceSpec) -> Predictor:
    """A predictor of several devices for the one.

    Where it has no level of the device, the level of a board counts that differs in its links alone. Other
    boards' levels mislead: with an A100's of 40 GB, layer norms of one of 80 GB are off by 15 % instead of 6,
    products in float32 by 28 instead of 10, as they reach other shares of another memory and power limit.
    What a chip's FLOP cost follows its first board's year.
    """
    alike = _but_for_links(spec)
    twins = [sheet for sheet in alike if _levels_known(pooled, sheet.slug)]
    years = [sheet.year for sheet in (spec, *alike) if sheet.year]
    hardware = rounded_alike(spec.hardware(), twins[0].hardware()) if twins else spec.hardware()
    hardware = dataclasses.replace(hardware, year=min(years, default=None))
    there = pooled.on(hardware, spec.slug)
    regressors, known = dict(there.regressors), _levels_known(pooled, spec.slug)
    for sheet in twins:
        of_twin = pooled.on(hardware, sheet.slug).regressors
        mine = _levels_known(pooled, sheet.slug) - known
        regressors.update({key: of_twin[key] for key in mine})
        known |= mine
    return dataclasses.replace(there, regressors=regressors)


def _similar(spec: DeviceSpec) -> Sequence[Predictor]:
    """The predictor trained on NVIDIA's GPUs, for the device; wider bounds for another maker's."""
    known = known_predictors()
    if POOLED not in known or platform_of(spec.hardware()).family == "cpu":
        return []
    # the kinds and dtypes with rows of this device are not known
    there = dataclasses.replace(_on_the_device(read_predictor(known[POOLED]), spec), carried=True)
    if spec.vendor == MAKER:
        return [there]
    wider = {
        key: dataclasses.replace(one, spread=one.spread.widened(FOREIGN))
        for key, one in there.regressors.items()
    }
    about = {**there.dataset, "wider_for": spec.vendor or "another maker"}
    return [dataclasses.replace(there, regressors=wider, dataset=about)]
