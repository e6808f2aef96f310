"""Priors: families of chips, how far their factors lie from others', and how sure their answers are."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from neuralpower.devices.hardware import Hardware
from neuralpower.layers import KINDS, Layer, columns_of
from neuralpower.learn.law_estimates import seconds_by_law
from neuralpower.learn.prior import Doubt, Level, Prior, family_of
from neuralpower.learn.prior_fit import CALL_NOISE, Observation, fit_factors

GPU = Hardware(platform="nvidia", cores=10, peak_flops_per_s={"float32": 1e13}, memory_bytes_per_s=1e11)
MAC = dataclasses.replace(GPU, platform="apple")
USUAL, OWN = Doubt(call=0.3, network=0.1), Doubt(call=0.6, network=0.2)
LAUNCH_S = 2e-6


def add(elements: int) -> Layer:
    """Two numbers read and one written, 12 B each: 1e8 take 12 ms at 1e11 B/s."""
    return KINDS["elementwise"].from_row(
        {"dtype": "float32", "function": "add", "elements": elements, "operands": 2, "broadcast": False}
    )


@pytest.mark.parametrize(
    ("platform", "chip", "family"),
    [
        ("nvidia", "AD102", "AD1"),
        ("nvidia", "AD107", "AD1"),
        ("amd", "MI300", "MI3"),
        ("apple", None, "apple"),
        ("intel", "BMG-G21", "intel"),
    ],
)
def test_a_family_is_a_generation_of_chips_or_all_of_a_maker(
    platform: str, chip: str | None, family: str
) -> None:
    for year in (2020, 2024, None):
        assert family_of(Hardware(platform=platform, year=year), chip) == family


def prior(family: Level) -> Prior:
    return Prior("made up", LAUNCH_S, Level({}), {"apple": family}, {"m9": Level({})}, USUAL, USUAL, USUAL)


@pytest.mark.parametrize("device", ["m9", "m8"])
def test_a_family_may_be_as_unsure_as_its_own_devices_were_when_held_out(device: str) -> None:
    factors = {"elementwise memory": float(np.log(5))}
    usual, own = (prior(Level(factors, doubt=doubt)).on(MAC, device) for doubt in (None, OWN))
    assert (usual.doubt, own.doubt) == (USUAL, OWN)
    # 12 ms at the bandwidth: 60 ms by its factor, and at most 3 times as long by what other makers' need
    seconds = [
        float(seconds_by_law(columns_of(KINDS["elementwise"], [add(10**8)]), law)[0]) for law in (usual, own)
    ]
    assert seconds == pytest.approx([0.036, 0.06], rel=0.01)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_backward_pass_takes_as_long_as_the_calls_that_do_its_work(rows: int) -> None:
    law = prior(Level({})).on(MAC, "m9")
    linear = KINDS["linear"].from_row(
        {"dtype": "float32", "rows": 4096, "in_features": 1024, "out_features": 4096, "bias": False}
    )
    forward, backward = (
        seconds_by_law(columns_of(KINDS["linear"], [dataclasses.replace(linear, phase=phase)] * rows), law)
        for phase in ("forward", "backward")
    )
    assert backward == pytest.approx(2 * forward, rel=0.05)  # the gradients of the input and of the weights
    assert len(backward) == rows


def test_a_family_of_another_maker_may_lie_further_from_all_devices() -> None:
    moved = [np.log(factor) for factor in (_memory_factor(GPU), _memory_factor(MAC))]
    assert 0 < moved[0] < 0.5 * moved[1] < 0.5 * np.log(4)


def _memory_factor(hardware: Hardware) -> float:
    """Of a family, from two rows that take four times as long as their bytes, where all devices are known."""
    rows = [
        Observation("x", hardware, (add(n),), np.ones(1), 4 * 12e-11 * n, noise=CALL_NOISE)
        for n in (10**7, 10**8)
    ]
    found = fit_factors(rows, LAUNCH_S, fixed={"memory": 0.0}, levels=("family",))
    (family,) = found.values()
    return float(np.exp(family["memory"] + family["elementwise memory"]))
